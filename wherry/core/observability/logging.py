"""How does an event with its fields become a line of the log?

    log.info("model ready", extra={"model": "bert", "seconds": 3.1})

    12:00:01 INFO  model ready  model=bert seconds=3.1
    {"ts":"2026-11-21T12:00:01.123Z","level":"INFO","logger":"wherry","msg":"model ready",...}

Logs go to stderr; stdout is for results. Only the command line calls `configure`: `import wherry`
leaves a program's logging alone. Of each cause of errors, a model's or wherry's own, one traceback
a minute is logged, whichever client sent the request: no client can fill the log with them.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import msgspec

from wherry.core.values.errors import ConfigError

#: Attributes of every record; others came from `extra`.
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

#: Characters that could control a terminal, forge a log line, or turn its direction.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\u200e\u200f\u061c]")

#: The logger of a load's progress.
PROGRESS: Final = "wherry.progress"
#: Seconds between two lines of it.
PROGRESS_SECONDS: Final = 10.0

_COLOURS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "31;1"}


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD}


class HumanFormatter(logging.Formatter):
    def __init__(self, *, colour: bool = False, iso: bool = False) -> None:
        super().__init__()
        self.colour = colour
        #: Whether the time is ISO 8601 with its date.
        self.iso = iso

    def format(self, record: logging.LogRecord) -> str:
        layout = "%Y-%m-%dT%H:%M:%S%z" if self.iso else "%H:%M:%S"
        clock = time.strftime(layout, time.localtime(record.created))
        level = f"{record.levelname:<5}"
        if self.colour:
            level = f"\033[{_COLOURS.get(record.levelname, '0')}m{level}\033[0m"
        # Lines of other libraries are prefixed with the logger's name.
        own = record.name == "wherry" or record.name.startswith("wherry.")
        message = one_line(record.getMessage())
        line = f"{clock} {level} {message if own else f'{record.name}: {message}'}"
        fields = fields_of(record)
        traceback = fields.pop("traceback", "")
        if record.exc_info:
            traceback = self.formatException(record.exc_info)
        if fields:
            line += "  " + " ".join(
                f"{one_line(key)}={_text(value)}" for key, value in fields.items()
            )
        # Its last line has the exception's text, which may be a client's: no line of it must look
        # like a line of the log or control a terminal.
        below = "\n".join(f"  {one_line(part)}" for part in traceback.split("\n") if part)
        return f"{line}\n{below}" if below else line


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line = {
            "ts": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "msg": record.getMessage(),
        }
        for key, value in fields_of(record).items():
            line.setdefault(key, value)  # a field never replaces a standard key
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return _CONTROL.sub(lambda m: f"\\u{ord(m[0]):04x}", self._encoded(line))

    def _encoded(self, line: dict[str, Any]) -> str:
        try:
            return msgspec.json.encode(line, enc_hook=str).decode()
        except (ValueError, TypeError):  # a lone surrogate, a key that is not a string
            plain = {str(key): repr(value) for key, value in line.items()}
            return msgspec.json.encode(plain).decode()


def formatter_of(format: str, *, colour: bool) -> HumanFormatter | JsonFormatter:
    """Return the formatter for `format`: "human", "iso8601" or "json"."""
    if format == "json":
        return JsonFormatter()
    return HumanFormatter(colour=colour, iso=format == "iso8601")


class Severities(logging.Filter):
    """Lets through the records of a logger except for some severities."""

    def __init__(self) -> None:
        super().__init__()
        self.off: set[int] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno not in self.off


def severities() -> Severities:
    """The filter of the logger "wherry", which is added at the first call."""
    log = logging.getLogger("wherry")
    for one in log.filters:
        if isinstance(one, Severities):
            return one
    log.addFilter(made := Severities())
    return made


def configure(
    level: str = "info",
    format: str = "human",
    stream: TextIO | None = None,
    *,
    file: str | None = None,
    off: Iterable[str] = (),
) -> logging.Handler:
    """Send this program's log to `stream` (default stderr), or append it to `file`, except for
    the severities `off`. For programs, not for libraries. ConfigError if the file cannot be written
    or a severity does not exist."""
    stream = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(stream) if file is None else _to_file(file)
    colour = file is None and _colour_is_welcome(stream, os.environ)
    handler.setFormatter(formatter_of(format, colour=colour))
    handler.addFilter(FewLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    if off:
        severities().off = {_severity(one) for one in off}
    # At debug level asyncio logs each closed connection.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.captureWarnings(True)
    return handler


def _severity(name: str) -> int:
    if name not in ("info", "warning", "error"):
        raise ConfigError(f"log_off {name!r}: the severities are info, warning and error")
    return logging.getLevelNamesMapping()[name.upper()]


class LogFile(logging.FileHandler):
    """Appends to a file. If that fails (a full disk), it is reported on stderr once a minute."""

    _reports_at = 0.0

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif time.monotonic() >= self._reports_at:
            self._reports_at = time.monotonic() + 60
            print(f"log_file {self.baseFilename}: {error.strerror}", file=sys.stderr)  # noqa: T201


def _to_file(path: str) -> logging.FileHandler:
    try:
        return LogFile(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigError(f"log_file {path}: {error.strerror}") from None


def _colour_is_welcome(stream: TextIO, environ: Mapping[str, str]) -> bool:
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb" and stream.isatty()


def _text(value: object) -> str:
    """A field's value, quoted if it would be ambiguous."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if text and not _CONTROL.search(text) and not any(c in text for c in ' "='):
        return text
    escaped = one_line(text.replace("\\", "\\\\").replace('"', '\\"'))
    return f'"{escaped}"'


