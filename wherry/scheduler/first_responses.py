"""How long would a newcomer wait for its first response?

Streams last as long as they last; what their callers mind is when the first word comes. Between
two first responses, while others wait for theirs, an instance does what it can: the work of the
one that was served. So the rate of that work, learnt only while somebody waits, tells how long
the work ahead of a newcomer takes. Pure: time comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Hashable

from wherry.scheduler.door import TurnTimes

#: How much of the past remains with each first response.
FADING = 0.95


class FirstResponses:
    """Those who wait for their first response, and how fast they are served."""

    def __init__(self) -> None:
        #: What the first response of one request takes.
        self.turns = TurnTimes()
        self._waiting: dict[Hashable, float] = {}
        self._work = 0.0
        self._seconds = 0.0
        #: Since when the work that is measured goes on: the last first response, or an arrival
        #: while nobody waited.
        self._since = 0.0

    def __repr__(self) -> str:
        return f"<FirstResponses: {len(self._waiting)} waiting>"

    def arrived(self, who: Hashable, cost: float, now: float) -> None:
        if not self._waiting:
            self._since = now
        self._waiting[who] = cost

    def responded(self, who: Hashable, now: float) -> bool:
        """It has a response; was that its first?"""
        cost = self._waiting.pop(who, None)
        if cost is None:
            return False
        self._work = FADING * self._work + cost
        seconds = max(0.0, now - self._since)
        self._seconds = FADING * self._seconds + seconds
        self.turns.ended(seconds)
        self._since = now
        return True

    def left(self, who: Hashable) -> None:
        self._waiting.pop(who, None)

    def predicted_seconds(self, cost: float = 1.0) -> float:
        """Until the first response of one that came now; 0: nothing is known yet."""
        if not self._work:
            return 0.0
        return (sum(self._waiting.values()) + cost) * self._seconds / self._work
