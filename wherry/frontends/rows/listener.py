"""How do fronts of other machines reach an owner?"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import Final

from wherry.frontends.access.origins import Binding, binding_of
from wherry.frontends.connections.sockets import address_text
from wherry.frontends.rows.connection import FrontConnection
from wherry.frontends.rows.owner import RowsOwner
from wherry.remote.handshake import HandshakeFailed, identity
from wherry.remote.messages import FromFront
from wherry.remote.tcp import Credentials, admit_front, message_socket, set_up
from wherry.values.errors import ConfigError
from wherry.workers.frames import Garbage

log = logging.getLogger("wherry")

BACKLOG: Final = 128
#: Connections that may be in the handshake at once.
MOST_UNPROVEN: Final = 64
#: Seconds between two lines of the log about refused clients.
LOG_INTERVAL: Final = 1.0
#: Seconds without accepting after it has failed, mostly for want of descriptors.
PAUSE: Final = 0.5


class RowsListener:
    """Accepts the links of fronts. Everything happens in the event loop of the owner."""

    def __init__(
        self,
        owner: RowsOwner,
        token: bytes,
        most_bytes: int,
        aside: Callable[[Callable[[], None]], None],
    ) -> None:
        """`most_bytes`: of a message, either way. Large ones are encoded and decoded `aside`."""
        self._owner = owner
        self._token = token
        self._most_bytes = most_bytes
        self._aside = aside
        #: host:port; empty before it listens.
        self.address = ""
        self._credentials: Credentials | None = None
        self._sockets: list[socket.socket] = []
        self._shaking: set[asyncio.Task[None]] = set()
        self._connections: set[FrontConnection] = set()
        self._all_left = asyncio.Event()
        self._logged_at = float("-inf")
        self._unlogged = 0

    async def start(self, host: str, port: int) -> None:
        """Take the address and accept. ConfigError if it is taken, or if others than this machine
        could come without a token."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, address in dict.fromkeys(found):
                self._bind(family, (address[0], port, *address[2:]))
                port = self._sockets[0].getsockname()[1]  # of 0: one for all
        except OSError as error:
            await self.end()
            why = error.strerror or error
            raise ConfigError(f"rows_port {port} of {host}: {why}; choose another") from None
        names = [sock.getsockname() for sock in self._sockets]
        if not self._token and binding_of(names) is Binding.NETWORK:
            await self.end()
            raise ConfigError(
                f"rows_host {host}: other machines could send rows without a token; set"
                " WHERRY_CLUSTER_TOKEN (or --cluster-token-file), the same for owners and fronts"
            )
        name = f"{socket.gethostname()}:{port}"
        version = self._owner.common.version
        self._owner.name = name
        self._credentials = Credentials(
            identity(version, name, most_bytes=self._most_bytes), self._token
        )
        for sock in self._sockets:
            sock.listen(BACKLOG)
            loop.add_reader(sock, self._accept, sock)
        self.address = address_text(names[0]) or ""
        log.info("listening", extra={"rows": self.address})

    async def drain(self) -> None:
        """Accept no more, tell the fronts to send nothing new, and wait until they have all their
        answers and have left."""
        self._close_sockets()
        for connection in self._connections:
            connection.say_goodbye()
        await asyncio.gather(*self._shaking, return_exceptions=True)
        while self._connections:
            self._all_left.clear()
            await self._all_left.wait()

    async def end(self) -> None:
        """Close every link."""
        self._close_sockets()
        for task in self._shaking:
            task.cancel()
        await asyncio.gather(*self._shaking, return_exceptions=True)
        for connection in list(self._connections):
            connection.close()

    def _bind(self, family: int, address: tuple[object, ...]) -> None:
        sock = socket.socket(family, socket.SOCK_STREAM)
        self._sockets.append(sock)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)

    def _close_sockets(self) -> None:
        loop = asyncio.get_running_loop()
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            loop.remove_reader(sock)
            sock.close()

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            sock, address = listening.accept()
        except BlockingIOError:
            return
        except OSError as error:
            self._refused("", error)
            loop.remove_reader(listening)
            loop.call_later(PAUSE, self._accept_again, listening)
            return
        peer = address_text(address) or ""
        if len(self._shaking) >= MOST_UNPROVEN:
            sock.close()
            self._refused(
                peer, HandshakeFailed("too many connections that have not proven a token")
            )
            return
        task = loop.create_task(self._shake(sock, peer))
        self._shaking.add(task)
        task.add_done_callback(self._shaking.discard)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def _shake(self, sock: socket.socket, peer: str) -> None:
        assert self._credentials is not None
        try:
            set_up(sock)
            front = await admit_front(sock, self._credentials)
        except (HandshakeFailed, Garbage, OSError, EOFError) as error:
            sock.close()
            self._refused(peer, error)
            return
        except BaseException:
            sock.close()
            raise
        messages = message_socket(
            sock, FromFront, receives=self._most_bytes, sends=front.most_bytes or self._most_bytes
        )
        connection = self._owner.accept(messages, self._aside)
        self._connections.add(connection)
        connection.is_remote = True
        connection.on_left = self._left
        log.info("front has connected", extra={"front": front.name, "peer": peer})
        if not self._sockets:  # it drains
            connection.say_goodbye()

    def _left(self, connection: FrontConnection, error: Exception) -> None:
        self._connections.discard(connection)
        why = str(error) or type(error).__name__
        log.info("front has left", extra={"front": connection.name, "why": why})
        if not self._connections:
            self._all_left.set()

    def _refused(self, peer: str, error: Exception) -> None:
        now = time.monotonic()
        if now - self._logged_at < LOG_INTERVAL:
            self._unlogged += 1
            return
        why = str(error) or type(error).__name__
        extra = {"peer": peer, "why": why, "others": self._unlogged}
        log.warning("a link was refused", extra=extra)
        self._logged_at, self._unlogged = now, 0
