"""How many callers are in a loop, and how soon do they send again? Tables: time is an argument."""

import random
from heapq import heapify, heappop, heappush
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from wherry.core.scheduler.callers import KEPT, PERIODS, ROUNDS, ReturningCallers, ReturnTimes

MS = 1e-3


class Story:
    """Instances that run what waits at once, callers in a loop, and strangers. Virtual time."""

    def __init__(self, instances: int = 1, *, seconds: float = 5 * MS, seed: int = 1) -> None:
        self.callers = ReturningCallers(instances)
        self.instances = instances
        self.seconds = seconds
        self.rng = random.Random(seed)
        self.now = 0.0
        #: ReturningCallers in a loop. Those too many leave when they are answered.
        self.loop = 0
        self._events: list[tuple[float, int, str, list[bool]]] = []
        self._order = self._running = 0
        self._waiting: list[bool] = []
        self._free = instances
        self.ends = 0

    def join(self, callers: int) -> "Story":
        self.loop += callers
        for _ in range(callers):
            self._at(self.now + self.rng.random() * MS, "arrive", [True])
        return self

    def leave(self, callers: int) -> "Story":
        self.loop -= callers
        return self

    def _at(self, when: float, what: str, whose: list[bool]) -> None:
        self._order += 1
        heappush(self._events, (when, self._order, what, whose))

    def run(
        self, ends: int, *, back: float = 0.25 * MS, rate: float = 0.0, together: bool = False
    ) -> "Story":
        """Until so many more batches have ended. Together: a batch waits for all callers."""
        until = self.ends + ends
        if rate:
            self._at(self.now + self.rng.expovariate(rate), "arrive", [False])
        while self.ends < until:
            self.now, _, what, whose = heappop(self._events)
            if what == "arrive":
                self.callers.arrived(1, self.now)
                self._waiting += whose
                if whose == [False]:
                    self._at(self.now + self.rng.expovariate(rate), "arrive", [False])
            else:
                self._free += 1
                self.ends += 1
                self._running -= len(whose)
                left = len(self._waiting) + self._running
                self.callers.ended(len(whose), left, self.now)
                away = self._away()
                for _ in range(sum(whose)):
                    others = away + sum(self._waiting)
                    if others < self.loop:
                        away += 1
                        self._at(
                            self.now + back * self.rng.lognormvariate(0, 0.3), "arrive", [True]
                        )
            enough = self.loop if together else 1
            while self._free and len(self._waiting) >= enough:
                part = -(-len(self._waiting) // self._free)
                batch, self._waiting = self._waiting[:part], self._waiting[part:]
                self._free -= 1
                self._running += len(batch)
                self._at(self.now + self.seconds * self.rng.lognormvariate(0, 0.05), "end", batch)
        self._events = [event for event in self._events if event[2:] != ("arrive", [False])]
        heapify(self._events)
        return self

    def _away(self) -> int:
        """ReturningCallers in a loop that are on their way or run."""
        return sum(sum(whose) for *_, whose in self._events)


def test_nothing_is_known_at_first() -> None:
    callers = ReturningCallers(1)
    assert (callers.count, callers.out, callers.gap, callers.rows) == (0, 0, 0.0, 1.0)
    assert callers.times() is None
    callers.arrived(1, 1.0)
    callers.ended(1, 0, 2.0)
    assert callers.times() is None


@pytest.mark.parametrize("instances", [1, 2, 4])
@pytest.mark.parametrize("callers", [1, 2, 5, 16, 64])
def test_callers_in_a_loop_that_soon_send_again_are_counted(callers: int, instances: int) -> None:
    story = Story(instances).join(callers).run(40 * instances)
    assert story.callers.count == callers


def test_callers_that_all_run_together_are_counted() -> None:
    story = Story().join(8).run(40, together=True)
    assert story.callers.count == 8


@pytest.mark.parametrize("rate", [20.0, 1000.0, 8000.0])
def test_strangers_are_not_counted_as_callers_in_a_loop(rate: float) -> None:
    shares = []
    for seed in range(8):
        story = Story(seed=seed)
        for _ in range(20):
            story.run(20, rate=rate)
            here = max(1.0, 2 * rate * story.seconds)  # while one batch runs the next one gathers
            # Those that are here one at a time look like one caller, which never waits.
            shares.append(max(0, story.callers.count - 1) / here)
    assert sum(shares) / len(shares) < 0.25


def test_of_callers_and_strangers_about_the_callers_are_counted() -> None:
    counts = []
    for seed in range(8):
        story = Story(seed=seed).join(16)
        counts += [story.run(20, rate=500.0).callers.count for _ in range(10)]
    assert 8 <= sum(counts) / len(counts) <= 20


def test_callers_that_leave_are_not_counted_after_a_memory_of_periods() -> None:
    story = Story().join(64).run(40)
    assert story.callers.count == 64
    story.leave(48).run(PERIODS + 2)
    assert story.callers.count == 16


def test_callers_that_join_are_counted_after_a_memory_of_periods() -> None:
    story = Story().join(4).run(40)
    story.join(12).run(PERIODS + 2)
    assert story.callers.count == 16


@pytest.mark.parametrize("back", [0.1 * MS, 0.25 * MS, 2 * MS])
def test_callers_are_expected_when_they_come_back(back: float) -> None:
    times = Story().join(16).run(60, back=back, together=True).callers.times()
    assert times is not None
    assert times.mean == pytest.approx(back, rel=0.15)
    assert times.back(0.25 * back) < 0.1
    assert times.back(4 * back) > 0.9
    assert times.until(0.0) < back < times.until(1.0) <= times.last * 1.2


def loop(*rounds: list[float]) -> ReturningCallers:
    """Callers that were answered together once a second, and were back after these seconds."""
    callers = ReturningCallers(1)
    count = len(rounds[0])
    for second, ages in enumerate([[0.01] * count] * 4 + list(rounds)):
        callers.ended(count, 0, float(second))
        for age in ages:
            callers.arrived(1, second + age)
    return callers


def test_a_round_that_is_late_as_a_whole_is_a_round_of_its_own() -> None:
    callers = loop([0.2, 0.3], [0.5, 0.6], [0.2, 0.3])  # after four of 0.01
    times = callers.times()
    assert times is not None
    assert times.until(0.0) == pytest.approx((4 * 0.01 + 0.2 + 0.5 + 0.2) / 7)
    assert times.until(0.5) == pytest.approx((4 * 0.01 + 0.3 + 0.6 + 0.3) / 7)
    assert times.last == pytest.approx(0.6)


def test_a_return_counts_for_the_oldest_end_whose_callers_are_not_all_back() -> None:
    callers = loop(*[[0.1, 0.2]] * ROUNDS)
    callers.ended(1, 1, 100.0)
    callers.ended(1, 0, 101.0)
    assert callers.out == 2
    callers.arrived(1, 101.5)
    callers.arrived(1, 101.6)
    times = callers.times()
    assert times is not None
    assert times.last == pytest.approx(0.6)
    assert times.until(1.0) == pytest.approx((0.2 * (ROUNDS - 2) + 1.5 + 0.6) / ROUNDS)


def test_rows_and_the_gap_of_requests_are_means() -> None:
    callers = ReturningCallers(1)
    for n in range(2000):
        callers.arrived(4 if n % 2 else 2, n * 0.5)
    assert callers.rows == pytest.approx(3.0, abs=0.1)
    assert callers.gap == pytest.approx(0.5)
    for n in range(3000):
        callers.arrived(1, 1000 + n * 0.1)
    assert callers.gap == pytest.approx(0.1, rel=0.05)


def test_times_of_two_rounds_agree_with_a_calculation_by_hand() -> None:
    times = ReturnTimes([[1.0, 3.0], [2.0]])
    assert times.mean == pytest.approx(2.0)  # of the means of rounds, 2 and 2
    assert [times.back(age) for age in (0.5, 1.0, 1.5, 2.0, 3.0)] == [0, 0.25, 0.25, 0.75, 1]
    assert times.later(0.0) == pytest.approx(2.0)
    assert times.later(1.5) == pytest.approx(0.25 * 1.5 + 0.5 * 0.5)
    assert times.later(3.0) == pytest.approx(0.0)
    assert times.until(0.0) == pytest.approx((1.0 + 2.0) / 2)
    assert times.until(0.5) == pytest.approx((3.0 + 2.0) / 2)
    assert times.until(1.0) == pytest.approx((3.0 + 2.0) / 2)
    assert times.last == 3.0


rounds = st.lists(
    st.lists(st.floats(0.0, 100.0), min_size=1, max_size=8).map(sorted), min_size=1, max_size=16
)


@given(rounds=rounds, ages=st.lists(st.floats(0.0, 120.0), min_size=2, max_size=8))
def test_more_are_back_later_and_less_time_is_left(
    rounds: list[list[float]], ages: list[float]
) -> None:
    times = ReturnTimes(rounds)
    ages.sort()
    back = [times.back(age) for age in ages]
    later = [times.later(age) for age in ages]
    assert all(-1e-9 <= share <= 1 + 1e-9 for share in back)
    assert back == sorted(back)
    assert all(a >= b - 1e-7 for a, b in pairwise(later))
    assert min(later) >= -1e-7
    for age, seconds in zip(ages, later, strict=True):
        by_hand = [sum(max(0.0, one - age) for one in some) / len(some) for some in rounds]
        assert seconds == pytest.approx(sum(by_hand) / len(rounds), abs=1e-7)


@given(rounds=rounds, shares=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=8))
def test_a_larger_share_is_back_later(rounds: list[list[float]], shares: list[float]) -> None:
    times = ReturnTimes(rounds)
    until = [times.until(share) for share in sorted(shares)]
    assert all(a <= b + 1e-9 for a, b in pairwise(until))
    assert min(map(min, rounds)) - 1e-9 <= until[0]
    assert until[-1] <= max(map(max, rounds)) + 1e-9


