"""In which steady rhythm of batches are callers answered soonest?

In a rhythm each instance runs a batch of so many requests in each period, which is a wait and the
batch's time. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wherry.core.scheduler.callers import ReturnTimes

#: A rhythm that answers sooner by a smaller share than this is not better: it may be noise.
CLEARLY = 0.02
#: On several instances batches start so many times as far apart as they must for one instance to
#: be free for each, ...
APART = 1.2
#: ... up to this load: beyond, batches would grow, and that distance with them.
MOST_LOAD = 0.85


class Rhythm(NamedTuple):
    """What a batch waits for, and what comes of it."""

    #: Requests of a batch, on average.
    requests: float
    #: Seconds after an end that a batch waits for so many, at most; 0: it waits for none.
    wait: float
    #: Mean seconds of an answer.
    answer: float


class CallerLoop:
    """So many `callers` in a loop, more than instances.

    `seconds` tells the time of a batch of so many requests, of which `most` fit in one.
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
