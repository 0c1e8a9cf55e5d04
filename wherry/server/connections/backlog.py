"""How is a listening socket closed so that no connection is lost that the kernel has accepted?"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from ssl import SSLContext
from typing import Final

from wherry.server.connections.reuse_port import (
    accept_all,
    lead_back,
    lead_elsewhere,
    let_no_more_in,
)

#: Seconds for handshakes that had begun to end, once no new one may begin.
HANDSHAKES: Final = 0.05


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
        reuse_port: bool = False,
    ) -> None:
        """With `reuse_port` another process may listen on the same address."""
        self._server = server
        self._protocol = protocol
        self._ssl = ssl
        self._ssl_handshake_timeout = ssl_handshake_timeout
        self._reuse_port = reuse_port
        self._serves = False
        #: Sockets of which new connections go to a successor already.
        self._led_elsewhere: list[socket.socket] = []
        self._sockets = [socket.socket(fileno=os.dup(s.fileno())) for s in server.sockets]

    async def open(self) -> None:
        """Listen."""
        self._serves = True
        await self._server.start_serving()

    async def close(self, *, handshakes: float = HANDSHAKES) -> None:
        """Listen no more, and serve every connection that was accepted until now.

        For `handshakes` seconds no new connection can begin, but those that have begun are let in.
        """
        try:
            if handshakes and self._serves:
                await self._let_handshakes_end(handshakes)
        finally:
            self._server.close()
            # Connections to a socket that only another process serves are for that process.
            listening_at = self._sockets if self._serves else ()
            arrived = [connection for s in listening_at for connection in accept_all(s)]
            for listening in self._sockets:
                if listening in self._led_elsewhere:
                    let_no_more_in(listening)  # in the moment until it is closed
                    lead_back(listening)
                listening.close()
            await self._serve(arrived)

    async def _let_handshakes_end(self, seconds: float) -> None:
        if self._reuse_port:
            self._server.close()  # from here on `lead_elsewhere` accepts
        for listening in self._sockets:
            if self._reuse_port:
                led, arrived = await lead_elsewhere(listening)
                await self._serve(arrived)
                if led:
                    self._led_elsewhere.append(listening)
                    continue
            let_no_more_in(listening)
        await asyncio.sleep(seconds)

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
