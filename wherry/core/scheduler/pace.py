"""How long will requests take that run at the same time, where there is no queue to look at?

By Little's law: those that are here, times the mean time from one end to the next.
"""

from __future__ import annotations

#: Weight of the latest interval: the mean reaches back over about 1 / MEMORY ends.
MEMORY = 1 / 16


class Pace:
    """Mean seconds from one end to the next, of the times in which there was something to do."""

    def __init__(self) -> None:
        self._interval = 0.0
        self._ends = 0
        self._since: float | None = None

    def began(self, now: float) -> None:
        """A request starts; if it is the only one, so does the time that counts."""
        if self._since is None:
            self._since = now

    def ended(self, now: float, left: int) -> None:
        """A request has ended, and `left` others go on."""
        assert self._since is not None, "nothing had begun"
        interval = max(0.0, now - self._since)
        self._ends += 1
        if self._ends == 1:  # the others were on their way as long, and may end with it
            interval /= left + 1
        self._interval += max(MEMORY, 1 / self._ends) * (interval - self._interval)
        self._since = now if left else None

    def predicted_seconds(self, here: int) -> float:
        """For one more besides those that are here; 0.0 if nothing is known yet."""
        return (here + 1) * self._interval
