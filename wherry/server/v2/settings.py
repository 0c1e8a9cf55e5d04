"""Which settings of the log can clients read and change while the server runs?

Values as Triton's protocols carry them, for any frontend. They take effect at once.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import Any, Final

from wherry.core.api import (
    HumanFormatter,
    InvalidRequest,
    JsonFormatter,
    Tag,
    Unsupported,
    formatter_of,
    severities,
)

log = logging.getLogger("wherry")

SEVERITIES: Final = {
    "log_info": logging.INFO,
    "log_warning": logging.WARNING,
    "log_error": logging.ERROR,
}
#: Triton's two, and ours.
LOG_FORMATS: Final = ("default", "ISO8601", "json")
_SILENT: Final = logging.CRITICAL + 1


class LogSettings:
    """The log of this process's servers, as a switch for each severity.

    Levels are those of the logger "wherry", what a program's other loggers say stays. The format
    can be changed where the program's log is wherry's (`wherry serve`).
    """

    def __init__(self) -> None:
        self._verbose_level = 1
        self._lock = threading.Lock()

    def values(self) -> dict[str, bool | int | str]:
        level = log.getEffectiveLevel()
        switches = {
            name: severity >= level and severity not in severities().off
            for name, severity in SEVERITIES.items()
        }
        return {
            "log_file": _log_file(),
            **switches,
            "log_verbose_level": self._verbose_level if level <= logging.DEBUG else 0,
            "log_format": self._format(),
        }

    def update(self, changes: Mapping[str, Any]) -> dict[str, bool | int | str]:
        """Change what is given, all of it or, if some of it is wrong, nothing; all values then."""
        with self._lock:
            before = self.values()
            values = dict(before)
            for name, value in changes.items():
                if name not in values:
                    known = ", ".join(values)
                    raise InvalidRequest(f"unknown log setting '{name}'; known are {known}")
                if name == "log_file" and value == before[name]:
                    continue
                values[name] = _checked_log_setting(name, value)
            if values["log_format"] != before["log_format"]:
                self._use_format(str(values["log_format"]))
            if any(values[name] != before[name] for name in (*SEVERITIES, "log_verbose_level")):
                self._use_levels(values)
            return self.values()

    def _use_levels(self, values: Mapping[str, Any]) -> None:
        enabled = {severity for name, severity in SEVERITIES.items() if values[name]}
        level = min(enabled, default=_SILENT)
        if values["log_verbose_level"]:
            self._verbose_level, level = values["log_verbose_level"], logging.DEBUG
        log.setLevel(level)
        severities().off = {s for s in SEVERITIES.values() if s >= level and s not in enabled}

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
            handler.setFormatter(formatter_of(named, colour=colour))


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
        raise Unsupported(
            "log file location can not be updated through network protocol",
            more="; start the server with --log-file PATH",
        )
    if name == "log_format":
        if value not in LOG_FORMATS:
            raise InvalidRequest(f"log_format must be one of {', '.join(LOG_FORMATS)}")
        return str(value)
    if name == "log_verbose_level":
        if type(value) is not int or value < 0:
            problem = "log_verbose_level must be a whole number from 0 up"
            raise InvalidRequest(problem, tag=Tag.JSON)
        return value
    if type(value) is not bool:
        raise InvalidRequest(f"{name} must be a bool", tag=Tag.JSON)
    return value
