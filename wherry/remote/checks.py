"""Are the columns that another machine has sent those of the model's inputs?

A front checks what its clients send. The owner checks again what a row of another front would be
batched with: names, datatypes, shapes and the types of lists, once for each message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from wherry.values.datatypes import Form, TensorSpec
from wherry.values.errors import InvalidRequest
from wherry.values.media import FileBytes
from wherry.values.request import Columns

#: What a list of each form may hold, where a row is one element.
_ELEMENTS: Final[dict[Form, frozenset[type]]] = {
    Form.TEXT: frozenset((str,)),
    Form.BYTES: frozenset((bytes, FileBytes)),
    Form.SCALARS: frozenset((int, float, bool)),
}


class ColumnCheck:
    """Checks columns against the inputs of one model."""

    def __init__(self, inputs: Sequence[TensorSpec]) -> None:
        self._specs = {spec.name: spec for spec in inputs}
        self._needed = {spec.name for spec in inputs if not spec.optional}

    def __call__(self, columns: Columns) -> None:
        """Raise InvalidRequest if a column is missing, unknown, or of another type or shape."""
        if not self._needed <= columns.keys():
            raise InvalidRequest(f"input {min(self._needed - columns.keys())!r} is missing")
        for name, column in columns.items():
            spec = self._specs.get(name)
            if spec is None:
                raise InvalidRequest(f"there is no input {name!r}")
            if (why := _mismatch(spec, column)) is not None:
                raise InvalidRequest(f"input {name!r}: {why}", field=name)


def _mismatch(spec: TensorSpec, column: Any) -> str | None:
    if isinstance(column, np.ndarray):
        return _array_mismatch(spec, column)
    if spec.form is Form.ARRAY:
        return "an array is needed"
    if spec.form is Form.ARRAYS:
        return next((why for row in column if (why := _row_mismatch(spec, row))), None)
    kinds = set(map(type, column))
    allowed = _ELEMENTS.get(spec.form)
    if allowed is not None and not spec.shape and not kinds <= allowed:
        return f"its rows cannot be {', '.join(sorted(one.__name__ for one in kinds - allowed))}"
    return "its rows cannot be arrays" if np.ndarray in kinds else None


def _array_mismatch(spec: TensorSpec, column: Any) -> str | None:
    if spec.form.is_bytes:
        return "a list is needed"
    if not column.ndim:
        return "an array of rows is needed"
    return _dtype_mismatch(spec, column, column.shape[1:])


def _row_mismatch(spec: TensorSpec, row: Any) -> str | None:
    if not isinstance(row, np.ndarray):
        return "arrays are needed"
    return _dtype_mismatch(spec, row, row.shape)


def _dtype_mismatch(spec: TensorSpec, array: Any, shape: tuple[int, ...]) -> str | None:
    if array.dtype != spec.datatype.dtype:
        return f"{array.dtype} is not {spec.datatype.name}"
    return None if spec.fits(shape) else f"shape {list(shape)} does not fit {list(spec.shape)}"
