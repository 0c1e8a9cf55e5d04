"""How do pairs of texts become scores, and documents an order?"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from wherry.frontends.http.answers import new_request_id
from wherry.frontends.http.exchange import Exchange
from wherry.frontends.openai.fields.scores import RerankRequest, ScoreRequest
from wherry.frontends.openai.fits import score_fit
from wherry.frontends.openai.rows_call import RowsCall
from wherry.frontends.v2.http.entry import HttpEntry
from wherry.runtime.loaded_model import LoadedModel
from wherry.values.buffer import Buffer
from wherry.values.errors import BadModelOutput
from wherry.values.request import Columns, InferResponse

Json = dict[str, Any]


class PairsCall(RowsCall):
    """A batch of pairs, of which a cross encoder says how well they go together."""

    def __init__(
        self,
        entry: HttpEntry,
        exchange: Exchange,
        loaded: LoadedModel,
        wanted: RerankRequest | ScoreRequest,
    ) -> None:
        super().__init__(entry, exchange, loaded, wanted)
        fit = score_fit(loaded.signature)
        assert fit is not None
        self._fit = fit
        self._pairs = wanted.pairs()

    @abstractmethod
    def answer(self, scores: list[float], usage: Json) -> Json:
        """The answer of this route."""

    def columns(self) -> tuple[Columns, int]:
        queries, documents = self._pairs
        return {self._fit.query.name: queries, self._fit.document.name: documents}, len(queries)

    def encoded(self, response: InferResponse) -> Sequence[Buffer]:
        scores = np.asarray(response.outputs[self._fit.score.name], np.float64).reshape(-1)
        if not np.isfinite(scores).all():
            raise BadModelOutput(f"model '{self._loaded.name}': a score is not a finite number")
        return [msgspec.json.encode(self.answer(scores.tolist(), self.usage(response)))]


class Rerank(PairsCall):
    """Documents, by how well they answer a query."""

    operation = "rerank"

    def __init__(
        self, entry: HttpEntry, exchange: Exchange, loaded: LoadedModel, wanted: RerankRequest
    ) -> None:
        super().__init__(entry, exchange, loaded, wanted)
        self._wanted = wanted

    def answer(self, scores: list[float], usage: Json) -> Json:
        documents = self._pairs[1]
        # Of two that are alike, the earlier.
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: self._wanted.top_n]
        results: list[Json] = [{"index": i, "relevance_score": scores[i]} for i in order]
        if self._wanted.return_documents is not False:
            results = [{**one, "document": {"text": documents[one["index"]]}} for one in results]
        return {
            "id": f"rerank-{new_request_id()}",
            "object": "list",
            "model": self._loaded.name,
            "results": results,
            "usage": usage,
        }


class Score(PairsCall):
    """A score for each pair, in their order."""

    operation = "score"

    def answer(self, scores: list[float], usage: Json) -> Json:
        data = [{"index": i, "object": "score", "score": score} for i, score in enumerate(scores)]
        return {
            "id": f"score-{new_request_id()}",
            "object": "list",
            "created": int(time.time()),
            "model": self._loaded.name,
            "data": data,
            "usage": usage,
        }
