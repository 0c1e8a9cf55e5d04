"""How do the columns of several requests become those of one message, and how are they parted?

Strings may have a shape that their list does not show (`ShapedRow`, `ShapedRows`), which msgpack
would drop: a column of them crosses as three members, its rows, its shape, its rows' shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from wherry.core.api import Column, Columns, ShapedRow, ShapedRows

#: Bytes of an array, at most, in columns that are small; rows or characters of a list.
SMALL_BYTES: Final = 2**11
SMALL_STRING: Final = 64

_NUMBERS: Final = {int, float, bool, type(None)}


def packed(columns: Columns, strings: Sequence[str]) -> dict[str, Any]:
    """The columns as they cross. `strings` are those that may be shaped."""
    if not strings:
        return columns
    return {
        name: _packed(column) if name in strings else column for name, column in columns.items()
    }


def unpacked(columns: dict[str, Any], strings: Sequence[str]) -> Columns:
    """The columns as they were before `packed`."""
    for name in strings:
        if name in columns:
            columns[name] = _unpacked(columns[name])
    return columns


def joined(parts: Sequence[Columns]) -> dict[str, Any] | None:
    """Columns of one row each, as one; None if they do not fit together."""
    first = parts[0]
    together: dict[str, Any] = {}
    for name, column in first.items():
        if isinstance(column, list):
            if type(column) is not list:
                return None
            together[name] = [part[name][0] for part in parts]
            continue
        arrays = [part[name] for part in parts]
        dtype, shape = column.dtype, column.shape[1:]
        if any(one.shape[1:] != shape or one.dtype != dtype for one in arrays):  # type: ignore[union-attr]
            return None
        together[name] = np.concatenate(arrays)
    return together


def is_small(columns: Columns) -> bool:
    """Whether the columns surely take little memory: no array, and few rows of short strings."""
    for column in columns.values():
        if not isinstance(column, list):
            if column.nbytes > SMALL_BYTES:
                return False
        elif len(column) > SMALL_STRING or any(
            type(v) not in _NUMBERS and len(v) > SMALL_STRING for v in column
        ):
            return False
    return True


def _packed(column: Column) -> Any:
    if type(column) is ShapedRows:
        return [list(column), list(column.shape), None]
    rows = [list(row) if isinstance(row, ShapedRow) else row for row in column]
    if not any(isinstance(row, ShapedRow) for row in column):
        return [rows, None, None]
    shapes = [list(row.shape) if isinstance(row, ShapedRow) else None for row in column]
    return [rows, None, shapes]


def _unpacked(sent: Any) -> Column:
    rows, shape, shapes = sent
    if shape is not None:
        return ShapedRows(rows, shape)
    if shapes is None:
        return rows  # type: ignore[no-any-return]
    return [
        row if one is None else ShapedRow(row, one) for row, one in zip(rows, shapes, strict=True)
    ]
