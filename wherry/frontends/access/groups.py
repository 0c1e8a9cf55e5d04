"""Which of Triton's groups of the API does a path belong to?"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from wherry.frontends.http.answers import respond
from wherry.frontends.http.exchange import Application, Exchange, error_body

#: What only operators need: what may have a port of its own.
MANAGEMENT: Final = frozenset(("model-repository", "logging", "trace", "metrics"))

_OF_A_MODEL: Final = {
    "": "metadata",
    "ready": "health",
    "config": "model-config",
    "stats": "statistics",
    "batching": "statistics",
    "infer": "inference",
    "generate": "inference",
    "generate_stream": "inference",
    "trace": "trace",
}
_BELOW_V2: Final = {
    "health": "health",
    "systemsharedmemory": "shared-memory",
    "cudasharedmemory": "shared-memory",
    "repository": "model-repository",
    "trace": "trace",
    "logging": "logging",
}
_ELSEWHERE: Final = {
    "metrics": "metrics",
    "livez": "health",
    "readyz": "health",
    "healthz": "health",
    "health": "health",
    "ping": "health",
}


def group_of(path: str) -> str:
    """The group that a restriction names; "inference" for what runs models in other protocols."""
    match path.split("/")[1:]:
        case ["v2", "models", "stats"]:
            return "statistics"
        case ["v2", "models", _, "versions", _, *rest] | ["v2", "models", _, *rest]:
            return _OF_A_MODEL.get(rest[0] if rest else "", "metadata")
        case ["v2", first, *_]:
            return _BELOW_V2.get(first, "metadata")
        case ["v2"] | [""] | ["v1", "models", *_]:
            return "metadata"
        case [first, *_]:
            return _ELSEWHERE.get(first, "inference")
    return "inference"


class Only:
    """Some groups of an application's paths: others are not found here."""

    def __init__(self, application: Application, groups: Collection[str]) -> None:
        self._application = application
        self._groups = groups

    def has(self, group: str) -> bool:
        return group in self._groups

    def __call__(self, exchange: Exchange) -> None:
        if self.has(group_of(exchange.request.path)):
            self._application(exchange)
        else:
            respond(exchange, error_body("Not Found"), status=404)


class Without(Only):
    """An application without some groups of its paths."""

    def has(self, group: str) -> bool:
        return not super().has(group)
