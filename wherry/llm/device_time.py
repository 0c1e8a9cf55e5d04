"""How long did the device compute a step?

A GPU is given calls and computes them later: what the host's clock says after the last call is how
long it took to make them.
"""

from __future__ import annotations

from time import perf_counter
from typing import Protocol

import torch


class StepTimer(Protocol):
    """Times what is computed between `start` and `stop`, one step after the other."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def seconds(self) -> float:
        """The duration of the last step. Blocks until the device has computed it."""


class HostTimer:
    """For a device that has computed when a call returns."""

    def start(self) -> None:
        self._start = perf_counter()

    def stop(self) -> None:
        self._end = perf_counter()

    def seconds(self) -> float:
        return self._end - self._start


class CudaTimer:
    """Marks in the GPU's own queue, which do not make the host wait before it asks."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def start(self) -> None:
        self._start.record(torch.cuda.current_stream(self._device))

    def stop(self) -> None:
        self._end.record(torch.cuda.current_stream(self._device))

    def seconds(self) -> float:
        self._end.synchronize()
        milliseconds: float = self._start.elapsed_time(self._end)
        return milliseconds / 1e3


def timer_of(device: torch.device) -> StepTimer:
    return CudaTimer(device) if device.type == "cuda" else HostTimer()
