"""Is the change between two reports more than noise? (Pure.)

Points with the same settings are compared figure by figure; each run (`--repeat`) gives one value
of each. The intervals hold for all figures together: in at least 19 of 20 comparisons of a server
with itself the verdict of every figure is "no difference".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from wherry.bench.report import Point, Report

#: The confidence of all intervals of a comparison together.
CONFIDENCE: Final = 0.95
#: From this number of runs of one side on, the noise is estimated from their differences.
FEWEST_RUNS: Final = 3
#: The noise between two recordings (a standard deviation, as a share), besides that of their runs.
SESSION: Final = 0.03
#: The noise between two runs, assumed where there are too few of them to estimate it.
RUN: Final = 0.10


def turns(pairs: int, seed: int = 0) -> list[tuple[int, int]]:
    """The order (0, 1 or 1, 0) in which each pair is run; each of the two begins half of them."""
    firsts = np.arange(pairs) % 2
    np.random.default_rng(seed).shuffle(firsts)
    return [(int(first), 1 - int(first)) for first in firsts]


def paired(before: Sequence[float], after: Sequence[float], figures: int) -> tuple[float, float]:
    """The interval of the change, as a share, when `figures` are compared; pairs by position.

    At least two pairs, of figures above zero.
    """
    differences = np.log(after) - np.log(before)
    count = len(differences)
    error = float(differences.std(ddof=1)) / math.sqrt(count)
    return _around(float(differences.mean()), error, count - 1, figures)


def unpaired(
    before: Sequence[float], after: Sequence[float], figures: int, noisier: float = 1.0
) -> tuple[float, float]:
    """The interval of the change between two groups of runs, each of at least one.

    `noisier`: how many times the assumed noise this kind of figure has, a high percentile for one.
    """
    groups = np.log(before), np.log(after)
    difference = float(groups[1].mean() - groups[0].mean())
    if min(map(len, groups)) < FEWEST_RUNS:
        spread = max((float(group.std(ddof=1)) for group in groups if len(group) > 1), default=0.0)
        spread = max(spread, RUN * noisier)
        error = spread * math.sqrt(sum(1 / len(group) for group in groups))
        return _around(difference, math.hypot(error, SESSION * noisier), math.inf, figures)
    parts = [float(group.var(ddof=1)) / len(group) for group in groups]
    # Welch's degrees of freedom; the assumed part of the variance is known, it has none.
    drift = sum(map(_drift, groups))
    total = sum(parts) + 2 * (SESSION * noisier) ** 2 + drift**2
    known = sum(part**2 / (len(group) - 1) for part, group in zip(parts, groups, strict=True))
    freedom = total**2 / known if known > 0 else math.inf
    return _around(difference, math.sqrt(total), freedom, figures)


def _drift(group: npt.NDArray[np.float64]) -> float:
    half = len(group) // 2
    return float(group[-half:].mean() - group[:half].mean())


def _around(middle: float, error: float, freedom: float, figures: int) -> tuple[float, float]:
    reach = error * student(1 - (1 - CONFIDENCE) / (2 * figures), freedom)
    return math.expm1(middle - reach), math.expm1(min(middle + reach, 700.0))


def student(probability: float, freedom: float) -> float:
    """The quantile of Student's t: what a t is below with this probability (above one half).

    t is sqrt(freedom) * tan(angle), where the density of the angle is cos(angle)**(freedom - 1).
    """
    if freedom > 1e5:
        return NormalDist().inv_cdf(probability)
    angles = np.linspace(0, math.pi / 2, 10_001)
    density = np.cos(angles) ** (freedom - 1)
    below = np.cumsum(density[1:] + density[:-1])
    angle = np.interp(2 * probability - 1, below / below[-1], angles[1:])
    return math.sqrt(freedom) * math.tan(angle)


#: Pieces of time that a run must have for an estimate of its noise.
FEWEST = 5
#: Below this share a change is of no interest, even if it is real.
SMALLEST = 0.01

#: What a request costs its server, where the server is on this machine: latency and throughput
#: hide it as long as cores are free.
CPU: Final = "server CPU ms/request"


class ComparedFigure(NamedTuple):
    name: str
    field: str
    #: Of its unit.
    factor: float
    more_is_better: bool
    #: How many times as noisy as a mean it is assumed to be, where too few runs show it.
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
    #: Where the true share lies, with 95 % for all changes together; None: too little data, or a
    #: run without the figure.
    interval: tuple[float, float] | None
    more_is_better: bool
    runs: tuple[int, int]

    @property
    def verdict(self) -> str:
        """ "better", "worse", "no difference" (none beyond the noise), or "unknown"."""
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
