"""Which connections of one listener are open, and how are its limits enforced on them?"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, Generic, Protocol, TypeVar

from wherry.server.connections.held import Held, Holdings
from wherry.server.connections.limits import Limits, for_connections, never_for_connections


class OpenConnection(Protocol):
    """One client's connection. Everything is called on the event loop's thread."""

    @property
    def owes(self) -> bool:
        """Whether an answer is not complete, or not yet with the kernel."""

    @property
    def idle_since(self) -> float | None:
        """When a sweep first saw no request open, owed or half read; None while there is one."""

    def make_room(self) -> bool:
        """Close at once, if nothing has come since it was found idle. Returns whether it closed."""

    def check(self, now: float) -> None: ...

    def drain(self) -> None:
        """Finish what has begun, let the client know which request is the last, and close."""

    def end(self) -> None:
        """Take no more requests; close when the last answer is written."""

    def abort(self) -> None:
        """Close now; what is not sent is lost."""


RESERVE: Final = 64
"""Connections beyond the limit, for requests about health. The oldest of them is closed first."""

SCAN_INTERVAL: Final = 0.1
"""Seconds between two searches for idle connections: one costs a step for each connection."""


log = logging.getLogger("wherry")

SWEEP_INTERVAL: Final = 0.5
DRAIN_SWEEP_INTERVAL: Final = 0.05
"""While the server waits for its connections to end."""

USED: Final = 5.0
"""Seconds for which a connection counts as used after its last request."""


class Admitted(Enum):
    """The requests that a new connection is admitted for."""

    ANYTHING = auto()
    HEALTH = auto()  # there are too many: it is for probes
    NOTHING = auto()  # it is refused


C = TypeVar("C", bound=OpenConnection)


class OpenConnections(Generic[C]):
    """The open connections of one listener. Sweeps over them twice a second.

    With no connection there is no timer: an idle server uses no CPU. At the limit the one that has
    been idle for longest makes room for a new one. While none is idle, a few more are admitted,
    for requests about health only.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        limits: Limits,
        holdings: Holdings[OpenConnection] | None = None,
    ) -> None:
        self.clock = clock
        self._descriptors = for_connections()
        self._never = never_for_connections()
        self.limits = limits
        self.holdings = holdings or holdings_of(limits)
        self.open: set[C] = set()
        self._idle: deque[C] = deque()  # when last looked for, the longest first
        self._looked_at = float("-inf")
        self._reserve: dict[C, None] = {}  # beyond the limit, the oldest first
        #: Those that had a request lately, as the last sweep saw them, and new ones.
        self.used = 0
        self.draining = False
        self._sweep_interval = SWEEP_INTERVAL
        self._timer: asyncio.TimerHandle | None = None
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    def admit(self, newest: C, transport: asyncio.BaseTransport) -> Admitted:
        """Add a new connection. When there are too many, an idle one makes room."""
        self.open.add(newest)
        self.used += 1
        self._all_closed.clear()
        if self._timer is None:
            self._schedule_sweep()
        sock = transport.get_extra_info("socket")
        descriptor = -1 if sock is None else int(sock.fileno())
        lacks_descriptors = descriptor >= self._descriptors
        if len(self.open) <= self.limits.max_connections and not lacks_descriptors:
            return Admitted.ANYTHING
        # The newest keeps its own descriptor even if another one makes room.
        if self._one_makes_room(newest) and descriptor < self._never:
            return Admitted.ANYTHING
        if lacks_descriptors:
            return Admitted.NOTHING
        if len(self._reserve) >= RESERVE:
            oldest = next(iter(self._reserve))
            del self._reserve[oldest]
            oldest.abort()
        self._reserve[newest] = None
        return Admitted.HEALTH

    def _one_makes_room(self, newest: C) -> bool:
        """Close the connection that has been idle for longest; False if none is."""
        now = self.clock()
        if not self._idle and now - self._looked_at >= SCAN_INTERVAL:
            self._looked_at = now
            others = [(one.idle_since, one) for one in self.open if one is not newest]
            found = [(since, one) for since, one in others if since is not None]
            self._idle.extend(one for _, one in sorted(found, key=lambda pair: pair[0]))
        while self._idle:
            one = self._idle.popleft()
            if one in self.open and one.make_room():
                return True
        return False

    def remove(self, connection: C) -> None:
        self.open.discard(connection)
        self._reserve.pop(connection, None)
        self.holdings.unsent.forget(connection)
        self.holdings.received.forget(connection)
        if not self.open:
            self.used = 0
            self._all_closed.set()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    async def all_closed(self) -> None:
        await self._all_closed.wait()

    def drain(self, last_call: float) -> None:
        """Let each connection finish what it has begun, and close.

        For `last_call` seconds a client that has not seen this yet may still send requests.
        """
        for connection in tuple(self.open):
            connection.drain()
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

    def note_unsent(self, connection: C, count: int) -> bool:
        """Record that `count` bytes of answers wait for this client. Returns whether it must
        get no more."""
        for one in self.holdings.unsent.note(connection, count, self.clock()):
            cut_off(one, "answers that it does not take need more memory than max_unsent_bytes")
        return self.holdings.unsent.is_full(connection)

    def note_received(self, connection: C, count: int) -> bool:
        """Record that requests of this client that have not come in full hold `count` bytes.
        Returns whether it must send no more."""
        for one in self.holdings.received.note(connection, count, self.clock()):
            cut_off(one, "requests that it does not end need more memory than max_received_bytes")
        return self.holdings.received.is_full(connection)

    @property
    def too_many_text(self) -> str:
        """Why a new connection is admitted for health only."""
        return (
            f"the server has its limit of {self.limits.max_connections} connections, and none of"
            " them is idle; retry later, or raise max_connections"
        )

    def report(self, connection: C, message: str, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"{connection!r}: {message}", "exception": error}
        )

    def sweep(self) -> None:
        now = self.clock()
        self.used = 0
        for connection in tuple(self.open):
            connection.check(now)
            since = connection.idle_since
            self.used += since is None or now - since < USED

    def _schedule_sweep(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._sweep_interval, self._sweep_again)

    def _sweep_again(self) -> None:
        self._schedule_sweep()
        for one in self.holdings.unsent.stalled(self.clock(), self.limits.write_timeout):
            cut_off(one, "it holds more than max_connection_unsent_bytes and takes nothing")
        self.sweep()


def holdings_of(limits: Limits) -> Holdings[OpenConnection]:
    return Holdings(
        unsent=Held(limits.max_unsent_bytes, limits.max_connection_unsent_bytes),
        received=Held(limits.max_received_bytes, limits.max_connection_received_bytes),
    )


def cut_off(connection: OpenConnection, why: str) -> None:
    log.warning("connection cut off", extra={"connection": repr(connection), "why": why})
    connection.abort()
