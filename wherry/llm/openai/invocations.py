"""Which route is meant by a request to `/invocations`, the only path that SageMaker calls?

By what its body has, and what the model can; that route's handler then answers, as vLLM does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from wherry.core.api import Buffer
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.fields.decoding import decoded
from wherry.llm.openai.models import ABLE, AbleModels
from wherry.llm.openai.reading import read_and_start
from wherry.server.api import EVENTS, Exchange, HttpEntry, Route, inference

PATH: Final = "/invocations"
_OF_TEXTS: Final = {"embeddings": "/v1/embeddings"}
_SCORES: Final = dict.fromkeys(("scores", "cosines"), "/v1/score")
#: A field that only some routes have, and the path for each ability that a model may have: the
#: first of both that holds.
MEANT: Final[Mapping[str, Mapping[str, str]]] = {
    "messages": {"chat": "/v1/chat/completions", **_OF_TEXTS},
    "prompt": {"completions": "/v1/completions"},
    "query": dict.fromkeys(("scores", "cosines"), "/v1/rerank"),
    **dict.fromkeys(("text_1", "text_2"), _SCORES),
    "input": _OF_TEXTS,
}


#: The fields that tell the route, unread; what else is there is passed over.
_Looked: Final = msgspec.defstruct(
    "_Looked",
    [
        ("model", str | None, None),
        *((name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in MEANT),
    ],
)


class Invocations:
    """The route of one server; `routes` are those that may be meant, by their paths."""

    def __init__(self, entry: HttpEntry, routes: Mapping[str, Route]) -> None:
        self._entry = entry
        self._models = AbleModels(entry.runtime)
        self._routes = routes

    def routes(self) -> dict[str, Route]:
        summary = "The route that the body's fields and the model decide"
        operation = inference(summary, {"type": "object"}, {}, {EVENTS: {}})
        return {PATH: self._models.route(self._invoke, operation, *ABLE)}

    def _invoke(self, exchange: Exchange) -> None:
        read_and_start(self._entry, _look, self._pass_on, exchange)

    def _pass_on(self, exchange: Exchange, looked: tuple[str | None, Mapping[str, str]]) -> None:
        model, paths = looked
        loaded = self._models.able(model, *paths)
        path = next(path for able, path in paths.items() if ABLE[able](loaded))
        self._routes[path].handlers["POST"](exchange)


def _look(body: Buffer, _ignored: list[str] | None) -> tuple[str | None, Mapping[str, str]]:
    """The model of a body, and the paths that may be meant. BadField."""
    looked: Any = decoded(body, _Looked)
    for name, paths in MEANT.items():
        value = getattr(looked, name)
        if value is not msgspec.UNSET and bytes(value) != b"null":
            return looked.model, paths
    raise BadField(None, f"the body has none of {', '.join(MEANT)}, which tell what is wanted")
