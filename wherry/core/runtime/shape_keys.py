"""Which requests to a model may share a batch, by the shapes of their inputs?"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from wherry.core.models.signature import Signature
from wherry.core.values.datatypes import Form
from wherry.core.values.request import Columns, ShapedRow


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
        #: Whether requests may have different keys.
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
