"""How are numbers and length-delimited fields encoded in a protobuf message?

Reading starts at a position and returns the position behind what was read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wherry.core.api import InvalidRequest, Tag
from wherry.server.calls.offload import give_way

VARINT, FIXED64, BLOCK, FIXED32 = 0, 1, 2, 5

#: Bytes of a block from which numpy reads its numbers faster than a loop does, and a view of it
#: costs less than a copy.
LONG_BLOCK: Final = 64
#: Bytes of a block of varints that are read at once, into five arrays of 64 bits.
_SLICE: Final = 2**16
#: By kind, as a .proto file names it; an enumeration is read and written as an int32.
FLOATS: Final = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}
INTEGERS: Final = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}


class Malformed(InvalidRequest):
    """The bytes are not a message of the expected kind."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            "failed to parse the request message", tag=Tag.INTERNAL, more=f": {problem}"
        )


#: From the 64 bits of a varint to a value; 32-bit fields use the lower half.
_CONVERT: Final[dict[str, Callable[[int], Any]]] = {
    "bool": bool,
    "uint64": int,
    "uint32": lambda value: value & 0xFFFFFFFF,
    "int64": lambda value: value - (1 << 64) if value >> 63 else value,
    "int32": lambda value: ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000,
}


def wire_type(kind: str) -> int:
    return {"float": FIXED32, "double": FIXED64}.get(kind, VARINT)


def number_reader(kind: str) -> Callable[[memoryview, int, int], tuple[Any, int]]:
    if kind in FLOATS:
        form = FLOATS[kind]

        def read_float(data: memoryview, position: int, end: int) -> tuple[Any, int]:
            if position + form.size > end:
                raise Malformed(f"a {kind} is cut off")
            return form.unpack_from(data, position)[0], position + form.size

        return read_float
    convert = _CONVERT[kind]

    def read_integer(data: memoryview, position: int, end: int) -> tuple[Any, int]:
        value, position = read_varint(data, position, end)
        return convert(value), position

    return read_integer


def read_numbers(block: memoryview, kind: str) -> npt.NDArray[Any]:
    """All numbers of a long packed block. Gives way to other threads now and then."""
    if kind in FLOATS:
        form = FLOATS[kind]
        if len(block) % form.size:
            raise Malformed(f"a {kind} is cut off")
        return np.frombuffer(block, f"<f{form.size}")
    raw = np.frombuffer(block, np.uint8)
    pieces = []
    while len(raw) > _SLICE:
        ends = np.flatnonzero(raw[_SLICE - 10 : _SLICE] < 0x80)
        if not len(ends):
            raise Malformed("a number is longer than ten bytes")
        cut = _SLICE - 10 + int(ends[-1]) + 1
        pieces.append(_read_varints(raw[:cut], kind))
        raw = raw[cut:]
        give_way()
    last = _read_varints(raw, kind)
    return np.concatenate([*pieces, last]) if pieces else last


def _read_varints(raw: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[Any]:
    last = np.flatnonzero(raw < 0x80)
    if not len(last) or last[-1] != len(raw) - 1:
        raise Malformed("a number is cut off")
    first = np.concatenate(([0], last[:-1] + 1))
    sizes = last - first + 1
    longest = int(sizes.max())
    if longest > 10:
        raise Malformed("a number is longer than ten bytes")
    numbers = np.zeros(len(last), np.uint64)
    for place in range(longest):
        has = sizes > place
        bits = (raw[first[has] + place] & 0x7F).astype(np.uint64)
        numbers[has] |= bits << np.uint64(7 * place)
    if kind == "bool":
        return numbers.astype(np.bool_)
    if kind == "int64":
        return numbers.view(np.int64)
    if kind == "uint64":
        return numbers
    halves = numbers.astype(np.uint32)
    return halves if kind == "uint32" else halves.view(np.int32)


def read_varint(data: memoryview, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
        if shift == 70:
            raise Malformed("a number is longer than ten bytes")
    raise Malformed("a number is cut off")


def read_block(data: memoryview, position: int, end: int) -> tuple[int, int]:
    """Where the content of the length-prefixed block at `position` begins and ends."""
    if position < end and data[position] < 0x80:
        size = data[position]
        position += 1
    else:
        size, position = read_varint(data, position, end)
    if size > end - position:
        raise Malformed(f"a field has the length {size} bytes, but only {end - position} follow")
    return position, position + size


def skip(data: memoryview, position: int, end: int, tag: int) -> int:
    wire_type = tag & 7
    if not tag >> 3:
        raise Malformed("a field has the number 0")
    if wire_type == VARINT:
        return read_varint(data, position, end)[1]
    if wire_type == BLOCK:
        return read_block(data, position, end)[1]
    if wire_type == FIXED64:
        return position + 8
    if wire_type == FIXED32:
        return position + 4
    raise Malformed(f"a field has the wire type {wire_type}")


def number_bytes(kind: str, number: float) -> bytes:
    if kind in FLOATS:
        return FLOATS[kind].pack(number)
    return varint(int(number) & 0xFFFFFFFFFFFFFFFF)


def varint(value: int) -> bytes:
    if value < 0x80:
        return _SMALL[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL: Final = [bytes([value]) for value in range(0x80)]
