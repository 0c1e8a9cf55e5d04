"""On which sockets do the fronts of one server listen?

Each front has a socket of its own for each protocol, all on the same port (SO_REUSEPORT); of a unix
socket, and of one that was passed to the server, all have the same. The owner keeps them: what the
kernel has accepted for a front that dies waits for the next one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wherry.core.api import in_thread
from wherry.server.access.origins import Binding, binding_of
from wherry.server.connections.listening import let_no_more_in
from wherry.server.connections.sockets import UnixName, address_text, passed_socket
from wherry.server.options import Listen

BACKLOG: Final = 2048


@dataclass(slots=True)
class FrontSockets:
    """The sockets of each front, in their order. `grpc` is empty without gRPC."""

    http: Sequence[socket.socket] = ()
    grpc: Sequence[socket.socket] = ()
    name: UnixName | None = None
    #: Whether the sockets are ours alone, and not passed by another program, or of a unix socket.
    of_a_port: bool = False
    of_a_grpc_port: bool = False

    async def bind(self, listen: Listen, count: int) -> None:
        """Take the addresses. OSError if one is taken; then none is kept."""
        try:
            self.http = await self._http(listen, count)
            self.grpc = await _grpc(listen, count)
            self.of_a_grpc_port = listen.grpc_fd is None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        for sock in (*self.http, *self.grpc):
            sock.close()
        self.http = self.grpc = ()
        await self.remove_name()

    async def remove_name(self) -> None:
        name, self.name = self.name, None
        if name is not None:
            await in_thread(name.remove, "wherry-close")

    def let_no_more_in(self) -> None:
        """Have no new connection begin, and close these copies of the sockets. What the kernel has
        accepted is for the fronts, which have the others."""
        if self.of_a_port:
            for sock in self.http:
                let_no_more_in(sock)
        if self.of_a_grpc_port:
            for sock in self.grpc:
                let_no_more_in(sock)
        for sock in (*self.http, *self.grpc):
            sock.close()

    @property
    def binding(self) -> Binding:
        return binding_of([sock.getsockname() for sock in (*self.http, *self.grpc)])

    @property
    def http_address(self) -> str:
        return _address(self.http)

    @property
    def grpc_address(self) -> str:
        return _address(self.grpc)

    async def _http(self, listen: Listen, count: int) -> Sequence[socket.socket]:
        if listen.uds is not None:
            self.name = UnixName(listen.uds)
            sock = await in_thread(self.name.bind, "wherry-listen")
        elif listen.fd is not None:
            sock = passed_socket(listen.fd, "fd")
        else:
            self.of_a_port = True
            return await _bound(listen.host, listen.port, count, listen.reuse_port)
        sock.listen(BACKLOG)
        return [sock] * count


async def _grpc(listen: Listen, count: int) -> Sequence[socket.socket]:
    if listen.grpc_fd is not None:
        sock = passed_socket(listen.grpc_fd, "grpc_fd")
        sock.listen(BACKLOG)
        return [sock] * count
    if listen.grpc_port is None:
        return ()
    try:
        return await _bound(listen.host_of_grpc, listen.grpc_port, count, listen.reuse_port)
    except OSError:
        from wherry.server.grpc.listener import cannot_listen  # only servers with gRPC need it

        raise cannot_listen(listen.host_of_grpc, listen.grpc_port) from None


async def _bound(host: str, port: int, count: int, reuse_port: bool) -> list[socket.socket]:
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
        if not reuse_port and port:
            # Without the option: fails if any other process has the port.
            with _socket(family) as probe:
                probe.bind(address)
                probe.listen(1)
        for _ in range(count):
            sock = _socket(family)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
            address = sock.getsockname()
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _socket(family: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as asyncio does
    return sock


def _address(sockets: Sequence[socket.socket]) -> str:
    return (address_text(sockets[0].getsockname()) or "") if sockets else ""
