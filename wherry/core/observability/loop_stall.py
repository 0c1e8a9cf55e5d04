"""How long was the event loop blocked?

Measured by the delay of a periodic timer: it is as late as the callback that blocked the loop was
long. It costs nothing for a request, but a wake-up every INTERVAL while requests come and one a
second otherwise. The resolution is one INTERVAL.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from wherry.core.observability.statistics import Histogram

#: Seconds between wake-ups.
INTERVAL: Final = 0.02
IDLE_INTERVAL: Final = 1.0
#: Seconds of a window: the longest stall covers the last one to two windows.
WINDOW: Final = 60.0
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class LoopStall:
    """The stalls of one loop between `start` and `stop`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._idle: Callable[[], bool] = lambda: True
        self.seconds = Histogram(BUCKETS)
        self._longest = [0.0, 0.0]
        self._window_ends = 0.0
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def longest(self) -> float:
        """The longest stall of the last one to two minutes in seconds. Any thread."""
        return max(self._longest)

    def start(self, loop: asyncio.AbstractEventLoop, idle: Callable[[], bool]) -> None:
        """Watch this loop, from its own thread. `idle` returns whether no request came lately."""
        self._loop, self._idle = loop, idle
        self._window_ends = self._clock() + WINDOW
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop = None

    def _schedule(self) -> None:
        assert self._loop is not None
        interval = IDLE_INTERVAL if self._idle() else INTERVAL
        self._due = self._clock() + interval
        self._timer = self._loop.call_later(interval, self._wake)

    def _wake(self) -> None:
        now = self._clock()
        late = max(0.0, now - self._due)
        self.seconds.observe((late,))
        if now >= self._window_ends:
            self._longest = [0.0, self._longest[0]]
            self._window_ends = now + WINDOW
        self._longest[0] = max(self._longest[0], late)
        self._schedule()
