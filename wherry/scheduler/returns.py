"""Do callers come straight back after an answer, and how soon?"""

from __future__ import annotations

from bisect import bisect_right

#: Ages (seconds since the last batch ended) at which returns are told apart: 30 us to 60 ms.
AGES = tuple(30e-6 * 1.5**i for i in range(20))
#: Batches that are learnt from at a time.
BOOK_TOGETHER = 8
#: How much more slowly the rate is forgotten than returns.
RATE = 0.25


class Returns:
    """Learns from when requests arrive after a batch has ended.

    Strangers arrive whenever they like; callers in a loop come back soon after their answer. So
    what arrives early beyond the average rate are callers coming back. Pure.
    """

    def __init__(self, *, memory: float = 64.0) -> None:
        self._memory = memory
        #: Ages at which requests have arrived since the last batch ended.
        self._ages: list[float] = []
        #: What is still to be booked: seconds between two ends, ages between, callers answered.
        self._unbooked: list[tuple[float, list[float], int]] = []
        self._booked = 0
        # Decayed sums over batches: arrivals up to each age, the time in which they could,
        # answered callers, and arrivals and time in the late half before the next batch ended.
        self._arrived = [0.0] * len(AGES)
        self._exposed = [0.0] * len(AGES)
        self._answered = self._late = self._late_seconds = self._seconds = 0.0
        # Of all arrivals, over more batches: near saturation each percent of the rate counts.
        self._all = self._all_seconds = 0.0
        self._shares: list[float] = [0.0] * len(AGES)
        #: Callers that the last batch answered.
        self.last_answered = 0
        self.last_end: float | None = None

    @property
    def arrived_since(self) -> int:
        return len(self._ages)

    def arrived(self, now: float) -> None:
        if self.last_end is not None:
            self._ages.append(now - self.last_end)

    def ended(self, answered: int, now: float) -> None:
        """A batch has ended: `answered` callers have their answer."""
        if self.last_end is not None:
            self._unbooked.append((now - self.last_end, self._ages, self.last_answered))
            # Booked several at a time, which is cheaper; one by one at first.
            if len(self._unbooked) >= min(BOOK_TOGETHER, 1 + self._booked // 4):
                self._book()
        self.last_answered = answered
        self._ages = []
        self.last_end = now

    @property
    def rate(self) -> float:
        """Requests a second, all of them."""
        return self._all / self._all_seconds if self._all_seconds else 0.0

    @property
    def share(self) -> float:
        """The share of callers that come straight back."""
        return self._shares[-1]

    @property
    def shares(self) -> list[float]:
        """The share of callers that are back by each of AGES."""
        return self._shares

    def back_by(self, i: int) -> float:
        """How many of those answered last should have come back by the age AGES[i]."""
        return self.last_answered * self._shares[i]

    def _book(self) -> None:
        batches, self._unbooked = self._unbooked, []
        self._booked += len(batches)
        keep = (1.0 - 1.0 / self._memory) ** len(batches)
        together = sorted([age for _, ages, _ in batches for age in ages])
        gaps = [gap for gap, *_ in batches]
        late = sum([len(ages) - bisect_right(ages, gap / 2) for gap, ages, _ in batches])
        seconds = sum(gaps)
        self._all = self._all * keep**RATE + len(together)
        self._all_seconds = self._all_seconds * keep**RATE + seconds
        self._seconds = self._seconds * keep + seconds
        self._late = self._late * keep + late
        self._late_seconds = self._late_seconds * keep + seconds / 2
        self._answered = self._answered * keep + sum([answered for *_, answered in batches])
        if not self._answered or not self._late_seconds:
            return
        strangers, highest, longest = self._late / self._late_seconds, 0.0, max(gaps)
        for i, edge in enumerate(AGES):
            arrived = self._arrived[i] = self._arrived[i] * keep + bisect_right(together, edge)
            if edge < longest:
                seconds = sum([min(edge, gap) for gap in gaps])
            exposed = self._exposed[i] = self._exposed[i] * keep + seconds
            by_chance = strangers * exposed
            extra = arrived - by_chance
            # Only what stands out from chance, and only ages that are seen often enough.
            if exposed < 0.75 * self._seconds and extra > 2 * (by_chance + 1) ** 0.5:
                highest = max(highest, min(1.0, extra / self._answered))
            self._shares[i] = highest
