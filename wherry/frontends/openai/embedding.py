"""How do texts, or tokens, become vectors?"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from wherry.frontends.http.answers import new_request_id
from wherry.frontends.http.exchange import Exchange
from wherry.frontends.offload import give_way
from wherry.frontends.openai.errors import BadField
from wherry.frontends.openai.fields.embeddings import EmbeddingRequest, EmbedRequest
from wherry.frontends.openai.fits import vector_fit
from wherry.frontends.openai.rows_call import RowsCall
from wherry.frontends.v2.http.entry import HttpEntry
from wherry.runtime.loaded_model import LoadedModel
from wherry.values.buffer import Buffer
from wherry.values.datatypes import Form, TensorSpec
from wherry.values.request import Columns, InferResponse

#: Numbers written between two pauses, which takes some milliseconds.
VECTORS_AT_ONCE: Final = 16


class VectorsCall(RowsCall):
    """A batch of texts or of lists of tokens, of which a model makes a vector each."""

    def __init__(
        self,
        entry: HttpEntry,
        exchange: Exchange,
        loaded: LoadedModel,
        wanted: EmbeddingRequest | EmbedRequest,
    ) -> None:
        super().__init__(entry, exchange, loaded, wanted)
        fit = vector_fit(loaded.signature)
        assert fit is not None
        self._fit = fit
        self._wants = wanted
        #: The tokens that were sent as such.
        self._tokens = 0

    def columns(self) -> tuple[Columns, int]:
        name, fit, wanted = self._loaded.name, self._fit, self._wants
        width, fixed = wanted.width, fit.vector.shape[0]
        if width is not None and 0 <= fixed < width:
            raise BadField(wanted.width_field, f"the model '{name}' has {fixed}")
        texts, tokens = wanted.rows()
        if texts:
            if fit.text is None:
                problem = f"the model '{name}' takes tokens, and no texts"
                raise BadField(wanted.texts_field, problem)
            return {fit.text.name: texts}, len(texts)
        if fit.tokens is None:
            raise BadField("input", f"the model '{name}' takes texts, and no tokens")
        self._tokens = sum(map(len, tokens))
        return {fit.tokens.name: _token_column(tokens, fit.tokens, name)}, len(tokens)

    def vectors(self, response: InferResponse) -> np.ndarray[Any, Any]:
        """The first numbers of each vector, of length 1, as OpenAI shortens them."""
        vectors = np.asarray(response.outputs[self._fit.vector.name], np.dtype("<f4"))
        width, wanted = vectors.shape[1], self._wants.width
        if wanted is None or wanted == width:
            return vectors
        if wanted > width:
            raise BadField(self._wants.width_field, f"the model '{self._loaded.name}' has {width}")
        short = np.ascontiguousarray(vectors[:, :wanted])
        norms = np.linalg.norm(short, axis=1, keepdims=True)
        cut: np.ndarray[Any, Any] = np.divide(
            short, norms, out=np.zeros_like(short), where=norms > 0
        )
        return cut


class Embedding(VectorsCall):
    """Vectors in OpenAI's words."""

    operation = "embeddings"

    def __init__(
        self, entry: HttpEntry, exchange: Exchange, loaded: LoadedModel, wanted: EmbeddingRequest
    ) -> None:
        super().__init__(entry, exchange, loaded, wanted)
        self._as_text = wanted.encoding_format == "base64"

    def encoded(self, response: InferResponse) -> Sequence[Buffer]:
        """A vector each."""
        usage = self.usage(response, self._tokens)
        about = {"object": "list", "model": self._loaded.name, "usage": usage}
        parts: list[Buffer] = [msgspec.json.encode(about)[:-1], b',"data":[']
        for index, vector in enumerate(self.vectors(response)):
            values: Any = _base64(vector) if self._as_text else vector.tolist()
            one = {"object": "embedding", "index": index, "embedding": values}
            parts += [b"," if index else b"", msgspec.json.encode(one)]
            if not index % VECTORS_AT_ONCE:
                give_way()
        return [*parts, b"]}"]


class Embed(VectorsCall):
    """Vectors in Cohere's words: all of each type together."""

    operation = "embeddings"

    def __init__(
        self, entry: HttpEntry, exchange: Exchange, loaded: LoadedModel, wanted: EmbedRequest
    ) -> None:
        super().__init__(entry, exchange, loaded, wanted)
        self._wanted = wanted

    def columns(self) -> tuple[Columns, int]:
        columns, rows = super().columns()
        purpose = self._wanted.input_type
        if purpose is None:
            return columns, rows
        if self._loaded.signature.input("input_type") is None:
            raise BadField("input_type", f"the model '{self._loaded.name}' does not support it")
        return {**columns, "input_type": [purpose] * rows}, rows

    def encoded(self, response: InferResponse) -> Sequence[Buffer]:
        vectors, types = self.vectors(response), self._wanted.types()
        if vectors.shape[1] % 8 and {"binary", "ubinary"}.intersection(types):
            problem = f"binary needs a multiple of 8 numbers, and there are {vectors.shape[1]}"
            raise BadField("embedding_types", problem)
        units = {"input_tokens": self.usage(response)["prompt_tokens"], "image_tokens": 0}
        about = {
            "id": f"embd-{new_request_id()}",
            "texts": self._wanted.texts,
            "response_type": "embeddings_by_type",
            "meta": {"api_version": {"version": "2"}, "billed_units": units},
        }
        parts: list[Buffer] = [msgspec.json.encode(about)[:-1], b',"embeddings":{']
        for place, kind in enumerate(types):
            parts += [b"," if place else b"", f'"{kind}":['.encode()]
            for index, vector in enumerate(vectors):
                parts += [b"," if index else b"", msgspec.json.encode(_TOLD[kind](vector))]
                if not index % VECTORS_AT_ONCE:
                    give_way()
            parts.append(b"]")
        return [*parts, b"}}"]


def _base64(vector: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(vector.tobytes()).decode()


def _bits(vector: np.ndarray[Any, Any]) -> Any:
    """Eight numbers a byte, the first its highest bit: 1 where a number is not negative."""
    return np.packbits(vector >= 0)


_TOLD: Final[dict[str, Callable[[np.ndarray[Any, Any]], Any]]] = {
    "float": np.ndarray.tolist,
    "base64": _base64,
    "binary": lambda vector: (_bits(vector).astype(np.int16) - 128).tolist(),
    "ubinary": lambda vector: _bits(vector).tolist(),
}


def _token_column(tokens: list[list[int]], spec: TensorSpec, model: str) -> Any:
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
