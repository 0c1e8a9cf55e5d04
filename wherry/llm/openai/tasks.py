"""How do texts or tokens become vectors, pairs of texts scores, and documents an order?"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import msgspec
import numpy as np

from wherry.core.api import (
    BadModelOutput,
    Buffer,
    Columns,
    Form,
    InferResponse,
    LoadedModel,
    TensorSpec,
)
from wherry.llm.openai.client_request import ClientRequest
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.generation import request_attributes
from wherry.llm.openai.models import VectorFit, score_fit, vector_fit
from wherry.llm.openai.task_requests import (
    EmbeddingRequest,
    Pairs,
    RerankRequest,
    ScoreRequest,
)
from wherry.server.api import (
    HttpEntry,
    InferCall,
    RequestValues,
    give_way,
    is_large,
)

Numbers = np.ndarray[Any, Any]
TaskRequest = EmbeddingRequest | RerankRequest | ScoreRequest

#: Rows written between two pauses, which takes some milliseconds.
ROWS_AT_ONCE: Final = 16


class ReadTokens(msgspec.Struct):
    """How many tokens were read."""

    prompt_tokens: int
    total_tokens: int


class Vector(msgspec.Struct, kw_only=True):
    """The vector of one text: numbers, or FP32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Vectors(msgspec.Struct, kw_only=True):
    """The vectors of texts, in their order."""

    object: Literal["list"]
    model: str
    usage: ReadTokens
    id: str
    created: int
    data: list[Vector]


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


@dataclass(frozen=True, slots=True)
class Task:
    """One request's inputs for a model, and how its response is answered."""

    #: What it does, in a span.
    operation: str
    values: RequestValues
    #: The answer in parts, of a response and the request's id. Another thread, if it is large.
    encode: Callable[[InferResponse, str], Sequence[Buffer]]


class RowsCall(InferCall):
    """One request of several rows, batched with other callers', to a model that does not stream."""

    entry: HttpEntry
    client: ClientRequest
    codec: Task

    def submit(self, request: TaskRequest) -> None:
        """Send the request; an immediate refusal is raised."""
        exchange = self.client.exchange
        head = exchange.request.head
        terms = self.entry.terms(head.headers, head.trace)
        if head.trace is not None:
            head.trace.draft.attributes.update(request_attributes(request, self.codec.operation))
        exchange.request.body = b""  # free it: the columns hold what is needed
        self.send(self.codec.values, terms, exchange.request.caller)
        exchange.on_disconnect = self.cancel

    def write(self, response: InferResponse) -> None:
        self.client.exchange.on_disconnect = None
        write = partial(self.codec.encode, response, self.client.id)
        if is_large(response.outputs):
            self.client.off_loop(write, self._send, reads=False)
        else:
            self._send(write())

    def fail(self, error: Exception) -> None:
        self.client.exchange.on_disconnect = None
        self.client.fail(error)

    def _send(self, body: Sequence[Buffer]) -> None:
        self.client.respond(b"".join(body))


def embedding(loaded: LoadedModel, request: EmbeddingRequest) -> Task:
    """A row for each text or list of tokens, of which the model makes a vector. BadField."""
    fit = vector_fit(loaded.signature)
    assert fit is not None
    size = fit.vector.shape[0]
    if request.dimensions is not None and 0 <= size < request.dimensions:
        raise BadField("dimensions", f"the model '{loaded.name}' has {size}")
    spec, column, tokens = _read(loaded, fit, request)

    def encode(response: InferResponse, id: str) -> Sequence[Buffer]:
        vectors: Numbers = np.asarray(response.outputs[fit.vector.name], np.dtype("<f4"))
        about = Vectors(
            object="list",
            model=request.model or loaded.reported_name(),
            usage=_usage(response, tokens),
            id=f"embd-{id}",
            created=int(time.time()),
            data=[],
        )
        return _encoded(loaded, request, _shortened(loaded, request, vectors), about)

    return Task("embeddings", RequestValues({spec.name: column}, len(column)), encode)


def _encoded(
    loaded: LoadedModel, request: EmbeddingRequest, vectors: Numbers, about: Vectors
) -> Sequence[Buffer]:
    """`about` with its vectors, which are written one after the other."""
    as_json = request.encoding_format != "base64"
    if as_json and not np.isfinite(vectors).all():
        raise BadModelOutput(f"model '{loaded.name}': a number is not finite")
    parts: list[Buffer] = [msgspec.json.encode(about).removesuffix(b"]}")]
    for index, vector in enumerate(vectors):
        shown = vector.tolist() if as_json else base64.b64encode(vector.tobytes()).decode()
        one = Vector(object="embedding", index=index, embedding=shown)
        parts += [b"," if index else b"", msgspec.json.encode(one)]
        if not index % ROWS_AT_ONCE:
            give_way()
    return [*parts, b"]}"]


