"""How does a listener accept connections, and stop without losing one?"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from ssl import SSLContext
from typing import Any, Final

from wherry.server.connections.open_connections import OpenConnections
from wherry.server.connections.sockets import unacknowledged_by

# How new connections are led to another process that listens on the same port: the kernel spreads
# the connections of a port among the sockets that are bound to it with SO_REUSEPORT. A program
# attached to these sockets decides instead; it can only name a socket by its place among them,
# which the kernel does not expose. A connection to the port, made here, shows whether a place
# belongs to this process. Handshakes that have begun do not move: they end where they have begun.

#: Seconds for a connection to our own port: on this machine, but the loop may be busy.
PROBE: Final = 1.0

_SO_ATTACH_FILTER: Final = 26
_SO_ATTACH_REUSEPORT_CBPF: Final = 51
_SO_DETACH_REUSEPORT_BPF: Final = 68
_INSTRUCTION: Final = struct.Struct("=HBBI")
#: Drop what has the SYN flag (in byte 13 of the TCP header), take everything else.
_NO_SYN: Final = (
    (0x30, 0, 0, 13),  # load the byte
    (0x45, 0, 1, 0x02),  # is the flag set?
    (0x06, 0, 0, 0),  # take nothing
    (0x06, 0, 0, 2**32 - 1),  # take all
)


def let_no_more_in(listening: socket.socket) -> None:
    """Have the kernel drop the first packet of new connections, where it can do that: their clients
    try again a second later, and find the port closed, or a successor."""
    if _has_programs(listening):
        with suppress(OSError):
            _attach(listening, _SO_ATTACH_FILTER, _NO_SYN)


async def lead_elsewhere(listening: socket.socket) -> tuple[bool, list[socket.socket]]:
    """Have the kernel give new connections to another process on the same port until `lead_back`.

    False if there is none, or it cannot be found out. Also what had to be accepted meanwhile. No
    other may accept from this socket.
    """
    accepted: list[socket.socket] = []
    if not _has_programs(listening):
        return False, accepted
    for place in (0, 1):  # one of the two belongs to another process
        try:
            _attach(listening, _SO_ATTACH_REUSEPORT_CBPF, ((0x06, 0, 0, place),))
            name = await _connect(listening)
        except (OSError, TimeoutError):
            break
        ours = False
        for connection in accept_all(listening):
            if _peer_of(connection) == name:
                connection.close()
                ours = True
            else:
                accepted.append(connection)
        if not ours:
            return True, accepted
    lead_back(listening)
    return False, accepted


def lead_back(listening: socket.socket) -> None:
    """Have the kernel spread new connections as before."""
    with suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, _SO_DETACH_REUSEPORT_BPF, 0)


def accept_all(listening: socket.socket) -> list[socket.socket]:
    listening.setblocking(False)
    accepted = []
    with suppress(OSError):
        while True:
            accepted.append(listening.accept()[0])
    for connection in accepted:
        connection.setblocking(False)
    return accepted


async def _connect(listening: socket.socket) -> object:
    """Connect to the port and leave. The connection's name, once the other side has it whole."""
    with socket.socket(listening.family, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        async with asyncio.timeout(PROBE):
            await asyncio.get_running_loop().sock_connect(probe, listening.getsockname())
            name = probe.getsockname()
            probe.shutdown(socket.SHUT_WR)
            # Its end is acknowledged by a connection that can be accepted, not by a handshake.
            while unacknowledged_by(probe) != 0:  # noqa: ASYNC110 - the kernel has no event for it
                await asyncio.sleep(0.001)
        return name


def _peer_of(connection: socket.socket) -> object:
    with suppress(OSError):
        return connection.getpeername()
    return None


def _has_programs(listening: socket.socket) -> bool:
    return sys.platform == "linux" and listening.family != socket.AF_UNIX


def _attach(
    listening: socket.socket, option: int, steps: Sequence[tuple[int, int, int, int]]
) -> None:
    program = ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(*step) for step in steps))
    described = struct.pack("HP", len(steps), ctypes.addressof(program))
    listening.setsockopt(socket.SOL_SOCKET, option, described)


#: Seconds for handshakes that had begun to end, once no new one may begin.
HANDSHAKES: Final = 0.05

BACKLOG: Final = 2048