def one_line(text: str, keep: str = "") -> str:
    """The text with what could control a terminal escaped, except for the characters in `keep`."""
    return _CONTROL.sub(
        lambda m: m[0] if m[0] in keep else m[0].encode("unicode_escape").decode(), text
    )


#: Seconds in which one cause is logged at most once.
INTERVAL = 60.0
#: Causes counted separately; all others count as one.
MOST = 64
#: Characters of a traceback that are logged: it may quote a request.
MOST_TRACEBACK = 16 << 10


class OncePerCause:
    """Limits how often a cause is logged. Time is an argument. Safe from any thread."""

    def __init__(self, interval: float = INTERVAL, most: int = MOST) -> None:
        self.interval = interval
        self._most = most
        #: When each cause was logged, and how often it has occurred since.
        self._logged: dict[Hashable, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def came(self, cause: Hashable, now: float) -> int | None:
        """Count an occurrence. If it is to be logged, the number of occurrences since the last
        logged one; else None."""
        with self._lock:
            if cause not in self._logged and len(self._logged) >= self._most:
                self._forget(now)
                if len(self._logged) >= self._most:
                    cause = None
            logged_at, more = self._logged.get(cause, (now - self.interval, 0))
            is_due = now - logged_at >= self.interval
            self._logged[cause] = (now, 0) if is_due else (logged_at, more + 1)
        return more if is_due else None

    def unlogged(self) -> dict[Hashable, int]:
        """The number of occurrences not logged, by cause; resets them."""
        with self._lock:
            left = {cause: more for cause, (_, more) in self._logged.items() if more}
            self._logged = {cause: (logged_at, 0) for cause, (logged_at, _) in self._logged.items()}
        return left

    def _forget(self, now: float) -> None:
        self._logged = {
            cause: (logged_at, more)
            for cause, (logged_at, more) in self._logged.items()
            if more or now - logged_at < self.interval
        }


class FewLines(logging.Filter):
    """Lets a report of each model's stage through every ten seconds, and all other records."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = OncePerCause(PROGRESS_SECONDS)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name != PROGRESS:
            return True
        stage = (getattr(record, "model", ""), record.getMessage())
        return self._lines.came(stage, time.monotonic()) is not None


def cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} ... {len(text) - 2 * half} characters ... {text[-half:]}"


log = logging.getLogger("wherry")


#: One for the process, as the log is.
_errors: Final = OncePerCause()


def log_internal_error(error: BaseException, **fields: str) -> bool:
    """Log it with these fields; False if one like it was logged within a minute."""
    where = [(one.filename, one.lineno) for one in traceback.extract_tb(error.__traceback__, -1)]
    more = _errors.came((type(error), *where), time.monotonic())
    if more is None:
        return False
    if more:
        fields["like_it_before"] = str(more)
    text = "".join(traceback.format_exception(error)).rstrip()
    log.error("internal error", extra={**fields, "traceback": cut(text, MOST_TRACEBACK)})
    return True


#: Characters of an error's text that are logged: it may quote a request.
MOST_TEXT = 1 << 10

_LIBRARIES = ("/site-packages/", "/dist-packages/", "<frozen ")
_OURS = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.dirname(os.path.abspath(os.__file__)) + os.sep,
)


@dataclass(frozen=True, slots=True)
class Cause:
    """What failed, and where in the user's code."""

    error: str
    place: str = ""


class FailureLog:
    """Logs the failures of one model version. Safe from any thread."""

    def __init__(self, model: str, version: str, clock: Callable[[], float]) -> None:
        self._fields = {"model": model, "version": version}
        self._clock = clock
        self._causes = OncePerCause()

    def log(self, text: str, traceback: str, *, request_id: str = "", instance: str = "") -> None:
        cause = cause_of(traceback or text)
        more = self._causes.came(cause, self._clock())
        if more is None:
            return
        fields = {**self._fields, "instance": instance, "request_id": request_id}
        fields = {name: value for name, value in fields.items() if value}
        fields["why"] = cut(text, MOST_TEXT)
        if more:
            fields["like_it_before"] = str(more)
        if traceback:
            fields["traceback"] = cut(traceback.rstrip(), MOST_TRACEBACK)
        log.error("model failed", extra=fields)

    def close(self) -> None:
        """Log how many failures were not logged."""
        for cause, more in self._causes.unlogged().items():
            fields = {**self._fields, "like_it": str(more)}
            if isinstance(cause, Cause):
                fields |= {"why": cause.error, "place": cause.place}
            log.error("model failed repeatedly", extra=fields)


def cause_of(text: str) -> Cause:
    """The cause by the first exception of a traceback: in a chain, the original one.

    Reads only up to the exception's name: what follows it may be a client's text.
    """
    place = library = ""
    for line in _lines(text):
        if line.startswith('  File "'):
            if any(part in line for part in _LIBRARIES) or line.startswith(_OURS, 8):
                library = line
            else:
                place = line
        elif not line.startswith((" ", "Traceback (")):
            if not place and not library:  # no traceback: the text begins with the model's name
                return Cause(":".join(line.split(":", 2)[:2])[:200])
            return Cause(line.partition(":")[0][:200], (place or library).strip()[:500])
    return Cause("", (place or library).strip()[:500])


def _lines(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield text[start : min(end, start + 1000)]
        start = end + 1
