"""Where do gRPC calls come in, and how does that end?"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl as tls
from contextlib import suppress
from typing import Final

from wherry.frontends.access.origins import Binding, binding_of
from wherry.frontends.connections.backlog import HANDSHAKES, Backlog
from wherry.frontends.connections.held import Holdings
from wherry.frontends.connections.limits import Limits
from wherry.frontends.connections.open_connection import OpenConnection
from wherry.frontends.connections.sockets import address_text
from wherry.frontends.grpc.call import Call
from wherry.frontends.grpc.h2 import Connection, Connections
from wherry.frontends.grpc.rpc import Application, CannotListen
from wherry.frontends.offload import Offload

BACKLOG: Final = 2048
QUIET: Final = frozenset({"ServerLive", "ServerReady", "ModelReady", "Check", "Watch"})


class GrpcListener:
    """Serves one application on one address.

    Belongs to the event loop that it is started in; works on asyncio's own and on uvloop.
    """

    def __init__(
        self,
        application: Application,
        limits: Limits | None = None,
        *,
        compression: str = "none",
        access_log: logging.Logger | None = None,
        holdings: Holdings[OpenConnection] | None = None,
        offload: Offload | None = None,
    ) -> None:
        self._application = application
        self._access_log = access_log
        self._connections = Connections(
            application,
            limits or Limits(),
            coding="identity" if compression == "none" else compression,
            ended=None if access_log is None else self._log,
            holdings=holdings,
            offload=offload,
        )
        self._backlog: Backlog | None = None
        self._reuse_port = False
        self._passed = False
        #: host:port, once it listens.
        self.address = ""
        #: Where it can be reached from, once it listens.
        self.binding = Binding.NETWORK

    def __repr__(self) -> str:
        return f"<GrpcListener {self.address or 'closed'}: {self.calls} calls>"

    @property
    def calls(self) -> int:
        """How many are open."""
        return self._connections.calls

    async def start(
        self,
        host: str | None,
        port: int,
        *,
        ssl: tls.SSLContext | None = None,
        sock: socket.socket | None = None,
        reuse_port: bool = False,
        serve: bool = True,
    ) -> None:
        """Take the address and, unless `serve` says later, calls from now on.

        Port 0 takes a free one. CannotListen if the address is taken.
        `sock` is one that is open already, instead. With `reuse_port` other processes of this user
        may listen on the same port.
        `ssl` must offer "h2" (ALPN): gRPC's clients want to hear it.
        """
        handshake = self._connections.limits.header_timeout if ssl else None
        shown = host or "*"
        wanted = f"[{shown}]" if ":" in shown else shown
        loop = asyncio.get_running_loop()
        self._passed = sock is not None
        self._reuse_port = reuse_port and sock is None
        try:
            if sock is None:
                server = await loop.create_server(
                    self._connect,
                    host,
                    port,
                    ssl=ssl,
                    ssl_handshake_timeout=handshake,
                    backlog=BACKLOG,
                    reuse_port=reuse_port or None,
                    start_serving=False,
                )
            else:
                create = (
                    loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
                )
                server = await create(
                    self._connect,
                    sock=sock,
                    ssl=ssl,
                    ssl_handshake_timeout=handshake,
                    backlog=BACKLOG,
                    start_serving=False,
                )
        except OSError:
            raise _cannot_listen(f"{wanted}:{port}") from None
        name = server.sockets[0].getsockname()
        if isinstance(name, tuple):
            self.address = address_text(name) or "" if sock else f"{wanted}:{name[1]}"
        else:
            self.address = f"unix:{name}"
        self.binding = binding_of(s.getsockname() for s in server.sockets)
        self._backlog = Backlog(
            server,
            self._connect,
            ssl=ssl,
            ssl_handshake_timeout=handshake,
            reuse_port=self._reuse_port,
        )
        if serve:
            await self.serve()

    async def serve(self) -> None:
        """Take calls from now on. CannotListen if the address has been taken meanwhile."""
        if self._backlog is None:
            return
        try:
            await self._backlog.open()
        except OSError:
            raise _cannot_listen(self.address) from None

    def _connect(self) -> Connection:
        return Connection(self._connections)

    async def drain(self, drain_timeout: float | None, last_call: float = 0.0) -> None:
        """Finish the calls that have begun and close; then cut off what is left.

        For `last_call` seconds connections are still accepted, and open streams are still read.
        Returns when every connection is closed: after `drain_timeout` seconds at the latest, or
        soon after `end`.
        """
        if self._backlog is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_timeout):
                busy = bool(self._connections.open)
                self._application.drain()
                self._connections.drain(last_call)
                with suppress(TimeoutError):
                    async with asyncio.timeout(last_call):
                        await self._connections.all_closed()
                await self._close_backlog(self._handshakes(busy))
                self._application.end_streams()
                await self._connections.all_closed()
        await self._close_backlog(0.0)
        await self.end()

    async def end(self) -> None:
        """Give up what is not answered by now: the time to drain is over."""
        await self._connections.end()

    def _handshakes(self, busy: bool) -> float:
        """Seconds for new connections to end their handshakes."""
        wanted = self._reuse_port or (busy and not self._passed)
        return HANDSHAKES if wanted else 0.0

    async def _close_backlog(self, handshakes: float) -> None:
        backlog, self._backlog = self._backlog, None
        if backlog is not None:
            await backlog.close(handshakes=handshakes)

    def _log(self, peer: str, call: Call) -> None:
        """One line for each call, health excepted: probes would drown the rest."""
        if self._access_log is None or call.path.rpartition("/")[2] in QUIET:
            return
        begun_at = call.begun_at or 0.0
        seconds = round(self._connections.clock() - begun_at, 6)
        fields = {"status": call.status, "seconds": seconds, "peer": peer}
        if call.caller:
            fields["key"] = call.caller
        self._access_log.info(call.path, extra=fields)


def _cannot_listen(address: str) -> CannotListen:
    return CannotListen(errno.EADDRNOTAVAIL, "taken, or not there", address)
