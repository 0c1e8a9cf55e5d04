"""How are the fronts of one server started, watched, measured, replaced and drained?"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from wherry.core.api import (
    BUCKETS,
    FrontFigures,
    Histogram,
    LoadFailed,
    MessageSocket,
    ThreadPool,
    for_children,
    in_thread,
)
from wherry.server.access.origins import Binding
from wherry.server.connections.listening import HANDSHAKES
from wherry.server.fronts.connection import FrontConnection
from wherry.server.fronts.link_protocol import FromFront, FrontMeasured, Measure
from wherry.server.fronts.owner import RowsOwner
from wherry.server.fronts.sockets import FrontSockets
from wherry.server.options import Listen, Options

#: Seconds that a scrape waits for fronts that do not answer.
FRONT_REPORT_TIMEOUT: Final = 0.3


class FiguresOfFronts:
    """Requests the figures of fronts, and keeps the last ones. In the loop; what a scrape reads it
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
        """The fronts that have not answered a request for their figures for so long."""
        now = asyncio.get_running_loop().time()
        return [number for number, since in self._silent.items() if now - since >= seconds]

    def begun(self, number: int, connection: FrontConnection) -> None:
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
        """Query the fronts; call `done` when all have answered, or after FRONT_REPORT_TIMEOUT."""
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


log = logging.getLogger("wherry")

#: Seconds of life after which the end of a front is answered at once.
LIVED: Final = 1.0
#: Most seconds between two starts of one front.
LONGEST_PAUSE: Final = 5.0
#: Seconds that fronts have to listen, before the start of the server fails.
START: Final = 30.0
#: Seconds between two looks whether each front still answers.
LOOK_INTERVAL: Final = 10.0
#: Seconds of silence after which a front is killed, and so replaced: its share of the clients would
#: wait for ever. A loop that lives answers within a turn.
SILENCE: Final = 20.0


@dataclass(eq=False)
class Front:
    """One front process and what stays when it is replaced."""

    number: int
    http: socket.socket
    grpc: socket.socket | None
    process: subprocess.Popen[bytes] | None = None
    connection: FrontConnection | None = None
    started_at: float = 0.0
    pause: float = 0.0


