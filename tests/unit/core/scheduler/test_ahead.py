"""How many batches an instance may have, by how long they run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.core.scheduler.ahead import MOST, SHORT_SECONDS, Ahead

US = 1e-6


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
    assert ahead.most == MOST


@given(st.lists(st.floats(0, 10), min_size=1))
def test_what_is_before_a_batch_is_short_if_all_run_as_long_as_the_longest_lately(
    seconds: list[float],
) -> None:
    ahead = Ahead()
    for one in seconds:
        ahead.ran(one)
        assert 1 <= ahead.most <= MOST
        assert ahead.most == 1 or (ahead.most - 1) * one < SHORT_SECONDS
