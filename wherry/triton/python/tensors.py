"""How does a column become a tensor in a message to a model's process, and a tensor a column?

A model sees whole tensors, with the batch dimension if it has one; the core keeps columns, whose
form depends on the model. An invalid tensor is a ValueError; what that means depends on the sender.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from wherry.core.api import (
    BF16,
    BYTES,
    DATATYPES,
    Array,
    Column,
    Form,
    ShapedRow,
    ShapedRows,
    TensorSpec,
    as_array,
)
from wherry.triton.python.stub.wire import (
    Incoming,
    Outgoing,
    pack_elements,
    unpack_elements,
)


def put(
    out: Outgoing, spec: TensorSpec, column: Column, dims: Sequence[int], *, batched: bool
) -> list[Any]:
    """Add a column to a message as a tensor. Returns its descriptor in the head. `dims` is a row's
    shape as the receiver knows it."""
    name = spec.name
    if spec.datatype is BYTES:
        return _put_elements(out, spec, column, dims, batched=batched)
    array = np.stack(column) if isinstance(column, list) else column
    if not batched:
        array = array[0]
    data = float32_to_bf16(array) if spec.datatype is BF16 else array
    return out.put(name, spec.datatype.name, list(array.shape), data)


def get(
    descriptor: Sequence[Any], incoming: Incoming, spec: TensorSpec, *, batched: bool
) -> tuple[Column, int]:
    """The column of a received tensor, and its number of rows. An array is a view where it came to
    lie, which stays as it is while the view exists.

    The rows may have another shape than `spec`. ValueError if the tensor is invalid.
    """
    _, datatype, shape, where, offset, size = descriptor
    if batched and not shape:
        raise ValueError("it has no batch dimension")
    rows = shape[0] if batched else 1
    declared = spec.datatype
    if datatype == declared.name and spec.form is Form.ARRAY and declared is not BF16:
        whole = shape if batched else (1, *shape)
        return incoming.array(where, offset, size, declared.dtype, whole), rows
    memory = incoming.get(where, offset, size)
    if 0 in shape:  # numpy cannot infer the type of an empty list
        datatype = spec.datatype.name
    if (datatype == "BYTES") != (spec.datatype is BYTES):
        raise ValueError(f"it is {datatype}, declared is {spec.datatype}")
    if spec.datatype is BYTES:
        return _elements(memory, shape, rows, spec, batched=batched), rows
    array = _array(memory, datatype, shape)
    if array.dtype != spec.datatype.dtype:
        try:
            array = as_array(array, spec)
        except (TypeError, ValueError, OverflowError) as error:
            exact = _without_loss(array, spec.datatype.dtype)
            if exact is None:
                raise ValueError(
                    f"it is {datatype}, declared is {spec.datatype}: {error}"
                ) from None
            array = exact
    if not batched:
        array = array[np.newaxis]
    if spec.form is Form.ARRAYS:
        return list(array), rows
    return array, rows


def fits(column: Column, spec: TensorSpec) -> bool:
    """Whether the rows have the declared shape."""
    if isinstance(column, np.ndarray):
        return spec.fits(column.shape[1:])
    if spec.datatype is BYTES:
        known = max(1, math.prod(d for d in spec.shape if d != -1))
        sizes = {len(row) for row in column} if spec.shape else set()
        return all(size % known == 0 if -1 in spec.shape else size == known for size in sizes)
    return all(spec.fits(row.shape) for row in column)


def bf16_to_float32(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bf16(array: Array) -> Array:
    """Rounded to nearest even; a NaN stays a NaN."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(array), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def _without_loss(array: Array, dtype: Any) -> Array | None:
    """The array as another type; None if that changes a value."""
    with np.errstate(all="ignore"):
        found = array.astype(dtype)
        return found if np.array_equal(found.astype(array.dtype), array) else None


def _array(memory: Array, datatype: str, shape: Sequence[int]) -> Array:
    """A received tensor as an array, over its memory."""
    known = DATATYPES.get(datatype)
    if known is None or known.itemsize * math.prod(shape) != memory.nbytes:
        raise ValueError(f"{memory.nbytes} bytes are no {datatype}{list(shape)}")
    if known is BF16:
        return bf16_to_float32(memory.view(np.uint16)).reshape(shape)
    return memory.view(known.dtype).reshape(shape)


def _put_elements(
    out: Outgoing, spec: TensorSpec, column: Column, dims: Sequence[int], *, batched: bool
) -> list[Any]:
    if spec.shape == ():
        elements, shape = column, [len(column)]
    else:
        elements = [element for row in column for element in row]
        sizes = _row_shape(column[0], dims)
        shape = [len(column), *sizes] if batched else sizes
    if spec.form is Form.TEXT:
        elements = [element.encode() for element in elements]
    elif spec.form is Form.JSON:
        elements = [msgspec.json.encode(element) for element in elements]
    return out.put(spec.name, "BYTES", shape, pack_elements(elements))


def _elements(
    memory: Array, shape: Sequence[int], rows: int, spec: TensorSpec, *, batched: bool
) -> list[Any]:
    elements: list[Any] = unpack_elements(memory)
    if len(elements) != math.prod(shape):
        raise ValueError(f"{len(elements)} elements are no BYTES{list(shape)}")
    if spec.form is Form.TEXT:
        elements = [element.decode() for element in elements]
    elif spec.form is Form.JSON:
        elements = [msgspec.json.decode(element) for element in elements]
    if spec.shape == ():
        return elements
    width = len(elements) // rows if rows else 0
    column = [elements[row * width : (row + 1) * width] for row in range(rows)]
    row_shape = shape[1:] if batched else shape
    if len(row_shape) > 1:
        return [ShapedRow(row, row_shape) for row in column]
    usual = [rows, width] if batched else [width]
    return column if list(shape) == usual else ShapedRows(column, shape)


def _row_shape(row: Sequence[Any], dims: Sequence[int]) -> list[int]:
    """A row's shape. If the row does not state it, the innermost open dimension takes the rest."""
    if isinstance(row, ShapedRow):
        return list(row.shape)
    size = len(row)
    shape = [1 if d == -1 else d for d in dims]
    unknown = [i for i, d in enumerate(dims) if d == -1]
    if unknown:
        shape[unknown[-1]] = size // max(1, math.prod(shape))
    return shape
