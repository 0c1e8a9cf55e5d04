"""How many callers are in a loop, how soon do they send again after an answer, and in which steady
rhythm of batches are they answered soonest?

In a rhythm each instance runs a batch of equal size in each period, which is a wait and the batch's
time. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import msgspec

#: Rounds that are remembered: the callers of one batch, from their answers to their returns.
ROUNDS = 16
#: Returns of a round that are kept, evenly spread.
KEPT = 8
#: The share of rounds that are over by `ReturnTimes.last`.
NEARLY_ALL = 0.9
#: Periods that callers in a loop are counted by, and those needed. In a period as many batches end
#: as there are instances.
PERIODS, LEAST_PERIODS = 16, 4
#: Standard deviations between the quartiles of a normal distribution.
QUARTILES_APART = 1.35
#: Factor of the variance, known from few periods, that is taken for strangers.
CAUTION = 2
#: Arrivals that the mean gap is of. After `SURELY` of them the gap before a burst counts as `PAUSE`
#: times the mean for each arrival of the last burst at most: a pause of hours does not show the
#: rate, and callers that are answered together come together.
GAPS, SURELY, PAUSE = 512, 32, 16.0
#: Seconds that it counts as at most if all have come at once so far.
FIRST_PAUSE = 1.0


class ReturnTimes:
    """Seconds from an answer to its caller's next request, by rounds of at least one return.

    Returns of one round are not independent: on a real event loop most of their variance is between
    rounds. So the time until a share of a batch is back is a mean over rounds.
    """

    def __init__(self, rounds: Collection[Sequence[float]]) -> None:
        self._rounds = rounds
        pooled = sorted([(age, 1 / len(ages)) for ages in rounds for age in ages])
        ages: tuple[float, ...]
        weights: tuple[float, ...]
        ages, weights = zip(*pooled, strict=True)
        self._ages = ages
        count = len(rounds)
        self._back = [w / count for w in accumulate(weights, initial=0.0)]
        sums: list[float] = list(accumulate(map(mul, ages, weights), initial=0.0))
        self._rest = [(sums[-1] - part) / count for part in sums]
        nearly_all = int(NEARLY_ALL * count)
        #: By when the last caller of a round is back.
        self.last = sorted([ages[-1] for ages in rounds])[nearly_all]

    @property
    def mean(self) -> float:
        return self._rest[0]

    def back(self, age: float) -> float:
        """The share of answered callers that are back by that age."""
        return self._back[bisect_right(self._ages, age)]

    def later(self, age: float) -> float:
        """Mean seconds by which a return is later than that; 0 for one that is not."""
        i = bisect_right(self._ages, age)
        return self._rest[i] - age * (1 - self._back[i])

    def until(self, share: float) -> float:
        """Mean seconds until that share of a round is back."""
        times = [ages[min(len(ages) - 1, int(share * len(ages)))] for ages in self._rounds]
        return sum(times) / len(times)


class _Round(msgspec.Struct):
    """An end whose callers are not all back: when, how many are out, the ages of those back."""

    ended_at: float
    out: int
    ages: list[float] = []


class ReturningCallers:
    """Counts the callers in a loop, follows their returns, and knows the rate of all requests.

    In each period some requests are here at the same time, queued or running. Callers in a loop are
    here in every period; of strangers (Poisson) the number varies by as much as its mean. So the
    median less the variance are callers in a loop. An arrival counts as the return of the caller
    answered longest ago. Pure.
    """

    def __init__(self, instances: int) -> None:
        self.instances = instances
        self.count = 0
        #: Answered callers that may return: with those that are here as many as ever were here in
        #: the last periods.
        self.out = 0
        self._ends = 0
        #: The most requests that were here in this period, and in the last ones: in all and each.
        self._peak = self._highest = 0
        self._peaks: deque[int] = deque(maxlen=PERIODS)
        self._open: deque[_Round] = deque()
        self._closed: deque[list[float]] = deque(maxlen=ROUNDS)
        self._times: ReturnTimes | None = None
        self.arrivals = 0
        self._last_at = 0.0
        #: Arrivals since a gap was longer than the mean.
        self._burst = 1
        #: Rows of a request, and seconds between two, on average.
        self.rows, self.gap = 1.0, 0.0

    def arrived(self, rows: int, now: float) -> None:
        count = self.arrivals = self.arrivals + 1
        if count > 1:
            gap = now - self._last_at
            if gap > self.gap:
                if count > SURELY:
                    gap = min(gap, PAUSE * self._burst * self.gap or FIRST_PAUSE)
                self._burst = 0
            self._burst += 1
            weight = 1 / GAPS if count > GAPS else 1 / (count - 1)
            self.gap += weight * (gap - self.gap)
        if rows != self.rows:
            self.rows += max(0.01, 1 / count) * (rows - self.rows)
        self._last_at = now
        if self.out:
            first = self._open[0]
            first.ages.append(now - first.ended_at)
            self.out -= 1
            first.out -= 1
            if not first.out:
                self._close_first()

    def ended(self, answered: int, left: int, now: float) -> None:
        """Requests were `answered`, and others are `left`, queued or running."""
        self._ends += 1
        if answered + left > self._peak:
            self._peak = answered + left
        if self._ends % self.instances == 0:
            peaks, peak = self._peaks, self._peak
            forgotten = peaks[0] if len(peaks) == PERIODS else 0
            peaks.append(peak)
            if peak >= self._highest:
                self._highest = peak
            elif forgotten == self._highest:
                self._highest = max(peaks)
            self._peak = 0
            if len(peaks) >= LEAST_PERIODS and (
                peak != self.count or self._ends % (LEAST_PERIODS * self.instances) == 0
            ):
                self.count = _steady(peaks)
        self._open.append(_Round(now, answered))
        self.out += answered
        while self.out and (over := self.out - max(0, self._highest - left)) > 0:
            first = self._open[0]
            gone = min(over, first.out)
            self.out -= gone
            first.out -= gone
            if not first.out:
                self._close_first()

    def times(self) -> ReturnTimes | None:
        if self._times is None and self._closed:
            self._times = ReturnTimes(self._closed)
        return self._times

    def _close_first(self) -> None:
        """No caller of the oldest end is on its way back any more."""
        ages = self._open.popleft().ages
        if ages:
            many = len(ages)
            if many > KEPT:
                last = ages[-1]
                ages = [ages[(2 * i + 1) * many // (2 * KEPT)] for i in range(KEPT - 1)]
                ages.append(last)
            self._closed.append(ages)
            self._times = None


def _steady(peaks: Sequence[int] | deque[int]) -> int:
    """What is there in all periods."""
    ordered, many = sorted(peaks), len(peaks)
    low, median, high = ordered[many // 4], ordered[many // 2], ordered[3 * many // 4]
    if low == high:
        return median
    return max(0, round(median - CAUTION * ((high - low) / QUARTILES_APART) ** 2))


#: A rhythm that answers sooner by a smaller share than this is not better: it may be noise.
CLEARLY = 0.02
#: On several instances batches start this many times as far apart as they must for one instance to
#: be free for each, ...
APART = 1.2
#: ... up to this load: beyond, batches would grow, and that distance with them.
MOST_LOAD = 0.85


class Rhythm(NamedTuple):
    """What a batch waits for, and what comes of it."""

    requests: float
    #: The most seconds after an end that a batch waits for them; 0: it waits for none.
    wait: float
    answer: float


class CallerLoop:
    """A number of `callers` in a loop, more than instances.

    `seconds` returns the time of a batch by its number of requests, of which `most` fit in one.
    """

    def __init__(
        self,
        callers: int,
        returns: ReturnTimes,
        seconds: Callable[[float], float],
        instances: int,
        most: float,
    ) -> None:
        self._callers = callers
        self._returns = returns
        self._seconds = seconds
        self._instances = instances
        self._most = most

    def best(self) -> tuple[Rhythm, Rhythm]:
        """The rhythm with the least mean answer time, and the one in which no batch waits."""
        at_once = self.at_once()
        together = self.together()
        if together is None or at_once.answer < (1 - CLEARLY) * together.answer:
            return at_once, at_once
        return together, at_once

    def at_once(self) -> Rhythm:
        """No batch waits: it has those that came during the batch before."""
        group = self._callers / (self._instances + 1)
        requests = group
        for _ in range(3):
            seconds = self._seconds(max(1.0, requests))
            groups = self._instances + 1 + self._on_their_way(seconds)
            requests = min(self._most, self._callers / groups)
        if requests < 1:  # most callers are on their way
            return Rhythm(1.0, 0.0, seconds)
        return Rhythm(group, 0.0, self._answer(requests, seconds))

    def together(self) -> Rhythm | None:
        """A batch waits for an equal part of all callers, or until it is full; None: they are never
        here at the same time."""
        requests = min(self._most, self._callers / self._instances)
        seconds, wait = self._seconds(requests), 0.0
        # Of the last batch: those that are neither running nor on their way from those before.
        back = self._instances + 1 + self._on_their_way(seconds) - self._callers / requests
        if back > 1.15:
            return None
        if back > 0:
            wait = self._returns.until(min(back, requests / (requests + 1)))
        if back > 0.999:  # all of them
            wait = max(wait, self._returns.mean)
        answer = self._answer(requests, wait + seconds)
        # Longer than expected, but not for more than a batch of its own would take.
        return Rhythm(requests, wait and min(2 * self._returns.last, wait + seconds), answer)

    def _on_their_way(self, period: float) -> float:
        """How many batches are on their way back at the end of one, besides its own."""
        returns, age, step, batches = self._returns, 0.0, period / self._instances, 0.0
        for _ in range(4):
            age += step
            left = 1 - returns.back(age)
            if left <= 1e-9:
                return batches
            batches += left
        return batches + returns.later(age + step / 2) / step

    def _answer(self, requests: float, period: float) -> float:
        """By Little's law callers are throughput x (answer time + time on their way)."""
        throughput = self._instances * requests / period
        return self._callers / throughput - self._returns.mean


def turn(fixed: float, slope: float, rate: float, instances: int) -> float:
    """Seconds between the starts of two batches on several instances, for `rate` rows/s.

    A batch of the rows of a turn takes fixed + slope x rate x turn seconds, and an instance starts
    one in each instances-th turn: so turns are at least fixed / instances / (1 - load) apart.
    """
    load = rate * slope / instances
    return APART * fixed / instances / (1 - min(MOST_LOAD, load))
