"""Has every number of rows that steps may have been seen before the first request?"""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from wherry.llm.checkpoint import Checkpoint
from wherry.llm.linear import Linear
from wherry.llm.model import Decoder
from wherry.llm.precompile import MOST_SECONDS, compile_programs
from wherry.llm.weights import Weights


class Products:
    """Multiplies numbers of rows that are rounded up to multiples of four, and tells which."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        seen: list[int] = []
        self.rows.append(seen)

        def run(x: Tensor) -> Tensor:
            spare = -len(x) % 4
            seen.append(len(x) + spare)
            return F.linear(F.pad(x, (0, 0, 0, spare)), weight, bias)[: len(x)]

        return run


def decoder(folder: Path, products: Products) -> Decoder:
    checkpoint = Checkpoint.find(str(folder))
    with checkpoint.tensors() as tensors:
        weights = Weights("tiny", tensors, torch.float32, torch.device("cpu"))
        return Decoder(checkpoint.config(), weights, products.linear)


def test_each_shape_meets_each_number_of_rows_once(checkpoint: Callable[[str], Path]) -> None:
    products = Products()
    network = decoder(checkpoint("llama"), products)
    compile_programs(network, max_step_tokens=22, max_running=10, clock=lambda: 0.0)
    by_layer = [sorted(set(rows)) for rows in products.rows if rows]
    steps, ends = [4, 8, 12, 16, 20, 24], [4, 8, 12]
    assert sorted(by_layer) == [ends, steps, steps, steps, steps]  # one layer stands for all
    assert all(len(rows) <= len(steps) + 1 for rows in products.rows)


def test_a_large_model_is_not_held_up_for_long(checkpoint: Callable[[str], Path]) -> None:
    products = Products()
    network = decoder(checkpoint("llama"), products)
    seconds: Iterator[float] = (number * MOST_SECONDS / 3 for number in count())
    compile_programs(network, max_step_tokens=512, max_running=64, clock=lambda: next(seconds))
    assert max(max(rows, default=0) for rows in products.rows) == 8
