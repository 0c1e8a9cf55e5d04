"""Which host names does a listener answer to, and which web pages may call it?

A browser sends whatever a page makes it send, to any address that it can reach: the page's site
is in `Origin` or `Sec-Fetch-Site`, the name it used for us in `Host`. Programs send neither of the
first two. What is refused here costs no model and no body anything; the rules are decision 15.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from wherry.core.api import ConfigError

Headers = Sequence[tuple[str, str]]

#: Characters around a header's value that are not part of it.
_BLANKS: Final = " \t"

#: Bounds of the set of known values of Host, in values and characters: they come from clients.
MAX_HOSTS: Final = 512
MAX_HOST_CHARS: Final = 300
#: Characters of a client's header that an answer quotes.
_QUOTED_CHARS: Final = 100

_AUTHORITY: Final = re.compile(
    r"(?:([A-Za-z0-9._-]+)|\[([0-9A-Fa-f:.]+)(%[A-Za-z0-9._~-]+)?\])(?::([0-9]{0,5}))?"
)
_ORIGIN: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#@\s,]+)")
_TOKENS: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,4096}")
_PORTS: Final = {"http": 80, "https": 443}

#: Answer headers beyond the usual ones that a page's script may read.
_EXPOSED: Final = (
    "X-Request-Id, Inference-Header-Content-Length, Retry-After, Content-Encoding, WWW-Authenticate"
)
_METHODS: Final = "GET, HEAD, POST, OPTIONS"
#: Seconds for which a browser need not repeat its preflight.
_MAX_AGE: Final = "600"
_VARY: Final = (
    "Origin, Access-Control-Request-Method, Access-Control-Request-Headers,"
    " Access-Control-Request-Private-Network"
)


class Binding(Enum):
    """From where clients can reach a listener."""

    LOOPBACK = auto()
    NETWORK = auto()
    UNIX = auto()


def binding_of(addresses: Iterable[object]) -> Binding:
    """The binding of a listener with these addresses of sockets, as `getsockname()` gives them.

    NETWORK without any address: nothing is known of where it will listen.
    """
    addresses = list(addresses)
    hosts = [address[0] for address in addresses if isinstance(address, tuple)]
    if addresses and not hosts:
        return Binding.UNIX
    local = bool(hosts) and all(_ip(host) is not None and _is_loopback(host) for host in hosts)
    return Binding.LOOPBACK if local else Binding.NETWORK


@dataclass(frozen=True, slots=True)
class Authority:
    """A host and its port, as a URL or a Host header names them. An IPv6 address has no brackets,
    nor its zone; a name is in lower case and has no dot at its end."""

    host: str
    port: int | None
    zone: bool = False

    @classmethod
    def parse(cls, text: str) -> Authority | None:
        """None if it is not exactly that: no user, no blanks, no path."""
        match = _AUTHORITY.fullmatch(text) if len(text) <= MAX_HOST_CHARS else None
        if match is None:
            return None
        name, ipv6, zone, port = match.groups()
        number = int(port) if port else None
        if number is not None and number > 65535:
            return None
        if ipv6 is not None:
            address = _ip(ipv6)
            if not isinstance(address, ipaddress.IPv6Address):
                return None
            return cls(str(address.ipv4_mapped or address), number, zone is not None)
        name = name.lower().removesuffix(".")
        return cls(name, number) if all(name.split(".")) else None

    @property
    def is_ip(self) -> bool:
        """No DNS server decides where it leads."""
        return _ip(self.host) is not None

    @property
    def is_loopback(self) -> bool:
        return not self.zone and _is_loopback(self.host)


@dataclass(frozen=True, slots=True)
class OriginRefusal:
    status: int
    message: str


class Origins:
    """The operator's settings: other names of the server, and the pages that may call it.

    `allowed_hosts` are names without a port, `*.example.com` for all below one, `*` for any.
    `cors_origins` are scheme, host and port of a page, or `*` for every page.
    """

    def __init__(self, allowed_hosts: Sequence[str] = (), cors_origins: Sequence[str] = ()) -> None:
        self.any_host = "*" in allowed_hosts
        self.restricted = bool(allowed_hosts) and not self.any_host
        self.any_origin = "*" in cors_origins
        self._hosts = {_allowed_host(host) for host in allowed_hosts if host[:2] not in ("*", "*.")}
        self._below = tuple(
            "." + _allowed_host(host[2:]) for host in allowed_hosts if host[:2] == "*."
        )
        self._origins = {_cors_origin(origin) for origin in cors_origins if origin != "*"}

    def __bool__(self) -> bool:
        """Whether any page of another site may call."""
        return self.any_origin or bool(self._origins)

    def names(self, host: str) -> bool:
        return self.any_host or host in self._hosts or host.endswith(self._below)

    def allows(self, origin: str) -> bool:
        return self.any_origin or (bool(self._origins) and normal_origin(origin) in self._origins)

    def answer_headers(self, headers: Mapping[str, str]) -> Headers:
        """Return the headers that let a page read the answer; none for other clients."""
        origin = headers.get("origin", "").strip(_BLANKS)
        if not origin or not self.allows(origin):
            return ()
        return (*self._allow(origin), ("Access-Control-Expose-Headers", _EXPOSED))

    def preflight(self, method: str, headers: Mapping[str, str]) -> Headers | None:
        """The answer to a browser's preflight; None for another request."""
        origin = headers.get("origin", "").strip(_BLANKS)
        if method != "OPTIONS" or not origin or not self.allows(origin):
            return None
        if "access-control-request-method" not in headers:
            return None
        requested_headers = headers.get("access-control-request-headers", "")
        answer = [
            *self._allow(origin, _VARY),
            ("Access-Control-Allow-Methods", _METHODS),
            ("Access-Control-Max-Age", _MAX_AGE),
        ]
        if _TOKENS.fullmatch(requested_headers):
            # All that it requests: models may take any header, and "*" leaves out the key's.
            answer.append(("Access-Control-Allow-Headers", requested_headers))
        if headers.get("access-control-request-private-network") == "true":
            answer.append(("Access-Control-Allow-Private-Network", "true"))
        return answer

    def _allow(self, origin: str, vary: str = "Origin") -> list[tuple[str, str]]:
        # Never Access-Control-Allow-Credentials: keys are sent by the page itself.
        allowed = "*" if self.any_origin else origin
        return [("Access-Control-Allow-Origin", allowed), ("Vary", vary)]


