"""Which requests does the transport refuse, and which heads has it checked before? (Pure.)"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final

from wherry.server.access.origins import OriginCheck
from wherry.server.calls.terms import name_with_capitals
from wherry.server.connections.limits import Limits
from wherry.server.http.exchange import RequestHead
from wherry.server.http.wire import Memo, header_name, split_target, target_authority, text_of

HEAD_BYTES: Final = 2**11
"""The longest head that is remembered."""

MAX_HEADS: Final = 512
MAX_BYTES: Final = 2**18
"""Bounds of all heads together, in heads and in their bytes. An entry takes some four times its
bytes."""

MAX_SIGHTED: Final = 1024
"""Heads that have come once and are waited for, by their hashes."""


class RememberedHeads:
    """The heads that the connections of one listener have read, by their bytes.

    A head is remembered when it comes for the second time: heads that differ in each request, by an
    id or a trace, are not kept. With equal bytes the outcome of every check of a head is equal, as
    the checks depend on nothing but the head and the listener's settings.
    """

    def __init__(self, read: Callable[[bytes], RequestHead | None]) -> None:
        """`read` checks and parses a head with its empty line; None for one that must be parsed
        each time."""
        self._read = read
        #: By their bytes before the empty line; None: to be parsed each time.
        self.known: dict[bytes, RequestHead | None] = {}
        self._bytes = 0
        self._sighted: set[int] = set()

    def __repr__(self) -> str:
        return f"<RememberedHeads: {len(self.known)} of {self._bytes} bytes>"

    def sight(self, data: bytes) -> RequestHead | None:
        """Note a head that `known` does not give. Return it, parsed, when it has come before."""
        if data in self.known or len(data) > HEAD_BYTES:
            return None
        # The hash of bytes is a secret of this process: no client can choose two that are equal.
        number = hash(data)
        if number not in self._sighted:
            if len(self._sighted) >= MAX_SIGHTED:
                self._sighted.clear()
            self._sighted.add(number)
            return None
        head = self._read(data + b"\r\n\r\n")
        if len(self.known) >= MAX_HEADS or self._bytes + len(data) > MAX_BYTES:
            self.known.clear()
            self._bytes = 0
        self.known[data] = head
        self._bytes += len(data)
        return head


REQUEST_LINE_BYTES: Final = len("GET  HTTP/1.1\r\n")

REPEATED_BYTES: Final = 2**11
"""Bytes of the names of repeated headers: each repetition joins all values before it anew."""


class Refused(Exception):
    """The transport answers this request itself, and then closes the connection."""

    def __init__(self, status: int, message: str, *headers: tuple[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.bug: BaseException | None = None


class RequestRules:
    """The checks of a request's head. Each raises Refused for what this listener does not take.

    Shared by all connections of the listener, with the texts that their requests repeat.
    """

    def __init__(self, limits: Limits) -> None:
        self.max_body_bytes = limits.max_body_bytes
        self.max_header_bytes = limits.max_header_bytes
        #: Values of Host that pass without a check.
        self.known_hosts: Set[str] = frozenset()
        self._origin_check: OriginCheck | None = None
        self.header_names = Memo(header_name)
        self.targets = Memo(split_target)

    def answer_only(self, check: OriginCheck) -> None:
        """Refuse requests whose Host or Origin does not pass `check`."""
        self._origin_check = check
        self.known_hosts = check.known

    def keep_sent_names(self) -> None:
        """Have headers keep the capitals of their names, each as a SentName."""
        self.header_names = Memo(name_with_capitals)

    def version(self, version: str) -> bool:
        """Check an HTTP version; returns whether it is HTTP/1.0."""
        if version not in ("1.0", "1.1"):
            raise Refused(505, f"HTTP/{version} is not spoken here; use HTTP/1.1")
        return version == "1.0"

    def addressed(
        self, method: bytes, url: bytes, headers: dict[str, str], *, http10: bool
    ) -> None:
        """Check the target, Host and Origin."""
        if not url.startswith(b"/"):
            self.target(method, url, headers, http10=http10)
        if (
            headers.get("host") not in self.known_hosts
            or "origin" in headers
            or "sec-fetch-site" in headers
        ):
            self.origin(method, headers, http10=http10)

    def target(self, method: bytes, url: bytes, headers: dict[str, str], *, http10: bool) -> None:
        """Check a request target that is not a path. Its authority replaces the Host header."""
        if method == b"CONNECT":
            raise Refused(501, "CONNECT is not supported: this is not a proxy")
        authority = target_authority(url)
        if authority is not None:
            self.origin(method, headers, http10=http10)
            headers["host"] = authority  # RFC 9112, 3.2.2

    def origin(self, method: bytes, headers: dict[str, str], *, http10: bool) -> None:
        if "host" not in headers and not http10:
            raise Refused(400, "the request has no Host header, which HTTP/1.1 requires")
        if self._origin_check is not None:
            refusal = self._origin_check.refusal(text_of(method), headers)
            if refusal is not None:
                raise Refused(refusal.status, refusal.message)

    def cors_headers(self, headers: Mapping[str, str]) -> Sequence[tuple[str, str]]:
        """The headers that let a web page read the answer to this request."""
        if self._origin_check is None:
            return ()
        return self._origin_check.origins.answer_headers(headers)

    def repetition(self, name: str, joined_bytes: int) -> None:
        """Check a header that has come before. `joined_bytes` counts what joining has saved."""
        if name == "host":
            raise Refused(400, "the request has more than one Host header; send exactly one")
        if joined_bytes > REPEATED_BYTES:
            raise Refused(
                431, f"the request repeats {name!r} too often; send one header with a list"
            )

    def head_bytes(self, url: bytes, headers: dict[str, str], joined_bytes: int) -> None:
        """Check the size of a complete head."""
        fields = sum(len(name) + len(value) + 4 for name, value in headers.items())
        if REQUEST_LINE_BYTES + len(url) + fields + joined_bytes > self.max_header_bytes:
            raise self.head_too_large(url)

    def head_too_large(self, url: bytes) -> Refused:
        limit = self.max_header_bytes
        if len(url) + REQUEST_LINE_BYTES > limit:
            return Refused(414, f"the request line exceeds the limit of {limit} bytes; shorten it")
        return Refused(
            431, f"the request's headers exceed the limit of {limit} bytes; send fewer or shorter"
        )

    def body_bytes(self, count: int) -> int:
        if count > self.max_body_bytes:
            raise Refused(
                413,
                f"the body exceeds the limit of {self.max_body_bytes} bytes;"
                " send less at a time, or raise the server's --max-body-size",
            )
        return count

    def coding(self, coding: str, *, http10: bool) -> None:
        if http10:
            raise Refused(400, "HTTP/1.0 has no Transfer-Encoding; send Content-Length")
        if coding.lower() != "chunked":
            raise Refused(501, f"Transfer-Encoding {coding!r} is not supported; use chunked")

    def expectation(self, expectation: str) -> None:
        if expectation.lower() != "100-continue":
            raise Refused(417, f"Expect: {expectation!r} cannot be met; only 100-continue is known")
