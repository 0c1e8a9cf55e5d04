"""How does Triton read the JSON of requests about its settings, repository and regions? For
`--triton-strict`.

What it does not look at goes, what it refuses is told in its words, in its order (http_server.cc,
HandleLogging, HandleTrace, HandleRepositoryControl, HandleSystemSharedMemory). Pure.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from typing import Any, Final

from wherry.frontends.v2.json_errors import mismatch
from wherry.frontends.v2.rapidjson import refusal
from wherry.frontends.v2.triton_settings import (
    TRACE_NUMBERS,
    NotTaken,
    taken_levels,
    taken_number,
    taken_verbose_level,
)
from wherry.frontends.v2.triton_words import ToldError
from wherry.values.buffer import Buffer

_LOADS: Final = re.compile(r"/v2/repository/models/[^/]+/load")
_UNLOADS: Final = re.compile(r"/v2/repository/models/[^/]+/unload")
_INDEX: Final = re.compile(r"/v2/repository(/[^/]+)?/index")
_TRACE: Final = re.compile(r"/v2/(models/[^/]+/)?trace/setting")
_SYSTEM: Final = re.compile(r"/v2/systemsharedmemory/region/[^/]+/register")
_CUDA: Final = re.compile(r"/v2/cudasharedmemory/region/[^/]+/register")

_UINT64: Final = range(2**64)
#: The bytes of a cudaIpcMemHandle_t.
_HANDLE_BYTES: Final = 64


def read_as_triton(path: str, body: Buffer) -> bytes | ToldError | None:
    """What Triton takes of a POST's body, as JSON, or what it says of it; None where it has no say.
    Linear in its size."""
    for pattern, (read, may_be_empty) in _READERS.items():
        if pattern.fullmatch(path) is None:
            continue
        try:
            given = {} if may_be_empty and not body else _parsed(bytes(body))
            return json.dumps(read(given)).encode()
        except NotTaken as refused:
            return refused.told
        except (ValueError, RecursionError):
            return None
    if _UNLOADS.fullmatch(path):
        return _unload(bytes(body))
    return None


def _parsed(body: bytes) -> Mapping[str, Any]:
    """The members; none of what is JSON, but no object."""
    if refused := refusal(body):
        raise NotTaken(500, f"failed to parse the request JSON buffer: {refused}")
    found = json.loads(body.removeprefix(BOM_UTF8))
    return found if isinstance(found, dict) else {}


def _index(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"ready": _bool(given["ready"])} if "ready" in given else {}


def _load(given: Mapping[str, Any]) -> dict[str, Any]:
    if "parameters" not in given:
        return {}
    parameters = given["parameters"]
    if not isinstance(parameters, dict):
        raise NotTaken(500, "attempt to get members for non-object")
    for name, value in parameters.items():
        _str(value)
        if name != "config" and not name.startswith("file:"):
            raise NotTaken(500, "unexpected error on creating Triton parameter")
    return {"parameters": parameters}


def _unload(body: bytes) -> bytes:
    """Whatever is wrong with it, the model is unloaded."""
    try:
        parameters = json.loads(body)["parameters"]
        dependents = parameters["unload_dependents"] is True
    except (ValueError, RecursionError, TypeError, LookupError):
        dependents = False
    return b'{"parameters":{"unload_dependents":true}}' if dependents else b""


def _logging(given: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in given.items() if value is not None}
    if "log_file" in given:
        raise NotTaken(501, "log file location can not be updated through network protocol")
    taken: dict[str, Any] = {}
    for name in ("log_info", "log_warning", "log_error"):
        if name in given:
            taken[name] = _bool(given[name])
    if "log_verbose_level" in given:
        taken["log_verbose_level"] = taken_verbose_level(_unsigned(given["log_verbose_level"]))
    if "log_format" in given:
        taken["log_format"] = named = _str(given["log_format"])
        if named not in ("default", "ISO8601"):
            raise NotTaken(503, f"invalid argument for --log_format, got: {named}")
    return taken


def _trace(given: Mapping[str, Any]) -> dict[str, Any]:
    if "trace_file" in given:
        raise NotTaken(501, "trace file location can not be updated through network protocol")
    taken: dict[str, Any] = {}
    if "trace_level" in given:
        levels = given["trace_level"]
        if levels is not None and not isinstance(levels, list):
            raise NotTaken(500, mismatch("array"))
        known = None if levels is None else taken_levels([_str(level) for level in levels])
        if known != []:
            taken["trace_level"] = known
    for name in TRACE_NUMBERS:
        if name in given:
            value = given[name]
            taken[name] = None if value is None else taken_number(name, _str(value))
    return taken


def _system_region(given: Mapping[str, Any]) -> dict[str, Any]:
    taken: dict[str, Any] = {"key": _str(_needed(given, "key"))}
    if "offset" in given:
        taken["offset"] = _unsigned(given["offset"])
    taken["byte_size"] = _unsigned(_needed(given, "byte_size"))
    return taken


def _cuda_region(given: Mapping[str, Any]) -> dict[str, Any]:
    handle = _needed(given, "raw_handle")
    text = _str(_member(handle if isinstance(handle, dict) else {}, "b64"))
    for name in ("byte_size", "device_id"):
        _unsigned(_member(given, name))
    if len(text.rstrip("=")) * 3 // 4 != _HANDLE_BYTES:
        raise NotTaken(
            400,
            "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t",
        )
    return dict(given)


def _needed(given: Mapping[str, Any], name: str) -> Any:
    if name not in given:
        raise NotTaken(400, f"Shared memory register request has no '{name}' field")
    return given[name]


def _member(given: Mapping[str, Any], name: str) -> Any:
    if name not in given:
        raise NotTaken(500, f"attempt to access non-existing object member '{name}'")
    return given[name]


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise NotTaken(500, mismatch("str"))
    return value


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise NotTaken(500, mismatch("bool"))
    return value


def _unsigned(value: Any) -> int:
    if type(value) is not int or value not in _UINT64:
        raise NotTaken(500, mismatch("unsigned"))
    return value


_Read = Callable[[Mapping[str, Any]], dict[str, Any]]
#: By path: what reads it, and whether there may be no body at all.
_READERS: Final[dict[re.Pattern[str], tuple[_Read, bool]]] = {
    re.compile(r"/v2/logging"): (_logging, False),
    _TRACE: (_trace, False),
    _INDEX: (_index, True),
    _LOADS: (_load, True),
    _SYSTEM: (_system_region, False),
    _CUDA: (_cuda_region, False),
}
