"""What stands for an input that a caller has left out?

The default of its parameter: where the code takes columns a number, text or bytes for each row, or
None or an empty list, which the code gets as it is; where it takes one row what Python passes. A
plain value of a wrong type is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from wherry.core.values.datatypes import Form, Misfit, TensorSpec, converted
from wherry.core.values.request import Columns

#: Types of defaults that are compared with the input when a model is defined.
PLAIN = (bool, int, float, complex, str, bytes)
#: What a row of numbers is, and the types of a default, by numpy's kind.
NUMBERS: Final = {
    "i": ("an int", (int,)),
    "u": ("an int", (int,)),
    "f": ("a float", (int, float)),
    "b": ("a bool", (bool,)),
}
STRINGS: Final = {Form.TEXT: ("a str", str), Form.BYTES: ("bytes", bytes)}


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
        row, kind = STRINGS.get(spec.form, ("an object", dict))
        fits = isinstance(default, kind)
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
