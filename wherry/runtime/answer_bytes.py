"""How is a response written to a store outside of this process, and read again?

As msgpack. What can write to the store can answer for the model, and can do no more: what is
read makes arrays, strings and numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from wherry.values.request import InferResponse, ShapedRow

#: Changes with the form: what another form wrote is not read.
FORM: Final = 1
#: Kinds of numpy's dtypes whose bytes say all of an array.
_PLAIN: Final = frozenset("biufc")

_write = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder().decode


class Unwritable(ValueError):
    """Raised for a response that holds something else than arrays, strings and numbers."""


def to_bytes(answer: InferResponse) -> bytes:
    """Raises Unwritable."""
    columns = {name: _packed(column) for name, column in answer.outputs.items()}
    parameters = None if answer.parameters is None else _packed(dict(answer.parameters))
    return _write([FORM, answer.rows, columns, parameters])


def from_bytes(data: bytes) -> InferResponse:
    """Raises ValueError if `to_bytes` has not written this."""
    try:
        form, rows, columns, parameters = _read(data)
        if form != FORM or type(rows) is not int or rows < 0:
            raise ValueError("another form")
        outputs = {str(name): _unpacked(column) for name, column in columns.items()}
        return InferResponse(outputs, rows, None if parameters is None else _unpacked(parameters))
    except (TypeError, AttributeError, IndexError, KeyError, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from None


def _packed(value: Any) -> Any:
    """A list whose first element says what the others are."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in _PLAIN:
            raise Unwritable(f"an array of {value.dtype}")
        return ["a", value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()]
    if type(value) in (str, bytes, bool, int, float) or value is None:
        return ["v", value]
    if type(value) is ShapedRow:
        return ["r", list(value.shape), [_packed(one) for one in value]]
    if type(value) is list:
        return ["l", [_packed(one) for one in value]]
    if type(value) is dict:
        return ["m", {str(key): _packed(one) for key, one in value.items()}]
    raise Unwritable(type(value).__name__)


def _unpacked(packed: Sequence[Any]) -> Any:
    kind, *parts = packed
    if kind == "v":
        return parts[0]
    if kind == "a":
        return _array(*parts)
    if kind == "l":
        return [_unpacked(one) for one in parts[0]]
    if kind == "r":
        return ShapedRow([_unpacked(one) for one in parts[1]], tuple(parts[0]))
    if kind == "m":
        members: Mapping[str, Any] = parts[0]
        return {key: _unpacked(one) for key, one in members.items()}
    raise ValueError(f"unknown kind {kind!r}")


def _array(dtype: str, shape: Sequence[int], data: bytes) -> Any:
    kind = np.dtype(dtype)
    if kind.kind not in _PLAIN or math.prod(shape) * kind.itemsize != len(data):
        raise ValueError("an array that is none")
    return np.frombuffer(data, kind).reshape(shape).copy()
