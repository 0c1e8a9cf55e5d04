"""Do callers come straight back after an answer, and how soon? Tables: time is an argument."""

import random

import pytest

from wherry.scheduler.returns import AGES, Returns

MS = 1e-3


def by(returns: Returns, age: float) -> float:
    """How many of those answered last should be back at this age."""
    return max((returns.back_by(i) for i, edge in enumerate(AGES) if edge <= age), default=0.0)


def closed_loop(callers: int, back: float, *, batch: float = 5 * MS, batches: int = 50) -> Returns:
    """All are answered together, and each comes back after `back`, more or less."""
    returns, now, rng = Returns(), 0.0, random.Random(1)
    for _ in range(batches):
        returns.ended(callers, now)
        for pause in sorted(back * rng.lognormvariate(0, 0.3) for _ in range(callers)):
            returns.arrived(now + pause)
        now += 3 * back + batch
    return returns


def strangers(rate: float, *, batch: float = 5 * MS, batches: int = 200, seed: int = 1) -> Returns:
    """A batch ends every `batch` seconds; who comes, comes at any time."""
    returns, rng = Returns(), random.Random(seed)
    arrival = rng.expovariate(rate)
    for n in range(1, batches):
        waiting = 0
        while arrival < n * batch:
            returns.arrived(arrival)
            waiting += 1
            arrival += rng.expovariate(rate)
        returns.ended(max(1, waiting), n * batch)
    return returns


def test_nothing_is_known_at_first() -> None:
    returns = Returns()
    returns.arrived(1.0)
    assert (returns.rate, returns.share, returns.arrived_since) == (0.0, 0.0, 0)
    returns.ended(1, 2.0)
    assert (returns.last_end, returns.last_answered, returns.back_by(0)) == (2.0, 1, 0.0)


def test_who_has_arrived_since_the_last_answer_is_counted() -> None:
    returns = Returns()
    returns.ended(3, 1.0)
    returns.arrived(1.001)
    returns.arrived(1.002)
    assert returns.arrived_since == 2
    returns.ended(2, 1.005)
    assert returns.arrived_since == 0


@pytest.mark.parametrize("callers", [2, 4, 64])
@pytest.mark.parametrize("back", [0.1 * MS, 0.25 * MS, 2 * MS])
def test_callers_in_a_loop_are_expected_back_when_they_come_back(callers: int, back: float) -> None:
    returns = closed_loop(callers, back)
    assert returns.share > 0.9
    assert by(returns, 0.25 * back) < 0.1 * callers
    assert by(returns, 4 * back) > 0.9 * callers
    assert returns.rate == pytest.approx(callers / (3 * back + 5 * MS), rel=0.1)


@pytest.mark.parametrize("rate", [100.0, 1000.0, 10_000.0])
@pytest.mark.parametrize("seed", range(5))
def test_strangers_are_not_expected_back(rate: float, seed: int) -> None:
    returns = strangers(rate, seed=seed)
    assert returns.share < 0.15
    assert returns.rate == pytest.approx(rate, rel=0.5)


@pytest.mark.parametrize("seed", range(5))
def test_bursts_of_strangers_are_not_callers_coming_back(seed: int) -> None:
    returns, rng, now = Returns(), random.Random(seed), 0.0
    for n in range(300):
        count = 0
        for _ in range(40 if n // 20 % 2 else 0):  # so many batches are in a burst
            count += 1
            returns.arrived(now + count / 40 * 5 * MS * rng.uniform(0.99, 1.01))
        now += 5 * MS
        returns.ended(max(1, count), now)
    assert returns.share < 0.2


def test_half_in_a_loop_among_strangers_is_about_half() -> None:
    returns, rng, now = Returns(), random.Random(3), 0.0
    for _ in range(400):
        returns.ended(20, now)
        ages = [0.25 * MS * rng.lognormvariate(0, 0.3) for _ in range(10)]
        ages += [rng.uniform(0, 5 * MS) for _ in range(10)]
        for age in sorted(ages):
            returns.arrived(now + age)
        now += 5 * MS
    assert returns.share == pytest.approx(0.5, abs=0.12)


def test_callers_who_stop_coming_back_are_forgotten() -> None:
    returns = closed_loop(8, 0.25 * MS)
    assert returns.last_end is not None
    now, rng = returns.last_end, random.Random(1)
    for _ in range(600):
        for age in sorted(rng.uniform(0, 5 * MS) for _ in range(8)):
            returns.arrived(now + age)
        now += 5 * MS
        returns.ended(8, now)
    assert returns.share < 0.2


def test_expectations_never_fall_with_age_and_are_shares() -> None:
    for returns in (closed_loop(5, 0.5 * MS), strangers(500.0)):
        shares = [returns.back_by(i) for i in range(len(AGES))]
        assert shares == sorted(shares)
        assert shares[0] >= 0
        assert shares[-1] <= returns.last_answered
