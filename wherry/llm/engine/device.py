"""How are numbers copied to a device, and when has it computed what was sent?

All numbers of a step are copied together: a copy takes longer to start than to run, and one from
ordinary memory waits for the device. A GPU queues calls and computes them later: the host's clock
after the last call measures only how long it took to make them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from time import perf_counter
from typing import Any, Protocol

import numpy.typing as npt
import torch
from torch import Tensor


def to_device(lists: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, ...]:
    """A tensor of each list, in one copy that does not wait for the device."""
    packed = on_device(list(chain.from_iterable(lists)), device)
    return torch.split(packed, [len(one) for one in lists])


def on_device(
    numbers: Sequence[Any] | npt.NDArray[Any],
    device: torch.device,
    dtype: torch.dtype = torch.long,
) -> Tensor:
    """A tensor of these numbers, in a copy that does not wait for the device: `torch.tensor` with a
    `device` waits until all is computed there."""
    return pinned(torch.tensor(numbers, dtype=dtype), device).to(device, non_blocking=True)


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU in memory that a GPU reads by itself, if the device is one."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


class StepTimer(Protocol):
    """Times what is computed between `start` and `stop`, one step after the other."""

    def start(self) -> None: ...

    def stop(self) -> Callable[[], float]:
        """Returns a function for the seconds, which blocks until the device has computed it."""


class HostTimer:
    def start(self) -> None:
        self._start = perf_counter()

    def stop(self) -> Callable[[], float]:
        seconds = perf_counter() - self._start
        return lambda: seconds


class CudaTimer:
    """Events in the GPU's own queue: the host waits only when it reads the time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def start(self) -> None:
        self._start = _mark(self._device)

    def stop(self) -> Callable[[], float]:
        start, end = self._start, _mark(self._device)

        def seconds() -> float:
            end.synchronize()
            milliseconds: float = start.elapsed_time(end)
            return milliseconds / 1e3

        return seconds


def timer_of(device: torch.device) -> StepTimer:
    return CudaTimer(device) if device.type == "cuda" else HostTimer()


def end_of(device: torch.device) -> Callable[[], object]:
    """A function that blocks until the device has done all that is queued now."""
    return _mark(device).synchronize if device.type == "cuda" else lambda: None


def _mark(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
