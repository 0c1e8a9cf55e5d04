"""What one run says, and what must be known to believe it."""

from __future__ import annotations

import numpy as np

from tests.unit.bench.reports import point
from wherry.bench.figures import Recorder, spread
from wherry.bench.load import Raw
from wherry.bench.plan import Closed, Plan, Rate
from wherry.bench.report import ClientSide, Point
from wherry.bench.session import notes

PLAN = Plan(load=Closed(callers=4), duration=10, warmup=1, connections=4)


def raw(**more: object) -> Raw:
    return Raw(Recorder(), 0.0, 10.0, **more)  # type: ignore[arg-type]


def said(made: Point, plan: Plan = PLAN, **more: object) -> str:
    return "\n".join(notes(made, raw(**more), plan))


def test_a_run_without_trouble_needs_no_words() -> None:
    assert said(point()) == ""


def test_a_client_at_its_limit_says_so() -> None:
    busy = point()
    busy.client = ClientSide(processes=2, cores=1.4, busiest=0.97)
    assert "97 % of a core" in said(busy)
    assert "--processes" in said(busy)


def test_late_starts_say_whose_fault_they_are() -> None:
    late = point(latency=0.01)
    late.figures.lateness = spread(np.array([0.0] * 98 + [0.5] * 2))
    plan = Plan(load=Rate(rate=5), duration=10, connections=4)
    assert "all connections were busy" in said(late, plan)
    assert "the client was late" in said(late, Plan(load=Rate(rate=5), duration=10))
    late.figures.lateness = spread(np.array([0.001] * 100))  # a tenth of the latency
    assert said(late, plan) == ""


def test_errors_an_early_end_and_an_interruption_are_told() -> None:
    failing = point()
    failing.figures.failed, failing.figures.errors = 10, {"HTTP 503": 8, "timeout": 2}
    assert "0.99 % failed: 8 x HTTP 503, 2 x timeout" in said(failing)
    gone = point()
    gone.stopped = "no connection"
    assert "stopped early: no connection" in said(gone)
    assert "interrupted" in said(point(), interrupted=True, stopped_because="interrupted")
    nothing = point()
    nothing.figures.ok = 0
    assert "not one request" in said(nothing)
