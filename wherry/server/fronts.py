"""How are the fronts of one server started, watched, replaced and drained?

The owner binds one socket for each front and protocol, all on the same port (SO_REUSEPORT), and
keeps them: what the kernel has accepted for a front that dies waits for the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from wherry.frontends.access.origins import Binding, binding_of
from wherry.frontends.connections.sockets import address_text
from wherry.frontends.rows.connection import FrontConnection
from wherry.frontends.rows.owner import RowsOwner
from wherry.remote.messages import FromFront
from wherry.runtime.threads import ThreadPool, in_thread
from wherry.server.options import Life, Listen, Options
from wherry.workers.message_socket import MessageSocket

log = logging.getLogger("wherry")

BACKLOG: Final = 2048
#: Seconds of life after which the end of a front is answered at once.
LIVED: Final = 1.0
#: Most seconds between two starts of one front.
LONGEST_PAUSE: Final = 5.0
#: Seconds that fronts have to listen, before the server is said not to come up.
START: Final = 30.0


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
    ends: list[asyncio.Task[None]] = field(default_factory=list)


class Fronts:
    """The front processes of one server. Everything happens in its event loop."""

    def __init__(self, options: Options, owner: RowsOwner) -> None:
        self._options = options
        self._owner = owner
        owner.on_told = self._one_is_told
        owner.on_left = self._left
        #: Set when a front has been told of the models.
        self._told = asyncio.Event()
        self._fronts: list[Front] = []
        self._draining = False
        #: Large messages are encoded and decoded there.
        self._aside = ThreadPool("wherry-rows", 2).run
        self._replacing: set[asyncio.Task[None]] = set()
        self.url = ""
        self.grpc_address = ""

    # As the listeners

    async def start(self) -> None:
        """Take the addresses and start the processes. OSError if an address is taken."""
        listen, count = self._options.listen, self._options.listen.fronts
        http = await bound(listen.host, listen.port, count, reuse_port=listen.reuse_port)
        grpc: list[socket.socket] = []
        try:
            if listen.grpc_port is not None:
                grpc = await bound(
                    listen.host, listen.grpc_port, count, reuse_port=listen.reuse_port
                )
        except BaseException:
            for sock in http:
                sock.close()
            raise
        scheme = "https" if self._options.tls.ssl_certfile else "http"
        self.url = f"{scheme}://{address_text(http[0].getsockname())}"
        if grpc:
            self.grpc_address = address_text(grpc[0].getsockname()) or ""
        self._fronts = [
            Front(number, sock, grpc[number] if grpc else None) for number, sock in enumerate(http)
        ]
        for front in self._fronts:
            self._spawn(front)

    @property
    def binding(self) -> Binding:
        """Which clients can reach it."""
        return binding_of([front.http.getsockname() for front in self._fronts])

    async def serve(self) -> None:
        """Wait until every front answers."""
        async with asyncio.timeout(START):
            while not all(one.connection and one.connection.is_told for one in self._fronts):
                self._told.clear()
                await self._told.wait()

    async def drain(self) -> None:
        """Have the fronts accept no more, answer what they have, and end."""
        self._draining = True
        for front in self._fronts:
            _signal(front, signal.SIGTERM)
        await asyncio.gather(*(_ended(front) for front in self._fronts))

    async def end(self) -> None:
        """Kill what has not ended."""
        self._draining = True
        for front in self._fronts:
            _signal(front, signal.SIGKILL)
        await asyncio.gather(*(_ended(front) for front in self._fronts))
        for front in self._fronts:
            front.http.close()
            if front.grpc is not None:
                front.grpc.close()
            if front.connection is not None:
                front.connection.close()

    # Processes

    def _spawn(self, front: Front) -> None:
        ours, theirs = socket.socketpair()
        files = [theirs.fileno(), front.http.fileno()]
        if front.grpc is not None:
            files.append(front.grpc.fileno())
        options = front_options(self._options, front)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with theirs:
            front.process = subprocess.Popen(
                [sys.executable, "-m", "wherry.server.front", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=files,
                env=environment,
            )
        front.started_at = time.monotonic()
        begin = msgspec.json.encode(options)
        ours.sendall(len(begin).to_bytes(4, "little") + begin)
        ours.setblocking(False)
        messages = MessageSocket(ours, ours, FromFront, copies=False)
        front.connection = self._owner.accept(messages, self._aside)

    def _one_is_told(self, _: FrontConnection) -> None:
        self._told.set()

    def _left(self, connection: FrontConnection, error: Exception) -> None:
        front = next((one for one in self._fronts if one.connection is connection), None)
        if front is None or self._draining:
            return
        front.connection = None
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
            self._spawn(front)


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
            max_connections=share(capacity.max_connections),
            max_unsent_bytes=share(capacity.max_unsent_bytes),
            max_received_bytes=share(capacity.max_received_bytes),
        ),
        life=Life(drain_timeout=options.life.drain_timeout),
    )


async def bound(host: str, port: int, count: int, *, reuse_port: bool) -> list[socket.socket]:
    """So many sockets that listen on one port of the first address of `host`. OSError if it is
    taken; with `reuse_port` other processes of this user may have it, too."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    family, _, _, _, address = found[0]
    sockets: list[socket.socket] = []
    try:
        if not reuse_port:
            # Without the option: fails if any other process has the port.
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen(1)
        for _ in range(count):
            sock = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
            address = sock.getsockname()
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _signal(front: Front, number: int) -> None:
    if front.process is not None:
        with suppress(ProcessLookupError):
            front.process.send_signal(number)


async def _ended(front: Front) -> None:
    """Wait for the process to end."""
    if front.process is not None:
        await in_thread(front.process.wait, "wherry-front")
