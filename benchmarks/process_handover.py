"""What does it cost to hand a request to a worker process and its answer back?

    python -m benchmarks.process_handover [--seconds 2] [--rounds 3] [--json FILE]

CPU microseconds (user + system) per request of this process and of the worker, through
wherry.Runtime with process instances; the median of some rounds. Callers are asyncio tasks that
await `rt.ainfer` in a loop, so their own cost is in the parent's figure; the lines with a thread
instance are there to subtract it.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

import wherry
from benchmarks.harness import arguments, report
from wherry.core.models.settings import Isolation

TICKS = os.sysconf("SC_CLK_TCK")


@wherry.model(max_batch_size=32)
def echo(text: list[str]) -> list[str]:
    return text


@wherry.model(max_batch_size=16)
def image(
    x: Annotated[np.ndarray, wherry.FP32[3, 224, 224]],
) -> Annotated[np.ndarray, wherry.FP32[1000]]:
    """600 KB in, 4 KB out, and next to no work."""
    return x.reshape(len(x), -1)[:, :1000]


@dataclass(frozen=True)
class Figure:
    what: str
    parent_us: float
    worker_us: float
    per_second: float
    p50_ms: float

    @property
    def both_us(self) -> float:
        return self.parent_us + self.worker_us

    def row(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "parent us": self.parent_us,
            "worker us": self.worker_us,
            "sum us": self.both_us,
            "requests/s": self.per_second,
            "p50 ms": self.p50_ms,
        }


def medians(rounds: Sequence[Sequence[Figure]]) -> list[dict[str, Any]]:
    """Of each figure the round with the median cost, as rows of a report."""
    return [
        sorted(same, key=lambda figure: figure.both_us)[len(same) // 2].row()
        for same in zip(*rounds, strict=True)
    ]


def cpu_seconds(pid: int | None) -> float:
    """User and system time of another process, in the kernel's own resolution if it tells."""
    if pid is None:
        return 0.0
    try:
        # Nanoseconds on the CPU of every thread.
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except OSError:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


class Meter:
    """CPU time of this process and of the worker, between two moments."""

    def __init__(self, rt: wherry.Runtime, model: str) -> None:
        runner: Any = rt.model(model).runner
        self.pid = getattr(runner.instances[0], "pid", None)
        self.start = self._now()

    def _now(self) -> tuple[float, float, float]:
        return time.process_time(), cpu_seconds(self.pid), time.perf_counter()

    def figure(self, what: str, latencies: list[float]) -> Figure:
        parent, worker, wall = (
            now - then for now, then in zip(self._now(), self.start, strict=True)
        )
        n = len(latencies)
        return Figure(
            what,
            parent / n * 1e6,
            worker / n * 1e6,
            n / wall,
            statistics.median(latencies) * 1e3,
        )


def tasks(rt: wherry.Runtime, model: str, row: Any, callers: int, seconds: float) -> list[float]:
    latencies: list[float] = []

    async def caller(ends_at: float) -> None:
        while (started := time.perf_counter()) < ends_at:
            await rt.ainfer(model, row)
            latencies.append(time.perf_counter() - started)

    async def main() -> None:
        ends_at = time.perf_counter() + seconds
        await asyncio.gather(*(caller(ends_at) for _ in range(callers)))

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main())
    return latencies


def thread(rt: wherry.Runtime, model: str, row: Any, seconds: float) -> list[float]:
    latencies = []
    ends_at = time.perf_counter() + seconds
    while (started := time.perf_counter()) < ends_at:
        rt.infer(model, row)
        latencies.append(time.perf_counter() - started)
    return latencies


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def measure(isolation: Isolation, seconds: float) -> list[Figure]:
    picture = np.random.default_rng(0).random((3, 224, 224), np.float32)
    figures = []
    with wherry.Runtime(echo, image, isolation=isolation) as rt:

        def take(what: str, model: str, call: Callable[[float], list[float]]) -> None:
            call(0.2)
            meter = Meter(rt, model)
            figures.append(meter.figure(f"{isolation}: {what}", call(seconds)))

        if isolation == "process":  # with a thread instance it runs right in its caller
            take("echo, a lone thread", "echo", lambda s: thread(rt, "echo", "hello", s))
        for callers in (1, 64):
            call = partial(tasks, rt, "echo", "hello", callers)
            take(f"echo, {callers} in flight", "echo", call)
        for callers in (1, 16):
            call = partial(tasks, rt, "image", picture, callers)
            take(f"600 KB in, 4 KB out, {callers} in flight", "image", call)
    return figures


def main() -> None:
    options = arguments(__doc__).parse_args()
    rounds = [
        measure("process", options.seconds) + measure("thread", options.seconds)
        for _ in range(options.rounds)
    ]
    report("CPU time of a request by instance", medians(rounds), options.json)


if __name__ == "__main__":
    main()
