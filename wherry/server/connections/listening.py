"""How does a listener accept connections, and stop without losing one?"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from ssl import SSLContext
from typing import Any, Final

from wherry.server.connections.backlog import HANDSHAKES, Backlog
from wherry.server.connections.open_connections import OpenConnections

BACKLOG: Final = 2048


def _nothing() -> None: ...


class Listening:
    """The sockets of one listener, and the connections accepted from them.

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
        tls: dict[str, Any] = {
            "ssl": ssl,
            "ssl_handshake_timeout": self._connections.limits.header_timeout if ssl else None,
        }
        options = tls | {"backlog": BACKLOG, "start_serving": False}
        if sock is None:
            server = await loop.create_server(
                self._protocol, host, port, reuse_port=reuse_port or None, **options
            )
        elif sock.family == socket.AF_UNIX:
            server = await loop.create_unix_server(self._protocol, sock=sock, **options)
        else:
            server = await loop.create_server(self._protocol, sock=sock, **options)
        self.names = [s.getsockname() for s in server.sockets]
        self._backlog = Backlog(server, self._protocol, reuse_port=self._reuse_port, **tls)

    async def serve(self) -> None:
        """Accept connections from now on. OSError if the address has been taken meanwhile."""
        if self._backlog is not None:
            await self._backlog.open()

    async def drain(
        self,
        drain_timeout: float | None,
        last_call: float = 0.0,
        *,
        accept_until: float = 0.0,
        no_more_come: Callable[[], None] = _nothing,
    ) -> None:
        """Finish the requests that have arrived and close; then cut off what is left.

        For `last_call` seconds connections are still accepted, and an idle one may still bring a
        request, so that one already sent is not lost; for `accept_until` of them even if none is
        open. `no_more_come` is called when that time is over. Returns when every connection is
        closed: after `drain_timeout` seconds at the latest, or soon after `end`.
        """
        if self._backlog is None:
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
                await self._close_backlog(HANDSHAKES if begun else 0.0)
                no_more_come()
                await self._connections.all_closed()
        await self._close_backlog(0.0)
        await self.end()

    async def end(self) -> None:
        """Give up what is not answered by now: the time to drain is over."""
        await self._connections.end()

    async def _close_backlog(self, handshakes: float) -> None:
        backlog, self._backlog = self._backlog, None
        if backlog is not None:
            await backlog.close(handshakes=handshakes)
            self.names = []
