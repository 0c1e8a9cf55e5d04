"""Which settings of the log and the trace can clients read and change while the server runs?

Values as Triton's protocols carry them, for any frontend. They take effect at once. The
trace file can be set only when the server starts: without one nothing is traced.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from wherry.observability.logging import HumanFormatter, JsonFormatter, formatter_of
from wherry.observability.otel import triton_mode as opentelemetry
from wherry.values.errors import ConfigError, InvalidRequest, Unsupported

log = logging.getLogger("wherry")

SEVERITIES: Final = {
    "log_info": logging.INFO,
    "log_warning": logging.WARNING,
    "log_error": logging.ERROR,
}
#: Triton's two, and ours.
LOG_FORMATS: Final = ("default", "ISO8601", "json")
_SILENT: Final = logging.CRITICAL + 1

TRACE_LEVELS: Final = ("OFF", "TIMESTAMPS", "TENSORS")
#: As after a start: text, as the protocol has it, except for the levels.
TRACE_DEFAULTS: Final[dict[str, Any]] = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
TRACE_MODES: Final = ("triton", "opentelemetry")
#: What only the start of the server decides.
_AT_START: Final = {"trace_file": "trace file location", "trace_mode": "trace mode"}
_LEAST: Final = {"trace_rate": 0, "trace_count": -1, "log_frequency": 0}


class LogSettings:
    """The log of this process's servers, as a switch for each severity.

    Levels are those of the logger "wherry", what a program's other loggers say stays. The format
    can be changed where the program's log is wherry's (`wherry serve`); `as_triton`: lines for
    people are tritonserver's.
    """

    def __init__(self, *, as_triton: bool = False) -> None:
        self._as_triton = as_triton
        self._verbose_level = 1
        self._off: set[int] = set()
        self._lock = threading.Lock()

    def values(self) -> dict[str, bool | int | str]:
        level = log.getEffectiveLevel()
        switches = {
            name: severity >= level and severity not in self._off
            for name, severity in SEVERITIES.items()
        }
        return {
            "log_file": _log_file(),
            **switches,
            "log_verbose_level": self._verbose_level if level <= logging.DEBUG else 0,
            "log_format": self._format(),
        }

    def update(self, given: Mapping[str, Any]) -> dict[str, bool | int | str]:
        """Change what is given, all of it or, if some of it is wrong, nothing; all values then."""
        with self._lock:
            before = self.values()
            values = dict(before)
            for name, value in given.items():
                if name not in values:
                    raise InvalidRequest(f"unknown log setting '{name}'")
                if name == "log_file" and value == before[name]:
                    continue
                values[name] = _checked_log_setting(name, value)
            if values["log_format"] != before["log_format"]:
                self._use_format(str(values["log_format"]))
            if any(values[name] != before[name] for name in (*SEVERITIES, "log_verbose_level")):
                self._use_levels(values)
            return self.values()

    def _use_levels(self, values: Mapping[str, Any]) -> None:
        wanted = {severity for name, severity in SEVERITIES.items() if values[name]}
        level = min(wanted, default=_SILENT)
        if values["log_verbose_level"]:
            self._verbose_level, level = values["log_verbose_level"], logging.DEBUG
        log.setLevel(level)
        self._off = {s for s in SEVERITIES.values() if s >= level and s not in wanted}
        # Again, even if it is there: a filter is added once only.
        log.addFilter(self._lets_through)

    def _lets_through(self, record: logging.LogRecord) -> bool:
        return record.levelno not in self._off

    def _format(self) -> str:
        for handler in logging.getLogger().handlers:
            if isinstance(handler.formatter, JsonFormatter):
                return "json"
            if isinstance(handler.formatter, HumanFormatter):
                return "ISO8601" if handler.formatter.iso else "default"
        return "default"

    def _use_format(self, name: str) -> None:
        ours = _our_handlers()
        if not ours:
            raise Unsupported(
                "log_format: the program that runs this server formats its log itself"
            )
        for handler in ours:
            colour = getattr(handler.formatter, "colour", False)
            named = name.lower()
            handler.setFormatter(formatter_of(named, colour=colour, as_triton=self._as_triton))


class TraceSettings:
    """Triton's trace settings, of the server and of its models. Safe from any thread.

    `config` is what tritonserver's --trace-config takes: "triton,file=PATH", "level=TIMESTAMPS",
    "rate=100".
    """

    def __init__(self, config: Sequence[str] = ()) -> None:
        self._initial = {**TRACE_DEFAULTS, **_trace_config(config)}
        #: Where traces are written; "": there are none.
        self.file: str = self._initial["trace_file"]
        self._seen: Counter[str | None] = Counter()
        self._own: dict[str, Any] = {}
        self._of_models: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        #: Whether any request may be one that is traced.
        self.on = self._is_on()

    @property
    def log_frequency(self) -> int:
        """The most traces of one file; 0: no limit."""
        return int(self.values()["log_frequency"])

    def sample(self, model: str) -> bool:
        """Whether the request that comes now is traced: it counts."""
        with self._lock:
            values = self._values(model)
            own = self._of_models.get(model)
            place = model if own else None
            self._seen[place] += 1
            rate, left = int(values["trace_rate"]), int(values["trace_count"])
            if "TIMESTAMPS" not in values["trace_level"] or not rate or not left:
                return False
            if self._seen[place] % rate:
                return False
            if left > 0:
                owner = own if own and "trace_count" in own else self._own
                owner["trace_count"] = str(left - 1)
            return True

    def values(self, model: str | None = None) -> dict[str, Any]:
        """Return the settings of the server, or of a model: its own, else the server's."""
        with self._lock:
            return self._values(model)

    def update(self, given: Mapping[str, Any], model: str | None = None) -> dict[str, Any]:
        """Change what is given, all of it or, if some of it is wrong, nothing; all values then.
        None goes back to what holds without it. InvalidRequest for what is no setting."""
        checked = {name: _checked_trace_setting(name, value) for name, value in given.items()}
        if checked and self._initial["trace_mode"] == "opentelemetry":
            raise Unsupported(
                "trace settings can not be updated in mode opentelemetry: the OTEL_ variables and"
                " --trace-config decide when the server starts"
            )
        with self._lock:
            target = self._own if model is None else self._of_models.setdefault(model, {})
            for name, value in checked.items():
                if value is None:
                    target.pop(name, None)
                else:
                    target[name] = value
            self.on = self._is_on()
            values = self._values(model)
        if values["trace_level"] != ["OFF"] and "trace_level" in given and not self.file:
            log.warning("nothing is traced: no --trace-config names a file", extra={"model": model})
        return values

    def _is_on(self) -> bool:
        levels = [self._values(model)["trace_level"] for model in (None, *self._of_models)]
        return bool(self.file) and any(level != ["OFF"] for level in levels)

    def _values(self, model: str | None) -> dict[str, Any]:
        own = self._of_models.get(model, {}) if model is not None else {}
        return {**self._initial, **self._own, **own}


