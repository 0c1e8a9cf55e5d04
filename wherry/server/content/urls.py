"""Which bytes does a URL or a text in base64 stand for, and may the server fetch them for a client?

A server that fetches what strangers name can be used to reach what only it can reach. So it does
so only if the operator allows it; a name is looked up once, the connection goes to that very
address, each redirect is checked anew, and no cookies, keys or proxies of the server go along.
"""

from __future__ import annotations

import binascii
import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import cached_property
from typing import Any, Final
from urllib.parse import SplitResult, unquote_to_bytes, urljoin, urlsplit

import msgspec

try:
    import pybase64 as base64
except ImportError:  # where it has no wheel and nothing compiles it: the same, 40 times slower
    import base64  # type: ignore[no-redef, unused-ignore]

from wherry.core.api import ConfigError, InvalidRequest, RequestTooLarge
from wherry.server.content.media_types import MediaType, quoted


def decoded(text: str) -> bytes:
    """The bytes. ValueError, with the reason, for anything but the standard alphabet (RFC 4648, 4),
    complete with its padding: no blanks, no newlines, nothing behind the end."""
    if len(text) % 4:
        raise ValueError(f"{len(text)} characters are not a multiple of 4; is its padding missing?")
    try:
        return b64decode(text)
    except ValueError as error:
        raise ValueError(_reason(text, str(error))) from None


#: The longest wrong text, in characters, that binascii checks for the reason: it holds the GIL.
_REASONED: Final = 2**20


def b64decode(text: str | memoryview) -> bytes:
    """The bytes, by binascii's strict rules. ValueError, of a short text with its reason."""
    try:
        content: bytes = base64.b64decode(text, validate=True)
    except ValueError:
        if len(text) > _REASONED:
            raise
        content = binascii.a2b_base64(text, strict_mode=True)
    return content


def _reason(text: str, reason: str) -> str:
    reason = reason[:1].lower() + reason[1:]
    if any(blank in text for blank in "\r\n \t"):
        return f"{reason}: it has blanks or newlines, and must be one piece"
    if "-" in text or "_" in text:
        return f"{reason}: it has the characters of URLs (- and _), and must have + and /"
    return reason


#: The part of IPv6 that is allocated for public use, and parts of it that lead elsewhere: to IPv4
#: (6to4, Teredo), or nowhere (documentation).
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC_6: Final = tuple(
    map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
)
#: Beside what `ipaddress` knows in every Python: shared by providers, for protocols, for tests.
_NOT_PUBLIC_4: Final = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",
            "100.64.0.0/10",
            "161.26.0.0/16",  # IBM Cloud's services, as 166.8.0.0/14: only its machines reach them
            "166.8.0.0/14",
            "168.63.129.16/32",  # Azure's own, which each of its machines can reach
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "240.0.0.0/4",
        ),
    )
)


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet; False for what is not an address, and for
    all that stand for another one."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        return ip in _GLOBAL_UNICAST and not any(ip in network for network in _NOT_PUBLIC_6)
    hidden = ip.is_private or ip.is_loopback or ip.is_link_local or ip.is_multicast
    return not hidden and not any(ip in network for network in _NOT_PUBLIC_4)


def is_own(address: str) -> bool:
    """Whether this machine has an address that `is_public`. Nothing is sent."""
    family, none = (
        (socket.AF_INET6, "2001:db8::1") if ":" in address else (socket.AF_INET, "192.0.2.1")
    )
    if not _can_bind(family, address):
        return False
    if not _can_bind(family, none):
        return True
    # The system lets every address be bound (ip_nonlocal_bind). What is sent to an address of the
    # machine comes from the same.
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 80))
        except OSError:
            return False
        return ipaddress.ip_address(probe.getsockname()[0]) == ipaddress.ip_address(address)


def _can_bind(family: socket.AddressFamily, address: str) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


MAX_REDIRECTS: Final = 3
#: Seconds for all URLs of a request with their redirects.
TIMEOUT: Final = 10.0
MAX_URLS: Final = 256
#: Characters of a URL; longer ones are data URLs.
MAX_URL: Final = 8192
#: Characters of a data URL that is not base64: it grows several times while it is read.
MAX_PERCENT_CODED: Final = 2**20
_PORTS: Final = {"http": 80, "https": 443}
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_HEADERS: Final = {"User-Agent": "wherry", "Accept": "*/*"}
_CHUNK: Final = 2**16

#: (family, type, protocol, name, address) for each address of a host, as socket.getaddrinfo.
Resolve = Callable[..., Sequence[tuple[Any, Any, Any, str, Any]]]


