"""What does the kernel know of a socket that the event loop does not tell, and how is a listening
socket closed so that no connection is lost that the kernel has already accepted?
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from ssl import SSLContext
from typing import Final

#: Seconds for handshakes that had begun to end, once no new one may begin.
HANDSHAKES: Final = 0.05

_SO_ATTACH_FILTER: Final = 26
_INSTRUCTION: Final = struct.Struct("=HBBI")
#: Drop what has the SYN flag (in byte 13 of the TCP header), take everything else.
_NO_SYN: Final = (
    (0x30, 0, 0, 13),  # load the byte
    (0x45, 0, 1, 0x02),  # is the flag set?
    (0x06, 0, 0, 0),  # take nothing
    (0x06, 0, 0, 2**32 - 1),  # take all
)


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Whether bytes of the peer have arrived that were not read yet. False where it is unknown."""
    return bool(_count(transport, "FIONREAD"))


def unacknowledged(transport: asyncio.BaseTransport) -> int | None:
    """Bytes that were written and the peer's kernel has not got; the stream's end is one, too.
    None where it is unknown."""
    return _count(transport, "TIOCOUTQ")


def _count(transport: asyncio.BaseTransport, name: str) -> int | None:
    """One of the kernel's counts of bytes; None if it does not tell."""
    sock = transport.get_extra_info("socket")
    try:
        import fcntl
        import termios

        answer = fcntl.ioctl(sock.fileno(), getattr(termios, name), bytes(4))
        return int.from_bytes(answer, sys.byteorder)
    except (ImportError, AttributeError, OSError, ValueError):
        return None


class Backlog:
    """The listening sockets of a server, held so that closing the server loses no connection.

    A connection that the kernel has accepted, and the loop has not, would be reset with the
    listening socket, and its request with it.
    """

    def __init__(
        self,
        server: asyncio.Server,
        protocol: Callable[[], asyncio.BaseProtocol],
        *,
        ssl: SSLContext | None,
        ssl_handshake_timeout: float | None,
    ) -> None:
        self._server = server
        self._protocol = protocol
        self._ssl = ssl
        self._ssl_handshake_timeout = ssl_handshake_timeout
        self._sockets = [socket.socket(fileno=os.dup(s.fileno())) for s in server.sockets]

    async def close(self, *, handshakes: float = HANDSHAKES) -> None:
        """Listen no more, and serve every connection that was accepted until now.

        For `handshakes` seconds no new connection can begin, but those that have begun are let in.
        """
        try:
            if handshakes:
                for listening in self._sockets:
                    _let_no_more_in(listening)
                await asyncio.sleep(handshakes)
        finally:
            self._server.close()
            arrived = [connection for s in self._sockets for connection in _accept_all(s)]
            for listening in self._sockets:
                listening.close()
            await self._serve(arrived)

    async def _serve(self, arrived: list[socket.socket]) -> None:
        loop = asyncio.get_running_loop()
        served = [
            loop.connect_accepted_socket(
                self._protocol,
                connection,
                ssl=self._ssl,
                ssl_handshake_timeout=self._ssl_handshake_timeout,
            )
            for connection in arrived
        ]
        await asyncio.gather(*served, return_exceptions=True)


def _let_no_more_in(listening: socket.socket) -> None:
    """Have the kernel drop the first packet of new connections, where it can do that: their clients
    try again, and find the port closed, or a successor."""
    if sys.platform != "linux" or listening.family == socket.AF_UNIX:
        return
    program = ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(*step) for step in _NO_SYN))
    with suppress(OSError):
        listening.setsockopt(
            socket.SOL_SOCKET,
            _SO_ATTACH_FILTER,
            struct.pack("HP", len(_NO_SYN), ctypes.addressof(program)),
        )


def _accept_all(listening: socket.socket) -> list[socket.socket]:
    listening.setblocking(False)
    accepted = []
    with suppress(OSError):
        while True:
            accepted.append(listening.accept()[0])
    for connection in accepted:
        connection.setblocking(False)
    return accepted
