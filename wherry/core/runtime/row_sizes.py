"""How large is the largest row of a request, and with which others may it share a batch?

Its size is what the model's `cost()` returns or, without one, the length of its texts. The batcher
puts rows of similar size together: by `cost()` in any case, by length if that is seen to pay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from wherry.core.models.signature import Signature
from wherry.core.values.datatypes import Form, TensorSpec
from wherry.core.values.request import Column, Columns, ShapedRow

#: The size of the largest row, from columns and their number of rows.
RowSize = Callable[[Columns, int], float]


def by_cost(cost: Callable[..., float], signature: Signature) -> RowSize:
    """Sizes by a model's `cost()`, which may raise anything."""
    names = [spec.name for spec in signature.inputs]

    def of(columns: Columns, rows: int) -> float:
        inputs = [columns.get(name) for name in names]
        costs = [
            float(cost(*(None if column is None else column[row] for column in inputs)))
            for row in range(rows)
        ]
        return max(1e-9, *costs)

    return of


def by_length(signature: Signature) -> RowSize | None:
    """Sizes by the lengths of strings (characters or bytes) and of arrays of different shapes
    (elements) in a row; at least 1. None if the model has no such inputs.

    Arrays that are one tensor in a batch do not count: rows of different shapes never share one.
    """
    specs = [spec for spec in signature.inputs if not spec.optional and _varies(spec)]
    if not specs:
        return None
    if len(specs) == 1 and specs[0].form is not Form.ARRAYS and not specs[0].shape:
        name = specs[0].name

        def of_text(columns: Columns, rows: int) -> float:
            texts = columns[name]
            return (len(texts[0]) if rows == 1 else max(map(len, texts))) or 1

        return of_text

    names = [spec.name for spec in specs]

    def of(columns: Columns, rows: int) -> float:
        lengths = [_lengths(columns[name]) for name in names]
        return max(1, *map(sum, zip(*lengths, strict=True)))

    return of


def _varies(spec: TensorSpec) -> bool:
    if spec.form is Form.ARRAYS:
        return -1 in spec.shape
    return spec.form in (Form.TEXT, Form.BYTES)


def _lengths(column: Column) -> Sequence[int]:
    """The length of each row: of a string, of strings in a list together, or of an array."""
    return [sum(map(len, row)) if isinstance(row, list) else _length(row) for row in column]


def _length(row: Any) -> int:
    return len(row) if isinstance(row, str | bytes) else math.prod(row.shape)


class ShapeKeys:
    """Gives requests keys: those with equal keys can be concatenated."""

    def __init__(
        self, signature: Signature, variable_strings: Sequence[str], *, batched: bool
    ) -> None:
        """`variable_strings` are inputs of strings whose rows must have one shape in a batch.
        Without a batch dimension all arrays must be equal in shape."""
        self._has_optional = any(spec.optional for spec in signature.inputs)
        self._arrays = [
            spec.name
            for spec in signature.inputs
            if spec.form is Form.ARRAY and (-1 in spec.shape or not batched)
        ]
        self._strings = variable_strings
        #: The array whose shape is all that may differ.
        self._only = None
        if len(self._arrays) == 1 and not self._strings and not self._has_optional:
            self._only = self._arrays[0]
        self.differ = bool(self._arrays or self._strings or self._has_optional)

    def of(self, columns: Columns) -> Hashable:
        """The key of a request's inputs: shapes of a row, and which optional inputs it has."""
        if self._only is not None:
            return columns[self._only].shape[1:]  # type: ignore[union-attr]
        shapes: list[Hashable] = [
            (name, columns[name].shape[1:])  # type: ignore[union-attr]
            for name in self._arrays
            if name in columns
        ]
        if self._strings:
            shapes += [
                (name, _row_shape(columns[name][0])) for name in self._strings if name in columns
            ]
        return (*shapes, frozenset(columns)) if self._has_optional else tuple(shapes)


def _row_shape(row: Any) -> tuple[int, ...]:
    return row.shape if isinstance(row, ShapedRow) else (len(row),)
