"""How do 8-bit weights give nearly the tokens of 32-bit ones, in less time?

An integer product also needs 8-bit activations, each row scaled by its own maximum. In language
models a few features are a hundred times larger than the others (outliers), the same ones for every
text, and would leave no precision for the rest. So the largest features get several columns: their
weights are repeated and their value is divided among the copies, each rounded at a different
offset. Together the copies are as exact as one column with more bits. An eighth more columns is
enough: rounding the activations then costs less accuracy than rounding the weights.

The outliers are found in the first rows that are multiplied, in floats; later rows use 8 bits. No
row depends on others, and the integer sums are exact.
"""

from __future__ import annotations

from heapq import heapify, heapreplace

import torch
import torch.nn.functional as F
from torch import Tensor

from wherry.llm.engine.linear import Linear, MakeLinear, Threads, first_rows, rounded_up

#: One additional column for each _MORE features.
_MORE = 8
#: Numbers of columns are rounded up to a multiple of this, which vector instructions prefer.
_EVEN = 32
#: Smaller than any relevant scale: avoids a division by zero for a row of zeros.
_TINY = 1e-20
#: Work above which several threads are faster than one: the number of weights, where seven rows
#: count as much as the weights.
_WORTH_THREADS, _ROWS_LIKE_WEIGHTS = 2_400_000, 7
#: Output rows quantized at a time: limits the memory of the float copy.
_PIECE = 4096


#: Calibration text.
SAMPLE = """\
The ferry left at half past six, with eleven people and a dog on board. "Will it rain?" asked the
youngest of them; nobody knew. In 1887 the crossing had cost 3.50 crowns, about 40 % of a day's pay.
User: How do I sort a list of names by their length in Python?
Assistant: Use `sorted` with a key:
```python
def by_length(names: list[str]) -> list[str]:
    return sorted(names, key=lambda name: (len(name), name))
```
| name | length |
|------|-------:|
| Ada  |      3 |
{"id": 17, "tags": ["a", "b"], "price": -0.25, "open": true}
Der Fluss ist im Winter gefroren. Où sont les clés de la maison? El tren sale mañana temprano.
1. Energy equals mass times the speed of light squared: E = m * c^2.
2. Water consists of hydrogen and oxygen, and boils at 100 degrees Celsius (212 F).
See https://example.org/index.html?q=7 for more.
"""


class Int8:
    """A linear layer that calibrates on its first call (in floats) and then multiplies in 8 bits.
    For CPUs where `exact_here`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._unseen: Tensor | None = weight
        self._bias = bias
        self._run: Linear

    def __call__(self, x: Tensor) -> Tensor:
        if self._unseen is None:
            return self._run(x)
        product = F.linear(x, self._unseen, self._bias)
        self._run = onednn_linear(self._unseen, self._bias, x.abs().amax(0))
        self._unseen = None
        return product


def onednn_linear(weight: Tensor, bias: Tensor | None, seen: Tensor) -> Linear:
    """x -> x @ weight.T + bias in 8 bits by oneDNN. `seen` [in] are the largest absolute values of
    each feature of x."""
    feature, share, place = _columns(seen.tolist())
    whole, scales = _rounded(weight.float(), feature, place)
    arranged = torch.ops.onednn.qlinear_prepack(whole, None)
    multiply = torch.ops.onednn.qlinear_pointwise
    zeros = torch.zeros(len(scales), dtype=torch.int32)
    # Unsigned with zero point 128: oneDNN has no fast product for signed activations.
    place = place + 128.0
    scales.div_(127)
    weights, threads = whole.numel(), Threads()

    def multiplied(x: Tensor) -> Tensor:
        product: Tensor = multiply(
            x, 1.0, 128, arranged, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return product

    def run(x: Tensor) -> Tensor:
        shares = rounded_up(x).float().index_select(1, feature).mul_(share)
        largest = shares.abs().amax(1, keepdim=True).clamp_min_(_TINY)
        numbers = torch.addcmul(place, shares, largest.reciprocal(), value=127).to(torch.uint8)
        threads.use(alone=weights * (1 + len(numbers) / _ROWS_LIKE_WEIGHTS) < _WORTH_THREADS)
        try:
            product = multiplied(numbers)
        finally:
            threads.use()
        product.mul_(largest)
        if bias is not None:
            product.add_(bias)
        return first_rows(product, len(x)).to(x.dtype)

    return run


def dequantizing_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """A linear layer whose weight is kept in 8 bits and dequantized at each call: half the memory,
    not faster. For devices without a fast 8-bit product."""
    every = torch.arange(weight.shape[1], device=weight.device)
    whole, scales = _rounded(weight, every, torch.full(every.shape, 0.5, device=weight.device))
    scales = scales.to(weight.dtype)[:, None]

    def run(x: Tensor) -> Tensor:
        return F.linear(x, whole * scales, bias)

    return run


def exact_here() -> bool:
    """Whether 8-bit products are exact with this processor and this torch. Processors without
    instructions for them saturate large sums."""
    x = torch.ones(32, 64).tril()
    weight = torch.ones(64, 64).triu()
    try:
        product = onednn_linear(weight, None, torch.ones(64))(x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return torch.allclose(product, x @ weight.T)


def _columns(largest: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    """For each column: its feature, its share of that feature's value, and its rounding offset
    between 0 and 1."""
    more = len(largest) // _MORE
    uneven = (len(largest) + more) % _EVEN
    if uneven < more:
        more -= uneven
    counts = [1] * len(largest)
    shares = [(-value, feature) for feature, value in enumerate(largest)]
    heapify(shares)
    for _ in range(more):
        _, feature = shares[0]
        counts[feature] += 1
        heapreplace(shares, (-largest[feature] / counts[feature], feature))
    columns = [(f, 1 / n, (k + 0.5) / n) for f, n in enumerate(counts) for k in range(n)]
    features, share, place = zip(*columns, strict=True)
    return torch.tensor(features), torch.tensor(share), torch.tensor(place)


def _rounded(weight: Tensor, feature: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """A weight's columns as integers, and the scale of each output."""
    whole = torch.empty(len(weight), len(feature), dtype=torch.int8, device=weight.device)
    scales = torch.empty(len(weight), device=weight.device)
    for first in range(0, len(weight), _PIECE):
        piece = weight[first : first + _PIECE]
        # The scale is applied in the weight's datatype, so it must be exact there.
        scale = piece.abs().amax(1).float().div_(127).to(weight.dtype).float()
        scale[scale == 0] = 1.0  # all weights zero or too small
        numbers = (piece / scale[:, None])[:, feature]
        whole[first : first + _PIECE] = numbers.add_(place).floor_().clamp_(-127, 127)
        scales[first : first + _PIECE] = scale
    return whole, scales


def best_for(device: torch.device) -> MakeLinear:
    return Int8 if device.type == "cpu" and exact_here() else dequantizing_linear
