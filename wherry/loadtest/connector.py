"""How are the connections of a run made, and which of them are open?"""

from __future__ import annotations

import asyncio
import socket
import ssl
from time import perf_counter
from typing import Any

from wherry.loadtest.certificate import tls_context
from wherry.loadtest.connection import LoadConnection, Owner, Wire, make_connection

#: Connections being made at the same moment: a server's backlog is finite.
CONNECTING_AT_ONCE = 64


class Connector:
    """Makes connections to one server. Use it in the loop in which it was made."""

    def __init__(self, wire: Wire, timeout: float) -> None:
        self._wire = wire
        self._timeout = timeout
        self._tls = tls_context(wire.ssl_ca, insecure=wire.insecure) if wire.tls else None
        self._gate = asyncio.Semaphore(CONNECTING_AT_ONCE)
        self._open: set[LoadConnection] = set()
        self._closing: set[asyncio.Future[Any]] = set()
        self._failing_since: float | None = None

    async def connect(self, owner: Owner, caller: int) -> LoadConnection:
        """A connection of this caller that is open. OSError or TimeoutError if there is none."""
        began = perf_counter()
        try:
            async with self._gate, asyncio.timeout(self._timeout):
                connection = await self._made(owner, caller)
        except (OSError, TimeoutError):
            self._failing_since = self._failing_since or began
            raise
        self._failing_since = None
        self._open.add(connection)
        return connection

    async def _made(self, owner: Owner, caller: int) -> LoadConnection:
        wire, loop = self._wire, asyncio.get_running_loop()

        def protocol() -> LoadConnection:
            return make_connection(wire, owner, caller)

        if wire.reads.startswith("grpc"):
            from wherry.loadtest import over_grpc  # grpcio: an extra

            return await over_grpc.connect(wire, owner, caller)
        if wire.uds is not None:
            name = wire.host if wire.tls else None
            _, connection = await loop.create_unix_connection(
                protocol, wire.uds, ssl=self._tls, server_hostname=name
            )
            return connection
        transport, connection = await loop.create_connection(
            protocol, wire.host, wire.port, ssl=self._tls
        )
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def failing_for(self, now: float) -> float:
        """Seconds in which every connection has failed, or 0."""
        return 0.0 if self._failing_since is None else now - self._failing_since

    def waiting_since(self, moment: float) -> list[LoadConnection]:
        """The connections whose request was meant to start before this moment."""
        return [c for c in self._open if c.request is not None and c.intended < moment]

    def forget(self, connection: LoadConnection) -> None:
        """Drop a connection that is closed."""
        self._open.discard(connection)

    def closing(self, closed: asyncio.Future[Any]) -> None:
        """Have `close` wait for a connection that takes time to close."""
        self._closing.add(closed)
        closed.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all connections at once; their requests are neither answered nor failed."""
        for connection in self._open:
            connection.abandon()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await asyncio.sleep(0)  # the loop tells closed connections so


def reason(error: Exception) -> str:
    """Why connecting failed, in few words that are the same for each request."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason}"
    if isinstance(error, socket.gaierror):
        return f"unknown host: {error.strerror}"
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)
