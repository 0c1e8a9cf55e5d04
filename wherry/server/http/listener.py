"""Where are HTTP connections accepted, and how does a listener stop?"""

import asyncio
import os
import socket
import ssl
from functools import partial

from wherry.server.access.origins import Binding, OriginCheck, Origins, binding_of
from wherry.server.connections.held import Holdings
from wherry.server.connections.limits import Limits
from wherry.server.connections.listening import Listening
from wherry.server.connections.open_connections import OpenConnection
from wherry.server.connections.sockets import UnixName, address_text
from wherry.server.http.exchange import Application, RefusalForm, plain_form
from wherry.server.http.protocol import HttpConnection, HttpConnections


class Listener:
    """Serves one application on one address: TCP, a unix socket, or a socket already open.

    Belongs to the event loop that it is started in; works on asyncio's own and on uvloop.
    """

    def __init__(
        self,
        application: Application,
        limits: Limits | None = None,
        origins: Origins | None = None,
        holdings: Holdings[OpenConnection] | None = None,
        *,
        vital: frozenset[str] = frozenset(),
        refusal_form: RefusalForm = plain_form,
        keeps_sent_names: bool = False,
    ) -> None:
        """Without `origins` any host and any page is answered. The paths of `vital` are answered
        when there are too many connections, too. What is refused before the application sees it is
        written in `refusal_form`. If it `keeps_sent_names`, the names of headers are SentNames."""
        self._connections = HttpConnections(
            application,
            limits or Limits(),
            vital=vital,
            holdings=holdings,
            refusal_form=refusal_form,
        )
        if keeps_sent_names:
            self._connections.rules.keep_sent_names()
        self._origins = origins
        self._listening = Listening(self._connections, partial(HttpConnection, self._connections))
        self._scheme = "http"
        self._unix_name: UnixName | None = None

    def __repr__(self) -> str:
        return f"<Listener {', '.join(self.addresses) or 'closed'}: {self.connections} connections>"

    async def start(
        self,
        host: str | None = "127.0.0.1",
        port: int = 8000,
        *,
        uds: str | os.PathLike[str] | None = None,
        sock: socket.socket | None = None,
        ssl: ssl.SSLContext | None = None,
        reuse_port: bool = False,
        serve: bool = True,
    ) -> None:
        """Take the address and, unless `serve` is False, accept connections from now on.

        Port 0 takes a free one; host None means all interfaces. With `reuse_port` other processes
        of this user may listen on the same port. OSError if the address is taken.
        """
        self._scheme = "https" if ssl else "http"
        passed = sock is not None
        if uds is not None:
            self._unix_name = UnixName(uds)
            sock = await asyncio.to_thread(self._unix_name.bind)
        await self._listening.bind(
            host, port, sock=sock, passed=passed, ssl=ssl, reuse_port=reuse_port
        )
        if self._origins is not None:  # the first connection finds the rules in place
            tls, own_name = ssl is not None, host or ""
            check = OriginCheck(self._origins, self.binding, tls=tls, own_name=own_name)
            self._connections.rules.answer_only(check)
        if serve:
            await self.serve()

    async def serve(self) -> None:

        await self._listening.serve()

    @property
    def addresses(self) -> list[str]:
        """`host:port` of each socket, or the unix socket's path; empty when not listening."""
        return [address_text(name) or "" for name in self._listening.names]

    @property
    def binding(self) -> Binding:
        return binding_of(self._listening.names)

    @property
    def url(self) -> str:
        """The URL for clients, for example http://127.0.0.1:8000 or http+unix:///run/wherry.sock."""
        address = self.addresses[0]
        if address.startswith("/") or self._unix_name is not None:
            return f"{self._scheme}+unix://{address}"
        return f"{self._scheme}://{address}"

    @property
    def connections(self) -> int:
        return len(self._connections.open)

    @property
    def used(self) -> int:
        """Connections that had a request in the last seconds."""
        return self._connections.used

    async def drain(
        self, drain_timeout: float | None, last_call: float = 0.0, *, accept_until: float = 0.0
    ) -> None:
        """`Listening.drain`. The last answer of each connection has `Connection: close`."""
        name, self._unix_name = self._unix_name, None
        if name is not None:
            await asyncio.to_thread(name.remove)
        await self._listening.drain(drain_timeout, last_call, accept_until=accept_until)

    async def end(self) -> None:

        await self._listening.end()


def tls_context(
    certfile: str | os.PathLike[str],
    keyfile: str | os.PathLike[str] | None = None,
    client_ca: str | os.PathLike[str] | None = None,
    *,
    alpn: str = "http/1.1",
) -> ssl.SSLContext:
    """TLS for a listener; with `client_ca`, only clients with a certificate from it are let in.

    `alpn` is the protocol that is spoken: "h2" for gRPC.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certfile, keyfile)
    context.set_alpn_protocols([alpn])
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
