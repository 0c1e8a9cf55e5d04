"""Is a request worth taking in, by how long its answer would take?"""

from math import inf

import pytest

from wherry.core.scheduler.overload import (
    LEAST_TURNS,
    MIN_QUEUED_BEFORE_REFUSAL,
    TURNS,
    FirstResponses,
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


def test_without_experience_nothing_is_predicted() -> None:
    first = FirstResponses()
    first.arrived("a", 1.0, now=0.0)
    assert first.predicted_seconds() == 0.0


def test_the_work_ahead_takes_as_long_as_such_work_took() -> None:
    first = FirstResponses()
    for number in range(10):
        first.arrived(number, 1.0, now=100.0)
    for number in range(5):
        assert first.responded(number, now=100.5 + 0.5 * number)
    # Half a second each, five are waiting.
    assert round(first.predicted_seconds(), 9) == 3.0
    assert round(first.predicted_seconds(cost=4.0), 9) == 4.5


def test_only_the_first_response_counts() -> None:
    first = FirstResponses()
    first.arrived("a", 1.0, now=0.0)
    assert first.responded("a", now=1.0)
    assert not first.responded("a", now=9.0)
    assert first.predicted_seconds() == 1.0


def test_idle_time_is_no_work() -> None:
    first = FirstResponses()
    for moment in (0.0, 1000.0, 2000.0):
        first.arrived(moment, 2.0, now=moment)
        first.responded(moment, now=moment + 0.2)
    assert round(first.predicted_seconds(cost=1.0), 9) == 0.1


def test_who_has_left_is_no_longer_ahead() -> None:
    first = FirstResponses()
    first.arrived("a", 1.0, now=0.0)
    first.responded("a", now=1.0)
    first.arrived("b", 5.0, now=1.0)
    assert first.predicted_seconds() == 6.0
    first.left("b")
    first.left("never heard of")
    assert first.predicted_seconds() == 1.0
    assert repr(first) == "<FirstResponses: 0 waiting>"


def test_time_without_an_instance_is_no_work_on_first_responses() -> None:
    first = FirstResponses()
    first.arrived("a", 1.0, now=0.0)
    first.can_run(now=60.0)
    assert first.responded("a", now=60.5)
    assert first.mean_seconds == 0.5
