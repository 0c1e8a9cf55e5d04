"""How does an instance use its GPU? By a torch that notes what it is asked: there is no GPU."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from wherry.core.instances.device_use import GPU_LIBRARIES, make_current, pinned
from wherry.core.instances.devices import may_use_gpus
from wherry.core.instances.source import import_model, source_of
from wherry.core.instances.thread import ThreadInstance
from wherry.core.models.model import Device
from wherry.core.values.execution import Failure
from wherry.core.workers.shared_memory import Slab, memory_file

GPU = Device("cuda", 1)


class FakeTorch:
    """As much of torch as is used, with two GPUs. Each thread has a current device and stream."""

    def __init__(self) -> None:
        self.cuda = self
        self.uses_gpu = False
        self.refuses = 0
        self.said: list[Any] = []
        self.own = threading.local()

    def device_count(self) -> int:
        return 2

    def is_initialized(self) -> bool:
        return self.uses_gpu

    def set_device(self, index: int) -> None:
        self.own.device = index

    def synchronize(self, index: int) -> None:
        self.said.append(f"synchronize {index}")

    def Stream(self, index: int) -> Any:
        return SimpleNamespace(index=index)

    def default_stream(self, index: int) -> Any:
        return f"default {index}"

    def set_stream(self, stream: Any) -> None:
        self.own.stream = stream

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.own.stream = getattr(self.own, "stream", None), stream
        yield
        self.own.stream = before

    def cudart(self) -> Any:
        def register(address: int, size: int, flags: int) -> int:
            self.said.append(("register", address, size))
            return self.refuses

        def unregister(address: int) -> int:
            self.said.append(("unregister", address))
            return 0

        return SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)

    def ones(self, size: int, device: str) -> None:
        self.said.append(f"kernel {device}")
        raise RuntimeError("CUDA error: out of memory")


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


@contextmanager
def shared_memory() -> Iterator[Slab]:
    file = memory_file("t", 1 << 16)
    slab = Slab.open(file)
    os.close(file)
    yield slab
    slab.close()


class Constructed(wherry.Model):
    """Looks at the current device when it is constructed."""

    def __init__(self) -> None:
        self.made_on = getattr(getattr(sys.modules.get("torch"), "own", None), "device", None)

    def execute(self, x: list[int]) -> list[int]:
        return x


def test_a_worker_makes_the_model_on_its_gpu(torch: FakeTorch) -> None:
    source = source_of(Constructed(), "m")
    made: Any = import_model(source, lambda: make_current(GPU))
    assert made.made_on == 1


@pytest.mark.parametrize(
    ("device", "uses_gpu", "current"),
    [
        (Device("cuda", 1), False, 1),
        (Device("cuda", 0), True, 0),
        (Device("cuda", 0), False, None),  # a process begins with it: no context for nothing
        (Device("cuda", 2), True, None),
        (Device(), True, None),
    ],
)
def test_the_current_device_is_the_instances(
    torch: FakeTorch, device: Device, uses_gpu: bool, current: int | None
) -> None:
    torch.uses_gpu = uses_gpu
    make_current(device)
    assert getattr(torch.own, "device", None) == current


def test_without_torch_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    make_current(GPU)
    with shared_memory() as slab, pinned(slab.inputs, GPU):
        pass


def loaded(model: Any, device: Device) -> ThreadInstance:
    instance = ThreadInstance("m_0", device, model, model.config())
    instance.load()
    return instance


def test_each_instance_in_a_thread_has_a_stream(torch: FakeTorch) -> None:
    streams: list[Any] = []

    @wherry.model(max_batch_size=4, examples=[{"x": 1}])
    def noted(x: list[int]) -> list[int]:
        torch.uses_gpu = True
        streams.append(getattr(torch.own, "stream", None))
        return x

    torch.uses_gpu = True
    made: list[ThreadInstance] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: made.append(loaded(noted, GPU)))
        thread.start()
        thread.join()
    assert torch.said == ["synchronize 1"] * 2  # what was loaded is there for the new stream
    first, second = streams[0], streams[-1]
    assert (first.index, second.index, first is second) == (1, 1, False)
    streams.clear()
    assert not isinstance(made[0].run_in_caller({"x": np.array([1])}), Failure)
    assert streams == [first]
    assert getattr(torch.own, "stream", None) is None  # the caller's thread has its own again


def test_a_model_that_uses_no_gpu_has_no_stream(torch: FakeTorch) -> None:
    loaded(Constructed(), GPU)
    assert torch.said == []


def test_what_hands_tensors_over_works_in_the_one_stream_of_the_device(torch: FakeTorch) -> None:
    class Tensor:
        __dlpack__ = None

    @wherry.model(max_batch_size=4)
    def gives(x: list[int]) -> Annotated[Tensor, wherry.FP32[1]]:
        return Tensor()

    torch.uses_gpu = True
    loaded(gives, GPU)
    assert torch.own.stream == "default 1"


@pytest.mark.parametrize("refuses", [0, 2])
def test_the_rows_that_a_worker_is_given_are_pinned(torch: FakeTorch, refuses: int) -> None:
    torch.uses_gpu, torch.refuses = True, refuses
    with shared_memory() as slab, pinned(slab.inputs, GPU):
        (register, address, size), *cleared = torch.said
        assert (register, size) == ("register", 1 << 15)
        array = np.frombuffer(slab.memory, np.uint8)
        assert address == array.ctypes.data
        del array
        assert cleared == (["kernel cuda:1"] if refuses else [])
    assert torch.said[1 + len(cleared) :] == ([] if refuses else [("unregister", address)])


Pixels = Annotated[np.ndarray, wherry.FP32[2]]


@pytest.mark.parametrize(
    ("device", "fits", "batches"),
    [(GPU, 8, [1, 8]), (Device(), 8, [1]), (GPU, 2, [1, 8, 4, 2, 2, 4, 2, 2])],
    ids=["gpu", "cpu", "too little memory"],
)
def test_a_gpu_is_warmed_up_with_one_row_and_with_as_many_as_a_batch_holds(
    torch: FakeTorch,
    caplog: pytest.LogCaptureFixture,
    device: Device,
    fits: int,
    batches: list[int],
) -> None:
    ran: list[int] = []

    @wherry.model(max_batch_size=8, warmup=[{"x": [1.0, 2.0]}])
    def noted(x: Pixels) -> Pixels:
        ran.append(len(x))
        if len(x) > fits:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED")
        return x

    loaded(noted, device)
    assert ran == batches
    assert ("not enough memory for max_batch_size" in caplog.text) == (fits < 8)


def test_what_fails_in_a_full_batch_fails_the_load(torch: FakeTorch) -> None:
    @wherry.model(max_batch_size=8, warmup=[{"x": [1.0, 2.0]}])
    def one_by_one(x: Pixels) -> Pixels:
        if len(x) > 1:
            raise ValueError("only one")
        return x

    with pytest.raises(ValueError, match="only one"):
        loaded(one_by_one, GPU)


class OnDevice(wherry.Model):
    def load(self, device: wherry.Device) -> None:
        pass

    def execute(self, x: list[int]) -> list[int]:
        return x


class Anywhere(OnDevice):
    def load(self) -> None:  # type: ignore[override]
        pass


@wherry.model
def echo(x: int) -> int:
    return x


def test_auto_is_a_gpu_only_for_what_may_use_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", *GPU_LIBRARIES):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert may_use_gpus(OnDevice())
    assert not any(map(may_use_gpus, (echo, Anywhere(), Constructed())))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    assert all(map(may_use_gpus, (echo, Anywhere(), Constructed())))
