"""In which layout is a linear layer's weight kept?

On a CPU a plain product reorders the weight at each call, which for a few rows costs more than the
multiplication. oneDNN can reorder it once: this halves the time of a product of 4 to 16 rows.

With a few rows a product takes as long as its weight is read. Most checkpoints have numbers of 16
bits, which half precision holds: kept so, they are read in half the time, and multiplied as floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from wherry.llm.engine.memory import multiplies_bfloat16

#: x [rows, in] -> x @ weight.T + bias [rows, out].
Linear = Callable[[Tensor], Tensor]
#: Makes a Linear of a weight [out, in] and an optional bias [out].
MakeLinear = Callable[[Tensor, Tensor | None], Linear]

#: The number of rows that oneDNN optimises the layout for. Others profit too.
_ROWS = 16
#: Rows of a weight that are compared at a time: limits the memory of the copies.
_PIECE = 4096
#: Half precision's largest power of two, and the powers that float32 has.
_LARGEST_POWER, _POWERS = 15, 120
#: What float32 may round off a number, as a part of it.
_ROUNDING = 2.0**-24


class PlainLinear:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


class Packed:
    """A product with the weight in oneDNN's layout for the CPU, which compiles a program for each
    number of rows. The original weight is not referenced."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        self._bias = bias
        self._multiply = torch.ops.mkldnn._linear_pointwise

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = self._multiply(rounded_up(x), self._weight, self._bias, "none", [], "")
        return first_rows(product, len(x))


def halved(weight: Tensor, bias: Tensor | None, otherwise: MakeLinear = Packed) -> Linear:
    """A product of floats with the weight kept in half precision, if that holds all of its numbers
    times a power of two; else `otherwise`. A row's result does not depend on the other rows;
    without AVX-512 its last bit may, in a batch of one or two rows or with such a remainder.

    The smallest numbers may be rounded, by what float32 may round off the largest of their row.
    """
    power = _power(weight)
    if power is None:
        return otherwise(weight, bias)
    back, multiply = 2.0**-power, torch.ops.quantized.linear_dynamic_fp16
    if power:
        weight = weight * 2.0**power
        bias = None if bias is None else bias * 2.0**power
    kept = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    def run(x: Tensor) -> Tensor:
        product: Tensor = multiply(x, kept)
        return product.mul_(back) if power else product

    return run


def _power(weight: Tensor) -> int | None:
    """The power of two by which half precision holds a scaled weight; None if there is none."""
    largest = float(weight.abs().amax()) if weight.numel() else 0.0
    if not math.isfinite(largest):
        return None
    for power in (0, _LARGEST_POWER - math.frexp(largest)[1]):
        if abs(power) <= _POWERS and all(
            _holds(piece * 2.0**power) for piece in torch.split(weight, _PIECE)
        ):
            return power
    return None


def _holds(numbers: Tensor) -> bool:
    """Whether half precision loses next to nothing of these numbers, row by row."""
    off = numbers.half().float().sub_(numbers).abs_().amax(1)
    return bool((off <= numbers.abs().amax(1) * _ROUNDING).all())


def smallest(numbers: Tensor) -> Tensor:
    """Floats on a CPU in 16 bits, if that is exact; else as they are."""
    floats = numbers.dtype == torch.float32 and numbers.device.type == "cpu"
    for dtype in (torch.bfloat16, torch.float16) if floats else ():
        if all(
            torch.equal(piece.to(dtype).float(), piece) for piece in torch.split(numbers, _PIECE)
        ):
            return numbers.to(dtype)
    return numbers


def rounded_up(x: Tensor) -> Tensor:
    """`x` with zero rows appended, so that few numbers of rows occur."""
    spare = rounded_rows(len(x)) - len(x)
    return F.pad(x, (0, 0, 0, spare)) if spare else x


def first_rows(product: Tensor, rows: int) -> Tensor:
    return product if len(product) == rows else product[:rows]


def rounded_rows(rows: int) -> int:
    """The padded number of rows that are multiplied for `rows`. oneDNN compiles a program for each
    number (1 ms, 100 KB, kept); up to 16 rows each has its own."""
    if rows <= 16:
        return rows
    grain = 4 if rows <= 64 else 8 if rows <= 128 else 32
    return -(-rows // grain) * grain


def best_for(device: torch.device, dtype: torch.dtype) -> MakeLinear:
    """The fastest product for this device and datatype, as exact as a plain one.

    The operators of oneDNN and FBGEMM are not a documented part of torch: if they are missing or
    give wrong results, products are plain.
    """
    if device.type != "cpu":
        return PlainLinear
    native = dtype == torch.float32 or (dtype == torch.bfloat16 and multiplies_bfloat16())
    best: MakeLinear = Packed if native and _is_right(Packed, dtype) else PlainLinear
    if dtype == torch.float32 and _is_right(halved, dtype):
        return partial(halved, otherwise=best)
    return best


def _is_right(make: MakeLinear, dtype: torch.dtype) -> bool:
    """Whether products with numbers of each size come out as they are."""
    probe = torch.eye(32) * torch.logspace(-24, 7, 32, base=2.0)[:, None]
    try:
        product = make(probe.T.contiguous().to(dtype), None)(torch.eye(32, dtype=dtype))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return torch.equal(product.float(), probe)


class Threads:
    """Switches torch between one thread and the number it had when this object was made.

    torch keeps the number per calling thread, and threads that first use torch later inherit it.
    This is one more reason to run a model in a process of its own.
    """

    def __init__(self) -> None:
        self._all = self._now = torch.get_num_threads()

    def use(self, *, alone: bool = False) -> None:
        """Use one thread (`alone`) or all, from the next torch call on. The caller must switch back
        to all before it returns."""
        threads = 1 if alone else self._all
        if threads != self._now:
            torch.set_num_threads(threads)
            self._now = threads
