"""How long would a new request wait for its first response?

The length of a stream says nothing of that. While requests wait, the time between two first
responses is what the work of one took. So the rate of that work, learnt only while requests wait,
tells how long the work ahead of a new one takes. Pure: time comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Hashable

from wherry.core.scheduler.overload import TurnTimes

#: How much of the past remains with each first response.
FADING = 0.95


class FirstResponses:
    """The requests without a first response, and the rate at which they get it."""

    def __init__(self) -> None:
        #: What the first response of one request takes.
        self.turns = TurnTimes()
        self._waiting: dict[Hashable, float] = {}
        #: First responses, their work and its seconds; the older ones count less.
        self._count = 0.0
        self._work = 0.0
        self._seconds = 0.0
        #: Start of the work that is measured: the last first response, or an arrival while no
        #: request waited.
        self._since = 0.0

    def __repr__(self) -> str:
        return f"<FirstResponses: {len(self._waiting)} waiting>"

    def arrived(self, request: Hashable, cost: float, now: float) -> None:
        if not self._waiting:
            self._since = now
        self._waiting[request] = cost

    def responded(self, request: Hashable, now: float) -> bool:
        """Count a response. True if it was the first of this request."""
        cost = self._waiting.pop(request, None)
        if cost is None:
            return False
        self._count = FADING * self._count + 1
        self._work = FADING * self._work + cost
        seconds = max(0.0, now - self._since)
        self._seconds = FADING * self._seconds + seconds
        self.turns.ended(seconds)
        self._since = now
        return True

    def left(self, request: Hashable) -> None:
        self._waiting.pop(request, None)

    def __len__(self) -> int:
        """Requests without a first response."""
        return len(self._waiting)

    @property
    def mean_seconds(self) -> float:
        """What the first response of one request takes, on average; 0.0: not known yet."""
        return self._seconds / self._count if self._count else 0.0

    def predicted_seconds(self, cost: float = 1.0) -> float:
        """Predicted time to the first response of a request that arrives now; 0: not known yet."""
        if not self._work:
            return 0.0
        return (sum(self._waiting.values()) + cost) * self._seconds / self._work
