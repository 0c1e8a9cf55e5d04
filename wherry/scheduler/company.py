"""Would anybody come if a batch waited a little longer?"""

from __future__ import annotations

from math import inf
from typing import Any

#: So many batches must have ended before anything is concluded.
LEARNT = 4
#: How much of the past remains with each batch.
FADING = 1 - 1 / 64
#: Fewer arrivals than this to be expected are not worth waiting for.
LIKELY = 0.5
#: Whoever takes so many times as long as others have is not expected any more.
OVERDUE = 4.0


class Company:
    """Learns who comes after a batch has ended: those who were just answered, and others.

    Callers in a loop come back by some age since their answer; once all of them are back, others
    come at some rate, or nobody does. Strangers look like callers who take their time, which is
    as good: they are waited for as long as they have lately taken. Pure.
    """

    def __init__(self) -> None:
        #: Answered, and not back yet.
        self._out = 0
        self._last_end = self._last_arrival = -inf
        #: The age by which all were back: rises at once, falls slowly.
        self._back_by = inf
        #: Batches that have ended.
        self._ended = 0
        # Who came while nobody was out, and the time in which they could; decayed.
        self._others = self._seconds = 0.0
        #: Since when nobody is out.
        self._all_back_at: float | None = None

    def arrived(self, now: float) -> None:
        self._last_arrival = now
        if self._all_back_at is not None:
            self._count(now)
            self._others += 1
        elif self._out:
            self._out -= 1
            if not self._out:
                self._all_back(now)

    def ended(self, answered: int, now: float) -> None:
        """A batch has ended: so many callers have their answer."""
        if self._all_back_at is not None:
            self._count(now)
            self._all_back_at = None
        elif now - self._last_end > self._back_by:
            self._out = 0  # they will not come
        self._others *= FADING
        self._seconds *= FADING
        self._out += answered
        self._ended += 1
        self._last_end = now

    def expected_until(self, leaves_at: float) -> float:
        """Until when waiting for more may bring somebody, if the batch leaves at `leaves_at`."""
        if self._ended < LEARNT:
            return leaves_at
        until = -inf
        if rate := self.rate:
            # Others that have not come for so long were a crowd that is gone.
            until = min(leaves_at - LIKELY / rate, self._last_arrival + OVERDUE / rate)
        if self._out:
            until = max(until, self._last_end + OVERDUE * self._back_by)
        return min(until, leaves_at)

    @property
    def rate(self) -> float:
        """Arrivals a second while nobody was out."""
        return self._others / self._seconds if self._seconds else 0.0

    def explain(self) -> dict[str, Any]:
        learnt = self._ended >= LEARNT
        return {
            "back_within_seconds": self._back_by if learnt and self._back_by < inf else None,
            "others_per_second": self.rate if learnt else None,
        }

    def _all_back(self, now: float) -> None:
        age = now - self._last_end
        if age > self._back_by or self._back_by == inf:
            self._back_by = age
        else:
            self._back_by += (age - self._back_by) / 16
        self._all_back_at = now

    def _count(self, now: float) -> None:
        assert self._all_back_at is not None
        self._seconds += now - self._all_back_at
        self._all_back_at = now
