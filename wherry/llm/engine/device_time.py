"""How long did the device compute a step?

A GPU is given calls and computes them later: what the host's clock says after the last call is how
long it took to make them.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Protocol

import torch


class StepTimer(Protocol):
    """Times what is computed between `start` and `stop`, one step after the other."""

    def start(self) -> None: ...

    def stop(self) -> Callable[[], float]:
        """What says how long it took, and blocks until the device has computed it."""


class HostTimer:
    """For a device that has computed when a call returns."""

    def start(self) -> None:
        self._start = perf_counter()

    def stop(self) -> Callable[[], float]:
        seconds = perf_counter() - self._start
        return lambda: seconds


class CudaTimer:
    """Marks in the GPU's own queue, which do not make the host wait before it asks."""

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
    """What blocks until the device has done what it was given so far."""
    return _mark(device).synchronize if device.type == "cuda" else lambda: None


def _mark(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
