"""How does one plan become one point of the report?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from wherry.bench.connection import Encoded
from wherry.bench.figures import Interval, MeasuredWindow, Table, figures, timeline, window
from wherry.bench.load import LoadProcesses, LoadProgress, Raw
from wherry.bench.objective import silence
from wherry.bench.observe import Observer, is_here, listener
from wherry.bench.plan import Plan, Rate
from wherry.bench.report import ClientSide, Point, number
from wherry.bench.targets import Target

#: The share of a core from which on the client counts as the bottleneck.
BUSY = 0.9


@dataclass(slots=True)
class Served:
    """A server, reached over the network by load processes."""

    target: Target
    load: LoadProcesses
    #: Its process, if we started it.
    pid: int | None = None
    _requests: dict[int, list[Encoded]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = self.target.address
        if self.pid is None and where.uds is None and is_here(where.host):
            self.pid = listener(where.port)

    def run(
        self,
        plan: Plan,
        rows: int,
        on_progress: Callable[[LoadProgress], object],
        interrupted: Callable[[], bool],
    ) -> Raw:
        if rows not in self._requests:
            self._requests[rows] = self.target.requests(rows)
        wire, requests = self.target.wire, self._requests[rows]
        return self.load.run(plan, wire, requests, on_progress=on_progress, interrupted=interrupted)


@dataclass(frozen=True, slots=True)
class Measured:
    """A point, and the rows behind it."""

    point: Point
    table: Table
    begin: float


def measure(
    subject: Served,
    plan: Plan,
    *,
    rows: int = 1,
    settings: dict[str, Any] | None = None,
    repeat: int = 0,
    on_progress: Callable[[LoadProgress], object] = lambda progress: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Measured:
    """Carry out the plan, observe the server meanwhile, and compute the figures."""
    with subject.target.observer(subject.pid) as observer:
        raw = subject.run(plan.check(), rows, on_progress, interrupted)
    table = Table.of(raw.records)
    seen = window(table, raw.began_at, raw.ended_at, warmup=plan.warmup, duration=plan.duration)
    streams = subject.target.wire.reads.endswith(("_events", "_stream"))
    measured = figures(table, seen, open_load=isinstance(plan.load, Rate), streams=streams)
    line = timeline(table, seen)
    _with_server(line, observer, seen)
    point = Point(
        settings=settings or {},
        repeat=repeat,
        load=plan.load,
        rows=rows,
        figures=measured,
        timeline=line,
        server=observer.server_side(seen.start, seen.stop),
        server_cores=observer.server_cores(seen.start, seen.stop),
        client=_client(raw),
        samples=raw.samples,
        interrupted=raw.interrupted,
        stopped="" if raw.interrupted else raw.stopped_because,
        silent_end=silence(table, seen),
    )
    point.notes = notes(point, raw, plan)
    return Measured(point, table, raw.began_at)


def _with_server(line: list[Interval], observer: Observer, seen: MeasuredWindow) -> None:
    for at, queued, size in observer.over_time():
        for interval in line:
            if interval.at <= at - seen.begin < interval.at + interval.seconds:
                interval.queued = queued if queued is not None else interval.queued
                interval.batch_size = size if size is not None else interval.batch_size


def _client(raw: Raw) -> ClientSide:
    shares = [cpu / max(1e-9, seconds) for cpu, seconds in raw.client]
    return ClientSide(processes=len(shares), cores=sum(shares), busiest=max(shares, default=0.0))


def notes(point: Point, raw: Raw, plan: Plan) -> list[str]:
    """Reasons to doubt the figures, for their reader."""
    found = []
    measured, client = point.figures, point.client
    if point.stopped:
        found.append(f"stopped early: {point.stopped}")
    elif point.silent_end:
        found.append(f"nothing but failures in the last {number(point.silent_end)} s")
    if raw.interrupted:
        found.append("interrupted: these are the figures so far")
    if plan.warmup and not measured.warmup_excluded:
        found.append("it ended within the warm-up: its figures are of the warm-up")
    if client.busiest >= BUSY:
        found.append(
            f"the client is at its limit: a load process used {100 * client.busiest:.0f} % of a"
            " core, so that the target may take more than this; use more --processes, on cores"
            " of their own"
        )
    late, latency = measured.lateness, measured.latency
    if late is not None and latency is not None and late.p99 > max(0.002, 0.2 * latency.p50):
        waited = "all connections were busy" if _held_back(point, plan) else "the client was late"
        found.append(
            f"1 % of the requests were sent {number(1e3 * late.p99)} ms or more too late"
            f" ({waited}); latency counts from the intended moment"
        )
    if measured.failed:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in list(measured.errors.items())[:3])
        found.append(f"{_percent(measured.error_share)} failed: {kinds}")
    if not measured.ok and not measured.failed:
        found.append("not one request ended in the measured time")
    return found


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 or not share else f"{100 * share:.2g} %"


def _held_back(point: Point, plan: Plan) -> bool:
    return any(interval.in_flight >= plan.connections for interval in point.timeline)
