"""What does a front process count, and which metrics of its owner are made of that?"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from wherry.core.observability.statistics import Histogram

if TYPE_CHECKING:
    from prometheus_client.core import Metric


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
    """What this process uses; None where the system does not tell."""

    cpu_seconds: float
    resident_bytes: int | None
    open_files: int | None


class FrontsSource(Protocol):
    """The fronts of one owner."""

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
        """Ask the fronts for their figures, and call `done` when they are there, or soon after."""


def process_figures(proc: Path = Path("/proc/self")) -> ProcessFigures:
    """Those of this process. Reads files: not for an event loop."""
    try:
        pages = int((proc / "statm").read_text().split()[1])
        resident: int | None = pages * os.sysconf("SC_PAGE_SIZE")
        files: int | None = len(os.listdir(proc / "fd"))
    except (OSError, ValueError, IndexError):
        resident = files = None
    return ProcessFigures(time.process_time(), resident, files)


def with_fronts(own: Histogram, source: FrontsSource | None) -> Histogram:
    """The stalls of all loops together."""
    if source is None:
        return own
    whole = Histogram(own.bounds)
    parts = [(one.stalls, one.stall_seconds) for one in source.figures.values()]
    before = source.stalls_before
    for counts, total in ((own.counts, own.total), (before.counts, before.total), *parts):
        whole.counts = [a + b for a, b in zip(whole.counts, counts, strict=True)]
        whole.total += total
    return whole


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
    """What there is of fronts and of nothing else."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    yield GaugeMetricFamily(
        "wherry_fronts", "Front processes that serve clients.", value=source.running
    )
    yield CounterMetricFamily(
        "wherry_front_restarts",
        "Front processes that have ended and were replaced.",
        value=source.restarts,
    )
    for name, documentation, counts, value in OF_EACH:
        kind = CounterMetricFamily if counts else GaugeMetricFamily
        family = kind(name, documentation, labels=["front"])
        for number, figures in sorted(source.figures.items()):
            if (now := value(figures)) is not None:
                family.add_metric([str(number)], now)
        yield family
