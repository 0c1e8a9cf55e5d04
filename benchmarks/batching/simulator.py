"""What does a scheduler reach on a plain device? For tests and small benchmarks: no scenario."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.batching.callers import Arrivals, load
from benchmarks.batching.curves import CURVES, MS, Curve
from benchmarks.batching.device import AnyCurve, Device
from benchmarks.batching.play import figures, play
from wherry.core.scheduler.policy import Scheduler

__all__ = ["CURVES", "MS", "Arrivals", "Curve", "Result", "capacity", "simulate"]


@dataclass(frozen=True)
class Result:
    """Rows a second, seconds of an answer, rows of a batch."""

    rate: float
    p50: float
    p95: float
    p99: float
    mean_batch: float


def simulate(
    scheduler: Scheduler,
    curve: AnyCurve,
    arrivals: Arrivals,
    *,
    total: int = 5000,
    seed: int = 1,
    instances: int = 1,
    noise: float = 0.02,
    start: float = 0.0,
) -> Result:
    """From `start` on, so that a scheduler may live through several loads one after another."""
    device = Device(curve, noise)
    drawn = load(arrivals, device, str(seed), total)
    trace = play(scheduler, device.run(str(seed), total), drawn, instances, start)
    found = figures(trace, bool(arrivals.callers), start)
    count = len(trace.ended)
    stop = (9 * count) // 10 if arrivals.callers else count
    taken = np.sort(np.subtract(trace.ended, trace.arrived)[count // 5 : stop])
    p50, p99 = (float(taken[int(len(taken) * share)]) for share in (0.5, 0.99))
    batches = len(trace.batches)
    return Result(found.rate, p50, found.p95, p99, sum(trace.rows) / batches)


def capacity(curve: Curve, limit: int) -> float:
    """The best rows/s of any fixed batch size."""
    return max(rows / curve.seconds(rows) for rows in range(1, limit + 1))
