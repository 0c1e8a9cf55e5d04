"""How do texts, tokens or a conversation become vectors?"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
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
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.fields.beside import columns_beside
from wherry.llm.openai.fields.embeddings import EmbeddingRequest, ToRead
from wherry.llm.openai.fits import vector_fit
from wherry.llm.openai.rows_call import ReadTokens, RowsCall
from wherry.server.api import HttpEntry, give_way, request_id_of

Numbers = np.ndarray[Any, Any]

#: Rows written between two pauses, which takes some milliseconds.
ROWS_AT_ONCE: Final = 16
#: Fields that are done here for tokens, and for all rows, if the model has no input of that name.
CUTS: Final = frozenset(("truncate_prompt_tokens", "truncation_side"))
ACTIVATION: Final = "use_activation"


class Vector(msgspec.Struct, kw_only=True):
    """The vector of one text: numbers, or those of 32 bits in base64."""

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


class Embedding(RowsCall):
    """Rows of which a model makes a vector each, in OpenAI's words."""

    operation = "embeddings"

    def __init__(self, entry: HttpEntry, loaded: LoadedModel, request: EmbeddingRequest) -> None:
        super().__init__(entry, loaded, request)
        fit = vector_fit(loaded.signature)
        assert fit is not None
        self._fit = fit
        self._wants = request
        #: The tokens that were sent as such.
        self._tokens = 0
        #: Whether vectors are brought to length 1 here.
        self._to_one = False

    def columns(self) -> tuple[Columns, int]:
        name, size, request = self._loaded.name, self._fit.vector.shape[0], self._wants
        if request.dimensions is not None and 0 <= size < request.dimensions:
            raise BadField("dimensions", f"the model '{name}' has {size}")
        if request.use_activation is not None and self._loaded.signature.input(ACTIVATION) is None:
            if not request.use_activation:
                problem = f"the model '{name}' has no other numbers than those that it tells"
                raise BadField(ACTIVATION, problem)
            self._to_one = True
        spec, column = self._read(request.rows())
        # Tokens are cut here, texts where they are tokenized.
        done = {ACTIVATION} | (CUTS if spec is self._fit.tokens else frozenset())
        beside = columns_beside(request, self._loaded, len(column), frozenset(done))
        return {spec.name: column, **beside}, len(column)

    def encoded(self, response: InferResponse) -> Sequence[Buffer]:
        vectors = self._vectors(response)
        as_json = self._wants.encoding_format != "base64"
        if as_json and not np.isfinite(vectors).all():
            raise BadModelOutput(f"model '{self._loaded.name}': a number is not finite")
        about = Vectors(
            object="list",
            model=self.model_name,
            usage=self.usage(response, self._tokens),
            id=f"embd-{request_id_of(self._exchange)}",
            created=int(time.time()),
            data=[],
        )
        parts: list[Buffer] = [msgspec.json.encode(about).removesuffix(b"]}")]
        for index, vector in enumerate(vectors):
            shown = vector.tolist() if as_json else base64.b64encode(vector.tobytes()).decode()
            one = Vector(object="embedding", index=index, embedding=shown)
            parts += [b"," if index else b"", msgspec.json.encode(one)]
            if not index % ROWS_AT_ONCE:
                give_way()
        return [*parts, b"]}"]

    def _vectors(self, response: InferResponse) -> Numbers:
        """The first numbers of each vector, of length 1, as OpenAI shortens them."""
        vectors: Numbers = np.asarray(response.outputs[self._fit.vector.name], np.dtype("<f4"))
        most, width = self._wants.dimensions, vectors.shape[1]
        if most is not None and most > width:
            raise BadField("dimensions", f"the model '{self._loaded.name}' has {width}")
        if most is not None and most < width:
            return of_length_one(np.ascontiguousarray(vectors[:, :most]))
        return of_length_one(vectors) if self._to_one else vectors

    def _read(self, read: ToRead) -> tuple[TensorSpec, Any]:
        """The input for what was sent, and its column. BadField: the model has none."""
        fit, name = self._fit, self._loaded.name
        if read.texts:
            if fit.text is None:
                takes = "tokens" if fit.tokens else "messages"
                raise BadField("input", f"the model '{name}' takes {takes}, and no texts")
            return fit.text, read.texts
        if read.conversations:
            if fit.messages is None:
                raise BadField("messages", f"the model '{name}' does not support it; send input")
            return fit.messages, read.conversations
        if fit.tokens is None:
            takes = "texts" if fit.text else "messages"
            raise BadField("input", f"the model '{name}' takes {takes}, and no tokens")
        tokens = self._cut(read.tokens)
        self._tokens = sum(map(len, tokens))
        return fit.tokens, _token_column(tokens, fit.tokens, name)

    def _cut(self, tokens: Sequence[list[int]]) -> Sequence[list[int]]:
        """The tokens that are to be read, unless the model itself cuts them."""
        most = self._wants.truncate_prompt_tokens
        if most in (None, -1) or self._loaded.signature.input("truncate_prompt_tokens"):
            return tokens
        if most == 0:
            raise BadField("truncate_prompt_tokens", "leaves no token")
        left = self._wants.truncation_side == "left"
        return [row[-most:] if left else row[:most] for row in tokens]


def of_length_one(vectors: Numbers) -> Numbers:
    """Vectors, the last dimension each, of length 1; one of zeros stays."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    made: Numbers = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return made


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
