"""What a plan may ask for, and how several processes share it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.bench.plan import Bursts, Closed, Load, Plan, Rate, Replay, describe
from wherry.core.values.errors import ConfigError


@pytest.mark.parametrize(
    ("plan", "wrong"),
    [
        (Plan(load=Closed(callers=0), duration=1), "callers"),
        (Plan(load=Rate(rate=0), duration=1), "rate"),
        (Plan(load=Rate(rate=float("inf")), duration=1), "rate"),
        (Plan(load=Bursts(size=1, every=0), duration=1), "every"),
        (Plan(load=Replay(moments=())), "trace"),
        (Plan(load=Closed(callers=1), duration=1, warmup=1), "warm-up"),
        (Plan(load=Closed(callers=1), duration=1, timeout=0), "timeout"),
        (Plan(load=Closed(callers=1)), "when it ends"),
        (Plan(load=Rate(rate=1)), "when it ends"),
    ],
)
def test_a_plan_that_cannot_be_run_says_why(plan: Plan, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        plan.check()


@pytest.mark.parametrize("load", [Closed(callers=1, loops=3), Replay(moments=(0.0, 1.0))])
def test_loops_and_traces_end_by_themselves(load: Load) -> None:
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


def test_open_loads_are_shared_by_rate_size_and_moment() -> None:
    def loads(load: Load) -> list[Load]:
        plan = Plan(load=load, duration=1)
        return [s.load for n in range(2) if (s := plan.share(n, 2)) is not None]

    assert loads(Rate(rate=10.0)) == [Rate(rate=5.0)] * 2
    assert loads(Bursts(size=3, every=1)) == [Bursts(size=2, every=1), Bursts(size=1, every=1)]
    assert loads(Bursts(size=1, every=1)) == [Bursts(size=1, every=1)]
    assert loads(Replay(moments=(0.0, 1.0, 2.0))) == [
        Replay(moments=(0.0, 2.0)),
        Replay(moments=(1.0,)),
    ]


def test_loads_describe_themselves() -> None:
    assert describe(Closed(callers=1)) == "1 caller"
    assert describe(Closed(callers=8, think=0.5, ramp=2)) == (
        "8 callers, thinking 0.5 s, joining over 2 s"
    )
    assert describe(Rate(rate=100, ramp=5)) == "100 requests/s, poisson, growing over 5 s"
    assert describe(Bursts(size=5, every=2)) == "bursts of 5 every 2 s"
    assert describe(Replay(moments=(0.0,))) == "a trace of 1 requests"
