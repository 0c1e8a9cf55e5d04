"""How do bytes become requests? (No I/O: bytes are handed in, requests are handed on.)"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

import httptools
import numpy as np

from wherry.frontends.http.exchange import HttpRequest, RequestHead
from wherry.frontends.http.request_rules import Refused, RequestRules
from wherry.frontends.http.wire import header_lines

RECEIVE_BYTES: Final = 64 * 2**10
"""The most that is read at once; a larger body is read straight into its own buffer."""

TURN_BYTES: Final = 2**10
"""Bytes of heads and chunks that are parsed for one connection at a time: some twenty tiny
requests."""

CHUNKS_BYTES: Final = 2**13
"""Bytes of a body in chunks that are parsed at a time."""


class ReadState(Enum):
    """The part of a request that the next byte from the client belongs to."""

    BETWEEN = auto()  # nothing yet: the next request may begin
    HEAD = auto()
    BODY = auto()
    OVER = auto()  # no request: nothing more is read


# Bound once: finding a member on its class each time costs as much as a call.
BETWEEN, HEAD, BODY, OVER = ReadState


class RequestReader:
    """Reads the requests of one connection, and calls `deliver(request, http10)` for each.

    `state` is OVER after the last request that the client wants answered, and after `stop`, which
    must follow a `Refused`. The methods `on_...` are for the parser only.
    """

    __slots__ = (
        "_deliver",
        "_fed_bytes",
        "_header_names",
        "_headers",
        "_http10",
        "_joined_bytes",
        "_large",
        "_parser",
        "_persistent",
        "_rules",
        "_seen_body_bytes",
        "_small",
        "_trailed",
        "_url",
        "direct",
        "expects_continue",
        "one_by_one",
        "peer",
        "requests",
        "state",
    )

    def __init__(
        self,
        rules: RequestRules,
        deliver: Callable[[HttpRequest, bool], None],
        peer: str | None = None,
    ) -> None:
        """`peer` is the client's address; each request gets it."""
        self._rules = rules
        self._deliver = deliver
        self.peer = peer
        self._header_names = rules.header_names
        self.state = BETWEEN
        #: Requests that have begun.
        self.requests = 0
        #: Whether to feed one request at a time: a read has held a part of more than one.
        self.one_by_one = False
        #: Whether the client waits for "100 Continue" before it sends the body.
        self.expects_continue = False
        #: Where the next read must go, as it can be nothing but the rest of a large body.
        self.direct: memoryview | None = None
        self._small: bytes | bytearray = b""  # the body, unless it has a buffer of its own
        self._large: LargeBody | None = None
        self._fed_bytes = 0  # given to the parser since the last progress it made
        self._url = b""
        self._headers: dict[str, str] = {}
        self._joined_bytes = 0  # what repeated headers were longer than they are when joined
        # The headers, where trailers may still follow: those must not change what was checked.
        self._trailed: dict[str, str] | None = None
        self._http10 = False
        self._persistent = True
        self._seen_body_bytes = 0
        self._parser = self._new_parser()

    def __repr__(self) -> str:
        reading = self.state.name.lower()
        return f"<RequestReader: reading {reading} of {self.requests}, {self.received_bytes} bytes>"

    @property
    def method(self) -> str:
        """The method of the last request that has begun."""
        return self._parser.get_method().decode("latin-1") if self.requests else "GET"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the last request that has begun, as far as they have come."""
        return self._headers if self._trailed is None else self._trailed

    @property
    def received_bytes(self) -> int:
        """The bytes of the present request's body that have arrived."""
        return len(self._small) if self._large is None else self._large.received

    def feed(self, data: memoryview) -> None:
        """Parse `data`, which is copied where it is kept. Refused if it is no request for us.

        Not while `direct` is there to be filled.
        """
        self._fed_bytes += len(data)
        try:
            while True:
                try:
                    self._parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    # The parser takes any upgrade as granted and leaves the body unread. We ignore
                    # it, as we may: the head is read again as if it had not asked.
                    data = data[upgrade.args[0] :]
                head = self._head_without_upgrade()
                self._parser = self._new_parser()
                self._parser.feed_data(head)
        except httptools.HttpParserError as error:
            if self.state is not OVER:  # else bytes after the last request
                raise _refusal(error) from None
        if self.state is not BETWEEN:
            self._end_of_read()

    def filled(self, nbytes: int) -> None:
        """`nbytes` were read to the start of `direct`. No byte beyond it can have come."""
        large = self._large
        assert large is not None
        large.received += nbytes
        self.direct = large.rest
        self.expects_continue = False
        if not self.direct:
            self.on_message_complete()
            self._parser = self._new_parser()  # the old one still waits for the body

    def next_piece(self, data: memoryview) -> tuple[int, int]:
        """How much of `data` to parse next, no further than the end of a request, and what that
        costs, in bytes that are parsed one by one."""
        if self.state is OVER:
            return len(data), 0
        if self.direct is not None:
            return min(len(self.direct), len(data)), 0
        if self.state is BODY:
            if self._trailed is not None:
                return min(CHUNKS_BYTES, len(data)), TURN_BYTES
            left = int(self._headers["content-length"]) - len(self._small)
            return min(left, len(data)), 0
        head_bytes = bytes(data[:TURN_BYTES]).find(b"\r\n\r\n") + 4
        size = min(head_bytes if head_bytes > 3 else TURN_BYTES, len(data))
        return size, size

    def stop(self) -> None:
        """Read no more requests; what has come of one is dropped."""
        self.state = OVER
        self._small = b""
        self._large = self.direct = None

    def close(self) -> None:
        """Stop, and drop the references to the connection."""
        self.stop()
        del self._deliver, self._parser  # the parser holds this reader

    # What the parser calls

    def on_message_begin(self) -> None:
        if self.state is OVER:
            raise Refused(400, "nothing is read after the last request")
        if not self._fed_bytes:
            self.one_by_one = True
        self.state = HEAD
        self.requests += 1
        self._url = b""
        self._headers = {}
        self._trailed = None
        self._joined_bytes = 0
        self._seen_body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key = self._header_names[name]
        headers = self._headers
        if key in headers:
            self._joined_bytes += len(key) + len(": \r\n") - len(", ")
            self._rules.repetition(key, self._joined_bytes)
            headers[key] += ", " + value.decode("latin-1")
        else:
            headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        headers = self._headers
        rules = self._rules
        if self._fed_bytes > rules.max_header_bytes:
            # The body and other requests may be counted, too: now be exact.
            rules.head_bytes(self._url, headers, self._joined_bytes)
        self._persistent = self._parser.should_keep_alive()
        # Asking for the version is slow, and this much is true of HTTP/1.1 alone.
        self._http10 = False
        if not self._persistent or "connection" in headers:
            self._http10 = rules.version(self._parser.get_http_version())
        if not self._url.startswith(b"/"):
            method = self._parser.get_method()
            rules.target(method, self._url, headers, http10=self._http10)
        if (
            headers.get("host") not in rules.known_hosts
            or "origin" in headers
            or "sec-fetch-site" in headers
        ):
            rules.origin(self._parser.get_method(), headers, http10=self._http10)
        if "upgrade" in headers and self._parser.should_upgrade():
            return  # the parser stops at the end of this head: see feed
        if "transfer-encoding" in headers:
            self._expect_chunks(headers)
        elif "content-length" in headers:
            length = int(headers["content-length"])
            if length > RECEIVE_BYTES or length > rules.max_body_bytes:
                self._large = LargeBody(rules.body_bytes(length))
        if "expect" in headers and not self._http10:
            rules.expectation(headers["expect"])
            self.expects_continue = True
        self.state = BODY

    def on_body(self, data: bytes) -> None:
        if self._large is not None:
            self._large.add(data)
            return
        if not self._small:
            self._small = data
        else:
            if type(self._small) is bytes:
                self._small = bytearray(self._small)
            self._small += data
        if len(self._small) > self._rules.max_body_bytes:
            self._rules.body_bytes(len(self._small))

    def on_message_complete(self) -> None:
        if self.state is not BODY:
            return  # refused, or behind the last request
        path, query = self._rules.targets[self._url]
        method = self._rules.methods[self._parser.get_method()]
        head = RequestHead(method, path, query, self._trailed or self._headers)
        if self._large is None:
            request = HttpRequest(head, self._small, self.peer)
            self._small = b""
        else:
            request = HttpRequest(head, self._large.data, self.peer)
            self._large = self.direct = None
        self.state = BETWEEN if self._persistent else OVER
        self.expects_continue = False
        self._fed_bytes = 0  # what follows in this read counts from the next one on
        self._deliver(request, self._http10)

    def _expect_chunks(self, headers: dict[str, str]) -> None:
        self._rules.coding(headers["transfer-encoding"], http10=self._http10)
        # A client that sends both may be about to smuggle a request past a proxy that believed the
        # other one: what follows on this connection is not read (RFC 9112, 6.1).
        self._persistent = self._persistent and "content-length" not in headers
        self._trailed, self._headers = headers, {}

    def _end_of_read(self) -> None:
        """A read has ended inside a request, or behind the last one."""
        received = self.received_bytes
        if received != self._seen_body_bytes:
            self._seen_body_bytes = received
            self._fed_bytes = 0
            self.expects_continue = False  # the client has not waited
        if self._large is not None:
            self.direct = self._large.rest
        elif self._fed_bytes > self._rules.max_header_bytes and self.state is not OVER:
            raise self._rules.head_too_large(self._url)

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # A body in chunks that has a Content-Length, too: the chunks count (see _expect_chunks).
        parser.set_dangerous_leniencies(lenient_chunked_length=True)
        return parser

    def _head_without_upgrade(self) -> bytes:
        kept = {k: v for k, v in self._headers.items() if k != "upgrade"}
        kept["connection"] = "keep-alive" if self._persistent else "close"
        version = b"1.0" if self._http10 else b"1.1"
        lines = header_lines(list(kept.items()))
        return b"%b %b HTTP/%b\r\n%b\r\n" % (
            self._parser.get_method(), self._url, version, lines
        )  # fmt: skip


class LargeBody:
    """A body of known length that is collected in a buffer of its own."""

    __slots__ = ("data", "received")

    def __init__(self, length: int) -> None:
        # Not bytearray(n): that writes n zeros first, so a mere announcement would cost memory.
        self.data = np.empty(length, np.uint8).data
        #: Bytes that have come: the first of `data`.
        self.received = 0

    @property
    def rest(self) -> memoryview:
        """The part that is still to come, to be written to."""
        return self.data[self.received :]

    def add(self, data: bytes) -> None:
        """Append a copy of `data`."""
        end = self.received + len(data)
        self.data[self.received : end] = data
        self.received = end


def _refusal(error: httptools.HttpParserError) -> Refused:
    cause = error.__context__  # what one of the reader's methods has raised
    if isinstance(cause, Refused):
        return cause
    if isinstance(error, httptools.HttpParserCallbackError):
        refused = Refused(500, "the server failed to read this request")
        refused.bug = cause or error
        return refused
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return Refused(400, "this is not an HTTP/1.1 request: unknown method")
    return Refused(400, f"malformed HTTP request: {error}")
