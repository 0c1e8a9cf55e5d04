"""As which bytes do numbers go out?

    encoded(vector, "float16", "big")

numpy has no floats of 16 bits with a short mantissa, and none of 8: they are rounded here, to the
nearest, of two that are as near to the one whose last bit is 0, as torch rounds them.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[Any]

#: Bytes of a number, by the names that vLLM has for its types.
SIZES: Final = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}


def encoded(numbers: Numbers, dtype: str, endianness: str) -> bytes:
    """The numbers, flat, as a type of SIZES; `endianness` is native, big or little."""
    values = np.asarray(numbers, np.float32)
    if dtype.startswith("fp8"):
        return _of_8_bits(values, dtype).tobytes()
    if dtype == "bfloat16":
        made: Numbers = _bfloat16(values)
    else:
        with np.errstate(over="ignore"):  # what is too large is infinite
            made = values.astype(dtype)
    order = sys.byteorder if endianness == "native" else endianness
    return made.astype(made.dtype.newbyteorder("<" if order == "little" else ">")).tobytes()


def _bfloat16(values: Numbers) -> Numbers:
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40  # of NaN, which rounding could make infinite
    made: Numbers = np.where(np.isnan(values), quiet, rounded).astype(np.uint16)
    return made


def _of_8_bits(values: Numbers, dtype: str) -> Numbers:
    """The code of the nearest number; what is too large is infinite, or the largest where there is
    no infinity."""
    borders, beyond = _codes(dtype)
    size = np.abs(values).astype(np.float64)
    codes = np.searchsorted(borders, size, side="left").astype(np.uint8)
    # On a border two are as near: the even code has the even mantissa.
    on_border = (codes < len(borders)) & (borders[np.minimum(codes, len(borders) - 1)] == size)
    codes += (on_border & (codes & 1 == 1)).astype(np.uint8)
    codes = np.where(codes >= len(borders), np.uint8(beyond), codes)
    codes = np.where(np.isnan(values), np.uint8(0x7F), codes)
    made: Numbers = codes | (np.signbit(values).astype(np.uint8) << 7)
    return made


@cache
def _codes(dtype: str) -> tuple[npt.NDArray[np.float64], int]:
    """The borders between one code and the next, the last to what is too large, and the code of
    that."""
    mantissa, bias = (3, 7) if dtype == "fp8_e4m3" else (2, 15)
    # One beyond the largest, as if it were a number: what is nearer to it is too large.
    last, beyond = (0x7F, 0x7E) if dtype == "fp8_e4m3" else (0x7C, 0x7C)
    codes = np.arange(last + 1)
    exponent, fraction = codes >> mantissa, (codes & (2**mantissa - 1)) / 2.0**mantissa
    normal = np.ldexp(1 + fraction, exponent - bias)
    numbers = np.where(exponent == 0, np.ldexp(fraction, 1 - bias), normal)
    return (numbers[1:] + numbers[:-1]) / 2, beyond
