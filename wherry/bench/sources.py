"""When does a run send its next request: when a caller has its answer, or at planned moments?

`Callers` is a closed load, `Arrivals` an open one. Both decide when, and on which connection; a
`Sender` sends. Their methods are the same:

begin          send the first requests; moments count from `at`
free           a connection's request has ended
not_connected  a caller's connection could not be made; its request has failed
lost           a connection without a request was closed
overdue        take out the requests that still wait here though meant to start before `before`
waiting        requests that were taken and wait here for a connection
exhausted      whether no more will be sent in any case
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from wherry.bench.connection import LoadConnection
from wherry.bench.plan import Closed, Rate, joins, moments

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1


class PreciseTimer:
    """Calls `callback` at a moment of time.perf_counter; one moment at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._file = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "no timer")
        loop.add_reader(self._file, self._expired)

    def set(self, moment: float) -> None:
        """Wake at `moment`, or now if it has passed. Replaces the earlier setting."""
        seconds = int(moment)
        nanoseconds = int((moment - seconds) * 1e9)
        # interval, then value; a value of 0 would switch it off
        setting = struct.pack("qqqq", 0, 0, seconds, max(1, nanoseconds))
        self._settime(self._file, _ABSOLUTE, setting, None)

    def close(self) -> None:
        self._loop.remove_reader(self._file)
        os.close(self._file)

    def _expired(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:
            return  # it was set again in the meantime
        self._callback()


#: Seconds between a caller's failed connection and its next try: at first, and at most.
PAUSE, LONGEST_PAUSE = 0.05, 1.0


class Sender(Protocol):
    """The run, which sends the requests."""

    in_flight: int

    def take(self) -> bool:
        """Take one of the requests that the run may still send; False if it sends no more."""

    def send(
        self, caller: int, connection: LoadConnection | None, intended: float | None = None
    ) -> None:
        """Send a request that was taken, meant to start at `intended` (None: now)."""

    def later(self, wait: float, call: Callable[..., None], *arguments: object) -> None:
        """Call it after `wait` seconds, unless the run is over by then."""

    def end_if_over(self) -> None:
        """Call this when the source has sent what it could."""


class Callers:
    """Each caller has its own connection, waits for its answer, thinks, and sends again."""

    waiting = 0

    def __init__(self, load: Closed, sender: Sender) -> None:
        self._load = load
        self._sender = sender
        #: Requests that each caller may still send.
        self._left = [float("inf") if load.loops is None else load.loops] * load.callers
        self._connected: dict[int, LoadConnection] = {}
        self._pauses: dict[int, float] = {}

    @property
    def exhausted(self) -> bool:
        return not any(self._left)

    def connected(self, connection: LoadConnection) -> None:
        """Have the caller of this connection begin on it. Before `begin`."""
        self._connected[connection.caller] = connection

    def begin(self, at: float) -> None:
        for caller, joins_at in enumerate(joins(self._load)):
            wait = at + joins_at - perf_counter()
            connection = self._connected.pop(caller, None)
            if wait <= 0:
                self._next(caller, connection)
            else:
                self._sender.later(wait, self._next, caller, connection)

    def free(self, connection: LoadConnection) -> None:
        self._pauses.pop(connection.caller, None)
        if self._load.think:
            self._sender.later(self._load.think, self._next, connection.caller, connection)
        else:
            self._next(connection.caller, connection)

    def not_connected(self, caller: int) -> None:
        pause = self._pauses.get(caller, PAUSE)
        self._pauses[caller] = min(2 * pause, LONGEST_PAUSE)
        self._sender.later(pause, self._next, caller, None)

    def lost(self, connection: LoadConnection) -> None:
        """Nothing to do: the caller makes a new one for its next request."""

    def overdue(self, before: float) -> list[float]:
        return []

    def close(self) -> None:
        pass

    def _next(self, caller: int, connection: LoadConnection | None) -> None:
        if self._left[caller] > 0 and self._sender.take():
            self._left[caller] -= 1
            self._sender.send(caller, connection)
        else:
            self._sender.end_if_over()


class Arrivals:
    """Requests start at their moments, endlessly, on any free connection.

    A request that finds none, with `connections` in flight, waits here; its latency counts from its
    moment nevertheless.
    """

    exhausted = False

    def __init__(
        self,
        load: Rate,
        sender: Sender,
        *,
        seed: int,
        phase: float,
        connections: int,
    ) -> None:
        self._sender = sender
        self._moments = moments(load, seed=seed, phase=phase)
        self._connections = connections
        self._idle: list[LoadConnection] = []
        self._backlog: deque[float] = deque()
        self._timer: PreciseTimer | None = None
        self._began_at = 0.0
        self._next = 0.0

    @property
    def waiting(self) -> int:
        return len(self._backlog)

    def begin(self, at: float) -> None:
        self._timer = PreciseTimer(asyncio.get_running_loop(), self._due)
        self._began_at = at
        self._next = next(self._moments)
        self._due()

    def free(self, connection: LoadConnection) -> None:
        if connection.usable:
            self._idle.append(connection)
        self._send_backlog()
        self._sender.end_if_over()

    def not_connected(self, caller: int) -> None:
        self._sender.end_if_over()

    def lost(self, connection: LoadConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def overdue(self, before: float) -> list[float]:
        found = []
        while self._backlog and self._backlog[0] < before:
            found.append(self._backlog.popleft())
        return found

    def close(self) -> None:
        if self._timer is not None:
            self._timer.close()

    def _due(self) -> None:
        now = perf_counter() - self._began_at
        while self._next <= now:
            if not self._sender.take():
                self._send_backlog()
                self._sender.end_if_over()
                return
            self._backlog.append(self._began_at + self._next)
            self._next = next(self._moments)
        self._send_backlog()
        if self._timer is not None:
            self._timer.set(self._began_at + self._next)

    def _send_backlog(self) -> None:
        while self._backlog:
            connection = self._idle.pop() if self._idle else None
            if connection is None and self._sender.in_flight >= self._connections:
                return
            self._sender.send(0, connection, self._backlog.popleft())
