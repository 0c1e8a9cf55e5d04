"""Which rows is a model's code called with, that it may change without anybody else seeing it?

What a request holds stays as it was sent, as a batch may run again in parts. So the code gets
copies, but for a lone row, which runs once: its arrays are copied only if they are read-only, by
which whoever makes a request says that they are not its own (a body, a caller's array).

For an input that is left out it gets the default of its parameter; where the code takes columns, a
column with that default for each row. None, a column of any length but one, and a value that is not
a row of the input (a sentinel that the code looks for) are passed as they are, as Python does.
"""

from __future__ import annotations

import copy
import inspect
import numbers
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_origin

import numpy as np

from wherry.core.models.signature import Signature
from wherry.core.values.datatypes import Form, TensorSpec
from wherry.core.values.request import Array, Column, Columns, concatenate
from wherry.core.values.tensors import is_tensor, own
from wherry.core.workers.encoding import UNSENDABLE, copied

#: The types of rows that nobody can change, and that most columns have.
_STRINGS = {str, bytes}


def gather_rows(parts: Sequence[Columns], *, once: bool = True, device: str = "") -> Columns:
    """The rows of several requests as columns that the code may change; tensors on several devices,
    on this one. Not `once`: even a lone row runs again."""
    lone = len(parts) == 1
    columns = dict(parts[0]) if lone else concatenate(parts, device)
    for name, column in columns.items():
        lends = once and lone and len(column) == 1
        if not isinstance(column, np.ndarray):
            columns[name] = _own(column, lends, is_new=not lone)
        elif lone and not (lends and column.flags.behaved):
            columns[name] = column.copy()
    return columns


def _own(column: Column, lends: bool, is_new: bool) -> Column:
    """`is_new`: the column was made of those of several requests."""
    if not isinstance(column, list):  # a tensor
        return column if is_new else own(column, lent=lends)
    kinds = set(map(type, column))
    if kinds <= _STRINGS:
        return column if is_new else column.copy()
    if not any(issubclass(kind, list | dict) for kind in kinds):
        return [_own_row(row, lends) for row in column]
    if all(isinstance(row, list) and _holds_bytes(row) for row in column):
        return [copy.copy(row) for row in column]  # a tensor of strings
    return column.copy() if lends else _copied(column)


def _own_row(row: Any, lends: bool) -> Any:
    if isinstance(row, np.ndarray):
        return row if lends and row.flags.behaved else row.copy()
    return own(row, lent=lends) if is_tensor(row) else row


def _holds_bytes(row: list[Any]) -> bool:
    return all(issubclass(kind, bytes) for kind in set(map(type, row)))


def _copied(column: list[Any]) -> list[Any]:
    try:
        rows: list[Any] = copied(column)
        return rows
    except UNSENDABLE:  # such as an integer of more than 64 bits
        return copy.deepcopy(column)


# What stands for an input that a caller has left out

#: Gives so many rows of a default, new ones each time: the code may write to them.
Rows = Callable[[int], Column]


def default_rows(execute: Callable[..., Any], signature: Signature) -> dict[str, Rows]:
    """For each input whose default is a row: what makes a column of it, as the code takes it."""
    found = {}
    for spec in signature.inputs:
        if spec.optional and (rows := _rows(_default(execute, spec.name), spec, signature)):
            found[spec.name] = rows
    return found


def _default(execute: Callable[..., Any], name: str) -> Any:
    parameter = inspect.signature(execute).parameters.get(name)  # None: it takes **columns
    return None if parameter is None or parameter.default is parameter.empty else parameter.default


def _rows(default: Any, spec: TensorSpec, signature: Signature) -> Rows | None:
    if spec.form is Form.ARRAY:
        one = _array(default, spec)
        return None if one is None else partial(_stacked, one)
    if not signature.row_wise and isinstance(default, list | tuple) and not _is_list(default, spec):
        if len(default) != 1:
            return None
        (default,) = default
    if spec.form is Form.ARRAYS:
        row = _array(default, spec)
        return None if row is None else lambda rows: [row.copy() for _ in range(rows)]
    if not _is_row(default, spec):
        return None
    if spec.form is Form.SCALARS and spec.datatype.dtype.kind == "f":
        default = float(default)
    return lambda rows: [copy.deepcopy(default) for _ in range(rows)]


def _stacked(row: Array, rows: int) -> Array:
    return np.stack([row] * rows)


def _array(default: Any, spec: TensorSpec) -> Array | None:
    """A default as an array of one row; a number stands for each of its elements."""
    if not isinstance(default, np.ndarray | np.generic | numbers.Number | list | tuple):
        return None
    array = np.asarray(default, spec.datatype.dtype)
    if array.ndim == len(spec.shape) + 1 and len(array) == 1:
        array = array[0]
    if array.ndim == 0 and -1 not in spec.shape:
        array = np.broadcast_to(array, spec.shape)
    return array if spec.fits(array.shape) else None


def _is_list(default: list[Any] | tuple[Any, ...], spec: TensorSpec) -> bool:
    """Is it one row, of an input whose rows are lists?"""
    return spec.holds_lists and not (default and all(isinstance(one, list) for one in default))


def _is_row(default: Any, spec: TensorSpec) -> bool:
    if spec.media is not None:
        return default is not None and type(default) is not object
    if spec.form is Form.SCALARS:
        return isinstance(default, numbers.Number | np.generic)
    if spec.form is Form.TEXT:
        return isinstance(default, str)
    if spec.form is Form.BYTES:
        return isinstance(default, bytes)
    kind = get_origin(spec.json_type) or spec.json_type
    return isinstance(default, list if spec.holds_lists else dict) or (
        isinstance(kind, type) and type(default) is kind
    )
