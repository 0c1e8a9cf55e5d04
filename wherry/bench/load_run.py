"""How does one event loop put a plan's load on a server?

Everything happens in callbacks of the loop: an answer is recorded and the next request sent in
the same turn. Its source decides when a request is sent (`sources.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from wherry.bench.connection import (
    Encoded,
    LoadConnection,
    Owner,
    Wire,
    make_connection,
    tls_context,
)
from wherry.bench.figures import OK, Recorder
from wherry.bench.plan import Closed, Plan
from wherry.bench.sources import Arrivals, Callers

#: Connections being made at the same moment: a server's backlog is finite.
CONNECTING_AT_ONCE = 64


class Connector:
    """Makes connections to one server. Use it in the loop in which it was made."""

    def __init__(self, wire: Wire, timeout: float) -> None:
        self._wire = wire
        self._timeout = timeout
        self._tls = tls_context(wire.ssl_ca, insecure=wire.insecure) if wire.tls else None
        self._gate = asyncio.Semaphore(CONNECTING_AT_ONCE)
        self._open: set[LoadConnection] = set()
        self._closing: set[asyncio.Future[Any]] = set()
        self._failing_since: float | None = None

    async def connect(self, owner: Owner, caller: int) -> LoadConnection:
        """An open connection of this caller. OSError or TimeoutError if none can be made."""
        began = perf_counter()
        try:
            async with self._gate, asyncio.timeout(self._timeout):
                connection = await self._made(owner, caller)
        except (OSError, TimeoutError):
            self._failing_since = self._failing_since or began
            raise
        self._failing_since = None
        self._open.add(connection)
        return connection

    async def _made(self, owner: Owner, caller: int) -> LoadConnection:
        wire, loop = self._wire, asyncio.get_running_loop()

        def protocol() -> LoadConnection:
            return make_connection(wire, owner, caller)

        if wire.reads.startswith("grpc"):
            from wherry.bench import over_grpc  # grpcio: an extra

            return await over_grpc.connect(wire, owner, caller)
        if wire.uds is not None:
            name = wire.host if wire.tls else None
            _, connection = await loop.create_unix_connection(
                protocol, wire.uds, ssl=self._tls, server_hostname=name
            )
            return connection
        transport, connection = await loop.create_connection(
            protocol, wire.host, wire.port, ssl=self._tls
        )
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def failing_for(self, now: float) -> float:
        """Seconds in which every connection has failed, or 0."""
        return 0.0 if self._failing_since is None else now - self._failing_since

    def waiting_since(self, moment: float) -> list[LoadConnection]:
        return [c for c in self._open if c.request is not None and c.intended < moment]

    def forget(self, connection: LoadConnection) -> None:
        self._open.discard(connection)

    def closing(self, closed: asyncio.Future[Any]) -> None:
        """Have `close` wait for a connection that takes time to close."""
        self._closing.add(closed)
        closed.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all connections at once; their requests are neither answered nor failed."""
        for connection in self._open:
            connection.abandon()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await asyncio.sleep(0)  # the loop calls connection_lost of the closed ones


