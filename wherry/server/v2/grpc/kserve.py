"""How do calls other than inference go over gRPC: V2's, gRPC's health checks and reflection?

Decoded messages in, plain values out; which fields of them a message has is the schema's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Final

import msgspec

from wherry.core.api import Buffer, InvalidRequest, ModelNotFound, ModelNotReady, Unsupported
from wherry.server.grpc import proto
from wherry.server.grpc.proto import Method, Schema, file_descriptor, symbols
from wherry.server.grpc.rpc import MethodHandler, Rpc, at_once
from wherry.server.grpc.wire import Values
from wherry.server.v2.administration import OPERATIONS, Administration, Name, V2Operation
from wherry.server.v2.grpc.entry import GrpcEntry, respond

#: google.rpc.Code of a symbol that does not exist, and of an empty query.
NOT_FOUND, INVALID = 5, 3


#: The older package of the same messages, which many clients still call.
ALPHA: Final = "grpc.reflection.v1alpha"


@cache
def schemas() -> Mapping[str, Schema]:
    return {
        "v2.proto": proto.load("v2.proto", "model_config.proto"),
        "health.proto": proto.load("health.proto"),
        "reflection.proto": proto.load("reflection.proto"),
        "reflection_v1alpha.proto": proto.load("reflection.proto", package=ALPHA),
    }


class Reflection:
    """A ServerReflectionInfo call: one answer for each query, in their order."""

    def __init__(self, entry: GrpcEntry, method: Method, rpc: Rpc) -> None:
        self._entry = entry
        self._method = method
        self._rpc = rpc
        rpc.on_message = self._message
        rpc.on_half_close = self.drain
        rpc.on_leave = self._leave
        entry.streams.add(self)

    def drain(self) -> None:
        self._leave()
        self._rpc.finish()

    def _leave(self) -> None:
        self._entry.streams.discard(self)

    def _message(self, message: Buffer) -> None:
        query = self._method.request.decode(message)
        self._rpc.pause()  # until the client has taken this answer
        answer = {
            "valid_host": query.get("host", ""),
            "original_request": query,
            **answered(query),
        }
        self._rpc.send(self._method.response.encode(answer), sent=self._rpc.resume)


def answered(query: Values) -> Values:
    """The answer to a decoded ServerReflectionRequest: one field of the response."""
    if "list_services" in query:
        names = {path[1:].partition("/")[0] for one in schemas().values() for path in one.methods}
        return {"list_services_response": {"service": [{"name": name} for name in sorted(names)]}}
    if "file_by_filename" in query:
        return _file(query["file_by_filename"], query["file_by_filename"])
    if "file_containing_symbol" in query:
        symbol = query["file_containing_symbol"]
        return _file(_files().get(symbol, ""), symbol)
    if "all_extension_numbers_of_type" in query or "file_containing_extension" in query:
        return _error(NOT_FOUND, "there are no extensions")
    return _error(INVALID, "the request has no query")


def _file(name: str, query: str) -> Values:
    if name not in schemas():
        return _error(NOT_FOUND, f"not found: {query[:200]}")
    return {"file_descriptor_response": {"file_descriptor_proto": [_descriptor(name)]}}


@cache
def _files() -> Mapping[str, str]:
    return {symbol: name for name, schema in schemas().items() for symbol in symbols(schema)}


@cache
def _descriptor(name: str) -> bytes:
    return file_descriptor(name, schemas()[name])


def _error(code: int, text: str) -> Values:
    return {"error_response": {"error_code": code, "error_message": text}}


#: "" is the server as a whole.
SERVICES: Final = ("", "inference.GRPCInferenceService", "grpc.health.v1.Health")
#: Seconds between two looks on behalf of a client that watches.
WATCH_INTERVAL: Final = 1.0


def check(entry: GrpcEntry, method: Method, rpc: Rpc) -> None:
    service = method.request.decode(rpc.message).get("service", "")
    if service not in SERVICES:
        raise ModelNotFound(f"unknown service '{service}'")
    rpc.respond(method.response.encode({"status": _status(entry, service)}))


class Watch:
    """A Watch call: sends the status at once, and again whenever it changes."""

    def __init__(self, entry: GrpcEntry, method: Method, rpc: Rpc) -> None:
        self._entry = entry
        self._method = method
        self._rpc = rpc
        self._service: str = method.request.decode(rpc.message).get("service", "")
        self._last_status = ""
        self._timer: asyncio.TimerHandle | None = None
        rpc.on_leave = self._leave
        entry.watches.add(self)
        self.look()

    def look(self) -> None:
        status = _status(self._entry, self._service)
        if status != self._last_status:
            self._last_status = status
            self._rpc.send(self._method.response.encode({"status": status}))
        self._timer = asyncio.get_running_loop().call_later(WATCH_INTERVAL, self.look)

    def drain(self) -> None:
        self._leave()
        self._last_status = "NOT_SERVING"
        self._rpc.send(self._method.response.encode({"status": self._last_status}))
        self._rpc.finish()

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._entry.watches.discard(self)


def _status(entry: GrpcEntry, service: str) -> str:
    if service not in SERVICES:
        return "SERVICE_UNKNOWN"
    return "NOT_SERVING" if entry.not_ready() else "SERVING"


class KServeCalls:
    def __init__(self, entry: GrpcEntry) -> None:
        self._entry = entry
        self._administration = Administration(entry, entry.common, entry.control)

    def handlers(self) -> dict[str, MethodHandler]:
        rows = {
            row.rpc: MethodHandler(partial(self._answer, row), row.group)
            for row in OPERATIONS
            if row.rpc
        }
        live = at_once(lambda _: {"live": True}, "health", open=True)
        ready = at_once(lambda _: {"ready": not self._entry.not_ready()}, "health", open=True)
        return {**rows, "ServerLive": live, "ServerReady": ready}

    def _answer(self, row: V2Operation, method: Method, rpc: Rpc) -> None:
        request = method.request.decode(rpc.message)
        if request.get("repository_name"):
            raise Unsupported("'repository_name' specification is not supported")
        name = request.get("name") or request.get("model_name", "")
        named = Name(name, self._entry.version(request.get("version", "")))
        members = _MEMBERS.get(row.rpc, dict)(request)

        def answer() -> list[Buffer]:
            try:
                made = msgspec.to_builtins(row.do(self._administration, named, members))
            except (ModelNotFound, ModelNotReady):
                if row.rpc != "ModelReady":
                    raise
                made = {"ready": False}  # which is not an error
            return method.response.parts(_ANSWERS.get(row.rpc, dict)(made or {}))

        if not row.in_thread:
            rpc.respond(*answer())
            return
        port, done = self._entry.port(), partial(respond, rpc)
        self._entry.control.in_thread(
            answer, lambda outcome: port.call(done, outcome), loads=row.loads
        )


def _parameters(request: Values) -> Values:
    found = {}
    for name, value in request.get("parameters", {}).items():
        plain = next(iter(value.values()), None)
        found[name] = bytes(plain) if isinstance(plain, memoryview) else plain
    return {"parameters": found}


def _trace_settings(request: Values) -> Values:
    return {
        setting: _trace_value(setting, value.get("value", []))
        for setting, value in request.get("settings", {}).items()
    }


def _trace_value(setting: str, values: list[str]) -> list[str] | str | None:
    if not values:
        return None
    if setting == "trace_level":
        return values
    if len(values) > 1:
        raise InvalidRequest(f"trace setting '{setting}' takes one value, not {len(values)}")
    return values[0]


def _log_settings(request: Values) -> Values:
    settings: Values = request.get("settings", {})
    return {setting: next(iter(value.values()), "") for setting, value in settings.items()}


def _log_value(value: Any) -> Values:
    if isinstance(value, bool):
        return {"bool_param": value}
    return {"uint32_param": value} if isinstance(value, int) else {"string_param": value}


#: Where a message has the members in another form than a JSON body.
_MEMBERS: Final[dict[str, Callable[[Values], Values]]] = {
    "RepositoryModelLoad": _parameters,
    "RepositoryModelUnload": _parameters,
    "TraceSetting": _trace_settings,
    "LogSettings": _log_settings,
}
#: Where a message has an answer in another form than JSON.
_ANSWERS: Final[dict[str, Callable[[Any], Values]]] = {
    "ModelConfig": lambda config: {"config": config},
    "RepositoryIndex": lambda rows: {"models": rows},
    "SystemSharedMemoryStatus": lambda regions: {
        "regions": {region["name"]: region for region in regions}
    },
    "TraceSetting": lambda values: {
        "settings": {
            name: {"value": value if isinstance(value, list) else [value]}
            for name, value in values.items()
        }
    },
    "LogSettings": lambda values: {
        "settings": {name: _log_value(value) for name, value in values.items()}
    },
}
