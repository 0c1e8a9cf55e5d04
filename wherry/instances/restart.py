"""May a worker that died be started again, and when?"""

from __future__ import annotations

from collections import deque


class RestartPolicy:
    """Back-off with a budget: pure, time comes in as an argument.

    The first death is answered at once, later ones after 0.1, 0.2, 0.4 ... seconds; more than
    `budget` deaths within `window` seconds use the budget up.
    """

    def __init__(self, *, budget: int, window: float, first_delay: float = 0.1) -> None:
        self.budget = budget
        self.window = window
        self.first_delay = first_delay
        self._deaths: deque[float] = deque()

    def died(self, now: float) -> float | None:
        """Seconds until the restart, or None: give up."""
        self._deaths.append(now)
        while self._deaths[0] < now - self.window:
            self._deaths.popleft()
        deaths = len(self._deaths)
        if deaths > self.budget:
            return None
        return 0.0 if deaths == 1 else min(5.0, self.first_delay * 2.0 ** (deaths - 2))
