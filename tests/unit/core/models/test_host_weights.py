"""Do torch weights leave their device and come back as they were? There is one device here: a
tensor is moved to other memory of it, and "is on the device" if its memory began there."""

from __future__ import annotations

from typing import Any

import pytest

import wherry
from wherry.core.models import host_weights
from wherry.core.models.host_weights import move_weights

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def on_device(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Addresses of tensors that are not on the host."""
    away: set[int] = set()

    def is_elsewhere(tensor: Any, device: Any) -> bool:
        return (tensor.data_ptr() in away) is (device.type == "cpu")

    monkeypatch.setattr(host_weights, "is_elsewhere", is_elsewhere)
    return away


def test_modules_and_tensors_move_wherever_they_are_kept(on_device: set[int]) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    lone, listed, deep, host = torch.ones(2), torch.ones(3), torch.ones(4), torch.ones(5)
    kept = {"module": module, "a": lone, "list": [listed, {"deep": (deep,)}, host], "text": "no"}
    weights = [*module.parameters(), *module.buffers(), lone, listed, deep]
    before = {name: value.clone() for name, value in module.state_dict().items()}
    on_device.update(one.data_ptr() for one in weights)

    moved = move_weights(kept.values(), "cpu")

    assert {id(one) for one in moved} == {id(one) for one in weights}
    assert not on_device & {one.data_ptr() for one in weights}
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    assert move_weights(kept.values(), "cpu") == []


def test_what_shares_memory_still_does(on_device: set[int]) -> None:
    first, second = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    whole = torch.arange(12.0).reshape(3, 4)
    row, column = whole[1], whole[:, 2]
    on_device.update(one.data_ptr() for one in (first.weight, whole, row, column))

    moved = move_weights([first, second, row, column, whole], "cpu")

    assert len(moved) == 4
    assert whole.data_ptr() not in on_device
    assert second.weight is first.weight
    whole[1, 2] = -1
    assert row[2] == column[1] == -1
    assert row.tolist() == [4, 5, -1, 7]


def test_a_model_moves_back_what_was_on_its_device_once(
    on_device: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Two(wherry.Model):
        def __init__(self) -> None:
            self.on_device, self.on_host = torch.ones(2), torch.zeros(2)

        def execute(self, x: list[int]) -> list[int]:
            return x

    model = Two()
    on_device.add(model.on_device.data_ptr())
    assert model.to_host()
    assert model.to_host(), "of another instance that shares the model"
    assert not any(one.data_ptr() in on_device for one in (model.on_device, model.on_host))

    back: list[Any] = []
    monkeypatch.setattr(
        "wherry.core.models.model.move_weights", lambda moved, _: back.extend(moved)
    )
    model.to_device(wherry.Device("cuda", 0))
    model.to_device(wherry.Device("cuda", 0))
    assert [one is model.on_device for one in back] == [True]


def test_a_model_without_weights_elsewhere_cannot_be_kept() -> None:
    class Plain(wherry.Model):
        def execute(self, x: list[int]) -> list[int]:
            return x

    assert not Plain().to_host()
