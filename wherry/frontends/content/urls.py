"""Which bytes does a URL stand for, and may the server fetch them for a client?

A server that fetches what strangers name can be used to reach what only it can reach. So it does
so only if it is told to; a name is looked up once, the connection goes to that very address, each
redirect is checked anew, and nothing of the server's own (cookies, keys, proxies) goes along.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any, Final
from urllib.parse import SplitResult, unquote_to_bytes, urljoin, urlsplit

import msgspec

from wherry.frontends.content.base64_text import decoded
from wherry.frontends.content.media_types import MediaType, quoted
from wherry.frontends.content.public_addresses import is_public
from wherry.values.errors import ConfigError, InvalidRequest, RequestTooLarge

MAX_REDIRECTS: Final = 3
#: Seconds for one URL with all its redirects.
TIMEOUT: Final = 10.0
#: Characters of a URL; longer ones are data URLs.
MAX_URL: Final = 8192
#: Characters of a data URL that is not base64: it grows several times while it is read.
MAX_PERCENT_CODED: Final = 2**20
_PORTS: Final = {"http": 80, "https": 443}
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_CHUNK: Final = 2**16

#: (family, type, protocol, name, address) for each address of a host, as socket.getaddrinfo.
Resolve = Callable[..., Sequence[tuple[Any, Any, Any, str, Any]]]


class Fetched(msgspec.Struct):
    """The bytes of a URL, and what is said of them."""

    data: bytes
    media_type: str | None = None
    name: str | None = None


def is_url(text: str) -> bool:
    """Whether a client means a URL, allowed or not."""
    return text[:8].lower().startswith(("data:", "http://", "https://"))


class InputUrls:
    """What an operator allows of URLs as inputs.

    `allowed` may hold "data"; "http": http and https at public addresses and their own ports; and
    origins such as "http://images.internal:9000", wherever they lead.
    """

    def __init__(
        self,
        allowed: Sequence[str] = (),
        *,
        timeout: float = TIMEOUT,
        resolve: Resolve = socket.getaddrinfo,
    ) -> None:
        self._data = "data" in allowed
        self._public = "http" in allowed
        self._origins = {_origin(one) for one in allowed if one not in ("data", "http")}
        self._timeout = timeout
        self._resolve = resolve

    @property
    def fetches(self) -> bool:
        """Whether reading an input may take a connection to somewhere."""
        return self._public or bool(self._origins)

    def fetch(self, url: str, most: int) -> Fetched:
        """Return the bytes of a URL, of at most `most`. Blocks for some seconds.

        InvalidRequest says why it cannot be had, RequestTooLarge that it has more bytes.
        """
        if url[:5].lower() == "data:":
            if not self._data:
                raise InvalidRequest(_off("data URLs", "data"))
            return _data_url(url, most)
        if not self.fetches:
            raise InvalidRequest(_off("URLs", "http"))
        with _Watch(self._timeout) as watch:
            for _ in range(MAX_REDIRECTS + 1):
                found = self._get(url, most, watch)
                if isinstance(found, Fetched):
                    return found
                url = found
        raise InvalidRequest(f"the URL has more than {MAX_REDIRECTS} redirects")

    def _get(self, url: str, most: int, watch: _Watch) -> Fetched | str:
        """The bytes of a URL, or where it leads to."""
        parts, host, port, path = _checked(url)
        address = self._address(parts.scheme, host, port)
        try:
            with closing(socket.create_connection(address, timeout=self._timeout)) as plain:
                watch.over(plain)
                sock = plain
                if parts.scheme == "https":
                    context = ssl.create_default_context()
                    sock = context.wrap_socket(plain, server_hostname=host)
                    watch.over(sock)
                with closing(http.client.HTTPConnection(host, port)) as connection:
                    connection.sock = sock
                    headers = {"User-Agent": "wherry", "Accept": "*/*"}
                    connection.request("GET", path, headers=headers)
                    return _read(connection.getresponse(), url, most)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, InvalidRequest):
                raise
            reason = "it took too long" if watch.ended.is_set() else type(error).__name__
            raise InvalidRequest(f"the URL at {quoted(host)} cannot be fetched: {reason}") from None

    def _address(self, scheme: str, host: str, port: int) -> tuple[str, int]:
        trusted = (scheme, host, port) in self._origins
        if not trusted and not self._public:
            raise InvalidRequest(f"the server fetches no URL at {quoted(host)} (--input-url)")
        if not trusted and port != _PORTS[scheme]:
            raise InvalidRequest(f"the server fetches URLs at the ports 80 and 443, not {port}")
        try:
            found = self._resolve(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise InvalidRequest(f"the URL's host {quoted(host)} is not known") from None
        addresses = [str(one[4][0]) for one in found]
        if not trusted and not all(map(is_public, addresses)):
            raise InvalidRequest(f"the URL's host {quoted(host)} has an address that is not public")
        if not addresses:
            raise InvalidRequest(f"the URL's host {quoted(host)} has no address")
        return addresses[0], port


class _Watch:
    """Ends what is connected when the time is over, whatever it waits for by then."""

    def __init__(self, seconds: float) -> None:
        self.ended = threading.Event()
        self._sock: socket.socket | None = None
        self._timer = threading.Timer(seconds, self._end)
        self._timer.name = "wherry-url-timeout"
        self._timer.daemon = True

    def __enter__(self) -> _Watch:
        self._timer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()
        self._timer.join()

    def over(self, sock: socket.socket) -> None:
        """Watch this connection from now on. TimeoutError if it comes too late."""
        self._sock = sock
        if self.ended.is_set():
            raise TimeoutError

    def _end(self) -> None:
        self.ended.set()
        if self._sock is not None:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)


def _off(what: str, value: str) -> str:
    return (
        f"this server takes no {what} as inputs (--input-url {value}); send the bytes as a form,"
        ' as the body, or as {"b64": ...}'
    )


def _checked(url: str) -> tuple[SplitResult, str, int, str]:
    """The parts of a URL that may be asked for: host, port, path with query."""
    wrong = InvalidRequest(f"the URL {quoted(url)} is none that can be fetched")
    if len(url) > MAX_URL or not (url.isascii() and url.isprintable()) or " " in url:
        raise wrong
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in _PORTS or not host or "@" in parts.netloc or "%" in host:
        raise wrong
    path = parts.path or "/"
    return (
        parts,
        host,
        port or _PORTS[parts.scheme],
        f"{path}?{parts.query}" if parts.query else path,
    )


def _read(response: http.client.HTTPResponse, url: str, most: int) -> Fetched | str:
    location = response.headers.get("Location")
    if response.status in _REDIRECTS and location:
        return urljoin(url, location)
    if response.status != 200:
        raise InvalidRequest(f"the URL was answered with status {response.status}")
    too_large = RequestTooLarge(f"the URL has more than the {most} bytes that this server takes")
    if response.length is not None and response.length > most:
        raise too_large
    parts: list[bytes] = []
    size = 0
    while part := response.read1(_CHUNK):
        size += len(part)
        if size > most:
            raise too_large
        parts.append(part)
    if response.length:
        raise InvalidRequest("the URL's answer was cut off")
    media = MediaType.parse(response.headers.get("Content-Type", ""))
    name = urlsplit(url).path.rpartition("/")[2]
    return Fetched(b"".join(parts), None if media is None else media.name, name or None)


def _data_url(url: str, most: int) -> Fetched:
    head, comma, text = url[5:].partition(",")
    if not comma:
        raise InvalidRequest("the data URL has no comma before its data")
    kind, semicolon, coding = head.rpartition(";")
    in_base64 = bool(semicolon) and coding.strip().lower() == "base64"
    media = MediaType.parse(kind if in_base64 else head)
    if in_base64:
        try:
            data = decoded(text)
        except ValueError as error:
            raise InvalidRequest(f"the data URL is not base64: {error}") from None
    elif len(text) > MAX_PERCENT_CODED:
        raise RequestTooLarge(
            f"the data URL has more than {MAX_PERCENT_CODED} characters; send it in base64"
        )
    else:
        data = unquote_to_bytes(text)
    if len(data) > most:
        raise RequestTooLarge(f"the data URL has more than the {most} bytes that this server takes")
    return Fetched(data, None if media is None else media.name)


def _origin(text: str) -> tuple[str, str, int]:
    """An origin that an operator allows. ConfigError."""
    try:
        parts, host, port, path = _checked(text)
    except InvalidRequest:
        path = "wrong"
    if path != "/" or text.endswith("/"):
        raise ConfigError(
            f"input_url {text!r}: expected data, http, or an origin such as"
            " http://images.internal:9000"
        )
    return parts.scheme, host, port