class Listening:
    """The sockets of one listener, and the connections accepted from them.

    Belongs to the event loop that it is bound in; works on asyncio's own and on uvloop.
    """

    def __init__(
        self, connections: OpenConnections[Any], protocol: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._connections = connections
        self._protocol = protocol
        self._server: asyncio.Server | None = None
        self._tls: dict[str, Any] = {}
        self._passed = False
        self._reuse_port = False
        self._serves = False
        #: Copies of the server's, held until what the kernel has accepted is served.
        self._sockets: list[socket.socket] = []
        #: What each socket is bound to; empty when nothing listens.
        self.names: list[Any] = []

    async def bind(
        self,
        host: str | None,
        port: int,
        *,
        sock: socket.socket | None = None,
        passed: bool = False,
        ssl: SSLContext | None = None,
        reuse_port: bool = False,
    ) -> None:
        """Take the address. OSError if it is taken.

        `sock` is a bound socket, instead; `passed`: other processes may have it, too.
        With `reuse_port` other processes of this user may listen on the same port.
        """
        loop = asyncio.get_running_loop()
        self._passed = passed
        self._reuse_port = reuse_port and sock is None
        self._tls = {
            "ssl": ssl,
            "ssl_handshake_timeout": self._connections.limits.header_timeout if ssl else None,
        }
        options = self._tls | {"backlog": BACKLOG, "start_serving": False}
        if sock is None:
            server = await loop.create_server(
                self._protocol, host, port, reuse_port=reuse_port or None, **options
            )
        elif sock.family == socket.AF_UNIX:
            server = await loop.create_unix_server(self._protocol, sock=sock, **options)
        else:
            server = await loop.create_server(self._protocol, sock=sock, **options)
        self.names = [s.getsockname() for s in server.sockets]
        self._server = server
        self._sockets = [socket.socket(fileno=os.dup(s.fileno())) for s in server.sockets]

    async def serve(self) -> None:
        """Accept connections from now on. OSError if the address has been taken meanwhile."""
        if self._server is not None:
            self._serves = True
            await self._server.start_serving()

    async def drain(
        self,
        drain_timeout: float | None,
        last_call: float = 0.0,
        *,
        accept_until: float = 0.0,
        no_more_come: Callable[[], None] | None = None,
    ) -> None:
        """Finish the requests that have arrived and close; then cut off what is left.

        For `last_call` seconds connections are still accepted, and an idle one may still bring a
        request, so that one already sent is not lost; for `accept_until` of them even if none is
        open. `no_more_come` is called when that time is over. Returns when every connection is
        closed: after `drain_timeout` seconds at the latest, or soon after `end`.
        """
        if self._server is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_timeout):
                busy = bool(self._connections.open)
                # A successor on the same port goes on to get connections, busy or not.
                begun = self._reuse_port or (busy and not self._passed)
                self._connections.drain(last_call)
                if accept_until:  # sleeping for 0 s would be a turn of the loop
                    await asyncio.sleep(accept_until)
                    last_call -= accept_until
                with suppress(TimeoutError):
                    async with asyncio.timeout(last_call):
                        await self._connections.all_closed()
                await self._close(HANDSHAKES if begun else 0.0)
                if no_more_come is not None:
                    no_more_come()
                await self._connections.all_closed()
        await self._close(0.0)
        await self.end()

    async def end(self) -> None:
        await self._connections.end()

    async def _close(self, handshakes: float) -> None:
        """Listen no more, and serve every connection that was accepted until now: it would be
        reset with the listening socket, and its request with it.

        For `handshakes` seconds no new connection can begin, but those that have begun are let in.
        """
        server, self._server = self._server, None
        if server is None:
            return
        led_elsewhere: list[socket.socket] = []
        try:
            if handshakes and self._serves:
                if self._reuse_port:
                    server.close()  # from here on `lead_elsewhere` accepts
                for listening in self._sockets:
                    if self._reuse_port:
                        led, arrived = await lead_elsewhere(listening)
                        await self._serve(arrived)
                        if led:
                            led_elsewhere.append(listening)
                            continue
                    let_no_more_in(listening)
                await asyncio.sleep(handshakes)
        finally:
            server.close()
            # Connections to a socket that only another process serves are for that process.
            listening_at = self._sockets if self._serves else ()
            arrived = [connection for s in listening_at for connection in accept_all(s)]
            for listening in self._sockets:
                if listening in led_elsewhere:
                    let_no_more_in(listening)  # in the moment until it is closed
                    lead_back(listening)
                listening.close()
            self.names = []
            await self._serve(arrived)

    async def _serve(self, arrived: list[socket.socket]) -> None:
        loop = asyncio.get_running_loop()
        served = [
            loop.connect_accepted_socket(self._protocol, connection, **self._tls)
            for connection in arrived
        ]
        await asyncio.gather(*served, return_exceptions=True)
