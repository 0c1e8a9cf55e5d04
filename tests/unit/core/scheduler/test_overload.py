"""Is a request worth taking in, by how long its answer would take?"""

from math import inf

import pytest

from wherry.core.scheduler.overload import (
    LEAST_TURNS,
    MIN_QUEUED_BEFORE_REFUSAL,
    TURNS,
    TurnTimes,
    refusal,
    too_slow,
)


def ended(*seconds: float) -> TurnTimes:
    turns = TurnTimes()
    for each in seconds:
        turns.ended(each)
    return turns


def test_one_turn_is_no_measure() -> None:
    assert LEAST_TURNS == 2
    assert ended().within(30.0) == ended(60.0).within(30.0) == inf


def test_the_fastest_of_the_last_turns_counts() -> None:
    assert ended(60.0, 1.0).within(30.0) == 30.0
    assert ended(0.1, *[1.0] * TURNS).within(30.0) == 30.0
    assert ended(0.0, 1.0).within(30.0) == inf  # a clock that does not move says nothing


def test_a_few_turns_may_always_be_waited_for() -> None:
    assert ended(60.0, 60.0).within(30.0) == MIN_QUEUED_BEFORE_REFUSAL


@pytest.mark.parametrize(
    ("seconds", "left", "refused"), [(8.0, 10.0, False), (9.0, 10.0, True), (0.0, 0.1, False)]
)
def test_a_timeout_must_be_a_little_longer_than_the_answer_takes(
    seconds: float, left: float, refused: bool
) -> None:
    error = refusal("m", seconds, left=left, longest=1.0, turns=100, within=8)
    assert (error is not None) is refused
    if error is not None:
        assert "about 9.000 s, too long for its timeout (10.000 s)" in str(error)


@pytest.mark.parametrize(
    ("seconds", "longest", "turns", "refused"),
    [
        (40.0, 30.0, 50, True),
        (40.0, None, 50, False),
        (20.0, 30.0, 50, False),
        (40.0, 30.0, 9, False),  # by the fastest turns they are within it
    ],
)
def test_without_one_both_the_forecast_and_the_fastest_turns_must_be_too_slow(
    seconds: float, longest: float | None, turns: float, refused: bool
) -> None:
    error = refusal("m", seconds, left=None, longest=longest, turns=turns, within=10)
    assert (error is not None) is refused
    if error is not None:
        assert error.retry_after == 10.0
        assert "longer than max_queue_wait (30 s)" in str(error)


def test_what_is_given_up_may_be_tried_again_when_the_others_are_through() -> None:
    error = too_slow("m", 30.0)
    assert (error.http_status, error.retry_after) == (429, 30.0)
    assert "model 'm'" in str(error)
