"""What a plan may ask for, and how several processes share it."""

import itertools
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.bench.plan import (
    Closed,
    Plan,
    Rate,
    describe,
    joins,
    moments,
)
from wherry.core.values.errors import ConfigError


@pytest.mark.parametrize(
    ("plan", "wrong"),
    [
        (Plan(load=Closed(callers=0), duration=1), "callers"),
        (Plan(load=Rate(rate=0), duration=1), "rate"),
        (Plan(load=Rate(rate=float("inf")), duration=1), "rate"),
        (Plan(load=Closed(callers=1), duration=1, warmup=1), "warm-up"),
        (Plan(load=Closed(callers=1), duration=1, timeout=0), "timeout"),
        (Plan(load=Closed(callers=1)), "set an end"),
        (Plan(load=Rate(rate=1)), "set an end"),
    ],
)
def test_a_plan_that_cannot_be_run_says_why(plan: Plan, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        plan.check()


def test_loops_end_by_themselves() -> None:
    load = Closed(callers=1, loops=3)
    assert Plan(load=load).check().load == load


@given(st.integers(1, 200), st.integers(1, 500), st.integers(1, 9))
def test_the_shares_of_all_processes_are_the_whole(callers: int, requests: int, parts: int) -> None:
    plan = Plan(load=Closed(callers=callers), requests=requests, duration=1)
    shares = [share for n in range(parts) if (share := plan.share(n, parts)) is not None]
    loads = [share.load for share in shares]
    if requests >= parts and callers >= parts:
        assert sum(load.callers for load in loads if isinstance(load, Closed)) == callers
        assert sum(share.requests or 0 for share in shares) == requests
    assert len({share.seed for share in shares}) == len(shares)


def test_an_open_load_is_shared_by_its_rate() -> None:
    plan = Plan(load=Rate(rate=10.0), duration=1)
    loads = [share.load for n in range(2) if (share := plan.share(n, 2)) is not None]
    assert loads == [Rate(rate=5.0)] * 2


def test_loads_describe_themselves() -> None:
    assert describe(Closed(callers=1)) == "1 caller"
    assert describe(Closed(callers=8, think=0.5, ramp=2)) == (
        "8 callers, thinking 0.5 s, joining over 2 s"
    )
    assert describe(Rate(rate=100, ramp=5)) == "100 requests/s, poisson, growing over 5 s"


def first(count: int, load: Rate, **options: float) -> list[float]:
    return list(itertools.islice(moments(load, **options), count))  # type: ignore[arg-type]


def test_a_constant_rate_is_evenly_spaced_and_two_processes_take_turns() -> None:
    load = Rate(rate=10, arrivals="constant")
    assert first(3, load) == pytest.approx([0, 0.1, 0.2])
    assert first(3, load, phase=0.5) == pytest.approx([0.05, 0.15, 0.25])


def test_poisson_arrivals_have_the_rate_and_the_spread_of_independent_ones() -> None:
    found = first(20_000, Rate(rate=50))
    gaps = [b - a for a, b in itertools.pairwise(found)]
    assert found[-1] == pytest.approx(20_000 / 50, rel=0.03)
    mean = fmean(gaps)
    deviation = fmean((gap - mean) ** 2 for gap in gaps) ** 0.5
    assert deviation == pytest.approx(mean, rel=0.05)  # as it is for an exponential distribution


def test_the_same_seed_gives_the_same_arrivals_and_another_one_others() -> None:
    load = Rate(rate=5)
    assert first(10, load, seed=1) == first(10, load, seed=1) != first(10, load, seed=2)


def test_a_growing_rate_has_half_its_requests_by_the_end_of_the_ramp() -> None:
    found = first(1000, Rate(rate=100, arrivals="constant", ramp=10))
    assert sum(moment < 10 for moment in found) == 500
    after = [m for m in found if m >= 10]
    assert after[1] - after[0] == pytest.approx(0.01)


@given(st.floats(0.1, 1e4), st.floats(0, 100), st.sampled_from(["poisson", "constant"]))
def test_moments_never_go_back(rate: float, ramp: float, arrivals: str) -> None:
    load = Rate(rate=rate, ramp=ramp, arrivals=arrivals)  # type: ignore[arg-type]
    found = first(50, load)
    assert found == sorted(found)
    assert found[0] >= 0


def test_callers_join_one_by_one_over_the_ramp() -> None:
    assert joins(Closed(callers=3, ramp=10)) == [0, 5, 10]
    assert joins(Closed(callers=3)) == [0, 0, 0]
    assert joins(Closed(callers=1, ramp=10)) == [0]
