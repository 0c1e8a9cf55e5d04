"""How does one event loop put a plan's load on a server?

Everything happens in callbacks of the loop: an answer is recorded and the next request sent in
the same turn. Requests of an open load that find no free connection wait here, and their latency
counts from the moment for which they were meant.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from wherry.loadtest.certificate import tls_context
from wherry.loadtest.connection import Connection, Encoded, Wire, make_connection
from wherry.loadtest.plan import Closed, Plan
from wherry.loadtest.record import OK, Recorder
from wherry.loadtest.schedule import joins, moments, thinks
from wherry.loadtest.timer import PreciseTimer

#: Seconds after which a run ends if nothing but failing to connect has happened.
GIVE_UP = 5.0
#: Seconds between a failed connection and the next try: at first, and at most.
PAUSE, LONGEST_PAUSE = 0.05, 1.0
#: Connections being made at the same moment: a server's backlog is finite.
CONNECTING_AT_ONCE = 64


class Engine:
    """One run. Make it in the loop that runs it; `recorder` can be read at any moment.

    `offset` is where in the cycle of requests it begins: several processes send different ones.
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
        self.plan = plan
        self.recorder = Recorder()
        #: Why it ended before its time; empty if it did not.
        self.stopped_because = ""
        #: A message for each kind of error.
        self.samples: dict[str, str] = {}
        self.in_flight = 0
        self._wire = wire
        self._requests = itertools.cycle([*requests[offset:], *requests[:offset]])
        self._phase = phase
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._connections: set[Connection] = set()
        self._idle: list[Connection] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._farewells: set[asyncio.Future[Any]] = set()
        self._handles: set[asyncio.TimerHandle] = set()
        self._gate = asyncio.Semaphore(CONNECTING_AT_ONCE)
        self._tls = tls_context(wire.ssl_ca, insecure=wire.insecure) if wire.tls else None
        self._begun_at = 0.0
        self._to_begin = plan.requests if plan.requests is not None else float("inf")
        self._stopping = False
        self._failing_since: float | None = None
        self._backlog: deque[float] = deque()
        self._exhausted = False
        load = plan.load
        self._closed = load if isinstance(load, Closed) else None
        self._thinks = (
            thinks(load, seed=plan.seed) if isinstance(load, Closed) and load.think else None
        )
        #: Callers send again at once, until time is up: nothing to count, nothing to wait for.
        self._eager = (
            isinstance(load, Closed)
            and plan.requests is load.loops is None
            and self._thinks is None
        )
        self._loops: list[float] = []
        self._pauses: dict[int, float] = {}

    def __repr__(self) -> str:
        return f"<Engine: {len(self.recorder)} answered, {self.in_flight} in flight>"

    async def prepare(self) -> None:
        """Connect, so that the first requests of callers who all begin at once need not."""
        if self._closed is None or self._closed.ramp:
            return

        async def one(caller: int) -> None:
            # Whoever fails here fails again, and is counted, when the run has begun.
            with contextlib.suppress(OSError, TimeoutError):
                self._idle.append(await self._connect(caller))

        await asyncio.gather(*(one(n) for n in range(self._closed.callers)))

    async def run(self, begin_at: float | None = None) -> Recorder:
        """Put the load on the server, from `begin_at` (perf_counter) on, until it is over."""
        self._begun_at = perf_counter() if begin_at is None else begin_at
        timer = PreciseTimer(self._loop, self._due)
        try:
            if self.plan.duration is not None:
                self._later(self._begun_at + self.plan.duration - perf_counter(), self._time_is_up)
            if self._closed is not None:
                self._begin_callers(self._closed)
            else:
                self._timer = timer
                self._moments = moments(
                    self.plan.load,  # type: ignore[arg-type]
                    seed=self.plan.seed,
                    phase=self._phase,
                )
                self._next_moment = self._moment()
                self._due()
            self._sweep()
            await self._done
        finally:
            timer.close()
            self._close()
            await asyncio.gather(*self._tasks, *self._farewells, return_exceptions=True)
            await asyncio.sleep(0)  # the loop tells closed connections so
        return self.recorder

    def stop(self, because: str) -> None:
        """End now. What is in flight is neither answered nor failed: it is not recorded."""
        self.stopped_because = self.stopped_because or because
        if not self._done.done():
            self._done.set_result(None)

    # Closed: callers

    def _begin_callers(self, load: Closed) -> None:
        per_caller = float("inf") if load.loops is None else load.loops
        self._loops = [per_caller] * load.callers
        connected = {connection.caller: connection for connection in self._idle}
        self._idle.clear()
        for caller, joins_at in enumerate(joins(load)):
            wait = self._begun_at + joins_at - perf_counter()
            connection = connected.get(caller)
            if wait <= 0:
                self._next_of(caller, connection)
            else:
                self._later(wait, self._next_of, caller, connection)

    def _next_of(self, caller: int, connection: Connection | None) -> None:
        """The caller sends its next request, if there is one."""
        if self._stopping or self._loops[caller] <= 0 or self._to_begin <= 0:
            if connection is not None:
                self._idle.append(connection)
            self._end_if_over()
            return
        self._loops[caller] -= 1
        self._to_begin -= 1
        self._begin(caller, connection)

    # Open: moments

    def _due(self) -> None:
        """Send what is due, and wake up for the next."""
        now = perf_counter() - self._begun_at
        while self._next_moment is not None and self._next_moment <= now:
            if self._stopping or self._to_begin <= 0:
                self._next_moment = None
                break
            self._to_begin -= 1
            self._backlog.append(self._begun_at + self._next_moment)
            self._next_moment = self._moment()
        self._send_backlog()
        if self._next_moment is None or self._to_begin <= 0 or self._stopping:
            self._next_moment = None
            self._end_if_over()
        else:
            self._timer.set(self._begun_at + self._next_moment)

    def _moment(self) -> float | None:
        """The next moment, if it lies before the end."""
        moment = next(self._moments, None)
        if moment is None:
            self._exhausted = True
            return None
        ends = self.plan.duration
        return moment if ends is None or moment < ends else None

    def _send_backlog(self) -> None:
        while self._backlog:
            connection = self._idle.pop() if self._idle else None
            if connection is None and self.in_flight >= self.plan.connections:
                return
            self._begin(0, connection, self._backlog.popleft())

    # Either

    def _begin(
        self, caller: int, connection: Connection | None, intended: float | None = None
    ) -> None:
        """Send the next request; a caller's is meant to start now."""
        request = next(self._requests)
        self.in_flight += 1
        now = perf_counter()
        if intended is None:
            intended = now
        if connection is not None and connection.usable:
            connection.send(request, intended, now)
        else:
            if connection is not None:
                connection.abandon()
                self._connections.discard(connection)
            task = self._loop.create_task(self._connect_and_send(caller, request, intended))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect_and_send(self, caller: int, request: Encoded, intended: float) -> None:
        started = perf_counter()
        try:
            connection = await self._connect(caller)
        except (OSError, TimeoutError) as error:
            self._failed_to_connect(caller, request, intended, started, error)
            return
        self._pauses.pop(caller, None)
        if connection.usable:
            connection.send(request, intended, started)
        else:
            connection.request, connection.intended, connection.sent = request, intended, started
            self.answered(connection, "connection closed before the answer", perf_counter())

    async def _connect(self, caller: int) -> Connection:
        wire = self._wire

        def made() -> Connection:
            return make_connection(wire, self, caller)

        connection: Connection
        async with self._gate, asyncio.timeout(self.plan.timeout):
            if wire.reads.startswith("grpc"):
                from wherry.loadtest import over_grpc  # only who speaks gRPC pays for it

                connection = await over_grpc.connect(wire, self, caller)
            elif wire.uds is not None:
                _, connection = await self._loop.create_unix_connection(
                    made, wire.uds, ssl=self._tls, server_hostname=wire.host if wire.tls else None
                )
            else:
                transport, connection = await self._loop.create_connection(
                    made, wire.host, wire.port, ssl=self._tls
                )
                connected = transport.get_extra_info("socket")
                if connected is not None:
                    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.add(connection)
        self._failing_since = None
        return connection

    def _failed_to_connect(
        self, caller: int, request: Encoded, intended: float, started: float, error: Exception
    ) -> None:
        now = perf_counter()
        if self._failing_since is None:
            self._failing_since = started
        outcome = f"cannot connect: {_reason(error)}"
        self.samples.setdefault(outcome, str(error))
        self.recorder.add(intended, started, now, now, outcome, request.rows)
        self.in_flight -= 1
        if now - self._failing_since > GIVE_UP:
            return self.stop(f"no connection for {GIVE_UP:g} s ({_reason(error)})")
        pause = self._pauses.get(caller, PAUSE)
        self._pauses[caller] = min(2 * pause, LONGEST_PAUSE)
        if self._closed is not None:
            self._later(pause, self._next_of, caller, None)
        else:
            self._end_if_over()

    def answered(self, connection: Connection, outcome: str, now: float) -> None:
        request, reader = connection.request, connection.reader
        intended, sent = connection.intended, connection.sent
        assert request is not None
        connection.request = connection.reader = None
        # The next request goes out first: the server works on it while we write this one down.
        if self._eager and not self._stopping and connection.usable:
            connection.send(next(self._requests), now, now)
        else:
            self.in_flight -= 1
            if not connection.usable:
                self._connections.discard(connection)
            self._next_on(connection)
        if reader is None:
            self.recorder.add(intended, sent, now, now, outcome, request.rows)
        else:
            first = now if reader.first is None else reader.first
            self.recorder.add(
                intended, sent, first, now, outcome, request.rows, reader.tokens_in,
                reader.tokens_out, reader.gaps,
            )  # fmt: skip
        if outcome != OK:
            self.samples.setdefault(outcome, connection.message)

    def _next_on(self, connection: Connection) -> None:
        """The connection has its answer; what it does now."""
        if self._closed is None:
            if connection.usable:
                self._idle.append(connection)
            self._send_backlog()
            self._end_if_over()
        elif self._thinks is None:
            self._next_of(connection.caller, connection)
        else:
            self._later(next(self._thinks), self._next_of, connection.caller, connection)

    def closed(self, connection: Connection) -> None:
        """A connection that had nothing to do is gone; whoever needs one makes a new one."""
        self._connections.discard(connection)
        if self._closed is None and connection in self._idle:
            self._idle.remove(connection)

    def keep(self, farewell: asyncio.Future[Any]) -> None:
        """A connection takes its time to close: the run waits for it at its end."""
        self._farewells.add(farewell)
        farewell.add_done_callback(self._farewells.discard)

    # Ends

    def _time_is_up(self) -> None:
        self._stopping = True
        if self._closed is None:
            self._due()
        self._end_if_over()

    def _end_if_over(self) -> None:
        over = self._stopping or self._to_begin <= 0
        if self._closed is not None:
            over = over or not any(self._loops)
        else:
            over = (over or self._exhausted) and not self._backlog
        if over and not self.in_flight and not self._done.done():
            self._done.set_result(None)

    def _sweep(self) -> None:
        """Fail what has had its time."""
        now = perf_counter()
        late = now - self.plan.timeout
        text = f"no answer within {self.plan.timeout:g} s"
        for connection in [c for c in self._connections if c.request and c.intended < late]:
            # The time of a caller's request begins with it, that of an open load's as it was meant.
            connection.fail("timeout", text)
        while self._backlog and self._backlog[0] < late:
            intended = self._backlog.popleft()
            self.recorder.add(intended, now, now, now, "timeout", next(self._requests).rows)
            self.samples.setdefault("timeout", text)
        if not self._done.done():
            self._later(min(0.25, self.plan.timeout / 4), self._sweep)
            self._end_if_over()

    def _later(self, wait: float, call: object, *arguments: object) -> None:
        def happens() -> None:
            self._handles.discard(handle)
            call(*arguments)  # type: ignore[operator]

        handle = self._loop.call_later(max(0.0, wait), happens)
        self._handles.add(handle)

    def _close(self) -> None:
        for handle in self._handles:
            handle.cancel()
        for connection in [*self._connections, *self._idle]:
            connection.abandon()
        for task in self._tasks:
            task.cancel()


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason}"
    if isinstance(error, socket.gaierror):
        return f"unknown host: {error.strerror}"
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)
