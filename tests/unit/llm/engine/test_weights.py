"""Weights come to a GPU through two pieces of pinned memory, which are filled in turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from wherry.llm.engine import fallback
from wherry.llm.engine import weights as weighing
from wherry.llm.engine.checkpoint import Checkpoint
from wherry.llm.engine.fallback import load_net
from wherry.llm.engine.linear import best_for
from wherry.llm.engine.model import Decoder
from wherry.llm.engine.weights import StagedCopies, Weights

CPU, META = torch.device("cpu"), torch.device("meta")


class Device:
    """Copies what is not waited for only when something waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.under_way: list[tuple[Tensor, Tensor]] = []
        self.most = self.waits = 0
        copy = self.copy = Tensor.copy_

        def later(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
            if not non_blocking:
                return copy(target, source)
            self.under_way.append((target, source))
            self.most = max(self.most, len(self.under_way))
            return target

        monkeypatch.setattr(Tensor, "copy_", later)
        monkeypatch.setattr(weighing, "end_of", self.end_of)
        monkeypatch.setattr(weighing, "STAGED_BYTES", 64)

    def end_of(self, _: Any) -> Callable[[], None]:
        last = len(self.under_way) + self.waits

        def wait() -> None:
            while self.waits < last:
                target, source = self.under_way.pop(0)
                self.copy(target, source)
                self.waits += 1

        return wait


class OnCpu(StagedCopies):
    """Copies to the CPU as to another device."""

    def __init__(self, _: Any) -> None:
        super().__init__(META)
        self._device = CPU


def test_a_piece_is_read_while_the_one_before_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    copied = OnCpu(META)
    assert sum(piece.nbytes for piece, _ in copied._stages) == 128
    dice = torch.Generator().manual_seed(1)
    tensors = [
        torch.randn(shape, generator=dice).to(dtype)
        for shape in ((), (3,), (16,), (7, 11), (0, 4), (5, 33))
        for dtype in (torch.float32, torch.bfloat16, torch.int8)
    ]
    tensors.append(torch.randn(9, 8, generator=dice).T)
    found = [copied(tensor) for tensor in tensors]
    assert device.most == 2
    device.end_of(None)()
    for tensor, made in zip(tensors, found, strict=True):
        assert made.dtype == tensor.dtype
        assert torch.equal(made, tensor)


def test_a_module_of_transformers_is_moved_through_them_and_tied_weights_once(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """load_net() calls `move` with the device, which this one takes the CPU for."""
    device, folder = Device(monkeypatch), Checkpoint.find(str(checkpoint()))
    load = partial(load_net, folder, folder.config(exact=False), dtype="float32")
    plain = load(device=CPU)
    assert not device.waits
    monkeypatch.setattr(weighing, "StagedCopies", OnCpu)
    monkeypatch.setattr(fallback, "move", lambda net, _: weighing.move(net, META))
    net = load(device=CPU)
    device.end_of(None)()
    tensors = {*net.parameters(), *net.buffers()}
    assert device.waits == sum(-(-tensor.nbytes // 64) for tensor in tensors)
    assert net.lm_head.weight is net.model.embed_tokens.weight
    numbers = torch.arange(7)[None]
    with torch.inference_mode():
        assert torch.equal(net(numbers).logits, plain(numbers).logits)


def test_a_checkpoint_on_another_device_is_read_through_them(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, found = Device(monkeypatch), Checkpoint.find(str(checkpoint()))
    with found.tensors() as tensors:
        weights = Weights("m", tensors, torch.bfloat16, META)
        net = Decoder(found.config(), weights, best_for(META, torch.bfloat16))
        weights.check_all_taken(tied=True)
        files = sum(tensors[name].get_tensor(name).nbytes for name in tensors)
    assert net.embedding.device == META
    assert net.embedding.dtype == torch.bfloat16
    assert device.waits + len(device.under_way) >= files // 64