def reason(error: Exception) -> str:
    """Why connecting failed, in a few words that are the same for each request."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason}"
    if isinstance(error, socket.gaierror):
        return f"unknown host: {error.strerror}"
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)


#: Seconds after which a run ends if nothing but failing to connect has happened.
GIVE_UP = 5.0


class LoadRun:
    """A run. Make it in the loop that runs it; `recorder` can be read at any moment.

    `offset` is the request that it begins with, and `phase` (0 to 1) shifts a constant rate:
    several processes send different requests at different moments.
    """

    def __init__(
        self,
        plan: Plan,
        wire: Wire,
        requests: Sequence[Encoded],
        *,
        offset: int = 0,
        phase: float = 0.0,
    ) -> None:
        self.recorder = Recorder()
        #: Why it ended before its time; empty if it did not.
        self.stopped_because = ""
        #: A message for each kind of error.
        self.samples: dict[str, str] = {}
        self.in_flight = 0
        self._plan = plan
        self._requests = itertools.cycle([*requests[offset:], *requests[:offset]])
        #: Requests that may still be sent.
        self._left = plan.requests if plan.requests is not None else float("inf")
        self._stopping = False
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._timers: set[asyncio.TimerHandle] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._connector = Connector(wire, plan.timeout)
        load = plan.load
        self._source: Callers | Arrivals
        if isinstance(load, Closed):
            self._source = Callers(load, self)
        else:
            self._source = Arrivals(
                load,
                self,
                seed=plan.seed,
                phase=phase,
                connections=plan.connections,
            )
        self._at_once = _sends_at_once(plan)

    async def prepare(self) -> None:
        """Connect the callers that begin at once, so that their first requests need not."""
        load, source = self._plan.load, self._source
        if not isinstance(load, Closed) or not isinstance(source, Callers) or load.ramp:
            return

        async def one(caller: int) -> None:
            # A failure here comes again, and is counted, when the run has begun.
            with contextlib.suppress(OSError, TimeoutError):
                source.connected(await self._connector.connect(self, caller))

        await asyncio.gather(*(one(n) for n in range(load.callers)))

    async def run(self, begin_at: float | None = None) -> Recorder:
        """Put the load on the server, from `begin_at` (perf_counter) on, until it is over."""
        at = perf_counter() if begin_at is None else begin_at
        try:
            if self._plan.duration is not None:
                self.later(at + self._plan.duration - perf_counter(), self._time_is_up)
            self._source.begin(at)
            self._sweep()
            await self._done
        finally:
            self._source.close()
            for timer in self._timers:
                timer.cancel()
            for task in self._connecting:
                task.cancel()
            await asyncio.gather(*self._connecting, return_exceptions=True)
            await self._connector.close()
        return self.recorder

    def stop(self, because: str) -> None:
        """End now. What is in flight is neither answered nor failed: it is not recorded."""
        self.stopped_because = self.stopped_because or because
        if not self._done.done():
            self._done.set_result(None)

    # For the source

    def take(self) -> bool:
        if self._stopping or self._left <= 0:
            return False
        self._left -= 1
        return True

    def send(
        self, caller: int, connection: LoadConnection | None, intended: float | None = None
    ) -> None:
        request = next(self._requests)
        self.in_flight += 1
        now = perf_counter()
        if intended is None:
            intended = now
        if connection is not None and connection.usable:
            connection.send(request, intended, now)
            return
        if connection is not None:
            connection.abandon()
            self._connector.forget(connection)
        connecting = self._connect_and_send(caller, request, intended, now)
        task = asyncio.get_running_loop().create_task(connecting)
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def later(self, wait: float, call: Callable[..., None], *arguments: object) -> None:
        def happens() -> None:
            self._timers.discard(timer)
            call(*arguments)

        timer = asyncio.get_running_loop().call_later(max(0.0, wait), happens)
        self._timers.add(timer)

    def end_if_over(self) -> None:
        sends_no_more = self._stopping or self._left <= 0 or self._source.exhausted
        idle = not self.in_flight and not self._source.waiting
        if sends_no_more and idle and not self._done.done():
            self._done.set_result(None)

    async def _connect_and_send(
        self, caller: int, request: Encoded, intended: float, started: float
    ) -> None:
        try:
            connection = await self._connector.connect(self, caller)
        except (OSError, TimeoutError) as error:
            self._not_connected(caller, request, intended, started, error)
            return
        if connection.usable:
            connection.send(request, intended, started)
        else:
            connection.request, connection.intended, connection.sent = request, intended, started
            self.answered(connection, "connection closed before the answer", perf_counter())

    def _not_connected(
        self, caller: int, request: Encoded, intended: float, started: float, error: Exception
    ) -> None:
        now = perf_counter()
        outcome = f"cannot connect: {reason(error)}"
        self.samples.setdefault(outcome, str(error))
        self.recorder.add(intended, started, now, outcome, request.rows)
        self.in_flight -= 1
        if self._connector.failing_for(now) > GIVE_UP:
            self.stop(f"no connection for {GIVE_UP:g} s ({reason(error)})")
        else:
            self._source.not_connected(caller)

    # For the connections

    def answered(self, connection: LoadConnection, outcome: str, now: float) -> None:
        request, reader = connection.request, connection.reader
        intended, sent = connection.intended, connection.sent
        assert request is not None
        connection.request = connection.reader = None
        # The next request goes out first: the server works on it while we write this one down.
        if self._at_once and not self._stopping and connection.usable:
            connection.send(next(self._requests), now, now)
        else:
            self.in_flight -= 1
            if not connection.usable:
                self._connector.forget(connection)
            self._source.free(connection)
        self.recorder.add(intended, sent, now, outcome, request.rows, reader)
        if outcome != OK:
            self.samples.setdefault(outcome, connection.message)

    def closed(self, connection: LoadConnection) -> None:
        self._connector.forget(connection)
        self._source.lost(connection)

    def closing(self, closed: asyncio.Future[Any]) -> None:
        self._connector.closing(closed)

    # Time

    def _time_is_up(self) -> None:
        self._stopping = True
        self.end_if_over()

    def _sweep(self) -> None:
        """Fail the requests that have had their time; an open load's begins when it was meant."""
        now = perf_counter()
        late = now - self._plan.timeout
        text = f"no answer within {self._plan.timeout:g} s"
        for connection in self._connector.waiting_since(late):
            connection.fail("timeout", text)
        for intended in self._source.overdue(late):
            self.recorder.add(intended, now, now, "timeout", next(self._requests).rows)
            self.samples.setdefault("timeout", text)
        if not self._done.done():
            self.later(min(0.25, self._plan.timeout / 4), self._sweep)
            self.end_if_over()


def _sends_at_once(plan: Plan) -> bool:
    """Callers send again at once until time is up: there is nothing to count or to wait for."""
    load = plan.load
    return isinstance(load, Closed) and plan.requests is load.loops is None and not load.think
