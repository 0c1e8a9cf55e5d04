"""Which model answers what is asked in one piece: vectors, scores, an order of documents?"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from wherry.frontends.http.exchange import Exchange
from wherry.frontends.http.route import Route
from wherry.frontends.openai.embedding import Embedding
from wherry.frontends.openai.fields.decoding import decoded
from wherry.frontends.openai.fields.embeddings import EmbeddingRequest
from wherry.frontends.openai.fields.scores import RerankRequest, ScoreRequest
from wherry.frontends.openai.models import AbleModels
from wherry.frontends.openai.reading import read_and_start
from wherry.frontends.openai.scores import Rerank, Score
from wherry.frontends.v2.http.entry import HttpEntry
from wherry.values.buffer import Buffer

#: The request of each path, the model's ability, and what answers.
TASKS: dict[str, tuple[type[msgspec.Struct], str, Any]] = {
    "/v1/embeddings": (EmbeddingRequest, "embeddings", Embedding),
    # Where Jina, vLLM and Cohere have it.
    **dict.fromkeys(("/v1/rerank", "/rerank", "/v2/rerank"), (RerankRequest, "scores", Rerank)),
    **dict.fromkeys(("/v1/score", "/score"), (ScoreRequest, "scores", Score)),
}


class TaskRoutes:
    """The routes of one server."""

    def __init__(self, entry: HttpEntry) -> None:
        self._entry = entry
        self._models = AbleModels(entry.runtime)

    def routes(self) -> dict[str, Route]:
        return {
            path: Route({"POST": partial(self._answer, *task)}, "inference")
            for path, task in TASKS.items()
        }

    def _answer(
        self, fields: type[msgspec.Struct], ability: str, answers: Any, exchange: Exchange
    ) -> None:
        def read(body: Buffer, ignored: list[str] | None) -> Any:
            return decoded(body, fields, ignored)

        def start(exchange: Exchange, wanted: Any) -> None:
            loaded = self._models.able(wanted.model, ability)
            answers(self._entry, exchange, loaded, wanted).submit()

        read_and_start(self._entry, read, start, exchange)
