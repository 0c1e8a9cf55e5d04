"""How do HTTP clients ask which models there are, and have them loaded and unloaded?

Differences from Triton, on purpose: a load that fails is a 4xx with the reason, where Triton says
500 and keeps the reason in its log; `config_patch` changes members of the configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from wherry.core.api import InvalidRequest, Tag, Unsupported
from wherry.server.calls.json_text import encode_json
from wherry.server.http.answers import fail, respond
from wherry.server.http.exchange import Exchange
from wherry.server.http.route import Route
from wherry.server.v2.http.entry import HttpEntry
from wherry.server.v2.repository import index_row, load_options, unload_dependents
from wherry.triton.api import ModelControl

GROUP: Final = "model-repository"


class RepositoryRoutes:
    """/v2/repository/*"""

    def __init__(self, entry: HttpEntry, control: ModelControl) -> None:
        self._entry = entry
        self._control = control

    def routes(self) -> dict[str, Route]:
        return {"/v2/repository/index": Route({"POST": self._index}, GROUP)}

    def route(self, path: str) -> Route | None:
        match path.split("/"):
            case ["", "v2", "repository", "models", name, "load"] if name:
                return Route({"POST": partial(self._load, name)}, GROUP)
            case ["", "v2", "repository", "models", name, "unload"] if name:
                return Route({"POST": partial(self._unload, name)}, GROUP)
            case ["", "v2", "repository", store, "index"] if store:  # as Triton: of all of them
                return Route({"POST": self._index}, GROUP)
            case ["", "v2", "repository", store, "models", name, "load" | "unload"] if (
                store and name
            ):
                return Route({"POST": _refuse_repository_name}, GROUP)
        return None

    def _index(self, exchange: Exchange) -> None:
        ready = self._entry.members(exchange).get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidRequest(f"ready must be true or false, not {ready!r}", tag=Tag.JSON)

        def index() -> bytes:
            return encode_json([index_row(one) for one in self._control.index(ready)])

        self._answer(exchange, index, loads=False)

    def _load(self, name: str, exchange: Exchange) -> None:
        def load() -> bytes:
            # In the thread, too: there may be files in it.
            upload = self._entry.common.allow_model_upload
            parameters = self._parameters(exchange, has_files=True)
            options = load_options(parameters, upload=upload)
            self._control.load(name, **options)
            return b""

        self._answer(exchange, load, loads=True)

    def _unload(self, name: str, exchange: Exchange) -> None:
        dependents = unload_dependents(self._parameters(exchange))

        def unload() -> bytes:
            self._control.unload(name, dependents=dependents)
            return b""

        self._answer(exchange, unload, loads=False)

    def _answer(self, exchange: Exchange, call: Callable[[], bytes], *, loads: bool) -> None:
        """Answer with what `call` gives, from a thread: it reads files, or loads a model."""
        port = self._entry.port()

        def tell(outcome: bytes | Exception) -> None:
            if isinstance(outcome, Exception):
                fail(exchange, outcome)
            else:
                respond(exchange, outcome, compress=False)

        self._control.in_thread(call, lambda outcome: port.call(tell, outcome), loads=loads)

    def _parameters(self, exchange: Exchange, *, has_files: bool = False) -> dict[str, Any]:
        members = self._entry.members(exchange, has_files=has_files)
        parameters = members.get("parameters", {})
        if not isinstance(parameters, dict):
            raise InvalidRequest("parameters must be an object", tag=Tag.JSON)
        return parameters


def _refuse_repository_name(exchange: Exchange) -> None:
    raise Unsupported("'repository_name' specification is not supported")
