"""How does a column of the core become a tensor of a framework, and the other way round?

Strings are lists of rows in the core and arrays of objects in a framework. With `reshape` in the
configuration the model's shape differs from its clients'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from wherry.core.api import Array, BadModelOutput, Column, Columns, ShapedRow
from wherry.triton.repository.triton_config import TritonConfig, TritonInput, TritonOutput


def to_model(column: Column | str | bytes, tensor: TritonInput, batched: bool) -> Array:
    """The array for a column, in its full shape (rows first). Without a batch dimension `column` is
    the one row."""
    dims = tensor.reshape.shape if tensor.reshape is not None else tensor.dims
    if isinstance(column, str | bytes):  # the only element of a scalar tensor
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


def called_with(
    call: Callable[[dict[str, Array]], Sequence[Array]],
    columns: Mapping[str, Column],
    inside: TritonConfig,
    *,
    batched: bool,
) -> Columns:
    """What a model gives that takes arrays by name and returns those of its outputs, in their
    order."""
    arrays = {
        tensor.name: to_model(columns[tensor.name], tensor, batched)
        for tensor in inside.input
        if tensor.name in columns
    }
    return {
        tensor.name: from_model(result, tensor, batched, inside.name)
        for tensor, result in zip(inside.output, call(arrays), strict=True)
    }


def from_model(array: Array, tensor: TritonOutput, batched: bool, model: str) -> Column:
    """The column for a model's output (the one row without a batch dimension)."""
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
        return cast(Column, flat[0])
    if not tensor.dims:
        return flat
    width = len(flat) // max(1, len(array))
    column = [flat[row * width : (row + 1) * width] for row in range(len(array))]
    return [ShapedRow(row, array.shape[1:]) for row in column] if array.ndim > 2 else column


def _sizes(dims: Sequence[int]) -> list[int]:
    """`dims` for this number of elements. If several dimensions are open, the last one is filled,
    as in a request without a shape."""
    unknown = [index for index, size in enumerate(dims) if size == -1]
    return [1 if index in unknown[:-1] else size for index, size in enumerate(dims)]


def _bytes(element: Any) -> bytes:
    return element.encode() if isinstance(element, str) else bytes(element)
