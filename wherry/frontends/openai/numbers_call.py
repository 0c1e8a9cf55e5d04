"""How do texts, tokens or a conversation become numbers?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from wherry.frontends.openai.errors import BadField
from wherry.frontends.openai.fields.beside import columns_beside
from wherry.frontends.openai.fields.embeddings import ToRead
from wherry.frontends.openai.fits import NumbersFit
from wherry.frontends.openai.rows_call import RowsCall
from wherry.frontends.v2.http.entry import HttpEntry
from wherry.runtime.loaded_model import LoadedModel
from wherry.values.datatypes import Form, TensorSpec
from wherry.values.errors import BadModelOutput
from wherry.values.request import Columns, InferResponse

Numbers = np.ndarray[Any, Any]
#: Numbers of each row, of one shape or of several.
Rows = Numbers | Sequence[Numbers]


class Readable(Protocol):
    """A request that says what a model is to read."""

    @property
    def texts_field(self) -> str: ...
    def rows(self) -> ToRead: ...


class NumbersCall(RowsCall):
    """Rows of texts, of tokens, or of one conversation, of which a model makes numbers each."""

    #: Fields that are done here, if the model has no input of that name.
    done: frozenset[str] = frozenset(("truncate_prompt_tokens", "truncation_side"))

    def __init__(
        self,
        entry: HttpEntry,
        loaded: LoadedModel,
        wanted: Any,
        fit: NumbersFit,
    ) -> None:
        super().__init__(entry, loaded, wanted)
        self._fit = fit
        self._reading: Readable = wanted
        #: The tokens that were sent as such.
        self._tokens = 0

    def columns(self) -> tuple[Columns, int]:
        spec, column = self._read(self._reading.rows())
        rows = len(column)
        # Tokens are cut here, texts where they are tokenized.
        done = self.done if spec is self._fit.tokens else self.done - NumbersCall.done
        beside = columns_beside(self._reading, self._loaded, rows, done)  # type: ignore[arg-type]
        return {spec.name: column, **beside}, rows

    def numbers(self, response: InferResponse) -> Rows:
        """The model's numbers, a row each, in 32 bits."""
        column = response.outputs[self._fit.numbers.name]
        if not self._fit.numbers.shape:
            return np.asarray(column, np.dtype("<f4")).reshape(-1, 1)
        if isinstance(column, np.ndarray):
            return np.asarray(column, np.dtype("<f4"))
        return [np.asarray(row, np.dtype("<f4")) for row in column]

    def check_finite(self, rows: Rows) -> None:
        """BadModelOutput if JSON has no word for one of these numbers."""
        if not all(np.isfinite(row).all() for row in rows):
            raise BadModelOutput(f"model '{self._loaded.name}': a number is not finite")

    def _read(self, read: ToRead) -> tuple[TensorSpec, Any]:
        """The input for what was sent, and its column. BadField: the model has none."""
        fit, name = self._fit, self._loaded.name
        if read.texts:
            if fit.text is None:
                takes = "tokens" if fit.tokens else "messages"
                problem = f"the model '{name}' takes {takes}, and no texts"
                raise BadField(self._reading.texts_field, problem)
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
        most = getattr(self._reading, "truncate_prompt_tokens", None)
        if most in (None, -1) or self._loaded.signature.input("truncate_prompt_tokens"):
            return tokens
        if most == 0:
            raise BadField("truncate_prompt_tokens", "leaves no token")
        left = getattr(self._reading, "truncation_side", None) == "left"
        return [row[-most:] if left else row[:most] for row in tokens]


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
