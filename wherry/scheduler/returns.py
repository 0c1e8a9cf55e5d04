"""Do callers come straight back after an answer, and how soon?"""

from __future__ import annotations

from bisect import bisect_left

#: Ages (seconds since the last batch ended) at which returns are told apart: 30 us to 60 ms.
AGES = tuple(30e-6 * 1.5**i for i in range(20))


class Returns:
    """Learns from when requests arrive after a batch has ended.

    Strangers arrive whenever they like; callers in a loop come back soon after their answer. So
    what arrives early beyond the average rate are callers coming back. Pure.
    """

    def __init__(self, *, memory: float = 64.0) -> None:
        self._keep = 1.0 - 1.0 / memory
        self._arrived = [0.0] * (len(AGES) + 1)
        self._exposed = [0.0] * len(AGES)
        self._answered = 0.0
        #: Requests that the last batch answered, and how many have arrived since.
        self.last_answered = 0
        self.arrived_since = 0
        self.last_end: float | None = None
        self._shares: list[float] = [0.0] * len(AGES)
        self._rows = 1.0
        self._rate_rows = 0.0
        self._rate_seconds = 0.0

    def arrived(self, now: float) -> None:
        if self.last_end is not None:
            self.arrived_since += 1
            self._arrived[bisect_left(AGES, now - self.last_end)] += 1.0

    def ended(self, answered: int, now: float) -> None:
        """A batch has ended: `answered` callers have their answer."""
        if self.last_end is not None:
            age = now - self.last_end
            keep = self._keep
            self._arrived = [count * keep for count in self._arrived]
            self._exposed = [
                seconds * keep + min(edge, age)
                for seconds, edge in zip(self._exposed, AGES, strict=True)
            ]
            self._answered = self._answered * keep + self.last_answered
            self._rate_seconds = self._rate_seconds * keep + age
            self._rate_rows = self._rate_rows * keep + self.arrived_since
            self._learn()
            # Callers of a batch that ended a moment ago are still on their way.
            if age < self._typical_return():
                answered += max(0, self.last_answered - self.arrived_since)
        self.last_answered = answered
        self.arrived_since = 0
        self.last_end = now

    @property
    def rate(self) -> float:
        """Requests a second, all of them."""
        return self._rate_rows / self._rate_seconds if self._rate_seconds else 0.0

    @property
    def share(self) -> float:
        """The share of callers that come straight back."""
        return self._shares[-1]

    def back_by(self, i: int) -> float:
        """How many of those answered last should have come back by the age AGES[i]."""
        return self.last_answered * self._shares[i]

    def _learn(self) -> None:
        if self._answered <= 0:
            return
        rate, total, highest = self.rate, 0.0, 0.0
        for i, count in enumerate(self._arrived[:-1]):
            total += count
            exposed = self._exposed[i]
            if exposed < 0.75 * self._rate_seconds:
                by_chance = rate * exposed  # if they were all strangers
                extra = total - by_chance
                if extra > 2 * by_chance**0.5:
                    # Part of the average rate is the returns themselves: take that out again.
                    extra /= 1 - exposed / self._rate_seconds
                    highest = max(highest, min(1.0, extra / self._answered))
            self._shares[i] = highest

    def _typical_return(self) -> float:
        half = self.share / 2
        for age, share in zip(AGES, self._shares, strict=True):
            if share >= half > 0:
                return age
        return 0.0