def _shortened(loaded: LoadedModel, request: EmbeddingRequest, vectors: Numbers) -> Numbers:
    """The first numbers of each vector, scaled to length 1, as OpenAI shortens them."""
    most, width = request.dimensions, vectors.shape[1]
    if most is not None and most > width:
        raise BadField("dimensions", f"the model '{loaded.name}' has {width}")
    if most is None or most == width:
        return vectors
    return of_length_one(np.ascontiguousarray(vectors[:, :most]))


def _read(
    loaded: LoadedModel, fit: VectorFit, request: EmbeddingRequest
) -> tuple[TensorSpec, Any, int]:
    """The input for what was sent, its column, and how many tokens were sent as such. BadField:
    the model has no such input."""
    rows, name = request.rows(), loaded.name
    sent, other = ("texts", "tokens") if isinstance(rows[0], str) else ("tokens", "texts")
    spec = fit.text if sent == "texts" else fit.tokens
    if spec is None:
        raise BadField("input", f"the model '{name}' takes {other}, and no {sent}")
    if spec is fit.text:
        return spec, rows, 0
    tokens: Any = rows
    return spec, _token_column(tokens, spec, name), sum(map(len, tokens))


def _token_column(tokens: Sequence[list[int]], spec: TensorSpec, model: str) -> Any:
    if spec.form is Form.JSON:
        return tokens
    most = np.iinfo(spec.datatype.dtype.name).max
    for place, row in enumerate(tokens):
        if max(row) > most:
            raise BadField(f"input[{place}]", f"the model '{model}' has tokens up to {most}")
    rows = [np.array(row, spec.datatype.dtype) for row in tokens]
    if spec.form is Form.ARRAYS:
        return rows
    if len(set(map(len, rows))) > 1:
        raise BadField("input", f"the model '{model}' takes lists of tokens of one length")
    return np.stack(rows)


def of_length_one(vectors: Numbers) -> Numbers:
    """Vectors scaled to length 1 along the last dimension; one of zeros stays."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):  # what is not finite stays so
        made: Numbers = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms != 0)
    return made


def rerank(loaded: LoadedModel, request: RerankRequest) -> Task:
    """Documents, by how well they answer a query."""
    pairs = request.pairs()
    columns, rows, scores_of = _scored(loaded, pairs)

    def encode(response: InferResponse, id: str) -> Sequence[Buffer]:
        scores = scores_of(response)
        # Of two that are alike, the earlier.
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: request.top_n]
        results = [RankedDocument(index=i, relevance_score=scores[i]) for i in order]
        if request.return_documents is not False:
            for one in results:
                one.document = DocumentText(pairs[1][one.index])
        ranking = Ranking(
            id=f"rerank-{id}",
            object="list",
            model=request.model or loaded.reported_name(),
            results=results,
            usage=_usage(response),
        )
        return [msgspec.json.encode(ranking)]

    return Task("rerank", RequestValues(columns, rows), encode)


def score(loaded: LoadedModel, request: ScoreRequest) -> Task:
    """A score for each pair of texts, in their order."""
    columns, rows, scores_of = _scored(loaded, request.pairs())

    def encode(response: InferResponse, id: str) -> Sequence[Buffer]:
        data = [
            PairScore(index=i, object="score", score=one)
            for i, one in enumerate(scores_of(response))
        ]
        made = PairScores(
            id=f"score-{id}",
            object="list",
            created=int(time.time()),
            model=request.model or loaded.reported_name(),
            data=data,
            usage=_usage(response),
        )
        return [msgspec.json.encode(made)]

    return Task("score", RequestValues(columns, rows), encode)


def _scored(
    loaded: LoadedModel, pairs: Pairs
) -> tuple[Columns, int, Callable[[InferResponse], list[float]]]:
    """Columns and rows of pairs, and the function that makes their scores of the response."""
    fit = score_fit(loaded.signature)
    assert fit is not None
    name = fit.score.name

    def scores_of(response: InferResponse) -> list[float]:
        scores: Numbers = np.asarray(response.outputs[name], np.float64).reshape(-1)
        if not np.isfinite(scores).all():
            raise BadModelOutput(f"model '{loaded.name}': a score is not a finite number")
        made: list[float] = scores.tolist()
        return made

    return {fit.query.name: pairs[0], fit.document.name: pairs[1]}, len(pairs[0]), scores_of


def _usage(response: InferResponse, otherwise: int = 0) -> ReadTokens:
    """The tokens that were read, of models that have an output `tokens`."""
    counts = response.outputs.get("tokens")
    tokens = otherwise if counts is None else int(sum(int(count) for count in counts))
    return ReadTokens(tokens, tokens)
