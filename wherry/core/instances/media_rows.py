"""How do rows that hold images, audio or files become what the model's code takes, and back?

In the process and thread that run the model. A row that cannot be decoded fails its own request;
its neighbours in the batch are answered by one call. Sizes are read from headers first: what would
take too much memory together is decoded, and the model called, in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wherry.core.models.signature import Signature
from wherry.core.values.datatypes import TensorSpec
from wherry.core.values.errors import BadModelOutput, InvalidRequest
from wherry.core.values.media_codec import encoded, prepared, require
from wherry.core.values.request import Columns, concatenate, rows_of

#: Decoded pixels and samples that one call of a model gets, at most; a single row may be larger.
CALL_BYTES: Final = 512 << 20

#: For each column of media what decodes its rows.
Decoders = dict[str, list[Callable[[], Any]]]


@dataclass(slots=True)
class Decoded:
    """The callers (by index) that one call of the model is for, their columns, and why others,
    whose turn it was, are not among them."""

    callers: list[int]
    columns: Columns
    refused: dict[int, Exception]


class MediaRows:
    """The rows of one model's inputs and outputs that hold images, audio or files."""

    def __init__(self, signature: Signature, model: str) -> None:
        self._model = model
        self._inputs = [(spec.name, spec.media) for spec in signature.inputs if spec.media]
        self.has_inputs = bool(self._inputs)
        self._outputs = [spec.media for spec in signature.outputs if spec.media]

    def require(self) -> None:
        """Import what decodes them. ConfigError names the package that is missing."""
        for media in (*(media for _, media in self._inputs), *self._outputs):
            require(media)

    def decoded(self, columns: Columns, counts: Sequence[int]) -> Iterator[Decoded]:
        """The rows of all callers as the code takes them, for one call of the model after the
        other; nearly always that is a single one."""
        part: dict[int, tuple[int, Decoders]] = {}
        refused: dict[int, Exception] = {}
        nbytes = start = 0
        for index, count in enumerate(counts):
            try:
                size, decoders = self._opened(columns, start, count)
            except InvalidRequest as error:
                refused[index] = error
            else:
                if part and nbytes + size > CALL_BYTES:
                    yield self._decode(columns, counts, part, refused)
                    part, refused, nbytes = {}, {}, 0
                part[index] = start, decoders
                nbytes += size
            start += count
        yield self._decode(columns, counts, part, refused)

    def decoded_row(self, columns: Columns) -> Columns:
        """One caller's rows. InvalidRequest."""
        _, decoders = self._opened(columns, 0, len(next(iter(columns.values()))))
        return {**columns, **self._values(decoders)}

    def encoded(self, spec: TensorSpec, rows: Sequence[Any], *, lossless: bool) -> list[Any]:
        """What the code has returned for an output as the bytes of its rows; None stays.
        BadModelOutput."""
        media = spec.media
        assert media is not None

        def one(value: Any) -> bytes:
            return encoded(value, media, lossless=lossless)

        try:
            if spec.shape:  # each row is a list of them
                return [None if row is None else [one(value) for value in row] for row in rows]
            return [None if row is None else one(row) for row in rows]
        except (TypeError, ValueError) as error:
            raise BadModelOutput(
                f"model {self._model!r}: output {spec.name!r} cannot be encoded: {error}"
            ) from error

    def _opened(self, columns: Columns, start: int, count: int) -> tuple[int, Decoders]:
        """What the rows of one caller take once decoded, and what decodes them."""
        decoders: Decoders = {}
        total = largest = 0
        for name, media in self._inputs:
            if name not in columns:
                continue
            found = decoders[name] = []
            for row in range(count):
                try:
                    size, decode = prepared(columns[name][start + row], media)
                except InvalidRequest as error:
                    raise self._refusal(name, row, count, error) from error
                found.append(decode)
                total, largest = total + size, max(largest, size)
        if total > max(CALL_BYTES, largest):
            raise InvalidRequest(
                f"model {self._model!r}: the rows of the request take {total >> 20} MiB when they"
                f" are decoded; at most {CALL_BYTES >> 20} MiB are: send them in several requests"
            )
        return total, decoders

    def _decode(
        self,
        columns: Columns,
        counts: Sequence[int],
        part: dict[int, tuple[int, Decoders]],
        refused: dict[int, Exception],
    ) -> Decoded:
        kept: list[int] = []
        found: list[Columns] = []
        for index, (start, decoders) in part.items():
            try:
                values = self._values(decoders)
            except (InvalidRequest, MemoryError) as error:
                refused[index] = error
                continue
            kept.append(index)
            found.append({**rows_of(columns, start, start + counts[index]), **values})
        return Decoded(kept, concatenate(found) if found else {}, refused)

    def _values(self, decoders: Decoders) -> Columns:
        values: Columns = {}
        for name, column in decoders.items():
            rows = values[name] = []
            for row, decode in enumerate(column):
                try:
                    rows.append(decode())
                except InvalidRequest as error:
                    raise self._refusal(name, row, len(column), error) from error
        return values

    def _refusal(self, name: str, row: int, rows: int, error: InvalidRequest) -> InvalidRequest:
        which = f" (row {row})" if rows > 1 else ""
        text = f"model {self._model!r}: input {name!r}{which} {error}"
        return type(error)(text, field=name)
