"""Where do connections come in, and how does that end?"""

import asyncio
import errno
import os
import socket
import ssl
import stat
from contextlib import suppress
from pathlib import Path

from wherry.frontends.access.origins import Binding, OriginCheck, Origins, binding_of
from wherry.frontends.connections.backlog import HANDSHAKES, Backlog
from wherry.frontends.connections.held import Holdings
from wherry.frontends.connections.limits import Limits
from wherry.frontends.connections.open_connections import Client
from wherry.frontends.connections.sockets import address_text
from wherry.frontends.http.exchange import Application
from wherry.frontends.http.protocol import Connection, Connections

BACKLOG = 2048


class Listener:
    """Serves one application on one address: TCP, a unix socket, or a socket already open.

    The paths of `vital` are answered when there are too many connections, too.

    Belongs to the event loop that it is started in; works on asyncio's own and on uvloop.
    """

    def __init__(
        self,
        application: Application,
        limits: Limits | None = None,
        origins: Origins | None = None,
        holdings: Holdings[Client] | None = None,
        *,
        vital: frozenset[str] = frozenset(),
    ) -> None:
        """Without `origins` any host and any page is answered."""
        self._connections = Connections(
            application, limits or Limits(), vital=vital, holdings=holdings
        )
        self._origins = origins
        self._server: asyncio.Server | None = None
        self._backlog: Backlog | None = None
        self._passed = False
        self._reuse_port = False
        self._scheme = "http"
        self._unix_path: Path | None = None
        self._unix_inode = 0

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
        """Take the address and, unless `serve` says later, accept connections from now on.

        Port 0 takes a free one; host None means all interfaces.

        With `reuse_port` other processes of this user may listen on the same port. OSError if the
        address is taken.
        """
        loop = asyncio.get_running_loop()
        self._scheme = "https" if ssl else "http"
        handshake = self._connections.limits.header_timeout if ssl else None
        self._passed = sock is not None
        self._reuse_port = reuse_port and sock is None and uds is None
        if uds is not None:
            sock = await asyncio.to_thread(self._open_unix_socket, Path(uds))
        if sock is not None and sock.family == socket.AF_UNIX:
            self._server = await loop.create_unix_server(
                self._connect,
                sock=sock,
                ssl=ssl,
                ssl_handshake_timeout=handshake,
                backlog=BACKLOG,
                start_serving=False,
            )
        elif sock is not None:
            self._server = await loop.create_server(
                self._connect,
                sock=sock,
                ssl=ssl,
                ssl_handshake_timeout=handshake,
                backlog=BACKLOG,
                start_serving=False,
            )
        else:
            self._server = await loop.create_server(
                self._connect,
                host,
                port,
                ssl=ssl,
                ssl_handshake_timeout=handshake,
                backlog=BACKLOG,
                reuse_port=reuse_port or None,
                start_serving=False,
            )
        self._backlog = Backlog(
            self._server,
            self._connect,
            ssl=ssl,
            ssl_handshake_timeout=handshake,
            reuse_port=self._reuse_port,
        )
        if self._origins is not None:  # the first connection finds the rules in place
            self._connections.origin_check = OriginCheck(
                self._origins, self.binding, tls=ssl is not None, own_name=host or ""
            )
        if serve:
            await self.serve()

    async def serve(self) -> None:
        """Accept connections from now on."""
        if self._backlog is not None:
            await self._backlog.open()

    @property
    def addresses(self) -> list[str]:
        """`host:port` of each socket, or the unix socket's path; empty when not listening."""
        if self._server is None:
            return []
        return [address_text(s.getsockname()) or "" for s in self._server.sockets]

    @property
    def binding(self) -> Binding:
        """Where it can be reached from."""
        sockets = self._server.sockets if self._server is not None else ()
        return binding_of(s.getsockname() for s in sockets)

    @property
    def url(self) -> str:
        """What a client is given, e.g. http://127.0.0.1:8000 or http+unix:///run/wherry.sock."""
        address = self.addresses[0]
        if address.startswith("/") or self._unix_path is not None:
            return f"{self._scheme}+unix://{address}"
        return f"{self._scheme}://{address}"

    @property
    def connections(self) -> int:
        return len(self._connections.open)

    async def drain(self, drain_timeout: float | None, last_call: float = 0.0) -> None:
        """Finish the requests that have arrived and close; then cut off what is left.

        For `last_call` seconds connections are still accepted, and an idle one may still bring a
        request: what is on its way to us at this moment is not lost. The last answer of each
        connection says that it is the last. Returns when every connection is closed: after
        `drain_timeout` seconds at the latest, or soon after `end`.
        """
        if self._server is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_timeout):
                busy = self.connections > 0
                self._connections.drain(last_call)
                if self._unix_path is not None:
                    await asyncio.to_thread(self._remove_unix_socket)
                with suppress(TimeoutError):
                    async with asyncio.timeout(last_call):
                        await self._connections.all_closed()
                await self._close_backlog(self._handshakes(busy))
                await self._connections.all_closed()
        await self._close_backlog(0.0)
        await self.end()
        self._server = None

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

    def _connect(self) -> Connection:
        return Connection(self._connections)

    def _open_unix_socket(self, path: Path) -> socket.socket:
        _remove_stale_socket(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(str(path))
            self._unix_inode = path.stat().st_ino
        except BaseException:
            sock.close()
            raise
        self._unix_path = path
        return sock

    def _remove_unix_socket(self) -> None:
        path, self._unix_path = self._unix_path, None
        if path is None:
            return
        with suppress(FileNotFoundError):
            if path.stat().st_ino == self._unix_inode:  # else a successor has taken the name
                path.unlink()


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


def _remove_stale_socket(path: Path) -> None:
    """Make way for a new socket, unless somebody listens there or it is no socket at all."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "not a socket; choose another path", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # Never block the loop: a listener with a full queue is a listener too.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, "another server listens on this unix socket", str(path))
