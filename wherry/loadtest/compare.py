"""Is the change between two reports more than noise? (Pure; the random numbers are seeded.)

Each run is cut into pieces of time, and its pieces are drawn again and again (a block bootstrap:
neighbours stay together, since what slows one piece slows the next). If a point was repeated, the
runs are drawn too, and then their pieces: the noise from run to run, which one run cannot show.
A change counts if its 95 % interval does not contain zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from wherry.loadtest.report import Point, Report

DRAWS: Final = 2000
#: Pieces of time that a run must have to say something of its own noise.
FEWEST = 5
#: Below this share a change is of no interest, even if it is real.
SMALLEST = 0.01

#: What is compared: its name, the interval's field, its unit's factor, and if more is better.
METRICS: Final = (
    ("requests/s", "requests_per_second", 1.0, True),
    ("tokens/s", "tokens_out_per_second", 1.0, True),
    ("mean ms", "mean", 1e3, False),
    ("p50 ms", "p50", 1e3, False),
    ("p95 ms", "p95", 1e3, False),
    ("p99 ms", "p99", 1e3, False),
)


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of one point in both reports. Shares: 0.1 is 10 % more."""

    point: str
    metric: str
    before: float
    after: float
    share: float
    #: The 95 % interval of `share`; None if there is too little to say.
    interval: tuple[float, float] | None
    more_is_better: bool
    runs: tuple[int, int]

    @property
    def verdict(self) -> str:
        """ "better", "worse", "noise", or "unknown"."""
        if self.interval is None:
            return "unknown"
        low, high = self.interval
        if low <= 0 <= high or abs(self.share) < SMALLEST:
            return "noise"
        return "better" if (self.share > 0) == self.more_is_better else "worse"


def compare(before: Report, after: Report, *, seed: int = 0) -> list[Change]:
    """The points that both reports have, figure by figure."""
    changes = []
    old, new = _by_settings(before), _by_settings(after)
    for key, points in old.items():
        if key not in new:
            continue
        for metric, name, factor, more_is_better in METRICS:
            values = _overall(points, name), _overall(new[key], name)
            if not all(values):
                continue
            changes.append(
                Change(
                    points[0].label,
                    metric,
                    values[0] * factor,
                    values[1] * factor,
                    values[1] / values[0] - 1,
                    _interval(
                        [_pieces(point, name) for point in points],
                        [_pieces(point, name) for point in new[key]],
                        np.random.default_rng(seed),
                    ),
                    more_is_better,
                    (len(points), len(new[key])),
                )
            )
    return changes


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


def _overall(points: list[Point], name: str) -> float:
    """The median of the runs, from the figures of all their requests."""
    values = []
    for point in points:
        told = point.figures
        source = told if name.endswith("per_second") else told.latency
        values.append(float(getattr(source, name)) if source is not None else 0.0)
    return float(np.median(values))


def _pieces(point: Point, name: str) -> npt.NDArray[np.float64]:
    """The run's measured pieces."""
    values = [getattr(piece, name) for piece in point.timeline if not piece.warmup]
    return np.array([value for value in values if value is not None], np.float64)


def _interval(
    before: list[npt.NDArray[np.float64]],
    after: list[npt.NDArray[np.float64]],
    draw: np.random.Generator,
) -> tuple[float, float] | None:
    if min(len(run) for run in (*before, *after)) < FEWEST:
        return None
    old, new = _drawn(before, draw), _drawn(after, draw)
    shares = new[old > 0] / old[old > 0] - 1
    if not len(shares):
        return None
    low, high = np.percentile(shares, [2.5, 97.5])
    return float(low), float(high)


def _drawn(runs: list[npt.NDArray[np.float64]], draw: np.random.Generator) -> Any:
    """Means of the runs drawn again, `DRAWS` times."""
    means = np.empty((len(runs), DRAWS))
    for n, run in enumerate(runs):
        block = max(1, round(len(run) ** (1 / 3)))
        blocks = int(np.ceil(len(run) / block))
        starts = draw.integers(0, len(run), (DRAWS, blocks))
        places = (starts[:, :, None] + np.arange(block)) % len(run)
        means[n] = run[places.reshape(DRAWS, -1)[:, : len(run)]].mean(axis=1)
    if len(runs) == 1:
        return means[0]
    chosen = draw.integers(0, len(runs), (DRAWS, len(runs)))
    return means[chosen, np.arange(DRAWS)[:, None]].mean(axis=1)
