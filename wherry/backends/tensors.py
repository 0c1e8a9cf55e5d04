"""What is between a column as the core keeps it and a tensor as a framework takes it?

Strings are lists of rows in the core and arrays of objects in a framework; `reshape` in a
configuration says that the model's own shape is another than its clients'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from wherry.repository.triton_config import TritonInput, TritonOutput
from wherry.values.errors import BadModelOutput
from wherry.values.request import Array, Column, ShapedRow


def to_model(column: Column | str | bytes, tensor: TritonInput, batched: bool) -> Array:
    """A column (a row, for a model without a batch dimension) as one array of its full shape."""
    dims = tensor.reshape.shape if tensor.reshape is not None else tensor.dims
    if isinstance(column, str | bytes):  # the only element of a tensor without dimensions
        column = [column]
    if isinstance(column, list):
        rows = [len(column)] if batched else []
        flat = [e for row in column for e in (row if isinstance(row, list) else [row])]
        array: Array = np.empty(len(flat), np.object_)
        array[:] = flat
        first = column[0] if batched else column
        as_sent = isinstance(first, ShapedRow) and tensor.reshape is None
        shape = cast(ShapedRow, first).shape if as_sent else _sizes(dims)
        return array.reshape([*rows, *shape])
    if tensor.reshape is None:
        return column
    rows = [len(column)] if batched else []
    return column.reshape([*rows, *_sizes(dims)])


def from_model(array: Array, tensor: TritonOutput, batched: bool, model: str) -> Column:
    """What the model gave as a column (a row, without a batch dimension)."""
    if tensor.reshape is not None:
        rows = [len(array)] if batched else []
        try:
            array = array.reshape([*rows, *_sizes(tensor.dims)])
        except ValueError:
            raise BadModelOutput(
                f"model {model!r}: output {tensor.name!r} has shape {list(array.shape)}, which"
                f" does not reshape to {tensor.dims}"
            ) from None
    if tensor.data_type != "TYPE_STRING":
        return array
    flat = [_bytes(element) for element in array.ravel().tolist()]
    if not batched and array.ndim:
        return ShapedRow(flat, array.shape) if array.ndim > 1 else flat
    if not batched:
        return cast(Column, flat[0])  # a row of one element
    if not tensor.dims:
        return flat
    width = len(flat) // max(1, len(array))
    column = [flat[row * width : (row + 1) * width] for row in range(len(array))]
    return [ShapedRow(row, array.shape[1:]) for row in column] if array.ndim > 2 else column


def _sizes(dims: Sequence[int]) -> list[int]:
    """`dims` for so many elements, if they leave more than one dimension open: the last is filled,
    as in a request without a shape."""
    unknown = [index for index, size in enumerate(dims) if size == -1]
    return [1 if index in unknown[:-1] else size for index, size in enumerate(dims)]


def _bytes(element: Any) -> bytes:
    return element.encode() if isinstance(element, str) else bytes(element)
