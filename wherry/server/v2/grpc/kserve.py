"""How do V2's questions and commands go over gRPC?

Decoded messages in, plain values out; which fields of them a message has is the schema's business.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from wherry.core.api import InvalidRequest, ModelNotFound, ModelNotReady, Unsupported
from wherry.server.grpc.handler import MethodHandler, at_once, fail
from wherry.server.grpc.proto import Method
from wherry.server.grpc.rpc import Rpc
from wherry.server.grpc.wire import Values
from wherry.server.v2.administration import OPERATIONS, Administration, Name, V2Operation
from wherry.server.v2.grpc.entry import GrpcEntry


class KServeCalls:
    """The calls of one server, by the method's name."""

    def __init__(self, entry: GrpcEntry) -> None:
        self._entry = entry
        self._administration = Administration(entry, entry.control)

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
        members = _MEMBERS.get(row.rpc, _as_they_are)(request)

        def answer() -> bytes:
            try:
                made = msgspec.to_builtins(row.do(self._administration, named, members))
            except (ModelNotFound, ModelNotReady):
                if row.rpc != "ModelReady":
                    raise
                made = {"ready": False}  # which is no error
            return method.response.encode(_ANSWERS.get(row.rpc, _as_they_are)(made or {}))

        if not row.in_thread:
            rpc.respond(answer())
            return
        port = self._entry.port()

        def respond_or_fail(outcome: bytes | Exception) -> None:
            if isinstance(outcome, Exception):
                fail(rpc, outcome)
            else:
                rpc.respond(outcome)

        self._entry.control.in_thread(
            answer, lambda outcome: port.call(respond_or_fail, outcome), loads=row.loads
        )


def _as_they_are(values: Values) -> Values:
    return values


def _parameters(request: Values) -> Values:
    """The plain values of a map of ModelRepositoryParameters."""
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
