"""How do pairs of texts become scores, and documents an order?"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from wherry.core.api import BadModelOutput, Buffer, Columns, InferResponse, LoadedModel
from wherry.llm.openai.embedding import Numbers, of_length_one
from wherry.llm.openai.fields.beside import columns_beside
from wherry.llm.openai.fields.scores import Pairs, RerankRequest, ScoreRequest
from wherry.llm.openai.fits import ScoreFit, VectorFit, score_fit, vector_fit
from wherry.llm.openai.rows_call import ReadTokens, RowsCall
from wherry.server.api import HttpEntry, request_id_of


class DocumentText(msgspec.Struct):
    """A document as it was sent."""

    text: str


class RankedDocument(msgspec.Struct, kw_only=True):
    """A document, by its place in the request, and how well it answers."""

    index: int
    relevance_score: float
    document: DocumentText | msgspec.UnsetType = msgspec.UNSET


class Ranking(msgspec.Struct, kw_only=True):
    """Documents, the best first."""

    id: str
    object: Literal["list"]
    model: str
    results: list[RankedDocument]
    usage: ReadTokens


class PairScore(msgspec.Struct, kw_only=True):
    """How well two texts go together."""

    index: int
    object: Literal["score"]
    score: float


class PairScores(msgspec.Struct, kw_only=True):
    """The scores of pairs of texts, in their order."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[PairScore]
    usage: ReadTokens


class CrossEncoder:
    """How pairs go to a model that reads two texts at once."""

    def __init__(self, fit: ScoreFit, pairs: Pairs) -> None:
        self._fit = fit
        self._pairs = pairs

    def columns(self) -> tuple[Columns, int]:
        queries, documents = self._pairs
        return {self._fit.query.name: queries, self._fit.document.name: documents}, len(queries)

    def scores(self, response: InferResponse) -> Numbers:
        return np.asarray(response.outputs[self._fit.score.name], np.float64).reshape(-1)


class Cosines:
    """How pairs go to a model that makes a vector of each text, once of each that is alike."""

    def __init__(self, fit: VectorFit, pairs: Pairs) -> None:
        assert fit.text is not None
        self._text, self._vector = fit.text.name, fit.vector.name
        self._pairs = pairs
        self._places = {text: i for i, text in enumerate(dict.fromkeys((*pairs[0], *pairs[1])))}

    def columns(self) -> tuple[Columns, int]:
        return {self._text: list(self._places)}, len(self._places)

    def scores(self, response: InferResponse) -> Numbers:
        vectors = of_length_one(np.asarray(response.outputs[self._vector], np.float64))
        left, right = (vectors[[self._places[text] for text in side]] for side in self._pairs)
        made: Numbers = (left * right).sum(axis=1)
        return made


class PairsCall(RowsCall):
    """A batch of pairs, of which a model says how well they go together."""

    def __init__(
        self,
        entry: HttpEntry,
        loaded: LoadedModel,
        request: RerankRequest | ScoreRequest,
    ) -> None:
        super().__init__(entry, loaded, request)
        self._wants = request
        self._pairs = request.pairs()
        self._model: CrossEncoder | Cosines
        if (cross := score_fit(loaded.signature)) is not None:
            self._model = CrossEncoder(cross, self._pairs)
        else:
            vectors = vector_fit(loaded.signature)
            assert vectors is not None
            self._model = Cosines(vectors, self._pairs)

    @abstractmethod
    def answer(self, scores: list[float], usage: ReadTokens) -> Ranking | PairScores:
        """The answer of this route."""

    def columns(self) -> tuple[Columns, int]:
        columns, rows = self._model.columns()
        return {**columns, **columns_beside(self._wants, self._loaded, rows)}, rows

    def encoded(self, response: InferResponse) -> Sequence[Buffer]:
        scores = self._model.scores(response)
        if not np.isfinite(scores).all():
            raise BadModelOutput(f"model '{self._loaded.name}': a score is not a finite number")
        return [msgspec.json.encode(self.answer(scores.tolist(), self.usage(response)))]


class Rerank(PairsCall):
    """Documents, by how well they answer a query."""

    operation = "rerank"

    def __init__(self, entry: HttpEntry, loaded: LoadedModel, request: RerankRequest) -> None:
        super().__init__(entry, loaded, request)
        self._rerank = request

    def answer(self, scores: list[float], usage: ReadTokens) -> Ranking:
        documents = self._pairs[1]
        # Of two that are alike, the earlier.
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: self._rerank.top_n]
        results = [RankedDocument(index=i, relevance_score=scores[i]) for i in order]
        if self._rerank.return_documents is not False:
            for one in results:
                one.document = DocumentText(documents[one.index])
        return Ranking(
            id=f"rerank-{request_id_of(self._exchange)}",
            object="list",
            model=self.model_name,
            results=results,
            usage=usage,
        )


class Score(PairsCall):
    """A score for each pair, in their order."""

    operation = "score"

    def answer(self, scores: list[float], usage: ReadTokens) -> PairScores:
        data = [PairScore(index=i, object="score", score=score) for i, score in enumerate(scores)]
        return PairScores(
            id=f"score-{request_id_of(self._exchange)}",
            object="list",
            created=int(time.time()),
            model=self.model_name,
            data=data,
            usage=usage,
        )
