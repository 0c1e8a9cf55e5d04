"""What may be asked of and said to the log and the trace of a running server?

Values as Triton's protocols carry them, for any frontend. The log settings take effect at once.
The trace settings are kept and told, but nothing is traced: a server says so in its log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, Final

from wherry.errors import InvalidRequest, Unsupported
from wherry.observability.logging import HumanFormatter, JsonFormatter

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
_LEAST: Final = {"trace_rate": 0, "trace_count": -1, "log_frequency": 0}


class LogSettings:
    """The log of this process's servers, as a switch for each severity.

    Levels are those of the logger "wherry", what a program's other loggers say stays. The format
    can be changed where the program's log is wherry's (`wherry serve`).
    """

    def __init__(self) -> None:
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
            "log_file": "",
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
        ours = [
            handler
            for handler in logging.getLogger().handlers
            if isinstance(handler.formatter, HumanFormatter | JsonFormatter)
        ]
        if not ours:
            raise Unsupported(
                "log_format: the program that runs this server formats its log itself"
            )
        for handler in ours:
            colour = getattr(handler.formatter, "colour", False)
            human = HumanFormatter(colour=colour, iso=name == "ISO8601")
            handler.setFormatter(JsonFormatter() if name == "json" else human)


class TraceSettings:
    """Triton's trace settings, of the server and of its models. They are kept, without effect."""

    def __init__(self) -> None:
        self._own: dict[str, Any] = {}
        self._of_models: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def values(self, model: str | None = None) -> dict[str, Any]:
        """What holds for the server, or for a model: its own, else the server's."""
        with self._lock:
            return self._values(model)

    def update(self, given: Mapping[str, Any], model: str | None = None) -> dict[str, Any]:
        """Change what is given, all of it or, if some of it is wrong, nothing; all values then.
        None goes back to what holds without it. InvalidRequest for what is no setting."""
        checked = {name: _checked_trace_setting(name, value) for name, value in given.items()}
        with self._lock:
            target = self._own if model is None else self._of_models.setdefault(model, {})
            for name, value in checked.items():
                if value is None:
                    target.pop(name, None)
                else:
                    target[name] = value
            values = self._values(model)
        if values["trace_level"] != ["OFF"] and "trace_level" in given:
            log.warning("trace settings are kept, but nothing is traced", extra={"model": model})
        return values

    def _values(self, model: str | None) -> dict[str, Any]:
        own = self._of_models.get(model, {}) if model is not None else {}
        return {**TRACE_DEFAULTS, **self._own, **own}


def _checked_log_setting(name: str, value: Any) -> bool | int | str:
    if name == "log_file":
        if value != "":
            raise Unsupported("log file location can not be updated through network protocol")
        return ""
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
    if name in ("trace_file", "trace_mode"):
        if value is not None and value != TRACE_DEFAULTS[name]:
            raise Unsupported(f"{name} can not be updated through network protocol")
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
