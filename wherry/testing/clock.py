"""How does a test decide what time it is?"""

from __future__ import annotations


class ManualClock:
    """A clock that stands still until `advance`.

    For whatever takes its clock as an argument and asks it, such as schedulers. A thread that
    waits for a moment waits by the machine's clock and does not see this one move.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> float:
        """Let time pass; the new time."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards, not even by {-seconds} s")
        self._now += seconds
        return self._now

    def __repr__(self) -> str:
        return f"<ManualClock {self._now:g}>"
