"""How does a listener for gRPC start, log its calls and stop?"""

from __future__ import annotations

import errno
import logging
import socket
import ssl as tls
from collections.abc import Callable
from functools import partial
from typing import Final

from wherry.server.access.origins import Binding, binding_of
from wherry.server.calls.offload import Offload
from wherry.server.calls.terms import client_request_id
from wherry.server.connections.held import Holdings
from wherry.server.connections.limits import Limits
from wherry.server.connections.listening import Listening
from wherry.server.connections.open_connections import OpenConnection
from wherry.server.connections.sockets import address_text
from wherry.server.grpc.call import Call
from wherry.server.grpc.h2 import Connection, Connections
from wherry.server.grpc.rpc import Application, CannotListen

QUIET: Final = frozenset({"ServerLive", "ServerReady", "ModelReady", "Check", "Watch"})
"""Methods that are not logged: probes would drown the rest."""


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
        ended: Callable[[str, Call], None] | None = None,
        holdings: Holdings[OpenConnection] | None = None,
        offload: Offload | None = None,
    ) -> None:
        """`ended` gets each call that has ended, with its client's address."""
        self._application = application
        self._access_log = access_log
        self._ended = ended
        self._connections = Connections(
            application,
            limits or Limits(),
            coding="identity" if compression == "none" else compression,
            ended=ended if access_log is None else self._log,
            holdings=holdings,
            offload=offload,
        )
        self._listening = Listening(self._connections, partial(Connection, self._connections))
        self.address = ""

    def __repr__(self) -> str:
        return f"<GrpcListener {self.address or 'closed'}: {self.calls} calls>"

    @property
    def calls(self) -> int:
        return self._connections.serving.calls

    @property
    def binding(self) -> Binding:
        return binding_of(self._listening.names)

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
        """Take the address and, unless `serve` is False, calls from now on.

        Port 0 takes a free one. `sock` is an open socket, instead. With `reuse_port` other
        processes of this user may listen on the same port. `ssl` must offer "h2" (ALPN), as gRPC
        clients require. CannotListen if the address is taken.
        """
        try:
            await self._listening.bind(
                host, port, sock=sock, passed=sock is not None, ssl=ssl, reuse_port=reuse_port
            )
        except OSError:
            raise cannot_listen(host, port) from None
        name = self._listening.names[0]
        if isinstance(name, tuple):
            self.address = address_text(name) or "" if sock else _shown(host, name[1])
        else:
            self.address = f"unix:{name}"
        if serve:
            await self.serve()

    async def serve(self) -> None:
        """Take calls from now on. CannotListen if the address has been taken meanwhile."""
        try:
            await self._listening.serve()
        except OSError:
            raise _taken(self.address) from None

    async def drain(
        self, drain_timeout: float | None, last_call: float = 0.0, *, accept_until: float = 0.0
    ) -> None:
        """`Listening.drain`. For `last_call` seconds open streams are still read."""
        self._application.drain()
        await self._listening.drain(
            drain_timeout,
            last_call,
            accept_until=accept_until,
            no_more_come=self._application.end_streams,
        )

    async def end(self) -> None:
        await self._listening.end()

    def _log(self, peer: str, call: Call) -> None:

        if self._ended is not None:
            self._ended(peer, call)
        if self._access_log is None or call.path.rpartition("/")[2] in QUIET:
            return
        begun_at = call.begun_at or 0.0
        seconds = round(self._connections.clock() - begun_at, 6)
        fields = {"status": call.status, "seconds": seconds, "peer": peer}
        if call.caller:
            fields["key"] = call.caller
        if request_id := client_request_id(call.metadata):
            fields["request_id"] = request_id
        self._access_log.info(call.path, extra=fields)


def cannot_listen(host: str | None, port: int) -> CannotListen:
    return _taken(_shown(host, port))


def _taken(address: str) -> CannotListen:
    return CannotListen(errno.EADDRNOTAVAIL, "taken, or not there", address)


def _shown(host: str | None, port: int) -> str:
    return address_text((host or "*", port)) or ""
