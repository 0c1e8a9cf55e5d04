"""What must a load meet, which load is tried next to find the highest that does, and was a run a
measurement? (Pure.)

The search doubles the load until the target is missed, then halves the gap between the highest load
that met it and the lowest that did not, until they are close.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from wherry.bench.figures import Figures, MeasuredWindow, Table
from wherry.bench.report import Point, number


@dataclass(frozen=True, slots=True)
class Objective:
    """Limits that a load must meet: seconds of the latency by quantile; `errors` is the share that
    may fail; `rate` are the requests/s at least, and `first_token` the seconds that 95 of 100
    streams may take to their first piece."""

    limits: dict[str, float]
    errors: float = 0.01
    rate: float = 0.0
    first_token: float | None = None

    def met(self, measured: Figures) -> bool:
        """An open load must be kept up with, too: `kept_up` checks that."""
        return measured.latency is not None and not self.missed(measured)

    def missed(self, measured: Figures) -> list[str]:
        found = []
        for name, limit in self.limits.items():
            if measured.latency and (reached := getattr(measured.latency, name)) > limit:
                found.append(f"{name} is {1e3 * reached:.3g} ms, limit {1e3 * limit:g} ms")
        if self.first_token is not None:
            first = measured.first_token
            if first is None or first.p95 > self.first_token:
                reached = "is not known: nothing streamed"
                if first is not None:
                    reached = f"is {1e3 * first.p95:.3g} ms"
                most = f"{1e3 * self.first_token:g} ms"
                found.append(f"p95 of the first token {reached}, limit {most}")
        if measured.requests_per_second < self.rate:
            reached = number(measured.requests_per_second)
            found.append(f"requests/s is {reached}, minimum {self.rate:g}")
        if measured.error_share > self.errors:
            share = 100 * measured.error_share
            found.append(f"{share:.2g} % of the requests failed, limit {100 * self.errors:g} %")
        return found

    def __str__(self) -> str:
        limits = [f"{name} <= {1e3 * limit:g} ms" for name, limit in self.limits.items()]
        if self.first_token is not None:
            limits.append(f"first token p95 <= {1e3 * self.first_token:g} ms")
        if self.rate:
            limits.append(f"requests/s >= {self.rate:g}")
        return ", ".join([*limits, f"errors <= {100 * self.errors:g} %"])


#: Of a run that can measure a rate.
FEWEST_REQUESTS: Final = 20


def kept_up(measured: Figures) -> bool:
    """Whether answers came as fast as requests were due. Compared with their number, not with the
    rate, as arrivals are random. One may be in flight at the end."""
    answered = measured.requests_per_second * measured.seconds
    return answered >= 0.9 * (measured.ok + measured.failed) - 1


@dataclass(slots=True)
class Search:
    """Take a load from `next()` and `record` its result, until `next()` returns None.

    Callers are whole numbers; a rate is found to within `precision` of itself, if it is not below
    `least`: a run would have no request.
    """

    whole: bool
    start: float = 1.0
    least: float = 0.1
    most: float = 65536.0
    precision: float = 0.05
    _good: float | None = None
    _bad: float | None = None
    _tried: dict[float, bool] = field(default_factory=dict)

    @property
    def found(self) -> float | None:
        return self._good

    def next(self) -> float | None:
        if self._good is None and self._bad is None:
            return self.start
        if self._bad is None:
            assert self._good is not None
            return min(2 * self._good, self.most) if self._good < self.most else None
        if self._good is None:
            smaller = self._between(0.0, self._bad)
            return smaller if self.least <= smaller < self._bad else None
        middle = self._between(self._good, self._bad)
        close = self._bad - self._good <= max(1.0 * self.whole, self.precision * self._bad)
        return None if close or middle in self._tried else middle

    def record(self, load: float, met: bool) -> None:
        """Record whether `load` met the target. If a lower load fails where a higher one did not,
        the lower one counts."""
        self._tried[load] = met
        if met:
            self._good = max(load, self._good or 0.0)
        else:
            self._bad = min(load, self._bad or load)
            if self._good is not None and self._good >= self._bad:
                below = [one for one, fine in self._tried.items() if fine and one < self._bad]
                self._good = max(below, default=None)

    def _between(self, low: float, high: float) -> float:
        middle = (low + high) / 2
        return float(max(1, int(middle))) if self.whole else float(f"{middle:.3g}")


#: A run that brought only failures for this share of its time, up to its end, lost its target.
SILENT: Final = 0.1
#: Where more than this share of the answers is wrong, the rest is not a measurement.
MOST_WRONG: Final = 0.5
#: The refusals of a target under too much load, which are measured, too.
REFUSALS: Final = frozenset({
    "HTTP 429", "HTTP 503", "HTTP 504", "timeout", "gRPC RESOURCE_EXHAUSTED", "gRPC UNAVAILABLE",
    "gRPC DEADLINE_EXCEEDED", "QueueFull", "DeadlineExceeded",
})  # fmt: skip


def silence(table: Table, seen: MeasuredWindow) -> float:
    """Seconds at the end of a run in which requests failed and none was answered, or 0."""
    answered = table.ended[table.outcome == 0]
    last = max(float(answered.max(initial=seen.begin)), seen.begin)
    failed = table.ended[table.outcome != 0]
    end = max(float(failed.max(initial=0.0)), seen.stop)
    quiet = end - last
    return quiet if bool(np.any(failed > last)) and quiet > SILENT * (end - seen.begin) else 0.0


def target_lost(point: Point) -> str:
    """Why the target is taken to be gone, or "". Too high a load is no reason."""
    figures = point.figures
    if point.stopped:
        return point.stopped
    if not figures.ok:
        kinds = ", ".join(figures.errors) or "not one request ended in the measured time"
        return f"not one request was answered: {kinds}"
    if point.silent_end and any("connect" in kind for kind in figures.errors):
        return _silent(point)
    return ""


def no_measurement(point: Point) -> str:
    """Why the figures do not measure the target, or ""."""
    figures = point.figures
    if lost := target_lost(point):
        return lost
    if point.silent_end:
        return _silent(point)
    wrong = {kind: count for kind, count in figures.errors.items() if kind not in REFUSALS}
    share = sum(wrong.values()) / max(1, figures.ok + figures.failed)
    if share > MOST_WRONG:
        return f"{100 * share:.0f} % failed: {', '.join(wrong)}"
    return ""


def _silent(point: Point) -> str:
    kinds = ", ".join(point.figures.errors)
    return f"no answer in the last {number(point.silent_end)} s, only {kinds}"
