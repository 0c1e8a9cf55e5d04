"""What do the calls of the model repository answer?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from wherry.core.api import Unsupported
from wherry.server.grpc.answers import fail
from wherry.server.grpc.handler import MethodHandler
from wherry.server.grpc.proto import Method
from wherry.server.grpc.rpc import Rpc
from wherry.server.grpc.wire import Values
from wherry.server.v2.grpc.entry import GrpcEntry
from wherry.server.v2.repository import index_row, load_options, unload_dependents


class RepositoryCalls:
    """The calls by the method's name. They read files and wait for models: in a thread each."""

    def __init__(self, entry: GrpcEntry) -> None:
        self._entry = entry
        self._control = entry.control

    def handlers(self) -> dict[str, MethodHandler]:
        calls = {
            "RepositoryIndex": partial(self._answer, self._index, loads=False),
            "RepositoryModelLoad": partial(self._answer, self._load, loads=True),
            "RepositoryModelUnload": partial(self._answer, self._unload, loads=False),
        }
        return {name: MethodHandler(call, "model-repository") for name, call in calls.items()}

    def _index(self, request: Values) -> Values:
        return {
            "models": [index_row(one) for one in self._control.index(request.get("ready", False))]
        }

    def _load(self, request: Values) -> Values:
        upload = self._entry.common.allow_model_upload
        options = load_options(_parameters(request), upload=upload)
        self._control.load(request.get("model_name", ""), **options)
        return {}

    def _unload(self, request: Values) -> Values:
        dependents = unload_dependents(_parameters(request))
        self._control.unload(request.get("model_name", ""), dependents=dependents)
        return {}

    def _answer(
        self, call: Callable[[Values], Values], method: Method, rpc: Rpc, *, loads: bool
    ) -> None:
        request = method.request.decode(rpc.message)
        if request.get("repository_name"):
            raise Unsupported("'repository_name' specification is not supported")
        port = self._entry.port()

        def tell(outcome: Values | Exception) -> None:
            if isinstance(outcome, Exception):
                fail(rpc, outcome)
            else:
                rpc.respond(method.response.encode(outcome))

        self._control.in_thread(
            lambda: call(request), lambda outcome: port.call(tell, outcome), loads=loads
        )


def _parameters(request: Values) -> dict[str, Any]:
    """The plain values of a map of ModelRepositoryParameters."""
    found = {}
    for name, value in request.get("parameters", {}).items():
        plain = next(iter(value.values()), None)
        found[name] = bytes(plain) if isinstance(plain, memoryview) else plain
    return found
