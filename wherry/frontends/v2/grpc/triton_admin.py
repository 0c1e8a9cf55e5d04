"""How does Triton read the messages about its settings and its repository? For `--triton-strict`.

What it does not look at goes, what it refuses is told in its words (grpc_server.cc). Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from wherry.frontends.grpc.wire import Values
from wherry.frontends.v2.triton_settings import (
    TRACE_NUMBERS,
    NotTaken,
    taken_levels,
    taken_number,
    taken_verbose_level,
)

#: The log settings, the kind of value of each, and what Triton calls it.
_LOG: Final = {
    "log_info": ("bool_param", "boolean"),
    "log_warning": ("bool_param", "boolean"),
    "log_error": ("bool_param", "boolean"),
    "log_verbose_level": ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}


def _log(request: Values) -> Values:
    given = request.get("settings", {})
    if "log_file" in given:
        raise _unsupported("log file location can not be updated through network protocol")
    for name, (kind, word) in _LOG.items():
        if name in given and kind not in given[name]:
            raise _invalid(f"expect {word} for '{name}'")
    taken = {name: given[name] for name in _LOG if name in given}
    if "log_verbose_level" in taken:
        level = taken_verbose_level(taken["log_verbose_level"]["uint32_param"])
        taken["log_verbose_level"] = {"uint32_param": level}
    if "log_format" in taken:
        named = taken["log_format"]["string_param"]
        if named not in ("default", "ISO8601"):
            raise _invalid(f"invalid argument for log_format, got: {named}")
    return {**request, "settings": taken}


def _trace(request: Values) -> Values:
    given = {name: one.get("value", []) for name, one in request.get("settings", {}).items()}
    if "trace_file" in given:
        raise _unsupported("trace file location can not be updated through network protocol")
    taken: dict[str, Any] = {}
    if "trace_level" in given:
        levels = given["trace_level"]
        known = taken_levels(levels)
        if known or not levels:
            taken["trace_level"] = {"value": known}
    for name in TRACE_NUMBERS:
        values = given.get(name, ())
        if len(values) > 1:
            raise _invalid(f"expect only 1 value for '{name}'")
        if name in given:
            taken[name] = {"value": [taken_number(name, value) for value in values]}
    return {**request, "settings": taken}


def _load(request: Values) -> Values:
    if not request.get("repository_name"):
        for name, value in request.get("parameters", {}).items():
            is_file = name.startswith("file:")
            if name != "config" and not is_file:
                raise _invalid(f"unrecognized load parameter '{name}'.")
            kind = "bytes_param" if is_file else "string_param"
            if kind not in value:
                raise _invalid(f"invalid value type for load parameter '{name}', expected {kind}.")
    return request


def _unload(request: Values) -> Values:
    given = request.get("parameters", {})
    taken = {name: value for name, value in given.items() if name == "unload_dependents"}
    if any("bool_param" not in value for value in taken.values()):
        raise _invalid("invalid value type for 'unload_dependents' parameter, expected bool_param.")
    return {**request, "parameters": taken}


def _invalid(text: str) -> NotTaken:
    return NotTaken(400, text)


def _unsupported(text: str) -> NotTaken:
    return NotTaken(501, text)


#: By the method's name: what Triton takes of a request. NotTaken says what it says otherwise.
READERS: Final[dict[str, Callable[[Values], Values]]] = {
    "LogSettings": _log,
    "TraceSetting": _trace,
    "RepositoryModelLoad": _load,
    "RepositoryModelUnload": _unload,
}
