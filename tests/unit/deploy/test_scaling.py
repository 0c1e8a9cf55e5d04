"""How many replicas should there be?"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from wherry.deploy.scaling import IDLE, LONGEST, STARTING, PoolLoad, ReplicaBounds, Scaling
from wherry.values.errors import ConfigError

CALM = PoolLoad(serving=1, wait=0.0, busy=0.6, rows=1, rows_at_once=8)


def load(serving: int, wait: float = 0.0, busy: float = 0.6, rows: int = 1) -> PoolLoad:
    return PoolLoad(serving, wait, busy, rows, rows_at_once=8)


def scaling(text: str = "1..8", wanted: int | None = None) -> Scaling:
    made = Scaling(ReplicaBounds.parse(text), target=0.1)
    made.wanted = made.wanted if wanted is None else wanted
    return made


def held(scaling: Scaling, load: PoolLoad, seconds: float, since: float = 0.0) -> int:
    """The same load for so long, observed each second."""
    for now in range(int(seconds) + 1):
        scaling.observe(load, since + now)
    return scaling.wanted


@pytest.mark.parametrize(
    ("text", "bounds"), [("2", (2, 2)), ("1..8", (1, 8)), (" 3..3 ", (3, 3)), ("1", (1, 1))]
)
def test_bounds_are_a_number_or_two(text: str, bounds: tuple[int, int]) -> None:
    assert ReplicaBounds.parse(text) == bounds


@pytest.mark.parametrize(
    "text", ["", "0", "0..2", "8..1", "1..", "..8", "1-8", "-1", "1..8..9", "²"]
)
def test_other_bounds_are_refused_with_what_is_right(text: str) -> None:
    with pytest.raises(ConfigError, match=r"as 2, or the fewest and the most, as 1\.\.8"):
        ReplicaBounds.parse(text)


def test_it_begins_with_the_fewest() -> None:
    assert scaling("2..8").wanted == 2


@pytest.mark.parametrize(
    ("serving", "wait", "wanted"),
    [(1, 0.1, 1), (1, 0.25, 3), (2, 0.25, 5), (2, 0.11, 3), (4, 9, 8)],
)
def test_as_many_more_are_wanted_as_the_wait_is_too_long(
    serving: int, wait: float, wanted: int
) -> None:
    assert held(scaling(wanted=serving), load(serving, wait), 1) == wanted


def test_one_long_wait_is_no_reason() -> None:
    scaled = scaling()
    assert scaled.observe(load(1, 5.0), 0.0) == 1
    assert scaled.observe(load(1, 0.0), 1.0) == 1
    assert scaled.observe(load(1, 5.0), 2.0) == 1
    assert scaled.observe(load(1, 0.15), 3.0) == 2  # the least of the waits


def test_nothing_is_added_while_what_was_added_starts() -> None:
    scaled = scaling()
    assert held(scaled, load(1, 0.2), 1) == 2
    assert held(scaled, load(1, 30.0), 50, since=2.0) == 2
    assert held(scaled, load(2, 0.2), 1, since=53.0) == 4


def test_something_is_added_if_what_was_added_does_not_come() -> None:
    scaled = scaling()
    assert held(scaled, load(1, 0.2), 1) == 2
    assert held(scaled, load(1, 0.4), STARTING + 1, since=2.0) == 4


def test_one_is_given_up_after_a_minute_of_little_work_and_the_next_after_another() -> None:
    scaled = scaling(wanted=3)
    assert held(scaled, load(3, busy=0.4), IDLE - 1) == 3
    assert held(scaled, load(3, busy=0.4), 0, since=IDLE) == 2
    assert held(scaled, load(2, busy=0.3), IDLE - 2, since=IDLE + 1) == 2
    assert held(scaled, load(2, busy=0.3), 1, since=2 * IDLE) == 1
    assert held(scaled, load(1, busy=0.0), 10 * IDLE, since=3 * IDLE) == 1


def test_a_moment_of_work_begins_the_minute_anew() -> None:
    scaled = scaling(wanted=3)
    held(scaled, load(3, busy=0.4), IDLE - 1)
    scaled.observe(load(3, busy=0.5), IDLE)
    assert held(scaled, load(3, busy=0.4), IDLE - 1, since=IDLE + 1) == 3


def test_none_is_given_up_whose_work_would_be_too_much_for_the_others() -> None:
    assert held(scaling(wanted=2), load(2, busy=0.45), 10 * IDLE) == 2  # 0.9 on one


def test_none_is_given_up_that_runs_rows() -> None:
    rows = load(4, busy=0.4, rows=25)  # four times eight hold them, three do not
    assert held(scaling(wanted=4), rows, 10 * IDLE) == 4


def test_one_that_was_missed_is_kept_for_longer_the_next_time() -> None:
    scaled, now, lasted = scaling(), 0.0, []
    for _ in range(6):
        while scaled.wanted == 1:
            scaled.observe(load(1, 0.15), now)
            now += 1
        began = now
        while scaled.wanted == 2:
            scaled.observe(load(2, busy=0.3), now)
            now += 1
        lasted.append(round((now - began) / IDLE))
    assert lasted == [1, 2, 4, 8, 16, 16]
    held(scaled, load(1, busy=0.3), LONGEST + 1, since=now)
    now += LONGEST + 2
    held(scaled, load(1, 0.15), 1, since=now)
    assert held(scaled, load(2, busy=0.3), IDLE, since=now + 2) == 1


def test_without_a_replica_that_serves_nothing_changes() -> None:
    assert held(scaling(wanted=3), load(0, 100.0, busy=0.0), 1000) == 3


def test_a_target_is_more_than_nothing() -> None:
    with pytest.raises(ConfigError, match="more than 0"):
        Scaling(ReplicaBounds(1, 2), target=0.0)


LOADS = st.builds(
    PoolLoad,
    serving=st.integers(0, 8),
    wait=st.sampled_from([0.0, 0.05, 0.2, 3.0]),
    busy=st.floats(0, 1),
    rows=st.integers(0, 100),
    rows_at_once=st.integers(1, 16),
)


@examples(4)
@given(st.lists(st.tuples(LOADS, st.sampled_from([1.0, 10.0, 61.0])), max_size=60))
def test_whatever_is_observed_the_bounds_hold_and_it_goes_down_in_ones(
    observed: list[tuple[PoolLoad, float]],
) -> None:
    scaled, now, last_change = scaling("2..6"), 0.0, -math.inf
    for one, seconds in observed:
        now += seconds
        before = scaled.wanted
        after = scaled.observe(one, now)
        assert 2 <= after <= 6
        if after < before:
            assert after == before - 1
            assert now - last_change >= IDLE
            assert after >= min(before, math.ceil(one.rows / one.rows_at_once))
        if after > before:
            assert one.wait > 0.1
        if after != before:
            last_change = now


@pytest.mark.parametrize("rows_a_second", [40, 100, 170, 330, 590])
def test_under_a_steady_load_it_comes_to_rest(rows_a_second: float) -> None:
    """Replicas of 100 rows/s that start within 20 s; a wait as in an M/M/n queue, about."""
    scaled, serving, added, changes = scaling(), 1, math.inf, []
    backlog = 0.0
    for now in range(3600):
        busy = min(1.0, rows_a_second / (100 * serving))
        backlog = max(0.0, backlog + rows_a_second - 100 * serving)
        wait = backlog / (100 * serving) + 0.01 * busy**4 / (1.001 - busy) / serving
        before = scaled.wanted
        wanted = scaled.observe(load(serving, wait, busy), now)
        if wanted != before:
            changes.append(now)
        if wanted > serving:
            added = min(added, now + 20)
            if now >= added:
                serving, added = wanted, math.inf
        else:
            serving, added = wanted, math.inf
    assert serving >= rows_a_second / 100
    assert len(changes) <= 12
    assert [one for one in changes if one > 2400] == []
