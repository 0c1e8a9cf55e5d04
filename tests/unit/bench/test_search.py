"""How the highest load that meets a target is found."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.bench.figures import Figures, spread
from wherry.bench.search import Objective, Search


def run(search: Search, limit: float) -> list[float]:
    """Every load up to `limit` meets the target."""
    tried: list[float] = []
    while (load := search.next()) is not None:
        tried.append(load)
        assert len(tried) < 60, tried
        search.tell(load, load <= limit)
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
        search.tell(load, met)
    search.tell(3, False)  # noise, or the 4 was luck
    assert search.found == 2


@given(st.lists(st.booleans(), min_size=60, max_size=60))
def test_it_ends_whatever_it_is_told(answers: list[bool]) -> None:
    search = Search(whole=True, most=1000)
    for met in answers:
        if (load := search.next()) is None:
            return
        search.tell(load, met)
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
