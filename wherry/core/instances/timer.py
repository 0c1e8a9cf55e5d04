"""How is code called when a deadline passes or a wait is over?

One thread for a whole runtime; asleep, it costs nothing.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable
from itertools import count
from math import inf

log = logging.getLogger("wherry")


class Timer:
    """Calls `callback()` at or soon after a moment of `clock`, in its thread: it must be short.
    Any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self) -> None:
        """Start the thread, if it does not run; else the first `wake_at` does."""
        with self._changed:
            if self._thread is None and not self._closed:
                thread = threading.Thread(target=self._run, name="wherry-timer", daemon=True)
                thread.start()
                self._thread = thread  # else the next one tries again

    def wake_at(self, when: float, callback: Callable[[], None]) -> None:
        with self._changed:
            if self._closed:
                return
            heapq.heappush(self._heap, (when, next(self._order), callback))
            if self._heap[0][0] == when:
                self._changed.notify()
        self.start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (callback := self._next()) is not None:
            try:
                callback()
            except Exception:  # our own bug: all other deadlines must be kept
                log.exception("internal error in the timer")

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._closed:
                if not self._heap:
                    self._changed.wait()
                    continue
                remaining = self._heap[0][0] - self._clock()
                if remaining <= 0:
                    return heapq.heappop(self._heap)[2]
                self._changed.wait(min(remaining, threading.TIMEOUT_MAX))
            return None


class Alarm:
    """Has one callback called at the earliest of several moments. The caller holds its lock.

    Moments are not taken back: the callback finds out what is due.
    """

    def __init__(self, timer: Timer, callback: Callable[[], None]) -> None:
        self._timer = timer
        self._callback = callback
        #: When the callback will be called, latest first.
        self._moments: list[float] = []

    def set(self, at: float) -> None:
        """Have it called at `at` (seconds of the clock) or before; inf: not for this."""
        if at < (self._moments[-1] if self._moments else inf):
            self._moments.append(at)
            self._timer.wake_at(at, self._callback)

    def rang(self, now: float) -> None:
        while self._moments and self._moments[-1] <= now:
            self._moments.pop()
