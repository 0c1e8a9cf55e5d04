"""How is a weight kept, so that a product with it is quick?

On a CPU a plain product rearranges the weight each time, which for a few rows costs more than
the multiplication. oneDNN can do that once: at 4 to 16 rows it halves the time of a product. Of
whole numbers in a quarter of the memory, a product takes less than half of that again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from wherry.errors import ConfigError

#: x -> x @ weight.T + bias, in whatever form the weight is kept.
Linear = Callable[[Tensor], Tensor]
#: Makes one of a weight [out, in] and perhaps a bias.
MakeLinear = Callable[[Tensor, Tensor | None], Linear]

#: The number of rows for which oneDNN is asked to arrange a weight; good for others, too.
_ROWS = 16
#: Less than any scale that matters: a row of zeros is not divided by zero.
_TINY = 1e-20


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
        product: Tensor = multiply(_rounded_up(x), arranged, bias, "none", [], "")
        return product[: len(x)]

    return run


def int8(weight: Tensor, bias: Tensor | None, *, fine: bool = False) -> Linear:
    """Rounded to whole numbers of 8 bits, with one scale for each output; arranged by oneDNN.

    What comes in is rounded, too, each row by its own largest number: to 8 bits, or to 16 if
    `fine`, as two rows of 8. No row depends on the others, and the sums are exact.
    """
    scales = weight.abs().amax(1).clamp_min_(_TINY).div_(127)
    whole = (weight / scales[:, None]).round_().to(torch.int8)
    arranged = torch.ops.onednn.qlinear_prepack(whole, None)
    zeros = torch.zeros(len(scales), dtype=torch.int32)
    multiply = torch.ops.onednn.qlinear_pointwise
    largest = 127 * 256 if fine else 127

    def run(x: Tensor) -> Tensor:
        padded = _rounded_up(x)
        scale = padded.abs().amax(1, keepdim=True).clamp_min_(_TINY).div_(largest)
        rows = (padded / scale).round_()
        if fine:
            high = (rows / 256).round_()
            rows = torch.cat([high, rows.sub_(high, alpha=256).clamp_(max=127)])
        # Unsigned, with 128 for zero: for signed numbers there is no quick product.
        bytes_ = rows.add_(128).to(torch.uint8)
        product: Tensor = multiply(
            bytes_, 1.0, 128, arranged, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        if fine:
            high, low = product.chunk(2)
            product = low.add_(high, alpha=256)
        product.mul_(scale)
        if bias is not None:
            product.add_(bias)
        return product[: len(x)]

    return run


def _rounded_up(x: Tensor) -> Tensor:
    """With a few rows of zeros more, so that few numbers of rows occur."""
    spare = -len(x) % _grain(len(x))
    return F.pad(x, (0, 0, 0, spare)) if spare else x


def _grain(rows: int) -> int:
    """oneDNN compiles a program for each number of rows (a millisecond, 100 KB, kept): few
    numbers occur if they are rounded up a little. For up to 16 rows none is added."""
    if rows <= 16:
        return 1
    return 4 if rows <= 64 else 8 if rows <= 128 else 32


def best_for(device: torch.device, dtype: torch.dtype, quantize: str | None = None) -> MakeLinear:
    """What is quickest here. A torch without these operators (they are not documented) multiplies
    as ever; but who asks for "int8" has it, or a ConfigError that says why not."""
    floats = device.type == "cpu" and dtype == torch.float32
    if quantize is not None:
        if quantize != "int8":
            raise ConfigError(f"quantize must be 'int8' or nothing, not {quantize!r}")
        if not floats:
            raise ConfigError(f"quantize='int8' is for float32 on a CPU, not {dtype} on {device}")
        if not _exact(int8):
            raise ConfigError("quantize='int8': this processor or this torch cannot; leave it out")
        return int8
    return packed if floats and _exact(packed) else plain


def _exact(make: MakeLinear) -> bool:
    """Does it multiply rightly here? Processors without instructions for it clip the sums of
    large 8-bit numbers."""
    x, weight = torch.ones(32, 32).tril(), torch.ones(32, 32).triu()
    try:
        return torch.allclose(make(weight, None)(x), x @ weight.T)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
