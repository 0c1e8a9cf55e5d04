"""Is this cause to be logged, or was it logged a moment ago?"""

from __future__ import annotations

from collections.abc import Hashable

#: Seconds in which one cause is logged once.
INTERVAL = 60.0
#: Causes that are counted one by one; all others count as one.
MOST = 64


class OncePerCause:
    """Pure: time comes in as an argument. Not for several threads at once."""

    def __init__(self, interval: float = INTERVAL, most: int = MOST) -> None:
        self.interval = interval
        self._most = most
        #: When each cause was logged, and how often it has come since.
        self._told: dict[Hashable, tuple[float, int]] = {}

    def came(self, cause: Hashable, now: float) -> int | None:
        """How many like it were not logged since one was; None: do not log this one either."""
        if cause not in self._told and len(self._told) >= self._most:
            self._forget(now)
            if len(self._told) >= self._most:
                cause = None
        told_at, more = self._told.get(cause, (now - self.interval, 0))
        if now - told_at < self.interval:
            self._told[cause] = (told_at, more + 1)
            return None
        self._told[cause] = (now, 0)
        return more

    def untold(self) -> dict[Hashable, int]:
        """How many of each cause were not logged; counts from zero again."""
        left = {cause: more for cause, (_, more) in self._told.items() if more}
        self._told = {cause: (told_at, 0) for cause, (told_at, _) in self._told.items()}
        return left

    def _forget(self, now: float) -> None:
        """Forget causes of which nothing is left to log."""
        self._told = {
            cause: (told_at, more)
            for cause, (told_at, more) in self._told.items()
            if more or now - told_at < self.interval
        }
