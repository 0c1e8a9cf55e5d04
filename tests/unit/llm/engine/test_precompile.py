"""Has every number of rows that steps may have been seen before the first request?"""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import Tensor

from wherry.llm.engine.checkpoint import Checkpoint
from wherry.llm.engine.linear import MakeLinear, Packed, halved
from wherry.llm.engine.loading import MOST_SECONDS, compile_programs
from wherry.llm.engine.model import Decoder
from wherry.llm.engine.weights import Weights


class Seen(Packed):
    """A packed product that tells which numbers of rows it has had."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self.rows: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.rows.append(len(x))
        return super().__call__(x)


def decoder(folder: Path, linear: MakeLinear) -> Decoder:
    checkpoint = Checkpoint.find(str(folder))
    with checkpoint.tensors() as tensors, torch.inference_mode():
        weights = Weights("tiny", tensors, torch.float32, torch.device("cpu"))
        return Decoder(checkpoint.config(), weights, linear)


def rows_seen(network: Decoder) -> list[list[int]]:
    products = [network.head]
    for layer in network.layers:
        products += [layer.qkv, layer.output, layer.gate_up, layer.down]
    return [product.rows for product in products if isinstance(product, Seen)]


def test_each_shape_meets_each_number_of_rows_once(checkpoint: Callable[[str], Path]) -> None:
    network = decoder(checkpoint("llama"), Seen)
    compile_programs(network, max_step_tokens=22, max_running=10, clock=lambda: 0.0)
    # Above 16 rows they are rounded up to multiples of four. One layer stands for all.
    head, *layers = rows_seen(network)
    assert head == [*range(1, 11)]
    assert layers == [[*range(1, 18), 21]] * 4 + [[]] * 8


def test_a_large_model_is_not_held_up_for_long(checkpoint: Callable[[str], Path]) -> None:
    network = decoder(checkpoint("llama"), Seen)
    seconds: Iterator[float] = (number * MOST_SECONDS / 3 for number in count())
    compile_programs(network, max_step_tokens=512, max_running=64, clock=lambda: next(seconds))
    assert max(max(rows, default=0) for rows in rows_seen(network)) == 2


def test_weights_in_half_precision_need_no_programs(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = decoder(checkpoint("llama"), lambda w, b: halved(w.bfloat16().float(), b))
    products = [network.head, network.layers[0].down]
    monkeypatch.setattr(Packed, "__call__", lambda *_: pytest.fail("it was computed"))
    compile_programs(network, max_step_tokens=4, max_running=4)
    assert not any(isinstance(product, Packed) for product in products)
