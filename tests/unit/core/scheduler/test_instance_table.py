"""Which instance is the least busy, which batch has run for too long, and how many go ahead."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.core.scheduler.instance_table import (
    MOST_AHEAD,
    SHORT_SECONDS,
    Ahead,
    BatchSlot,
    InstanceTable,
)
from wherry.core.values.request import Batch

US = 1e-6


def table_of(
    *batches: list[int], since: float | None = 1.0
) -> tuple[InstanceTable[BatchSlot], list[BatchSlot]]:
    """Instances with batches of these rows, the oldest of which have begun at that moment."""
    table: InstanceTable[BatchSlot] = InstanceTable()
    for number, rows in enumerate(batches):
        one = BatchSlot()
        one.name, one.number = f"m_{number}", number
        one.batches = [Batch((), n, "idle") for n in rows]
        one.busy_since = since if rows else None
        table.up.append(one)
        if not rows:
            table.idle.append(one)
    return table, table.up


def test_an_instance_with_several_batches_is_busy_since_the_oldest_of_them_runs() -> None:
    table, (one, _) = table_of([3, 4], [])
    assert table.running() == [("m_0", 3, 1.0)]
    assert table.load(1.0, float, 8, 0, ready=True).running_rows == 7
    assert not table.is_quiet()
    one.busy_since = None
    assert table.is_quiet()


def test_an_overdue_batch_is_taken_once() -> None:
    table, (one, other) = table_of([3], [4])
    other.busy_since = 3.0
    assert table.overruns_at(5.0) == 6.0
    assert table.take_overdue(5.9, 5.0) == []
    assert table.take_overdue(6.0, 5.0) == [(one, one.batches[0])]
    assert table.take_overdue(6.0, 5.0) == []
    assert table.overruns_at(5.0) == 8.0
    assert table_of([])[0].overruns_at(5.0) == inf


def test_an_instance_is_free_after_all_that_it_was_given() -> None:
    assert table_of([], since=10.0)[0].free_after(0.0, float) == 0.0
    assert table_of([3], [], since=10.0)[0].free_after(10.0, float) == 0.0  # the other one is idle
    assert table_of([3], [5], since=10.0)[0].free_after(11.0, float) == 2.0
    assert table_of([3, 4], [5], since=10.0)[0].free_after(11.0, float) == 4.0  # now the other one


def test_a_batch_that_has_taken_longer_than_expected_is_expected_to_take_as_long_again() -> None:
    table, _ = table_of([3], since=10.0)
    assert [table.free_after(now, float) for now in (12.0, 13.0, 14.0, 20.0)] == [1, 0, 1, 7]


@pytest.mark.parametrize(
    ("seconds", "most"),
    [
        ([], 1),
        ([0.0], 8),
        ([5 * US], 8),
        ([50 * US], 6),
        ([100 * US], 3),
        ([299 * US], 2),
        ([300 * US], 1),
        ([5200 * US], 1),
        # One long batch is enough; it takes many short ones to forget it.
        ([5 * US, 5200 * US], 1),
        ([5200 * US, *[5 * US] * 40], 1),
        ([5200 * US, *[5 * US] * 60], 3),
        ([5200 * US, *[5 * US] * 80], 8),
    ],
)
def test_batches_go_ahead_by_how_long_they_run(seconds: list[float], most: int) -> None:
    ahead = Ahead()
    for one in seconds:
        ahead.ran(one)
    assert ahead.most == most


def test_after_a_death_nothing_goes_ahead_until_a_batch_has_run() -> None:
    ahead = Ahead()
    ahead.ran(5 * US)
    ahead.forget()
    assert ahead.most == 1
    ahead.ran(5 * US)
    assert ahead.most == MOST_AHEAD


@given(st.lists(st.floats(0, 10), min_size=1))
def test_what_is_before_a_batch_is_short_if_all_run_as_long_as_the_longest_lately(
    seconds: list[float],
) -> None:
    ahead = Ahead()
    for one in seconds:
        ahead.ran(one)
        assert 1 <= ahead.most <= MOST_AHEAD
        assert ahead.most == 1 or (ahead.most - 1) * one < SHORT_SECONDS
