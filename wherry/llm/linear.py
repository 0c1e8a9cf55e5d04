"""In which layout is a linear layer's weight kept?

On a CPU a plain product reorders the weight at each call, which for a few rows costs more than the
multiplication. oneDNN can reorder it once: this halves the time of a product of 4 to 16 rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

#: x [rows, in] -> x @ weight.T + bias [rows, out].
Linear = Callable[[Tensor], Tensor]
#: Makes a Linear of a weight [out, in] and an optional bias [out].
MakeLinear = Callable[[Tensor, Tensor | None], Linear]

#: The number of rows that oneDNN optimises the layout for. Others profit too.
_ROWS = 16


def plain(weight: Tensor, bias: Tensor | None) -> Linear:
    """A product with the weight in its original layout."""

    def run(x: Tensor) -> Tensor:
        return F.linear(x, weight, bias)

    return run


def packed(weight: Tensor, bias: Tensor | None) -> Linear:
    """A product with the weight in oneDNN's layout for the CPU. The original weight is not
    referenced."""
    arranged = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    multiply = torch.ops.mkldnn._linear_pointwise

    def run(x: Tensor) -> Tensor:
        product: Tensor = multiply(rounded_up(x), arranged, bias, "none", [], "")
        return first_rows(product, len(x))

    return run


def rounded_up(x: Tensor) -> Tensor:
    """`x` with zero rows appended, so that few different numbers of rows occur."""
    spare = -len(x) % _grain(len(x))
    return F.pad(x, (0, 0, 0, spare)) if spare else x


def first_rows(product: Tensor, rows: int) -> Tensor:
    """The product without the rows that `rounded_up` appended."""
    return product if len(product) == rows else product[:rows]


def _grain(rows: int) -> int:
    """The multiple to which a number of rows is rounded up. oneDNN compiles a program for each
    number of rows (1 ms, 100 KB, kept); up to 16 rows each number has its own."""
    if rows <= 16:
        return 1
    return 4 if rows <= 64 else 8 if rows <= 128 else 32


def best_for(device: torch.device, dtype: torch.dtype) -> MakeLinear:
    """The fastest product for this device and datatype.

    The oneDNN operators are not a documented part of torch: if they are missing or give wrong
    results, products are plain.
    """
    if device.type != "cpu" or dtype != torch.float32:
        return plain
    try:
        probe = torch.eye(32)
        if torch.equal(packed(probe, None)(probe), probe):
            return packed
    except (AttributeError, RuntimeError, NotImplementedError):
        pass
    return plain
