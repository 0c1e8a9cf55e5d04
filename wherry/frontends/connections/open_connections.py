"""Which connections of one listener are open, and who looks after them?"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from wherry.frontends.connections import descriptors
from wherry.frontends.connections.held import Held, Holdings
from wherry.frontends.connections.limits import Limits

log = logging.getLogger("wherry")

SWEEP_INTERVAL: Final = 0.5
DRAIN_SWEEP_INTERVAL: Final = 0.05
"""While the server waits for its connections to end."""


class Client(Protocol):
    """A connection, whatever its protocol."""

    @property
    def owes(self) -> bool:
        """Whether an answer is not complete, or not yet with the kernel."""

    def end(self) -> None:
        """Take no more requests; close when the last answer is written."""

    def abort(self) -> None: ...


C = TypeVar("C", bound=Client)


class OpenConnections(ABC, Generic[C]):
    """Calls `sweep` twice a second while anything is open. With no connection there is no timer:
    an idle server uses no CPU."""

    def __init__(
        self, clock: Callable[[], float], limits: Limits, holdings: Holdings[Client] | None = None
    ) -> None:
        self.clock = clock
        self._descriptors = descriptors.for_connections()
        self._never = descriptors.never_for_connections()
        self.limits = limits
        self.holdings = holdings or holdings_of(limits)
        self.open: set[C] = set()
        self.draining = False
        self._sweep_interval = SWEEP_INTERVAL
        self._timer: asyncio.TimerHandle | None = None
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    def add(self, connection: C) -> None:
        self.open.add(connection)
        self._all_closed.clear()
        if self._timer is None:
            self._schedule_sweep()

    def are_too_many(self, newest: asyncio.BaseTransport, most: int) -> bool:
        """Is the newest of them one more than there may be, or than there are descriptors for?"""
        return len(self.open) > most or self.lacks_descriptors(newest)

    def lacks_descriptors(self, newest: asyncio.BaseTransport) -> bool:
        """Does it have one that is kept for something else?"""
        return _descriptor(newest) >= self._descriptors

    def may_not_stay(self, newest: asyncio.BaseTransport) -> bool:
        """Does it have one that it may not keep, even if another connection makes room?"""
        return _descriptor(newest) >= self._never

    def remove(self, connection: C) -> None:
        self.open.discard(connection)
        self.holdings.unsent.forget(connection)
        self.holdings.received.forget(connection)
        if not self.open:
            self._all_closed.set()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    async def all_closed(self) -> None:
        await self._all_closed.wait()

    def drain(self, last_call: float) -> None:
        """Let each connection finish what it has begun, and close.

        For `last_call` seconds a client may still send what it has not heard that it should not.
        """
        self.draining = True
        self._sweep_interval = DRAIN_SWEEP_INTERVAL
        if self._timer is not None:
            self._timer.cancel()
            self._sweep_again()

    async def end(self) -> None:
        """Give up what is not answered by now, and close: the time to drain is over."""
        for connection in tuple(self.open):
            connection.end()
        for _ in range(2):  # what was written in this turn has left in the next
            await asyncio.sleep(0)
        for connection in tuple(self.open):
            if connection.owes:
                connection.abort()
        await self.all_closed()

    def abort(self) -> None:
        for connection in tuple(self.open):
            connection.abort()

    def note_unsent(self, connection: C, count: int) -> None:
        """Record that `count` bytes of answers wait for this client."""
        for one in self.holdings.unsent.note(connection, count, self.clock()):
            cut_off(one, "answers that it does not take need more memory than max_unsent_bytes")

    def note_received(self, connection: C, count: int) -> None:
        """Record that requests of this client that have not come in full hold `count` bytes."""
        for one in self.holdings.received.note(connection, count, self.clock()):
            cut_off(one, "requests that it does not end need more memory than max_received_bytes")

    @abstractmethod
    def sweep(self) -> None:
        """Enforce the time limits."""

    def _schedule_sweep(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._sweep_interval, self._sweep_again)

    def _sweep_again(self) -> None:
        self._schedule_sweep()
        for one in self.holdings.unsent.stalled(self.clock(), self.limits.write_timeout):
            cut_off(one, "it holds more than max_connection_unsent_bytes and takes nothing")
        self.sweep()


def holdings_of(limits: Limits) -> Holdings[Client]:
    return Holdings(
        unsent=Held(limits.max_unsent_bytes, limits.max_connection_unsent_bytes),
        received=Held(limits.max_received_bytes, limits.max_connection_received_bytes),
    )


def cut_off(connection: Client, why: str) -> None:
    """End a connection that costs too much; its client must open another."""
    log.warning("connection cut off", extra={"connection": repr(connection), "why": why})
    connection.abort()


def _descriptor(transport: asyncio.BaseTransport) -> int:
    sock = transport.get_extra_info("socket")
    return -1 if sock is None else int(sock.fileno())
