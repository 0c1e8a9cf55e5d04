"""What a load must meet, and the search for the highest that does."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.bench.reports import point
from wherry.bench.figures import OK, Figures, MeasuredWindow, Recorder, Table, spread
from wherry.bench.objective import (
    Objective,
    Search,
    kept_up,
    no_measurement,
    silence,
    target_lost,
)
from wherry.bench.report import Point


def table(*ended: tuple[float, str]) -> Table:
    made = Recorder()
    for at, outcome in ended:
        made.add(at - 0.01, at - 0.01, at, outcome, 1)
    return Table.of(made)


SEEN = MeasuredWindow(0.0, 1.0, 10.0)
STEADY = [(float(at), OK) for at in np.arange(0.5, 10, 0.5)]


@pytest.mark.parametrize(
    ("ended", "seconds"),
    [
        (STEADY, 0.0),
        ([*STEADY, (9.9, "HTTP 503")], 0.0),  # one of the last, among answers
        (STEADY[:10], 0.0),  # it ended, and nothing failed
        (
            [*STEADY[:10], (5.1, "connection closed before the answer"), (9.5, "cannot connect")],
            5.0,
        ),
        (
            [*STEADY[:10], (5.1, "connection closed before the answer")],
            5.0,
        ),  # and hung from then on
        ([(2.0, "HTTP 503"), (8.0, "HTTP 503"), *STEADY], 0.0),
        ([(30.0, "timeout"), *STEADY[:10]], 25.0),
        ([(2.0, "timeout"), (8.0, "timeout")], 10.0),
    ],
)
def test_an_end_with_failures_only_is_seen(ended: list[tuple[float, str]], seconds: float) -> None:
    assert silence(table(*ended), SEEN) == pytest.approx(seconds)


def with_figures(
    ok: int = 1000, silent_end: float = 0.0, stopped: str = "", **errors: int
) -> Point:
    made = point()
    made.figures = msgspec.structs.replace(
        made.figures,
        ok=ok,
        failed=sum(errors.values()),
        errors={kind.replace("_", " "): count for kind, count in errors.items()},
    )
    return msgspec.structs.replace(made, silent_end=silent_end, stopped=stopped)


@pytest.mark.parametrize(
    ("run", "said", "lost"),
    [
        (with_figures(), "", False),
        (with_figures(malformed_answer=400), "", False),
        (with_figures(malformed_answer=1100), "52 % failed: malformed answer", False),
        (with_figures(HTTP_429=9000), "", False),  # too high a load is a measurement, too
        (with_figures(ok=0, malformed_answer=3), "answered: malformed answer", True),
        (with_figures(ok=0), "not one request ended", True),
        (with_figures(stopped="no connection for 5 s"), "no connection for 5 s", True),
        (with_figures(silent_end=3.0, timeout=9), "no answer in the last 3 s, only timeout", False),
        (with_figures(silent_end=3.0, cannot_connect=9), "only cannot connect", True),
    ],
)
def test_why_there_is_no_measurement_is_said(run: Point, said: str, lost: bool) -> None:
    assert said in no_measurement(run)
    assert bool(no_measurement(run)) is bool(said)
    assert bool(target_lost(run)) is lost


def test_what_is_missed_is_said_with_both_numbers() -> None:
    run = with_figures(ok=90, timeout=10)
    assert Objective({"p50": 1.0}, 0.5).missed(run.figures) == []
    assert Objective({"p50": 0.001}, 0.01).missed(run.figures) == [
        f"p50 is {1e3 * run.figures.latency.p50:.3g} ms, limit 1 ms",  # type: ignore[union-attr]
        "10 % of the requests failed, limit 1 %",
    ]


@pytest.mark.parametrize(
    ("due", "answered", "kept"),
    [(3, 2, True), (3, 1, False), (0, 0, True), (1000, 950, True), (1000, 890, False)],
)
def test_answers_keep_up_with_what_was_due_however_few_came_by_chance(
    due: int, answered: int, kept: bool
) -> None:
    run = with_figures(ok=due).figures
    seen = msgspec.structs.replace(run, requests_per_second=answered / run.seconds)
    assert kept_up(seen) is kept


def test_a_rate_and_a_first_token_may_be_asked_for() -> None:
    made = point(rate=100.0, noise=0.0)
    assert Objective({}, 1.0, rate=99.0).missed(made.figures) == []
    assert Objective({}, 1.0, rate=101.0).missed(made.figures) == ["requests/s is 100, minimum 101"]
    asked = Objective({}, 1.0, first_token=0.2)
    assert asked.missed(made.figures) == [
        "p95 of the first token is not known: nothing streamed, limit 200 ms"
    ]
    streamed = msgspec.structs.replace(made.figures, first_token=made.figures.latency)
    assert asked.missed(streamed) == []
    assert not asked.met(made.figures)
    assert str(Objective({"p95": 0.1}, 0.01, 5.0, 0.2)) == (
        "p95 <= 100 ms, first token p95 <= 200 ms, requests/s >= 5, errors <= 1 %"
    )


def run(search: Search, limit: float) -> list[float]:
    """Every load up to `limit` meets the target."""
    tried: list[float] = []
    while (load := search.next()) is not None:
        tried.append(load)
        assert len(tried) < 60, tried
        search.record(load, load <= limit)
    return tried


@given(st.integers(1, 60000))
def test_callers_are_found_to_within_five_percent(limit: int) -> None:
    search = Search(whole=True)
    run(search, limit)
    assert search.found is not None
    assert search.found == int(search.found)
    assert limit * 0.94 - 1 <= search.found <= limit


@given(st.floats(0.5, 60000))
def test_rates_are_found_to_within_five_percent(limit: float) -> None:
    search = Search(whole=False, start=10)
    run(search, limit)
    assert search.found is not None
    assert limit * 0.94 <= search.found <= limit


def test_nothing_is_found_if_one_caller_is_too_many() -> None:
    search = Search(whole=True)
    assert run(search, 0) == [1]
    assert search.found is None


def test_it_ends_where_a_rate_means_no_request() -> None:
    search = Search(whole=False, start=1)
    assert run(search, 0) == [1, 0.5, 0.25, 0.125]
    assert search.found is None


def test_it_ends_at_the_most_it_may_try() -> None:
    search = Search(whole=True, most=100)
    assert run(search, 1e9) == [1, 2, 4, 8, 16, 32, 64, 100]
    assert search.found == 100


def test_a_failure_below_a_success_counts() -> None:
    search = Search(whole=True)
    for load, met in ((1, True), (2, True), (4, True), (8, False)):
        search.record(load, met)
    search.record(3, False)  # noise, or the 4 was luck
    assert search.found == 2


@given(st.lists(st.booleans(), min_size=60, max_size=60))
def test_it_ends_whatever_it_is_told(answers: list[bool]) -> None:
    search = Search(whole=True, most=1000)
    for met in answers:
        if (load := search.next()) is None:
            return
        search.record(load, met)
    pytest.fail("60 loads and no end")


def test_an_objective_is_met_by_latency_and_errors_together() -> None:
    objective = Objective({"p95": 0.2}, errors=0.01)

    def told(latency: list[float], failed: int) -> Figures:
        return Figures(
            seconds=1, ok=len(latency), failed=failed, errors={}, requests_per_second=1,
            rows_per_second=1, latency=spread(np.array(latency)),
        )  # fmt: skip

    assert objective.met(told([0.1] * 100, 0))
    assert objective.met(told([0.1] * 100, 1))
    assert not objective.met(told([0.1] * 100, 2))
    assert not objective.met(told([0.3] * 100, 0))
    assert not objective.met(told([], 5))
    assert str(objective) == "p95 <= 200 ms, errors <= 1 %"
