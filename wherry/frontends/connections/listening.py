"""Where do connections come in, and how does that end without losing one?"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from ssl import SSLContext
from typing import Any, Final

from wherry.frontends.connections.backlog import HANDSHAKES, Backlog
from wherry.frontends.connections.open_connections import OpenConnections

BACKLOG: Final = 2048


def _nothing() -> None: ...


class Listening:
    """One listener's sockets, and the connections that came in through them.

    Belongs to the event loop that it is bound in; works on asyncio's own and on uvloop.
    """

    def __init__(
        self, connections: OpenConnections[Any], protocol: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._connections = connections
        self._protocol = protocol
        self._backlog: Backlog | None = None
        self._passed = False
        self._reuse_port = False
        #: What each socket is bound to; empty when nothing listens.
        self.names: list[Any] = []

    def __repr__(self) -> str:
        return f"<Listening at {self.names}: {len(self._connections.open)} connections>"

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

        `sock` is a bound socket, instead; `passed` says that other processes may have it, too.
        With `reuse_port` other processes of this user may listen on the same port.
        """
        loop = asyncio.get_running_loop()
        self._passed = passed
        self._reuse_port = reuse_port and sock is None
        handshake = self._connections.limits.header_timeout if ssl else None
        if sock is None:
            server = await loop.create_server(
                self._protocol,
                host,
                port,
                ssl=ssl,
                ssl_handshake_timeout=handshake,
                backlog=BACKLOG,
                reuse_port=reuse_port or None,
                start_serving=False,
            )
        else:
            unix = sock.family == socket.AF_UNIX
            server = await (loop.create_unix_server if unix else loop.create_server)(
                self._protocol,
                sock=sock,
                ssl=ssl,
                ssl_handshake_timeout=handshake,
                backlog=BACKLOG,
                start_serving=False,
            )
        self.names = [s.getsockname() for s in server.sockets]
        self._backlog = Backlog(
            server,
            self._protocol,
            ssl=ssl,
            ssl_handshake_timeout=handshake,
            reuse_port=self._reuse_port,
        )

    async def serve(self) -> None:
        """Accept connections from now on. OSError if the address has been taken meanwhile."""
        if self._backlog is not None:
            await self._backlog.open()

    async def drain(
        self,
        drain_timeout: float | None,
        last_call: float = 0.0,
        *,
        no_more_come: Callable[[], None] = _nothing,
    ) -> None:
        """Finish the requests that have arrived and close; then cut off what is left.

        For `last_call` seconds connections are still accepted, and an idle one may still bring a
        request: what is on its way to us at this moment is not lost. `no_more_come` is called when
        that time is over. Returns when every connection is closed: after `drain_timeout` seconds at
        the latest, or soon after `end`.
        """
        if self._backlog is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_timeout):
                busy = bool(self._connections.open)
                self._connections.drain(last_call)
                with suppress(TimeoutError):
                    async with asyncio.timeout(last_call):
                        await self._connections.all_closed()
                await self._close_backlog(self._handshakes(busy))
                no_more_come()
                await self._connections.all_closed()
        await self._close_backlog(0.0)
        await self.end()

    async def end(self) -> None:
        """Give up what is not answered by now: the time to drain is over."""
        await self._connections.end()

    def _handshakes(self, busy: bool) -> float:
        """Seconds for new connections to end their handshakes."""
        # Those of a port that a successor has are not over with us.
        wanted = self._reuse_port or (busy and not self._passed)
        return HANDSHAKES if wanted else 0.0

    async def _close_backlog(self, handshakes: float) -> None:
        backlog, self._backlog = self._backlog, None
        if backlog is not None:
            await backlog.close(handshakes=handshakes)
            self.names = []
