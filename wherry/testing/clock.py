"""How does a test control time?"""

from __future__ import annotations


class ManualClock:
    """A clock that stands still until `advance`. Calling it gives the time.

        clock = ManualClock()
        clock.advance(1.5)
        clock()  # -> 1.5

    For objects that take a clock as an argument and read it, such as schedulers. A thread that
    waits with a timeout uses the machine's clock and is not affected.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self._now

    def advance(self, seconds: float) -> float:
        """Move the clock by `seconds`; return the new time."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards, not even by {-seconds} s")
        self._now += seconds
        return self._now

    def __repr__(self) -> str:
        return f"<ManualClock {self._now:g}>"
