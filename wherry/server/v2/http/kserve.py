"""Which V2 paths are there over HTTP, and what do those about the server and its models answer?

Differences from Triton, all on purpose: 400 for JSON that cannot be parsed, application/json for
every error, 503 with the reason where something is not ready.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from wherry.core.api import ModelNotReady
from wherry.server.http.answers import respond, respond_json
from wherry.server.http.exchange import Exchange
from wherry.server.http.route import Route
from wherry.server.v2 import describe
from wherry.server.v2.batching import batching
from wherry.server.v2.http.entry import HttpEntry, ModelPath
from wherry.server.v2.http.generate import generate, generate_stream
from wherry.server.v2.http.infer import infer
from wherry.server.v2.http.settings import set_trace_of, tell_trace_of

EXTENSIONS: Final = (
    "classification",
    "sequence",
    "schedule_policy",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "system_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
    "generate",
)


class KServeRoutes:
    """The V2 routes of one server."""

    def __init__(self, entry: HttpEntry, *, name: str, version: str) -> None:
        self._entry = entry
        self._runtime = entry.runtime
        allowed = entry.common.shared_memory.allowed
        extensions = [e for e in EXTENSIONS if allowed or e != "system_shared_memory"]
        self._metadata = {"name": name, "version": version, "extensions": extensions}

    def routes(self) -> dict[str, Route]:
        """Return the paths that name no model."""
        return {
            "/v2": Route({"GET": self._server_metadata}, "metadata"),
            "/v2/models": Route({"GET": self._list}, "metadata"),
            "/v2/models/stats": Route({"GET": self._all_statistics}, "statistics"),
        }

    def route(self, path: str) -> Route | None:
        """Return the route of a path below /v2/models; None if there is none."""
        segments = path.split("/")
        if len(segments) < 4 or segments[:3] != ["", "v2", "models"] or not segments[3]:
            return None
        name, version, rest = segments[3], None, segments[4:]
        if rest and rest[0] == "versions":
            if len(rest) < 2 or not (rest[1].isascii() and rest[1].isdigit()):
                return None
            version = rest[1].lstrip("0") or "0"
            rest = rest[2:]
        model = ModelPath(self._entry, name, version)
        if rest == ["trace", "setting"] and version is None:
            handlers = {"GET": partial(tell_trace_of, model), "POST": partial(set_trace_of, model)}
            return Route(handlers, "trace")
        found = OF_MODEL.get("/".join(rest) if rest else None)
        if found is None:
            return None
        method, handler, group = found
        return Route({method: partial(handler, model)}, group)

    def _server_metadata(self, exchange: Exchange) -> None:
        respond_json(exchange, self._metadata)

    def _list(self, exchange: Exchange) -> None:
        models = [describe.overview(loaded) for loaded in self._runtime.models()]
        listed = {model["name"] for model in models}
        models += [
            describe.unloaded(name, reason)
            for name, reason in self._runtime.not_ready().items()
            if name not in listed
        ]
        respond_json(exchange, {"models": sorted(models, key=lambda model: model["name"])})

    def _all_statistics(self, exchange: Exchange) -> None:
        respond_json(exchange, describe.model_stats(self._runtime))


def respond_fine(exchange: Exchange, told: dict[str, object]) -> None:
    """Answer 200 to a question about health.

    Triton's answer is empty. A client that says that it takes JSON gets KServe's: KServe's client
    reads it. Those of Triton have no Accept.
    """
    takes = exchange.request.headers.get("accept", "")
    if any(kind in takes for kind in ("application/json", "application/*", "*/*")):
        respond_json(exchange, told)
    else:
        respond(exchange, b"", content_type="text/plain")


def _metadata(model: ModelPath, exchange: Exchange) -> None:
    about = describe.metadata(model.entry.runtime, model.loaded(), model.version)
    respond_json(exchange, about)


def _config(model: ModelPath, exchange: Exchange) -> None:
    respond_json(exchange, describe.model_config(model.loaded()))


def _ready(model: ModelPath, exchange: Exchange) -> None:
    loaded = model.loaded()
    reason = loaded.not_ready_reason()
    if reason:
        raise ModelNotReady(f"model '{model.name}' is not ready: {reason}")
    respond_fine(exchange, {"name": model.name, "ready": True})


def _statistics(model: ModelPath, exchange: Exchange) -> None:
    respond_json(exchange, describe.model_stats(model.entry.runtime, model.name, model.version))


def _batching(model: ModelPath, exchange: Exchange) -> None:
    respond_json(exchange, batching(model.loaded()))


#: What may stand behind a model's name in a path: the method, the handler, the group.
OF_MODEL: Final[dict[str | None, tuple[str, Callable[[ModelPath, Exchange], None], str]]] = {
    None: ("GET", _metadata, "metadata"),
    "config": ("GET", _config, "model-config"),
    "ready": ("GET", _ready, "health"),
    "stats": ("GET", _statistics, "statistics"),
    "batching": ("GET", _batching, "statistics"),
    "infer": ("POST", infer, "inference"),
    "generate": ("POST", generate, "inference"),
    "generate_stream": ("POST", generate_stream, "inference"),
}
