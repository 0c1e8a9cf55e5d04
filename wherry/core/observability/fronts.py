"""What does a front process count, which metrics of its owner are computed from that, and for how
long was an event loop blocked?

A loop's stall is measured by the delay of a periodic timer: it is as late as the callback that
blocked the loop was long. It costs a request nothing, only a wake-up every INTERVAL while requests
come and one a second otherwise. The resolution is one INTERVAL.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from wherry.core.observability.families import family, gauge
from wherry.core.observability.numbers import Buckets
from wherry.core.observability.statistics import Histogram

if TYPE_CHECKING:
    from prometheus_client.core import Metric


#: Seconds between wake-ups.
INTERVAL: Final = 0.02
IDLE_INTERVAL: Final = 1.0
#: Seconds of a window: the longest stall covers the last one to two windows.
WINDOW: Final = 60.0
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class LoopStall:
    """The stalls of one loop between `start` and `stop`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._idle: Callable[[], bool] = lambda: True
        self.seconds = Histogram(BUCKETS)
        self._longest = [0.0, 0.0]
        self._longest_since_last = 0.0
        self._window_ends = 0.0
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def longest(self) -> float:
        """The longest stall of the last one to two minutes in seconds. Any thread."""
        return max(self._longest)

    def longest_since_last(self) -> float:
        """The longest stall since this was called last. In the loop."""
        longest, self._longest_since_last = self._longest_since_last, 0.0
        return longest

    def start(self, loop: asyncio.AbstractEventLoop, idle: Callable[[], bool]) -> None:
        """Watch this loop, from its own thread. `idle` returns whether no request came lately."""
        self._loop, self._idle = loop, idle
        self._window_ends = self._clock() + WINDOW
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop = None

    def _schedule(self) -> None:
        assert self._loop is not None
        interval = IDLE_INTERVAL if self._idle() else INTERVAL
        self._due = self._clock() + interval
        self._timer = self._loop.call_later(interval, self._wake)

    def _wake(self) -> None:
        now = self._clock()
        late = max(0.0, now - self._due)
        self.seconds.observe((late,))
        if now >= self._window_ends:
            self._longest = [0.0, self._longest[0]]
            self._window_ends = now + WINDOW
        self._longest[0] = max(self._longest[0], late)
        self._longest_since_last = max(self._longest_since_last, late)
        self._schedule()


class FrontFigures(msgspec.Struct, array_like=True):
    """What one front process has counted since its start."""

    #: Open HTTP connections and gRPC calls.
    connections: int
    calls: int
    #: Requests that it has refused itself.
    refused: int
    #: Its loop's stalls: how many by upper bound, their sum in seconds, the longest of late.
    stalls: list[int]
    stall_seconds: float
    longest_stall: float
    process: ProcessFigures


class ProcessFigures(msgspec.Struct, array_like=True):
    """What this process uses; None where the system does not report it."""

    cpu_seconds: float
    resident_bytes: int | None
    open_files: int | None


class FrontsSource(Protocol):
    #: Processes that serve clients now, and how many were replaced.
    @property
    def running(self) -> int: ...
    @property
    def restarts(self) -> int: ...

    @property
    def figures(self) -> Mapping[int, FrontFigures]:
        """The last figures of each front that runs, by its number."""

    #: Of fronts that have ended.
    @property
    def refused_before(self) -> int: ...
    @property
    def stalls_before(self) -> Histogram: ...

    def measure(self, done: Callable[[], None]) -> None:
        """Query the fronts' figures, and call `done` when they are there, or soon after."""


def process_figures(proc: Path = Path("/proc/self")) -> ProcessFigures:
    """The figures of this process. Reads files: not for an event loop."""
    try:
        pages = int((proc / "statm").read_text().split()[1])
        resident: int | None = pages * os.sysconf("SC_PAGE_SIZE")
        files: int | None = len(os.listdir(proc / "fd"))
    except (OSError, ValueError, IndexError):
        resident = files = None
    return ProcessFigures(time.process_time(), resident, files)


class AllLoops(NamedTuple):
    """What was counted in the loops of the owner and of all its fronts."""

    refused: int
    stalls: Buckets
    longest_stall: float


def of_all_loops(refused: int, stall: LoopStall, source: FrontsSource | None) -> AllLoops:
    own = Buckets.of(stall.seconds)
    if source is None:
        return AllLoops(refused, own, stall.longest)
    fronts, before = source.figures.values(), source.stalls_before
    parts = [own.counts, before.counts, *(one.stalls for one in fronts)]
    stalls = Buckets(
        tuple(map(sum, zip(*parts, strict=True))),
        own.total + before.total + sum(one.stall_seconds for one in fronts),
        own.bounds,
    )
    return AllLoops(
        refused + source.refused_before + sum(one.refused for one in fronts),
        stalls,
        max([stall.longest, *(one.longest_stall for one in fronts)]),
    )


#: Metrics with the label `front`: name, help, whether it is a counter, value.
OF_EACH: Final[tuple[tuple[str, str, bool, Callable[[FrontFigures], float | None]], ...]] = (
    ("wherry_front_connections", "Open HTTP connections of a front.", False,
     lambda one: one.connections),
    ("wherry_front_calls", "Open gRPC calls of a front.", False, lambda one: one.calls),
    ("wherry_front_cpu_seconds", "CPU time of a front's process.", True,
     lambda one: one.process.cpu_seconds),
    ("wherry_front_resident_memory_bytes", "Resident memory of a front's process.", False,
     lambda one: one.process.resident_bytes),
    ("wherry_front_open_fds", "Open descriptors of a front's process.", False,
     lambda one: one.process.open_files),
)  # fmt: skip


def front_metrics(source: FrontsSource) -> Iterator[Metric]:
    yield gauge("wherry_fronts", "Front processes that serve clients.", source.running)
    yield family(
        "Counter", "wherry_front_restarts", "Front processes that ended and were replaced.",
        [((), source.restarts)],
    )  # fmt: skip
    for name, documentation, counts, value in OF_EACH:
        samples = [([str(number)], value(one)) for number, one in sorted(source.figures.items())]
        yield family("Counter" if counts else "Gauge", name, documentation, samples, ["front"])
