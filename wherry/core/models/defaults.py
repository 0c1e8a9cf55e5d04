"""What stands for an input that a caller has left out?

The default of its parameter; where the code takes columns, a column with that default for each row.
None, a column of any length but one, and a sentinel that the code looks for are passed as they are,
as Python does. A plain value of a wrong type is a mistake.
"""

from __future__ import annotations

import copy
import inspect
import numbers
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, get_origin

import numpy as np

from wherry.core.values.datatypes import Form, Misfit, TensorSpec, converted
from wherry.core.values.request import Array, Column, Columns

#: Gives so many rows of a default, new ones each time: the code may write to them.
Rows = Callable[[int], Column]

#: Types of defaults that are compared with the input when a model is defined.
PLAIN = (bool, int, float, complex, str, bytes)
#: What a row of numbers is, and the types of a default, by numpy's kind.
NUMBERS: Final = {
    "i": ("an int", (int,)),
    "u": ("an int", (int,)),
    "f": ("a float", (int, float)),
    "b": ("a bool", (bool,)),
}
STRINGS: Final = {Form.TEXT: "a str", Form.BYTES: "bytes"}


def default_rows(
    execute: Callable[..., Any], inputs: Sequence[TensorSpec], *, row_wise: bool
) -> dict[str, Rows]:
    """For each input whose default is a row: what makes a column of it, as the code takes it."""
    found = {}
    parameters = inspect.signature(execute).parameters
    for spec in inputs:
        if spec.optional and spec.name in parameters:  # else it takes **columns
            default = parameters[spec.name].default
            if rows := _rows(default, spec, row_wise=row_wise):
                found[spec.name] = rows
    return found


def plain_default(default: Any, spec: TensorSpec) -> Any:
    """The row that a default stands for, if it is a plain value that is not wrong; else None."""
    default = _one_row(default, spec)
    if type(default) not in PLAIN or spec.shape or spec.media is not None:
        return None
    return float(default) if spec.datatype.dtype.kind == "f" else default


def filled(columns: Columns, inputs: Sequence[TensorSpec], rows: int) -> Columns:
    """The columns of a request with those that it leaves out and that have a plain default."""
    made: Columns = {
        spec.name: [spec.default] * rows
        if spec.form.is_bytes
        else np.full(rows, spec.default, spec.datatype.dtype)
        for spec in inputs
        if spec.name not in columns
    }
    return {**columns, **made} if made else columns


def wrong_default(default: Any, spec: TensorSpec) -> str:
    """What is wrong with a plain value as a default; "" if nothing is."""
    default = _one_row(default, spec)
    if type(default) not in PLAIN or spec.media is not None:
        return ""
    if spec.form is Form.SCALARS:
        row, kinds = NUMBERS[spec.datatype.dtype.kind]
        fits = type(default) in kinds
    elif spec.form in (Form.ARRAY, Form.ARRAYS):
        row, fits = "an array or a number", not isinstance(default, str | bytes)
    else:
        row, fits = STRINGS.get(spec.form, "an object"), _is_row(default, spec)
    if not fits:
        return f"its default is {default!r}, but a row of it is {row}"
    try:
        if isinstance(default, str):
            default.encode()
        elif not isinstance(default, bytes):
            converted(np.asarray(default), spec.datatype)
    except (Misfit, OverflowError, UnicodeEncodeError) as error:
        return f"its default {default!r} is not {spec.datatype} data; {error}"
    return ""


def _one_row(default: Any, spec: TensorSpec) -> Any:
    """A column of one row as that row, and a number of numpy as Python's."""
    if isinstance(default, list | tuple) and len(default) == 1 and not spec.holds_lists:
        (default,) = default
    return default.item() if isinstance(default, np.generic) else default


def _rows(default: Any, spec: TensorSpec, *, row_wise: bool) -> Rows | None:
    if spec.form is Form.ARRAY:
        one = _array(default, spec)
        return None if one is None else partial(np.repeat, one[None], axis=0)
    if spec.default is not None:
        return partial(_copied, spec.default)
    if not row_wise and isinstance(default, list | tuple) and not _is_list(default, spec):
        if len(default) != 1:
            return None
        (default,) = default
    if spec.form is Form.ARRAYS:
        row = _array(default, spec)
        return None if row is None else partial(_copied, row)
    return partial(_copied, default) if _is_row(default, spec) else None


def _copied(row: Any, rows: int) -> Column:
    return [copy.deepcopy(row) for _ in range(rows)]


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
