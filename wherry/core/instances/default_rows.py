"""What does the code get for an input that its callers have left out?

The default of its parameter; where the code takes columns, as a column with that default for each
row. None, a column of any length but one, and a value that is not a row of the input (a sentinel
that the code looks for) are passed as they are, which is what Python does.
"""

from __future__ import annotations

import copy
import inspect
import numbers
from collections.abc import Callable
from functools import partial
from typing import Any, get_origin

import numpy as np

from wherry.core.models.signature import Signature
from wherry.core.values.datatypes import Form, TensorSpec
from wherry.core.values.request import Array, Column

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
