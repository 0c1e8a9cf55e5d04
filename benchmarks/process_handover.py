"""What does it cost to hand a request to a worker process and its answer back?

    python benchmarks/process_handover.py [--seconds 2] [--rounds 3] [--json FILE]

CPU microseconds (user + system) per request of this process and of the worker, through
wherry.Runtime with process instances; the median of some rounds. Callers are asyncio tasks that
await `rt.ainfer` in a loop, so their own cost is in the parent's figure; the lines with a thread
instance are there to subtract it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

import wherry

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

    def line(self) -> str:
        total = self.parent_us + self.worker_us
        return (
            f"{self.what:<44} {self.parent_us:8.1f} {self.worker_us:8.1f} {total:8.1f}"
            f" {self.per_second:9.0f} {self.p50_ms:8.3f}"
        )


HEADER = (
    f"{'us of CPU per request':<44} {'parent':>8} {'worker':>8} {'sum':>8} {'/s':>9} {'p50 ms':>8}"
)


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


def measure(isolation: str, seconds: float) -> list[Figure]:
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


def start_and_memory() -> tuple[float, float, float]:
    """Seconds until a trivial model is ready in its worker; MB of this process and of both."""
    code = (
        "import time; t = time.perf_counter()\n"
        "import wherry, sys\n"
        "from process_handover import echo\n"
        "from pathlib import Path\n"
        "with wherry.Runtime(echo, isolation='process') as rt:\n"
        "    rt.infer('echo', 'a'); ready = time.perf_counter() - t\n"
        "    own = int(Path('/proc/self/statm').read_text().split()[1]) * 4096\n"
        "    worker = rt.model('echo').runner.instances[0].rss_bytes\n"
        "    print(ready, own / 1e6, (own + worker) / 1e6)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    ready, own, both = map(float, done.stdout.split())
    return ready, own, both


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()

    rounds = [
        measure("process", options.seconds) + measure("thread", options.seconds)
        for _ in range(options.rounds)
    ]
    print(HEADER)
    figures = []
    for same in zip(*rounds, strict=True):
        same_sorted = sorted(same, key=lambda figure: figure.parent_us + figure.worker_us)
        figures.append(same_sorted[len(same_sorted) // 2])
        print(figures[-1].line())
    starts = sorted(start_and_memory() for _ in range(options.rounds))
    ready, own, both = starts[len(starts) // 2]
    print(f"import, start and first answer {ready:.2f} s; {own:.0f} MB, with worker {both:.0f} MB")
    if options.json:
        result = {
            "machine": platform.platform(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "command": " ".join(sys.argv),
            "figures": [asdict(figure) for figure in figures],
            "ready_seconds": ready,
            "own_mb": own,
            "both_mb": both,
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