def _log_file() -> str:
    """The name of the log's file, without its folder, which clients need not know."""
    for handler in _our_handlers():
        if isinstance(handler, logging.FileHandler):
            return os.path.basename(handler.baseFilename)
    return ""


def _our_handlers() -> list[logging.Handler]:
    return [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler.formatter, HumanFormatter | JsonFormatter)
    ]


def _checked_log_setting(name: str, value: Any) -> bool | int | str:
    if name == "log_file":
        raise Unsupported("log file location can not be updated through network protocol")
    if name == "log_format":
        if value not in LOG_FORMATS:
            raise InvalidRequest(f"log_format must be one of {', '.join(LOG_FORMATS)}")
        return str(value)
    if name == "log_verbose_level":
        if type(value) is not int or value < 0:
            raise InvalidRequest("log_verbose_level must be a whole number from 0 up")
        return value
    if type(value) is not bool:
        raise InvalidRequest(f"{name} must be a bool")
    return value


def _checked_trace_setting(name: str, value: Any) -> Any:
    if name not in TRACE_DEFAULTS:
        raise InvalidRequest(f"unknown trace setting '{name}'")
    if name in _AT_START:
        if value is not None and value != TRACE_DEFAULTS[name]:
            raise Unsupported(f"{_AT_START[name]} can not be updated through network protocol")
        return None
    if value is None:
        return None
    if name == "trace_level":
        levels = [value] if isinstance(value, str) else value
        known = isinstance(levels, list) and levels and all(one in TRACE_LEVELS for one in levels)
        if not known:
            raise InvalidRequest(f"trace_level must be a list of {', '.join(TRACE_LEVELS)}")
        return [one for one in levels if one != "OFF"] or ["OFF"]
    try:
        number = int(value) if type(value) in (str, int) else None
    except ValueError:
        number = None
    if number is None or not _LEAST[name] <= number < 2**63:
        raise InvalidRequest(f"{name} must be a whole number from {_LEAST[name]} up, as text")
    return str(number)


def _trace_config(given: Sequence[str]) -> dict[str, Any]:
    """The settings that a server starts with, from the words of --trace-config."""
    settings: dict[str, Any] = {}
    if opentelemetry.is_wanted(given):
        settings["trace_mode"] = "opentelemetry"
    for word in given:
        mode, comma, rest = word.partition(",")
        key, equals, value = (rest if comma else word).partition("=")
        kind = mode if comma else value.lower() if key == "mode" else "triton"
        if kind not in TRACE_MODES:
            known = " and ".join(TRACE_MODES)
            raise ConfigError(f"trace_config {word!r}: the modes are {known}")
        if key == "mode" or kind == "opentelemetry":
            continue  # what the SDK reads
        name = "log_frequency" if key == "log-frequency" else f"trace_{key}"
        if not equals or name not in TRACE_DEFAULTS:
            known = "file, level, rate, count and log-frequency"
            raise ConfigError(f"trace_config {word!r}: what there is to set: {known}")
        if name == "trace_file":
            if "trace_mode" not in settings:
                settings[name] = value
            continue
        try:
            checked = _checked_trace_setting(name, value)
        except InvalidRequest as error:
            raise ConfigError(f"trace_config {word!r}: {error}") from None
        if name == "trace_level":  # it may be said more than once
            checked = [*(level for level in settings.get(name, ()) if level != "OFF"), *checked]
        settings[name] = checked
    return settings