@examples(2)
@given(
    instances=st.integers(1, 4),
    steps=st.lists(
        st.tuples(st.sampled_from("ae"), st.integers(1, 20), st.floats(0, 1)), max_size=150
    ),
)
def test_callers_on_their_way_and_here_are_never_more_than_once_were_here(
    instances: int, steps: list[tuple[str, int, float]]
) -> None:
    callers, now, here, most, answered, arrived = ReturningCallers(instances), 0.0, 0, 0, 0, 0
    for what, number, after in steps:
        now += after
        if what == "a":
            out, here = callers.out, here + 1
            most = max(most, here)
            callers.arrived(number, now)
            arrived += 1
            assert callers.out == max(0, out - 1)
        elif here:
            ended = min(number, here)
            here -= ended
            answered += ended
            callers.ended(ended, here, now)
            assert callers.out <= most - here
        assert 0 <= callers.out <= answered <= arrived
        assert 0 <= callers.count <= arrived
    times = callers.times()
    if times is not None:
        assert 0 <= times.mean <= times.until(1.0) + 1e-9
        assert times.last <= now


def test_what_is_remembered_is_bounded() -> None:
    def held(callers: ReturningCallers) -> int:
        found = 0
        for value in vars(callers).values():
            if hasattr(value, "__len__"):
                found += sum(len(one) if hasattr(one, "__len__") else 1 for one in value)
        return found

    story = Story().join(100).run(60, together=True)
    before = held(story.callers)
    story.run(100, together=True)
    assert held(story.callers) <= before <= 2 * ROUNDS * KEPT


def test_a_pause_of_hours_says_little_of_the_rate() -> None:
    callers = ReturningCallers(1)
    for n in range(600):
        callers.arrived(1, n * 0.001)
    callers.arrived(1, 10_000.0)
    assert callers.gap == pytest.approx(0.001, rel=0.05)


@pytest.mark.parametrize("apart", [0.0, 10e-6])
def test_the_rate_of_callers_that_come_together_is_that_of_all(apart: float) -> None:
    callers = ReturningCallers(1)
    for burst in range(40):
        for n in range(64):
            callers.arrived(1, 0.011 * burst + n * apart)
    assert callers.gap == pytest.approx(0.011 / 64, rel=0.2)
