"""Would more requests arrive if a batch waited a little longer?"""

from __future__ import annotations

from math import inf
from typing import Any

#: Batches that must have ended before anything is concluded.
LEARNT = 4
#: Weight of what was learnt, after each further batch.
FADING = 1 - 1 / 64
#: Expected arrivals below which a wait is not worth it.
LIKELY = 0.5
#: A caller is not expected any more after this many times the age at which others returned.
OVERDUE = 4.0


class ArrivalForecast:
    """Learns which requests arrive after a batch has ended: returning callers, then others.

    Callers in a loop return by some age since their answer; once all have, others arrive at some
    rate, or none do. Independent requests look like callers that return slowly, which does no harm:
    they are waited for as long as they lately took. Pure.
    """

    def __init__(self) -> None:
        #: Callers that were answered and have not returned.
        self._out = 0
        self._last_end = self._last_arrival = -inf
        #: The age by which all had returned: rises at once, falls slowly.
        self._back_by = inf
        #: Batches that have ended.
        self._ended = 0
        # Arrivals after all had returned, and the time in which they were counted; decayed.
        self._others = self._seconds = 0.0
        #: Since when no caller is expected to return.
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
        """Count a batch that has ended, with this number of requests answered."""
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
        """Until when another arrival is likely; `leaves_at` at the latest."""
        if self._ended < LEARNT:
            return leaves_at
        until = -inf
        if rate := self.rate:
            # No arrival for OVERDUE / rate seconds: the burst is over.
            until = min(leaves_at - LIKELY / rate, self._last_arrival + OVERDUE / rate)
        if self._out:
            until = max(until, self._last_end + OVERDUE * self._back_by)
        return min(until, leaves_at)

    @property
    def rate(self) -> float:
        """Arrivals a second after all callers had returned."""
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
