"""How is a weight kept, so that a product with it is quick?

On a CPU a plain product rearranges the weight each time, which for a few rows costs more than
the multiplication. oneDNN can do that once: at 4 to 16 rows it halves the time of a product.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

#: x -> x @ weight.T + bias, in whatever form the weight is kept.
Linear = Callable[[Tensor], Tensor]
#: Makes one of a weight [out, in] and perhaps a bias.
MakeLinear = Callable[[Tensor, Tensor | None], Linear]

#: The number of rows for which oneDNN is asked to arrange a weight; good for others, too.
_ROWS = 16


def plain(weight: Tensor, bias: Tensor | None) -> Linear:
    """As it is."""

    def run(x: Tensor) -> Tensor:
        return F.linear(x, weight, bias)

    return run


def packed(weight: Tensor, bias: Tensor | None) -> Linear:
    """Arranged by oneDNN for a CPU's caches; the original may be dropped."""
    arranged = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    multiply = torch.ops.mkldnn._linear_pointwise

    def run(x: Tensor) -> Tensor:
        product: Tensor = multiply(rounded_up(x), arranged, bias, "none", [], "")
        return first_rows(product, len(x))

    return run


def rounded_up(x: Tensor) -> Tensor:
    """With a few rows of zeros more, so that few numbers of rows occur."""
    spare = -len(x) % _grain(len(x))
    return F.pad(x, (0, 0, 0, spare)) if spare else x


def first_rows(product: Tensor, rows: int) -> Tensor:
    """Without what was added."""
    return product if len(product) == rows else product[:rows]


def _grain(rows: int) -> int:
    """oneDNN compiles a program for each number of rows (a millisecond, 100 KB, kept): few
    numbers occur if they are rounded up a little. For up to 16 rows none is added."""
    if rows <= 16:
        return 1
    return 4 if rows <= 64 else 8 if rows <= 128 else 32


def best_for(device: torch.device, dtype: torch.dtype) -> MakeLinear:
    """What is quickest here. A torch without these operators (they are not documented) multiplies
    as ever."""
    if device.type != "cpu" or dtype != torch.float32:
        return plain
    try:
        probe = torch.eye(32)
        if torch.equal(packed(probe, None)(probe), probe):
            return packed
    except (AttributeError, RuntimeError, NotImplementedError):
        pass
    return plain
