"""How is a server asked about itself, beside the load?"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from wherry.bench.connection import Wire, tls_context
from wherry.core.api import ConfigError, UnixConnection, WherryError, advice


class Unreachable(WherryError):
    """Raised if the server does not answer."""


class NotThere(WherryError):
    """Raised if the server's answer is not what was asked for."""


@dataclass(frozen=True, slots=True)
class Address:
    """A server's URL, taken apart."""

    url: str
    scheme: str
    host: str
    port: int
    #: Path and query, as they stand in a request; "" or "/..." .
    path: str
    uds: str | None = None

    @property
    def name(self) -> str:
        """The value of the Host header."""
        default = {"http": 80, "https": 443}.get(self.scheme)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == default or self.uds else f"{host}:{self.port}"

    def wire(self, **more: Any) -> Wire:
        tls = self.scheme in ("https", "grpcs")
        return Wire(host=self.host, port=self.port, uds=self.uds, tls=tls, **more)


def address(url: str) -> Address:
    """Parse http[s]://, grpc[s]:// or http+unix:///path/of/the.sock. ConfigError for others."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is no URL: {error}") from None
    scheme, _, unix = parts.scheme.partition("+")
    if scheme not in ("http", "https", "grpc", "grpcs") or unix not in ("", "unix"):
        raise ConfigError(f"{url!r}: expected http[s]://, grpc[s]:// or http+unix:// in front")
    if unix:
        return Address(url, scheme, "localhost", 0, "", unquote(parts.netloc + parts.path))
    if not parts.hostname:
        raise ConfigError(f"{url!r} names no host")
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    defaults = {"http": 80, "https": 443, "grpc": 8001, "grpcs": 8001}
    return Address(url, scheme, parts.hostname, port or defaults[scheme], path)


@dataclass(slots=True)
class HttpControl:
    """Small requests to one server, each on a connection of its own. Blocks; any thread."""

    address: Address
    headers: Mapping[str, str] = field(default_factory=dict)
    ssl_ca: str | None = None
    insecure: bool = False
    #: Seconds to connect, and for the whole of an answer.
    timeout: float = 5.0

    def json(self, path: str, *, method: str = "GET") -> Any:
        """The answer's JSON. Unreachable, or NotThere if it is another status or no JSON."""
        status, body = self._exchange(method, path)
        if status >= 300:
            raise NotThere(f"{method} {path} is {status}: {body[:200].decode(errors='replace')}")
        try:
            return msgspec.json.decode(body)
        except msgspec.DecodeError as error:
            raise NotThere(f"{method} {path}: {error}") from None

    def _exchange(self, method: str, path: str) -> tuple[int, bytes]:
        connection, deadline = self._connection(), _AnswerDeadline(self.timeout)
        try:
            connection.connect()
            deadline.begin(connection.sock)
            connection.request(method, path, headers=dict(self.headers))
            response = connection.getresponse()
            body = response.read(16 * 2**20)
        except (OSError, http.client.HTTPException) as error:
            why = str(error).strip() or type(error).__name__
            if isinstance(error, http.client.BadStatusLine) and not isinstance(error, OSError):
                why = f"{why[:80]!r} is no HTTP"
            raise self._unreachable(deadline.lost or why, error) from None
        finally:
            deadline.end()
            connection.close()
        if deadline.lost:
            raise self._unreachable(deadline.lost, TimeoutError())
        return response.status, body

    def _unreachable(self, why: str, error: Exception) -> Unreachable:
        return Unreachable(f"{self.address.url}: {why}; {advice(error)}")

    def _connection(self) -> http.client.HTTPConnection:
        where = self.address
        if where.uds is not None:
            return UnixConnection(where.uds, self.timeout)
        if where.scheme == "https":
            context = tls_context(self.ssl_ca, insecure=self.insecure)
            return http.client.HTTPSConnection(
                where.host, where.port, timeout=self.timeout, context=context
            )
        return http.client.HTTPConnection(where.host, where.port, timeout=self.timeout)


class _AnswerDeadline:
    """Hang up on an answer that is not whole in time: each byte renews a socket's own timeout."""

    def __init__(self, seconds: float) -> None:
        self.lost = ""
        self._seconds = seconds
        self._timer: threading.Timer | None = None

    def begin(self, peer: socket.socket) -> None:
        def hang_up() -> None:
            self.lost = f"no whole answer within {self._seconds:g} s"
            with contextlib.suppress(OSError):  # it has just been closed
                socket.socket.shutdown(peer, socket.SHUT_RDWR)  # a TLS socket's own says goodbye

        self._timer = threading.Timer(self._seconds, hang_up)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
