"""What have the fronts of one server counted, those that have ended included?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from wherry.core.api import BUCKETS, FrontFigures, Histogram
from wherry.server.remote.link_protocol import FrontMeasured, Measure
from wherry.server.rows.connection import FrontConnection

#: Seconds that a scrape waits for fronts that do not answer.
FRONT_REPORT_TIMEOUT: Final = 0.3


class FiguresOfFronts:
    """Asks fronts for their figures, and keeps the last ones. In the loop; what a scrape reads it
    may read in any thread."""

    def __init__(self) -> None:
        self.restarts = 0
        self.refused_before = 0
        self.stalls_before = Histogram(BUCKETS)
        self._figures: dict[int, FrontFigures] = {}
        self._connections: dict[int, FrontConnection] = {}
        #: Since when fronts have not answered, by the loop's time.
        self._silent: dict[int, float] = {}
        #: Fronts that have not answered, and what waits for them.
        self._missing: set[int] = set()
        self._waiting: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        return sum(one.has_models for one in self._connections.copy().values())

    @property
    def figures(self) -> Mapping[int, FrontFigures]:
        return self._figures.copy()

    def silent_for(self, seconds: float) -> list[int]:
        """The fronts that were asked and have not answered for so long."""
        now = asyncio.get_running_loop().time()
        return [number for number, since in self._silent.items() if now - since >= seconds]

    def begun(self, number: int, connection: FrontConnection) -> None:
        """The front of this number has a new process."""
        self._connections[number] = connection
        connection.on_measured = lambda message: self._measured(number, message)

    def ended(self, number: int) -> None:
        """Its process has ended, and is replaced."""
        self.restarts += 1
        self._connections.pop(number, None)
        self._silent.pop(number, None)
        last = self._figures.pop(number, None)
        if last is not None:
            before = self.stalls_before
            self.refused_before += last.refused
            before.total += last.stall_seconds
            before.counts = [a + b for a, b in zip(before.counts, last.stalls, strict=True)]
        self._answered(number)

    def measure(self, done: Callable[[], None]) -> None:
        """Ask the fronts, and call `done` when all have answered, or after FRONT_REPORT_TIMEOUT."""
        self._waiting.append(done)
        if len(self._waiting) > 1:
            return
        self._missing = {n for n, one in self._connections.items() if one.has_models}
        for number in self._missing:
            self._connections[number].send(Measure())
        self._timer = asyncio.get_running_loop().call_later(FRONT_REPORT_TIMEOUT, self._go_on)
        if not self._missing:
            self._go_on()

    def close(self) -> None:
        """Have nothing wait any more."""
        self._go_on()

    def _measured(self, number: int, message: FrontMeasured) -> None:
        self._figures[number] = message.figures
        self._silent.pop(number, None)
        self._answered(number)

    def _answered(self, number: int) -> None:
        if number in self._missing:
            self._missing.discard(number)
            if not self._missing:
                self._go_on()

    def _go_on(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for number in self._missing:
            self._silent.setdefault(number, asyncio.get_running_loop().time())
        self._missing = set()
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done()
