"""How do texts, or tokens, become vectors?"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from wherry.frontends.http.exchange import Exchange
from wherry.frontends.offload import give_way
from wherry.frontends.openai.errors import BadField
from wherry.frontends.openai.fields.embeddings import EmbeddingRequest
from wherry.frontends.openai.fits import vector_fit
from wherry.frontends.openai.rows_call import RowsCall
from wherry.frontends.v2.http.entry import HttpEntry
from wherry.runtime.loaded_model import LoadedModel
from wherry.values.buffer import Buffer
from wherry.values.datatypes import Form, TensorSpec
from wherry.values.request import Columns, InferResponse

#: Numbers written between two pauses, which takes some milliseconds.
VECTORS_AT_ONCE: Final = 16


class Embedding(RowsCall):
    """A batch of texts or of lists of tokens, and their vectors as JSON."""

    operation = "embeddings"

    def __init__(
        self, entry: HttpEntry, exchange: Exchange, loaded: LoadedModel, wanted: EmbeddingRequest
    ) -> None:
        super().__init__(entry, exchange, loaded, wanted)
        fit = vector_fit(loaded.signature)
        assert fit is not None
        self._fit = fit
        self._wanted = wanted
        #: The tokens that were sent as such.
        self._tokens = 0

    def columns(self) -> tuple[Columns, int]:
        name, fit, wanted = self._loaded.name, self._fit, self._wanted
        width, fixed = wanted.dimensions, fit.vector.shape[0]
        if width is not None and 0 <= fixed < width:
            raise BadField("dimensions", f"the model '{name}' has {fixed}")
        texts, tokens = wanted.rows()
        if texts:
            if fit.text is None:
                raise BadField("input", f"the model '{name}' takes tokens, and no texts")
            return {fit.text.name: texts}, len(texts)
        if fit.tokens is None:
            raise BadField("input", f"the model '{name}' takes texts, and no tokens")
        self._tokens = sum(map(len, tokens))
        return {fit.tokens.name: _token_column(tokens, fit.tokens, name)}, len(tokens)

    def encoded(self, response: InferResponse) -> Sequence[Buffer]:
        """A vector each."""
        vectors = self._cut(np.asarray(response.outputs[self._fit.vector.name], np.dtype("<f4")))
        usage = self.usage(response, self._tokens)
        about = {"object": "list", "model": self._loaded.name, "usage": usage}
        parts: list[Buffer] = [msgspec.json.encode(about)[:-1], b',"data":[']
        as_text = self._wanted.encoding_format == "base64"
        for index, vector in enumerate(vectors):
            values: Any = (
                base64.b64encode(vector.tobytes()).decode() if as_text else vector.tolist()
            )
            one = {"object": "embedding", "index": index, "embedding": values}
            parts += [b"," if index else b"", msgspec.json.encode(one)]
            if not index % VECTORS_AT_ONCE:
                give_way()
        return [*parts, b"]}"]

    def _cut(self, vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The first numbers of each vector, of length 1, as OpenAI shortens them."""
        width, wanted = vectors.shape[1], self._wanted.dimensions
        if wanted is None or wanted == width:
            return vectors
        if wanted > width:
            raise BadField("dimensions", f"the model '{self._loaded.name}' has {width}")
        short = np.ascontiguousarray(vectors[:, :wanted])
        norms = np.linalg.norm(short, axis=1, keepdims=True)
        cut: np.ndarray[Any, Any] = np.divide(
            short, norms, out=np.zeros_like(short), where=norms > 0
        )
        return cut


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
