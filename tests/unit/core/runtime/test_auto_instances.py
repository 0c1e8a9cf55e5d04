"""On how many GPUs does "auto" load a model? By a torch that counts memory: there is no GPU."""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import wherry
from wherry.core.instances.device_use import GPU_LIBRARIES
from wherry.core.instances.devices import Gpus
from wherry.core.models.config import InstanceGroup, ModelConfig
from wherry.core.models.model import Device
from wherry.core.models.step_model import StepModel
from wherry.core.runtime import build
from wherry.core.values.errors import LoadFailed

GPUS = 4


class CountingTorch:
    """As much of torch as placing instances asks for."""

    def __init__(self) -> None:
        self.cuda = self
        self.taken = Counter[int]()

    def device_count(self) -> int:
        return GPUS

    def is_initialized(self) -> bool:
        return False

    def set_device(self, index: int) -> None:
        pass

    def memory_stats(self, index: int) -> dict[str, int]:
        taken = self.taken[index]
        return {"allocated_bytes.all.allocated": taken} if taken else {}


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> CountingTorch:
    for name in GPU_LIBRARIES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(build, "Gpus", _four)
    fake = CountingTorch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def _four() -> Gpus:
    return Gpus(lambda: GPUS, lambda count: dict.fromkeys(range(count), ""))


class Weights(wherry.Model):
    """Takes so many bytes of its device."""

    def __init__(self, size: int, take: Callable[[int, int], None]) -> None:
        self.size, self.take_bytes = size, take

    def load(self, device: wherry.Device) -> None:
        if device.kind == "cuda":
            self.take_bytes(device.index, self.size)

    def execute(self, x: list[int]) -> list[int]:
        return x


class OnTheHost(wherry.Model):
    def load(self, device: wherry.Device) -> None:
        pass

    def execute(self, x: list[int]) -> list[int]:
        return x


class Steps(StepModel):
    """Room for more on a GPU, which it tries and then may not use."""

    max_batch_size = 2

    def __init__(self, take: Callable[[int, int], None], size: int) -> None:
        self.take_bytes, self.size = take, size

    def most_active(self, config: ModelConfig, device: Device) -> int:
        return 9 if device.kind == "cuda" else config.max_batch_size

    def load(self, device: Device) -> None:
        self.take_bytes(device.index, self.size)

    def start(self, n: int) -> int:
        return n

    def step(self, active: list[int]) -> list[wherry.Step[int]]:
        return [wherry.Step([n], done=True) for n in active]


def instances(runtime: wherry.Runtime, name: str) -> list[str]:
    runner: Any = runtime.registry.find(name).runner
    return sorted(f"{one.name} {one.device}" for one in runner.instances)


@pytest.fixture
def take(torch: CountingTorch) -> Callable[[int, int], None]:
    return lambda index, size: torch.taken.update({index: size})


@pytest.mark.parametrize(
    ("size", "count", "found"),
    [(0, 1, 1), (0, 3, 3), (512, 2, 2), (4096, 1, 4), (4096, 2, 8)],
)
def test_a_model_is_on_every_gpu_only_if_it_uses_one(
    take: Callable[[int, int], None], size: int, count: int, found: int
) -> None:
    with wherry.Runtime(
        Weights(size, take), overrides={"weights": {"instances": count}}
    ) as runtime:
        assert len(instances(runtime, "weights")) == found


def test_what_another_model_has_taken_of_the_gpu_does_not_count(
    take: Callable[[int, int], None], torch: CountingTorch
) -> None:
    with wherry.Runtime(Weights(1 << 20, take)) as runtime:
        runtime.load(OnTheHost())
        assert torch.taken[0] == 1 << 20
        assert instances(runtime, "on_the_host") == ["on_the_host_0 cuda:0"]


def test_named_gpus_have_their_instances_in_any_case(torch: CountingTorch) -> None:
    groups = [InstanceGroup(1, "auto"), InstanceGroup(1, "cuda:2"), InstanceGroup(2, "cpu")]
    with wherry.Runtime(OnTheHost(), overrides={"on_the_host": {"instances": groups}}) as runtime:
        found = [one.split("_")[-1] for one in instances(runtime, "on_the_host")]
    assert found == ["0 cuda:0", "4 cuda:2", "5 cpu", "6 cpu"]


def test_a_worker_says_whether_its_model_uses_the_gpu(torch: CountingTorch) -> None:
    with wherry.Runtime(OnTheHost(), isolation="process") as runtime:
        assert len(instances(runtime, "on_the_host")) == 1


def test_a_load_that_fails_starts_no_copies(torch: CountingTorch) -> None:
    tried: list[int] = []

    def fail(index: int, size: int) -> None:
        tried.append(index)
        raise RuntimeError("no weights")

    with pytest.raises(LoadFailed, match="no weights"):
        wherry.Runtime(Weights(0, fail)).__enter__()
    assert tried == [0]


@pytest.mark.parametrize(("size", "room", "found"), [(512, 2, 1), (4096, 9, 4)])
def test_an_instance_admits_what_the_device_that_it_is_on_can_run(
    take: Callable[[int, int], None], size: int, room: int, found: int
) -> None:
    with wherry.Runtime(Steps(take, size)) as runtime:
        loaded = runtime.registry.find("steps")
        assert loaded.runner.load().full_rows == room
        assert len(instances(runtime, "steps")) == found
