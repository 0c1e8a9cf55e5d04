"""How does a client reach its server, which connections does it reuse, and is what comes back an
answer of a V2 server?
"""

from __future__ import annotations

import http.client
import os
import select
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from wherry.core.values.errors import ConfigError, WherryError


class KeptConnections:
    """The idle connections to one server, and new ones. Safe from any thread, and in forked
    processes."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        """`tls` is for https; without it the system's certificates are trusted. ConfigError unless
        the URL is http, https, or either with +unix."""
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "localhost", parts.port
        except ValueError as error:
            raise ConfigError(f"{url!r}: {error}") from None
        scheme, _, unix = parts.scheme.partition("+")
        if scheme not in ("http", "https") or unix not in ("", "unix"):
            raise ConfigError(f"{url!r}: must start with http://, https:// or http+unix://")
        if not url.isprintable() or " " in url:
            raise ConfigError(f"{url!r}: a URL has no spaces or control characters")
        #: In front of each path.
        self.base = "" if unix else parts.path
        self._unix_path = unquote(parts.netloc + parts.path) if unix else None
        self._tls = (tls or ssl.create_default_context()) if scheme == "https" else None
        self._lock = threading.Lock()
        #: Idle connections, the last used one at the end.
        self.idle: list[http.client.HTTPConnection] = []
        self._process = os.getpid()  # that of the idle ones

    def take(self) -> http.client.HTTPConnection | None:
        """An open idle connection, or None. Closes those that the server has closed or has
        written unexpected data to."""
        if self._process != os.getpid():  # forked: those connections are the parent's
            self._lock, self._process = threading.Lock(), os.getpid()
            self.close()
        while True:
            with self._lock:
                connection = self.idle.pop() if self.idle else None
            if connection is None or is_quiet(connection.sock):
                return connection
            connection.close()

    def give_back(self, connection: http.client.HTTPConnection) -> None:
        """Keep a connection whose last answer was read to its end."""
        with self._lock:
            self.idle.append(connection)

    def new(self, timeout: float) -> http.client.HTTPConnection:
        """A connection that connects when it is used."""
        if self._unix_path is not None:
            return UnixConnection(self._unix_path, timeout, self._tls)
        if self._tls is not None:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=self._tls
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def close(self) -> None:
        with self._lock:
            idle, self.idle = self.idle, []
        for connection in idle:
            connection.close()


def is_quiet(sock: socket.socket) -> bool:
    """Whether nothing unread has come, not even an end of file."""
    try:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return not poll.poll(0)
    except AttributeError:  # Windows has no poll
        return not select.select([sock], [], [], 0)[0]


class UnixConnection(http.client.HTTPConnection):
    """A connection to a Unix socket, with TLS if `tls` is set."""

    def __init__(self, path: str, timeout: float, tls: ssl.SSLContext | None = None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path
        self._tls = tls

    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.timeout)
            sock.connect(self._path)
            self.sock = (
                self._tls.wrap_socket(sock, server_hostname="localhost") if self._tls else sock
            )
        except BaseException:
            sock.close()
            raise


#: OpenSSL's codes of certificates (X509_V_ERR_...): expired, of another name or address.
_EXPIRED: Final = 10
_OTHER_NAME: Final = (62, 64)


def advice(error: BaseException) -> str:
    """The remedy, as the end of a sentence."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_NAME:
            return "call it by a name that its certificate has"
        if error.verify_code == _EXPIRED:
            return "it needs a new certificate"
        return "--ssl-ca names a file with the certificates to trust"
    if isinstance(error, ssl.SSLError):
        return "does it speak TLS there, or http:// without?"
    if isinstance(error, http.client.RemoteDisconnected):
        return "does it speak another protocol there, such as https://?"
    return "is a server running there?"


READ_BYTES: Final = 2**16


@contextmanager
def no_answer(url: str) -> Iterator[None]:
    """Raise WherryError for what decoding an answer raises: another program may have sent it."""
    try:
        yield
    except WherryError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
        msgspec.MsgspecError,
        struct.error,
    ) as error:
        raise WherryError(
            f"{url}: this is not an answer of a V2 server: {type(error).__name__}: {error}"
        ) from error


def check_status(response: http.client.HTTPResponse, url: str) -> None:
    """WherryError for a status that no V2 server answers with: a redirect, or no content."""
    if response.status not in (200, 201, 202):
        where = response.headers.get("Location")
        to = f" to {where[:200]!r}" if where else ""
        raise WherryError(
            f"{url}: this is not an answer of a V2 server:"
            f" {response.status} {response.reason[:80]}{to}"
        )


def events(response: http.client.HTTPResponse) -> Iterator[Any]:
    """Yield the data of each server-sent event.

    ValueError if it is not a stream of events, IncompleteRead if it is cut off. Blocks.
    """
    kind = response.headers.get_content_type()
    if kind != "text/event-stream":
        raise ValueError(f"{kind} instead of text/event-stream")
    rest = bytearray()  # a line that has not come in full
    # Not by readline(): it takes a connection that ended between two chunks for the stream's end.
    while data := response.read1(READ_BYTES):
        searched = len(rest)
        rest += data
        end = rest.rfind(b"\n", searched) + 1
        for line in bytes(rest[:end]).splitlines():
            if line.startswith(b"data:"):
                yield msgspec.json.decode(line[5:])
        del rest[:end]
    if rest or response.length:
        raise http.client.IncompleteRead(bytes(rest), response.length or None)
