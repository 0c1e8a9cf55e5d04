"""Was a run a measurement, and did it meet what was asked of it? (Pure.)"""

from __future__ import annotations

from typing import Final

import numpy as np

from wherry.bench.figures import MeasuredWindow, Table
from wherry.bench.report import Point, number
from wherry.bench.search import Objective

#: A run that brought only failures for this share of its time, up to its end, lost its target.
SILENT: Final = 0.1
#: Where more than this share of the answers is wrong, the rest is no measurement.
MOST_WRONG: Final = 0.5
#: What a target under too much load says: that, too, is measured.
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
    """Why the target can be taken for gone, or "". Too high a load is no reason."""
    told = point.figures
    if point.stopped:
        return point.stopped
    if not told.ok:
        kinds = ", ".join(told.errors) or "not one request ended in the measured time"
        return f"not one request was answered: {kinds}"
    if point.silent_end and any("connect" in kind for kind in told.errors):
        return _silent(point)
    return ""


def no_measurement(point: Point) -> str:
    """Why the figures say nothing of the target, or ""."""
    told = point.figures
    if lost := target_lost(point):
        return lost
    if point.silent_end:
        return _silent(point)
    wrong = {kind: count for kind, count in told.errors.items() if kind not in REFUSALS}
    share = sum(wrong.values()) / max(1, told.ok + told.failed)
    if share > MOST_WRONG:
        return f"{100 * share:.0f} % failed: {', '.join(wrong)}"
    return ""


def _silent(point: Point) -> str:
    kinds = ", ".join(point.figures.errors)
    return f"no answer in the last {number(point.silent_end)} s, only {kinds}"


def missed(point: Point, objective: Objective) -> list[str]:
    """The limits that the point does not meet, as text."""
    told = point.figures
    found = []
    for name, limit in objective.limits.items():
        if told.latency is not None and (reached := getattr(told.latency, name)) > limit:
            found.append(f"{name} is {1e3 * reached:.3g} ms, asked for {1e3 * limit:g} ms")
    if objective.late_streams(told):
        most = 1e3 * (objective.first_token or 0.0)
        spread = told.first_token
        reached = (
            "is not known: nothing streamed"
            if spread is None
            else (f"is {1e3 * spread.p95:.3g} ms")
        )
        found.append(f"p95 of the first token {reached}, asked for {most:g} ms")
    if told.requests_per_second < objective.rate:
        reached = number(told.requests_per_second)
        found.append(f"requests/s is {reached}, asked for {objective.rate:g}")
    if told.error_share > objective.errors:
        share, most = 100 * told.error_share, 100 * objective.errors
        found.append(f"{share:.2g} % of the requests failed, asked for {most:g} %")
    return found