class OriginCheck:
    """The rules of one listener. Used by one event loop.

    A request whose Host is in `known`, and that has neither Origin nor Sec-Fetch-Site, passes:
    call `refusal` for all others.
    """

    def __init__(
        self, origins: Origins, binding: Binding, *, tls: bool = False, own_name: str = ""
    ) -> None:
        self.origins = origins
        #: Values of Host that are answered, as they were sent.
        self.known: set[str] = set()
        self._binding = binding
        self._tls = tls
        own = Authority.parse(own_name)
        self._own_name = own.host if own is not None else ""

    def refusal(self, method: str, headers: Mapping[str, str]) -> OriginRefusal | None:
        """Why this request is not answered. Header names are in lower case; a repeated header is
        joined by ", "."""
        host_header = headers.get("host")  # only HTTP/1.0 may go without
        host = None if host_header is None else Authority.parse(host_header.strip(_BLANKS))
        if host_header is not None and self._binding is not Binding.UNIX:
            if host is None:
                return OriginRefusal(
                    400, f"the Host header {_quoted(host_header)} is not a host name and port"
                )
            if not self._answers(host):
                return self._misdirected(host)
            self._remember(host_header)
        origin = headers.get("origin")
        if origin is not None:
            origin = origin.strip(_BLANKS)
            if self.origins.allows(origin):
                return None
            problem = self._foreign(origin, host)
            return None if problem is None else OriginRefusal(403, problem)
        return _without_origin(method, headers)

    def _answers(self, host: Authority) -> bool:
        if host.is_loopback or self.origins.names(host.host):
            return True
        if self._binding is Binding.LOOPBACK:
            return host.host == self._own_name
        # Load balancers and probes use the address.
        return not self.origins.restricted or host.is_ip or host.host == self._own_name

    def _misdirected(self, host: Authority) -> OriginRefusal:
        where = "on a loopback address" if self._binding is Binding.LOOPBACK else "for some names"
        name = _quoted(host.host)
        return OriginRefusal(
            421,
            f"this server listens {where} and does not answer as {name}; if that is its name,"
            f" start it with --allowed-host {host.host[:_QUOTED_CHARS]}",
        )

    def _remember(self, host_header: str) -> None:
        if len(self.known) >= MAX_HOSTS:
            self.known.clear()
        self.known.add(host_header)

    def _foreign(self, origin: str, host: Authority | None) -> str | None:
        """Why a page of this origin may not call; None if it is a page of this server."""
        scheme, page = _split(origin)
        if page is None or host is None or not self._is_own(scheme, page, host):
            return (
                f"a page of {_quoted(origin)} may not call this server; if it may, start the"
                " server with --cors-origin and the page's origin"
            )
        if scheme == "http" and not self._is_certain(page):
            # Over TLS the certificate proves it; without, any DNS server may claim that it is us.
            return (
                f"a page may not call this server by the name {_quoted(page.host)}, which it was"
                f" not given; start it with --allowed-host {page.host[:_QUOTED_CHARS]}"
            )
        return None

    def _is_own(self, scheme: str, page: Authority, host: Authority) -> bool:
        if scheme not in _PORTS or page.host != host.host:
            return False
        usual = _PORTS[scheme]
        if (page.port or usual) != (host.port or usual):
            return False
        if scheme == "https":  # a proxy may have ended the TLS, but not on the way to localhost
            return self._tls or not host.is_loopback
        return not self._tls

    def _is_certain(self, page: Authority) -> bool:
        if page.is_ip or page.is_loopback or page.host == self._own_name:
            return True
        return self.origins.names(page.host)


