from __future__ import annotations

import pytest

from wherry.core.scheduler.overload import Pace


def test_nothing_is_predicted_before_anything_has_ended() -> None:
    pace = Pace()
    pace.began(0.0)
    assert pace.predicted_seconds(5) == 0.0


def test_one_after_the_other_takes_what_one_took() -> None:
    pace = Pace()
    for start in (0.0, 100.0, 200.0):  # the time between them is nobody's
        pace.began(start)
        pace.ended(start + 2.0, left=0)
    assert pace.predicted_seconds(0) == pytest.approx(2.0)
    assert pace.predicted_seconds(4) == pytest.approx(10.0)


def test_the_first_end_of_many_that_began_together_says_nothing_bad_of_the_others() -> None:
    pace = Pace()
    for _ in range(16):
        pace.began(0.0)
    pace.ended(3.0, left=15)
    assert pace.predicted_seconds(15) == pytest.approx(3.0)


def test_of_many_that_began_together_and_run_one_by_one_a_few_ends_say_so() -> None:
    pace = Pace()
    for _ in range(16):
        pace.began(0.0)
    for n in range(1, 5):
        pace.ended(3.0 * n, left=16 - n)
    assert pace.predicted_seconds(11) == pytest.approx(12 * 3.0, rel=0.25)


def test_requests_that_overlap_are_as_fast_as_their_ends_follow_each_other() -> None:
    pace = Pace()
    for _ in range(8):
        pace.began(0.0)
    now = 0.0
    for _ in range(200):  # eight are always here, one ends each 0.1 s, and another comes
        now += 0.1
        pace.ended(now, left=7)
        pace.began(now)
    assert pace.predicted_seconds(7) == pytest.approx(0.8, rel=0.01)


def test_a_new_speed_is_learnt() -> None:
    pace = Pace()
    now = 0.0
    pace.began(now)
    for seconds in [0.1] * 50 + [1.0] * 50:
        now += seconds
        pace.ended(now, left=1)
    assert 0.95 < pace.predicted_seconds(0) <= 1.0
