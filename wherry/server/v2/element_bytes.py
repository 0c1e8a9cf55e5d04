"""How do the elements of a tensor look as bytes on the wire?"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from wherry.core.api import Form, TensorSpec
from wherry.server.calls.offload import SLICE_BYTES, give_way

#: Dimensions of a shape that an error shows.
_MOST_DIMS: Final = 64


def wire_shape(spec: TensorSpec, batched: bool) -> list[int]:
    if batched:
        return [-1, *spec.shape]
    # An array may have no dimensions; a single value is sent as one element.
    return list(spec.shape) or ([] if spec.form is Form.ARRAY else [1])


def row_wire_shape(spec: TensorSpec, shape: Sequence[int]) -> Sequence[int]:
    """Return the shape in which an output without a batch is sent; `shape` is its array's."""
    single = not shape and -1 not in spec.shape  # else it has no dimensions, whatever is declared
    return wire_shape(spec, False) if single else shape


def dims_text(shape: Sequence[int]) -> str:
    """A shape as errors have it; of one with more dimensions than any tensor the first ones."""
    text = ",".join(map(str, shape[:_MOST_DIMS]))
    return f"[{text}]" if len(shape) <= _MOST_DIMS else f"[{text},... {len(shape)} dimensions]"


_LENGTH: Final = struct.Struct("<I")


def pack_bytes(values: Sequence[bytes]) -> bytes:
    """BYTES elements on the wire: each behind its length in four bytes."""
    if len(values) == 1:
        return _LENGTH.pack(len(values[0])) + values[0]
    return b"".join([part for value in values for part in (_LENGTH.pack(len(value)), value)])


def unpack_bytes(data: memoryview) -> list[bytes]:
    """The elements of a BYTES tensor; ValueError, with what ends early and why, if the lengths do
    not add up."""
    values: list[bytes] = []
    add, size_at = values.append, _LENGTH.unpack_from
    position, end = 0, len(data)
    while position < end:
        if position:
            give_way()
        text = bytes(data[position : position + SLICE_BYTES])
        begin, stop = 0, len(text)
        while stop - begin >= 4:
            (size,) = size_at(text, begin)
            behind = begin + 4 + size
            if behind > stop:
                break
            add(text[begin + 4 : behind])
            begin = behind
        position += begin
        if begin == 0:  # an element that is larger than a slice, or not all there
            add(_one_element(data[position:]))
            position += 4 + len(values[-1])
    return values


def _one_element(data: memoryview) -> bytes:
    if len(data) < 4:
        raise ValueError(
            "length indicator", f"expecting 4 bytes but only {len(data)} bytes available"
        )
    (size,) = _LENGTH.unpack_from(data)
    if size > len(data) - 4:
        raise ValueError(
            "data", f"expecting string of length {size} but only {len(data) - 4} bytes available"
        )
    return bytes(data[4 : 4 + size])
