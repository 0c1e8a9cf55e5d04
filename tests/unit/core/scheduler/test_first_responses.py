"""How long would a newcomer wait for its first response?"""

from wherry.core.scheduler.first_responses import FirstResponses


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
