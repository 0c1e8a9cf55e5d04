"""Is the change between two reports more than noise? (Pure.)

Points with the same settings are compared figure by figure; each run (`--repeat`) gives one value
of each. `interval.py` says how sure the change is, of all figures together: in at least 19 of 20
comparisons of a thing with itself every figure says "no difference".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from wherry.bench.interval import paired, unpaired
from wherry.bench.report import Point, Report

#: Pieces of time that a run must have to say something of its own noise.
FEWEST = 5
#: Below this share a change is of no interest, even if it is real.
SMALLEST = 0.01

#: What a request costs its server, where the server is on this machine: latency and throughput
#: hide it as long as cores are free.
CPU: Final = "server CPU ms/request"


class ComparedFigure(NamedTuple):
    """What is compared."""

    name: str
    field: str
    #: Of its unit.
    factor: float
    more_is_better: bool
    #: How many times as noisy as a mean it is taken to be, where runs cannot tell.
    noisier: float = 1.0


METRICS: Final = (
    ComparedFigure("requests/s", "requests_per_second", 1.0, True),
    ComparedFigure("tokens/s", "tokens_out_per_second", 1.0, True),
    ComparedFigure("mean ms", "mean", 1e3, False),
    ComparedFigure("p50 ms", "p50", 1e3, False),
    ComparedFigure("p95 ms", "p95", 1e3, False, 1.5),
    ComparedFigure("p99 ms", "p99", 1e3, False, 2.0),
    ComparedFigure(CPU, "cpu_seconds_per_request", 1e3, False),
)


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of a point in both reports. Shares: 0.1 is 10 % more."""

    point: str
    metric: str
    before: float
    after: float
    share: float
    #: Where the true share lies, of all changes together with 95 %; None: too little to say, or a
    #: run without the figure.
    interval: tuple[float, float] | None
    more_is_better: bool
    runs: tuple[int, int]

    @property
    def verdict(self) -> str:
        """ "better", "worse", "no difference" (none that can be told), or "unknown"."""
        if self.interval is None:
            return "unknown"
        low, high = self.interval
        if low <= 0 <= high or abs(self.share) < SMALLEST:
            return "no difference"
        return "better" if (self.share > 0) == self.more_is_better else "worse"


def compare(before: Report, after: Report, *, in_turns: bool = False) -> list[Change]:
    """The points that both reports have, figure by figure.

    `in_turns`: the n-th run of each is a pair, measured one right after the other.
    """
    old, new = _by_settings(before), _by_settings(after)
    compared = [
        (old[key], new[key], metric)
        for key in old
        if key in new
        for metric in METRICS
        if any(_values(old[key], metric.field)) and any(_values(new[key], metric.field))
    ]
    return [_change(*one, len(compared), in_turns=in_turns) for one in compared]


def _change(
    was: list[Point], now: list[Point], metric: ComparedFigure, compared: int, *, in_turns: bool
) -> Change:
    """One of as many figures as are `compared`."""
    if in_turns:  # one that was interrupted may lack its last half
        pairs = min(len(was), len(now))
        was, now = was[:pairs], now[:pairs]
    values = _values(was, metric.field), _values(now, metric.field)
    if not all((*values[0], *values[1])):  # a run without an answer has no figure
        interval = None
    elif in_turns and len(was) > 1:
        interval = paired(*values, compared)
    elif min(_pieces(point) for point in (*was, *now)) < FEWEST:
        interval = None
    else:
        interval = unpaired(*values, compared, metric.noisier)
    return Change(
        was[0].label,
        metric.name,
        float(np.median(values[0])) * metric.factor,
        float(np.median(values[1])) * metric.factor,
        _share(*values),
        interval,
        metric.more_is_better,
        (len(was), len(now)),
    )


def unmatched(before: Report, after: Report) -> list[str]:
    """The points that only one of them has."""
    old, new = _by_settings(before), _by_settings(after)
    return [
        f"only in {where}: {points[0].label}"
        for where, ours, theirs in (("A", old, new), ("B", new, old))
        for key, points in ours.items()
        if key not in theirs
    ]


def _by_settings(report: Report) -> dict[bytes, list[Point]]:
    found: dict[bytes, list[Point]] = {}
    for point in report.points:
        key: dict[str, Any] = {**point.settings, "rows": point.rows}
        found.setdefault(msgspec.json.encode(key, order="sorted"), []).append(point)
    return found


def _values(points: list[Point], name: str) -> list[float]:
    """A figure of each run; zero where it has none."""
    return [_value(point, name) for point in points]


def _value(point: Point, name: str) -> float:
    point_figures = point.figures
    if name == "cpu_seconds_per_request":
        return (point.server_cores or 0.0) / (point_figures.requests_per_second or math.inf)
    source = point_figures if name.endswith("per_second") else point_figures.latency
    return float(getattr(source, name)) if source is not None else 0.0


def _pieces(point: Point) -> int:
    """Number of pieces of its time line with an answer, warm-up left out."""
    return sum(not piece.warmup and piece.requests_per_second > 0 for piece in point.timeline)


def _share(before: list[float], after: list[float]) -> float:
    """How much more it is after than before; by the medians where a run has no figure."""
    if all((*before, *after)):
        return _geometric_mean(after) / _geometric_mean(before) - 1
    middle = float(np.median(before))
    return float(np.median(after)) / middle - 1 if middle else 0.0


def _geometric_mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
