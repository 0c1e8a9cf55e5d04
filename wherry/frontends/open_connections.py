"""Which connections of one listener are open, and who looks after them?"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

SWEEP_INTERVAL: Final = 0.5


class Client(Protocol):
    """A connection, whatever its protocol."""

    def drain(self) -> None: ...

    def abort(self) -> None: ...


C = TypeVar("C", bound=Client)


class OpenConnections(ABC, Generic[C]):
    """Calls `sweep` twice a second while anything is open. With no connection there is no timer:
    an idle server uses no CPU."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.open: set[C] = set()
        self.draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    def add(self, connection: C) -> None:
        self.open.add(connection)
        self._all_closed.clear()
        if self._timer is None:
            self._schedule_sweep()

    def remove(self, connection: C) -> None:
        self.open.discard(connection)
        if not self.open:
            self._all_closed.set()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    async def all_closed(self) -> None:
        await self._all_closed.wait()

    def drain(self) -> None:
        """Let each connection finish what it has begun, and close."""
        self.draining = True
        for connection in tuple(self.open):
            connection.drain()

    def abort(self) -> None:
        for connection in tuple(self.open):
            connection.abort()

    @abstractmethod
    def sweep(self) -> None:
        """Enforce the time limits."""

    def _schedule_sweep(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SWEEP_INTERVAL, self._sweep_again)

    def _sweep_again(self) -> None:
        self._schedule_sweep()
        self.sweep()