def _without_origin(method: str, headers: Mapping[str, str]) -> OriginRefusal | None:
    site = headers.get("sec-fetch-site")
    if site is None or site.strip(_BLANKS) in ("same-origin", "none"):
        return None
    opens_page = headers.get("sec-fetch-mode") == "navigate"
    opens_page = opens_page and headers.get("sec-fetch-dest") == "document"
    if opens_page and method in ("GET", "HEAD"):
        return None  # the user follows a link to this server
    return OriginRefusal(
        403,
        f"a page of another site may not call this server (Sec-Fetch-Site: {_quoted(site)}); if it"
        " may, start the server with --cors-origin and the page's origin, and use CORS in the page",
    )


def normal_origin(origin: str) -> str | None:
    """One spelling of what is the same origin; None if it is not a single origin."""
    scheme, page = _split(origin)
    if page is None or page.zone:
        return None
    port = page.port if page.port != _PORTS.get(scheme) else None
    host = f"[{page.host}]" if ":" in page.host else page.host
    return f"{scheme}://{host}" if port is None else f"{scheme}://{host}:{port}"


def _split(origin: str) -> tuple[str, Authority | None]:
    match = _ORIGIN.fullmatch(origin) if len(origin) <= MAX_HOST_CHARS else None
    if match is None:
        return "", None
    return match[1].lower(), Authority.parse(match[2])


def _allowed_host(text: str) -> str:
    found = Authority.parse(text)
    if found is None and ":" in text:
        found = Authority.parse(f"[{text}]")
    if found is None or found.port is not None:
        raise ConfigError(
            f"allowed_host {text!r}: write a host name without a port, as browsers send it"
            " (xn--... for other letters), *.example.com for all names below one, or *"
        )
    return found.host


def _cors_origin(text: str) -> str:
    normal = normal_origin(text)
    if normal is None:
        raise ConfigError(
            f"cors_origin {text!r}: write scheme, host and port of the page, without a path, for"
            " example https://app.example.com or http://localhost:3000; or * for every page"
        )
    return normal


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    address = _ip(host)
    if address is not None:
        return address.is_loopback
    return host == "localhost" or host.endswith(".localhost")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _QUOTED_CHARS else text[:_QUOTED_CHARS] + "...")