class Fetched(msgspec.Struct):
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
        self, allowed: Sequence[str] = (), *, resolve: Resolve = socket.getaddrinfo
    ) -> None:
        self._data = "data" in allowed
        self._public = "http" in allowed
        self._origins = {_origin(one) for one in allowed if one not in ("data", "http")}
        self._resolve = resolve

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()  # reads all certificates of the system: some 20 ms

    @property
    def fetches(self) -> bool:
        """Whether reading an input may take a connection to somewhere."""
        return self._public or bool(self._origins)

    def read(self, url: str, most: int) -> Fetched | None:
        """Return the bytes of a data URL, of at most `most`; None for a URL that may be fetched.

        InvalidRequest if it is malformed or refused, RequestTooLarge if it has more bytes.
        """
        if url[:5].lower() == "data:":
            if not self._data:
                raise InvalidRequest(_off("data URLs", "data"))
            return _data_url(url, most)
        if not self.fetches:
            raise InvalidRequest(_off("URLs", "http"))
        self._allowed(url)
        return None

    def fetch(self, url: str, most: int, fetching: Fetching) -> Fetched:
        """Return the bytes of a URL that `read` let pass, of at most `most`. Blocks until then or
        until `fetching` ends, but for the time that the system takes to look up a name.

        InvalidRequest if it cannot be fetched, RequestTooLarge if it has more bytes.
        """
        for _ in range(MAX_REDIRECTS + 1):
            found = self._get(url, most, fetching)
            if isinstance(found, Fetched):
                return found
            url = found
        raise InvalidRequest(f"the URL has more than {MAX_REDIRECTS} redirects")

    def _get(self, url: str, most: int, fetching: Fetching) -> Fetched | str:
        parts, host, port, path, trusted = self._allowed(url)
        try:
            address = self._address(host, port, trusted=trusted)
            with closing(http.client.HTTPConnection(host, port)) as connection:
                sock = socket.create_connection(address, fetching.seconds_left())
                connection.sock = sock
                fetching.watch(sock)
                if parts.scheme == "https":
                    connection.sock = sock = self._tls.wrap_socket(
                        sock, server_hostname=host, do_handshake_on_connect=False
                    )
                    fetching.watch(sock)
                    sock.do_handshake()
                connection.request("GET", path, headers=_HEADERS)
                return _read(connection.getresponse(), url, most, fetching)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, InvalidRequest):
                raise
            late = fetching.is_over or isinstance(error, TimeoutError)
            reason = "it took too long" if late else type(error).__name__
            raise InvalidRequest(f"the URL at {quoted(host)} cannot be fetched: {reason}") from None

    def _allowed(self, url: str) -> tuple[SplitResult, str, int, str, bool]:
        """`_checked`, and whether its origin is one of the operator's. InvalidRequest if neither
        those nor public addresses are allowed."""
        parts, host, port, path = _checked(url)
        trusted = (parts.scheme, host, port) in self._origins
        if not trusted and not self._public:
            raise InvalidRequest(f"the server fetches no URL at {quoted(host)} (--input-url)")
        if not trusted and port != _PORTS[parts.scheme]:
            raise InvalidRequest(f"the server fetches URLs at the ports 80 and 443, not {port}")
        return parts, host, port, path, trusted

    def _address(self, host: str, port: int, *, trusted: bool) -> tuple[str, int]:
        try:
            found = self._resolve(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise InvalidRequest(f"the URL's host {quoted(host)} is not known") from None
        addresses = [str(one[4][0]) for one in found]
        if not trusted and not all(is_public(one) and not is_own(one) for one in addresses):
            raise InvalidRequest(f"the URL's host {quoted(host)} has an address that is not public")
        if not addresses:
            raise InvalidRequest(f"the URL's host {quoted(host)} has no address")
        return addresses[0], port


class Fetching:
    """The time that one request has for all its URLs. `end` may come before it is over, from any
    thread: what is connected is shut down, whatever it waits for by then."""

    def __init__(self, take: Callable[[int], object], seconds: float = TIMEOUT) -> None:
        """`take` is called with the size of each piece that comes, and may refuse it."""
        self.take = take
        self._until = time.monotonic() + seconds
        self._sock: socket.socket | None = None

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._until

    def seconds_left(self) -> float:
        if (seconds := self._until - time.monotonic()) <= 0:
            raise TimeoutError
        return seconds

    def watch(self, sock: socket.socket) -> None:
        """End this connection, too. TimeoutError if it is too late for that."""
        self._sock = sock
        self.seconds_left()

    def end(self) -> None:
        self._until = 0.0
        if self._sock is not None:
            with suppress(OSError):
                # Not the method of an SSLSocket, which is for the thread that reads.
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)


def _off(what: str, value: str) -> str:
    return (
        f"this server takes no {what} as inputs (--input-url {value}); send the bytes as a form,"
        ' as the body, or as {"b64": ...}'
    )


def _checked(url: str) -> tuple[SplitResult, str, int, str]:
    """The parts of a URL that can be fetched: host, port, path with query."""
    wrong = InvalidRequest(f"cannot fetch the URL {quoted(url)}")
    if len(url) > MAX_URL or not (url.isascii() and url.isprintable()) or " " in url:
        raise wrong
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in _PORTS or not host or "@" in parts.netloc or "%" in host:
        raise wrong
    query = f"?{parts.query}" if parts.query else ""
    return parts, host, port or _PORTS[parts.scheme], (parts.path or "/") + query


def _read(
    response: http.client.HTTPResponse, url: str, most: int, fetching: Fetching
) -> Fetched | str:
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
        fetching.take(len(part))
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