class Fronts:
    """The front processes of one server. Everything happens in its event loop."""

    def __init__(self, options: Options, owner: RowsOwner) -> None:
        self._options = options
        self._owner = owner
        #: Answers operators; a change when every front knows it.
        self.application = owner.answer
        owner.on_models_served = self._front_updated
        owner.on_left = self._left
        #: Set when a front serves the models.
        self._updated = asyncio.Event()
        self._sockets = FrontSockets()
        self._fronts: list[Front] = []
        self._draining = False
        #: Large messages are encoded and decoded there.
        self._aside = ThreadPool("wherry-rows", 2).run
        self._replacing: set[asyncio.Task[None]] = set()
        self._next_look: asyncio.TimerHandle | None = None
        #: What they have counted, for the metrics.
        self.figures = FiguresOfFronts()
        self.url = ""
        self.grpc_address = ""

    # As the listeners

    async def start(self) -> None:
        """Take the addresses and start the processes. OSError if an address is taken."""
        listen, sockets = self._options.listen, self._sockets
        await sockets.bind(listen, listen.fronts)
        scheme = "https" if self._options.tls.ssl_certfile else "http"
        if listen.uds is not None:
            scheme += "+unix"
        self.url = f"{scheme}://{sockets.http_address}"
        self.grpc_address = sockets.grpc_address
        grpc: Sequence[socket.socket | None] = sockets.grpc or [None] * listen.fronts
        self._fronts = [
            Front(number, *pair) for number, pair in enumerate(zip(sockets.http, grpc, strict=True))
        ]
        for front in self._fronts:
            await self._spawn(front)

    @property
    def binding(self) -> Binding:
        return self._sockets.binding

    async def serve(self) -> None:
        """Wait until every front answers. LoadFailed if one does not in time."""
        try:
            async with asyncio.timeout(START):
                while missing := [one.number for one in self._fronts if not _answers(one)]:
                    self._updated.clear()
                    await self._updated.wait()
        except TimeoutError:  # an OSError, which would be taken for an address's
            which = ", ".join(map(str, missing))
            raise LoadFailed(f"fronts: {which} did not come up within {START:g} s") from None
        self._look_later()

    async def drain(self, last_call: float) -> bool:
        """Have the fronts answer what they have and end; for `last_call` seconds they still accept
        connections. False if some request was not answered."""
        self._draining = True
        if self._next_look is not None:
            self._next_look.cancel()
        self.figures.close()
        for front in self._fronts:
            _signal(front, signal.SIGTERM)
        await self._sockets.remove_name()
        ended = asyncio.gather(*(_ended(front) for front in self._fronts))
        # The fronts close the sockets when they have accepted what the kernel has; nothing may
        # come between this and the end of the last copy.
        await asyncio.sleep(max(0.0, last_call - HANDSHAKES))
        self._sockets.let_no_more_in()
        await ended
        return not any(_left_some(front) for front in self._fronts)

    def kill(self) -> None:
        self._draining = True
        for front in self._fronts:
            _signal(front, signal.SIGKILL)

    async def end(self) -> None:
        """Kill what has not ended."""
        self.kill()
        await asyncio.gather(*(_ended(front) for front in self._fronts))
        for front in self._fronts:
            if front.connection is not None:
                front.connection.close()
        await self._sockets.close()

    # Processes

    async def _spawn(self, front: Front) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                front.process = await in_thread(
                    lambda: self._start_process(front, ours, theirs), "wherry-front"
                )
        except BaseException:
            ours.close()
            raise
        front.started_at = time.monotonic()
        ours.setblocking(False)
        messages = MessageSocket(ours, ours, FromFront, copies=False)
        front.connection = self._owner.accept(messages, self._aside)
        self.figures.begun(front.number, front.connection)

    def _start_process(
        self, front: Front, ours: socket.socket, theirs: socket.socket
    ) -> subprocess.Popen[bytes]:
        """Start a process with its end of the link, and send its options. Blocks: a large process
        takes long to fork."""
        begin = msgspec.json.encode(front_options(self._options, front))
        ours.sendall(len(begin).to_bytes(4, "little") + begin)
        files = [theirs.fileno(), front.http.fileno()]
        if front.grpc is not None:
            files.append(front.grpc.fileno())
        return subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "wherry.server.front",
                *map(str, (theirs.fileno(), front.number)),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=files,
            process_group=0,  # what a terminal sends to all is for the owner
            env=for_children(),
        )

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._next_look = loop.call_later(LOOK_INTERVAL, self.figures.measure, self._look)

    def _look(self) -> None:
        """Kill the fronts that hang."""
        if self._draining:
            return
        for number in self.figures.silent_for(SILENCE):
            log.error("front hangs and is killed", extra={"front": number})
            _signal(self._fronts[number], signal.SIGKILL)
        self._look_later()

    def _front_updated(self, _: FrontConnection) -> None:
        self._updated.set()

    def _left(self, connection: FrontConnection, error: Exception) -> None:
        front = next((one for one in self._fronts if one.connection is connection), None)
        if front is None or self._draining:
            return
        front.connection = None
        self.figures.ended(front.number)
        task = asyncio.ensure_future(self._replace(front))
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _replace(self, front: Front) -> None:
        assert front.process is not None
        pid, lived = front.process.pid, time.monotonic() - front.started_at
        await _ended(front)
        front.pause = 0.0 if lived > LIVED else min(LONGEST_PAUSE, 2 * front.pause + 0.1)
        log.warning(
            "front has ended and is replaced",
            extra={"front": front.number, "pid": pid, "exit": front.process.returncode,
                   "seconds": round(front.pause, 1)},
        )  # fmt: skip
        await asyncio.sleep(front.pause)
        if not self._draining:
            await self._spawn(front)


def front_options(options: Options, front: Front) -> Options:
    """The options of one front, which serves its share of the clients."""
    count, capacity = options.listen.fronts, options.capacity

    def share(most: int | None) -> int | None:
        return None if most is None else max(1, -(-most // count))

    return replace(
        options,
        listen=Listen(
            host=options.listen.host,
            fd=front.http.fileno(),
            grpc_fd=None if front.grpc is None else front.grpc.fileno(),
            management_port=options.listen.management_port,
        ),
        capacity=replace(
            capacity,
            max_in_flight=None,  # the owner counts those of all fronts
            max_kept_responses=0,  # another front would get what refers to them
            max_connections=share(capacity.max_connections),
            max_unsent_bytes=share(capacity.max_unsent_bytes),
            max_received_bytes=share(capacity.max_received_bytes),
        ),
        life=replace(options.life, ready_fd=None, stop_fd=None),
    )


def _answers(front: Front) -> bool:
    return front.connection is not None and front.connection.has_models


def _signal(front: Front, number: int) -> None:
    if front.process is not None:
        with suppress(ProcessLookupError):
            front.process.send_signal(number)


def _left_some(front: Front) -> bool:
    """Whether a front that has ended did not answer everything."""
    process, connection = front.process, front.connection
    served = connection is not None and connection.has_models
    return served and process is not None and process.returncode != 0


async def _ended(front: Front) -> None:
    if front.process is not None:
        await in_thread(front.process.wait, "wherry-front")
