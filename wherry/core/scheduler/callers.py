"""How many callers are in a loop, and how soon do they send again after an answer?"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Sequence
from itertools import accumulate

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
#: Arrivals that the mean gap is of. After `SURELY` of them a gap counts as `PAUSE` times the mean
#: at most: a pause of hours says nothing of the rate.
GAPS, SURELY, PAUSE = 512, 32, 16.0


class ReturnTimes:
    """Seconds from an answer to its caller's next request, by rounds of at least one return.

    Returns of one round are not independent: on a real event loop most of their variance is between
    rounds. So the time until a share of a batch is back is a mean over rounds.
    """

    def __init__(self, rounds: Collection[Sequence[float]]) -> None:
        self._rounds = rounds
        pooled = sorted([(age, 1 / len(ages)) for ages in rounds for age in ages])
        self._ages = [age for age, _ in pooled]
        count = len(rounds)
        self._back = [w / count for w in accumulate([w for _, w in pooled], initial=0.0)]
        sums = list(accumulate([age * w for age, w in pooled], initial=0.0))
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


class ReturningCallers:
    """Counts the callers in a loop, follows their returns, and knows the rate of all requests.

    In each period some requests are here at the same time, queued or running. Callers in a loop are
    here in every period; of strangers (Poisson) the number varies by as much as its mean. So the
    median less the variance are callers in a loop. An arrival counts as the return of the caller
    answered longest ago. Pure.
    """

    def __init__(self, instances: int) -> None:
        self.instances = instances
        #: Callers in a loop.
        self.count = 0
        #: Answered callers that may return: with those that are here as many as ever were here in
        #: the last periods.
        self.out = 0
        self._ends = 0
        #: The most requests that were here in this period, and in the last ones.
        self._peak = 0
        self._peaks: deque[int] = deque(maxlen=PERIODS)
        #: Ends whose callers are not all back: when, and ages of those that are; how many are out.
        self._open: deque[tuple[float, list[float]]] = deque()
        self._missing: deque[int] = deque()
        self._closed: deque[list[float]] = deque(maxlen=ROUNDS)
        self._times: ReturnTimes | None = None
        self.arrivals = 0
        self._last_at = 0.0
        #: Rows of a request, and seconds between two, on average.
        self.rows, self.gap = 1.0, 0.0

    def arrived(self, rows: int, now: float) -> None:
        count = self.arrivals = self.arrivals + 1
        if count > 1:
            gap = now - self._last_at
            if count > SURELY and gap > PAUSE * self.gap:
                gap = PAUSE * self.gap
            weight = 1 / GAPS if count > GAPS else 1 / (count - 1)
            self.gap += weight * (gap - self.gap)
        if rows != self.rows:
            self.rows += max(0.01, 1 / count) * (rows - self.rows)
        self._last_at = now
        if self.out:
            first = self._open[0]
            first[1].append(now - first[0])
            self._leave(1)

    def ended(self, answered: int, left: int, now: float) -> None:
        """Requests were `answered`, and others are `left`, queued or running."""
        self._ends += 1
        if answered + left > self._peak:
            self._peak = answered + left
        if self._ends % self.instances == 0:
            self._peaks.append(self._peak)
            self._peak = 0
            if len(self._peaks) >= LEAST_PERIODS and (
                self._peaks[-1] != self.count or self._ends % (LEAST_PERIODS * self.instances) == 0
            ):
                self.count = _steady(self._peaks)
        self._open.append((now, []))
        self._missing.append(answered)
        self.out += answered
        most = max(self._peaks, default=0)
        while (over := self.out - max(0, most - left)) > 0:
            self._leave(min(over, self._missing[0]))

    def times(self) -> ReturnTimes | None:
        """When callers return; None: none has."""
        if self._times is None and self._closed:
            self._times = ReturnTimes(self._closed)
        return self._times

    def _leave(self, callers: int) -> None:
        """So many callers of the oldest end are not on their way back any more."""
        self.out -= callers
        self._missing[0] -= callers
        if self._missing[0]:
            return
        self._missing.popleft()
        _, ages = self._open.popleft()
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
    low, median, high = (ordered[many * quarter // 4] for quarter in (1, 2, 3))
    if low == high:
        return median
    return max(0, round(median - CAUTION * ((high - low) / QUARTILES_APART) ** 2))
