"""Would anybody come if a batch waited a little longer?"""

from math import inf

from wherry.core.scheduler.arrival_forecast import FADING, LEARNT, LIKELY, OVERDUE, ArrivalForecast

#: Seconds that a batch takes.
BATCH = 0.1


def in_a_loop(
    arrivals: ArrivalForecast, callers: int, back: float, batches: int, now: float
) -> float:
    """So many callers are answered together and are back one after the other, the last after
    `back`; then their batch runs. When the last one ends."""
    for _ in range(batches):
        for n in range(callers):
            arrivals.arrived(now + back * (n + 1) / callers)
        now += back + BATCH
        arrivals.ended(callers, now)
    return now


def test_nothing_is_concluded_from_a_few_batches() -> None:
    arrivals = ArrivalForecast()
    now = in_a_loop(arrivals, 1, 0.001, LEARNT - 1, 0.0)
    arrivals.arrived(now + 0.001)
    assert arrivals.expected_until(now + 10.0) == now + 10.0
    assert arrivals.explain() == {"back_within_seconds": None, "others_per_second": None}


def test_nobody_is_expected_once_all_that_were_answered_are_back() -> None:
    arrivals = ArrivalForecast()
    now = in_a_loop(arrivals, 3, 0.003, 8, 0.0)
    for age in (0.001, 0.002):
        arrivals.arrived(now + age)
        assert abs(arrivals.expected_until(now + 10.0) - (now + OVERDUE * 0.003)) < 1e-9
    arrivals.arrived(now + 0.003)
    assert arrivals.expected_until(now + 10.0) == -inf
    assert arrivals.explain()["others_per_second"] == 0.0


def test_who_stays_away_is_waited_for_until_he_is_overdue_and_never_beyond_the_delay() -> None:
    arrivals = ArrivalForecast()
    now = in_a_loop(arrivals, 2, 0.004, 8, 0.0)
    arrivals.arrived(now + 0.002)
    assert arrivals.expected_until(now + 0.005) == now + 0.005
    now = in_a_loop(arrivals, 1, 0.002, 1, now)  # so he is given up
    arrivals.arrived(now + 0.002)
    assert arrivals.expected_until(now + 1.0) == -inf


def test_who_has_not_come_back_by_the_next_answer_is_given_up() -> None:
    arrivals = ArrivalForecast()
    now = in_a_loop(arrivals, 2, 0.004, 8, 0.0)
    arrivals.arrived(now + 0.002)  # the other one has left for good
    now += 0.1
    arrivals.ended(1, now)
    arrivals.arrived(now + 0.002)
    assert arrivals.expected_until(now + 1.0) == -inf


def test_callers_of_two_batches_that_end_together_are_both_expected() -> None:
    arrivals = ArrivalForecast()
    now = in_a_loop(arrivals, 2, 0.004, 8, 0.0)
    arrivals.ended(1, now + 0.001)  # another instance's
    arrivals.arrived(now + 0.002)
    arrivals.arrived(now + 0.003)
    assert arrivals.expected_until(now + 1.0) > now + 0.004
    arrivals.arrived(now + 0.004)
    assert arrivals.expected_until(now + 1.0) == -inf


def test_a_slow_return_is_believed_at_once_and_forgotten_slowly() -> None:
    arrivals = ArrivalForecast()
    now = in_a_loop(arrivals, 1, 0.001, 8, 0.0)
    now = in_a_loop(arrivals, 1, 0.050, 1, now)
    assert arrivals.explain()["back_within_seconds"] > 0.049
    now = in_a_loop(arrivals, 1, 0.001, 4, now)
    assert 0.030 < arrivals.explain()["back_within_seconds"] < 0.045
    in_a_loop(arrivals, 1, 0.001, 200, now)
    assert arrivals.explain()["back_within_seconds"] < 0.0011


def test_others_are_waited_for_as_long_as_half_a_one_is_likely() -> None:
    arrivals = ArrivalForecast()
    now = 0.0
    for _ in range(100):  # one is answered, and then every 10 ms somebody comes
        for n in range(10):
            arrivals.arrived(now + 0.01 * (n + 1))
        now += 0.1
        arrivals.ended(1, now)
    assert abs(arrivals.rate - 100.0) < 1e-6
    arrivals.arrived(now + 0.01)
    leaves_at = now + 0.03
    assert abs(arrivals.expected_until(leaves_at) - (leaves_at - LIKELY / 100.0)) < 1e-6
    # After four times the usual silence nobody is left of them.
    assert abs(arrivals.expected_until(now + 20.0) - (now + 0.01 + OVERDUE / 100.0)) < 1e-6


def test_others_who_have_stayed_away_for_long_are_forgotten() -> None:
    arrivals = ArrivalForecast()
    now = in_a_loop(arrivals, 1, 0.001, LEARNT, 0.0)
    arrivals.arrived(now + 0.001)
    arrivals.arrived(now + 0.002)  # a stranger
    arrivals.ended(2, now + 0.1)
    before = arrivals.rate
    assert before > 0.0
    now = in_a_loop(arrivals, 2, 0.001, 300, now + 0.1)
    assert arrivals.rate < before * FADING**250
