"""How do bytes become requests? (No I/O: bytes are handed in, requests are handed on.)"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

import httptools

from wherry.core.api import Buffer
from wherry.server.connections.held import KeptBuffers
from wherry.server.http.exchange import HttpRequest, RequestHead
from wherry.server.http.request_rules import Refused, RememberedHeads, RequestRules
from wherry.server.http.wire import header_lines, text_of

RECEIVE_BYTES: Final = 64 * 2**10
"""The most that is read at once; a larger body is read straight into its own buffer."""

TURN_BYTES: Final = 2**10
"""Bytes of heads and chunks that are parsed for one connection at a time: some twenty tiny
requests."""

UNREMEMBERED: Final = frozenset({"expect", "upgrade"})
"""Headers of requests whose head is parsed each time."""

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

    `state` is OVER after the client's last request, and after `stop`, which
    must follow a `Refused`. A request with a remembered head never reaches the parser: see
    `take_known`. The methods `on_...` are for the parser only.
    """

    __slots__ = (
        "_buffers",
        "_chunked",
        "_deliver",
        "_fed_bytes",
        "_head",
        "_heads",
        "_http10",
        "_large",
        "_lines",
        "_parser",
        "_persistent",
        "_rules",
        "_small",
        "direct",
        "expects_continue",
        "on_header",
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
        heads: RememberedHeads | None = None,
        buffers: KeptBuffers | None = None,
    ) -> None:
        """`peer` is the client's address; each request gets it. Without `heads` none is
        remembered. Large bodies are collected in `buffers`."""
        self._rules = rules
        self._buffers = buffers or KeptBuffers()
        self._heads = heads or RememberedHeads(lambda data: None)
        self._deliver = deliver
        self.peer = peer
        self.state = BETWEEN
        self.requests = 0
        #: Whether to feed one request at a time: a read has held a part of more than one.
        self.one_by_one = False
        #: Whether the client waits for "100 Continue" before it sends the body.
        self.expects_continue = False
        #: Where the next read must go, as it can be nothing but the rest of a large body.
        self.direct: memoryview | None = None
        self._small: bytes | bytearray = b""  # the body, unless it has a buffer of its own
        self._large: LargeBody | None = None
        self._fed_bytes = 0  # fed to the parser since its last progress
        self._lines = lines = HeadLines(rules)
        self.on_header = lines.add_header
        self._head: RequestHead | None = None  # once it has come
        self._chunked = False
        self._http10 = False
        self._persistent = True
        self._parser = self._new_parser()

    def __repr__(self) -> str:
        reading = self.state.name.lower()
        return f"<RequestReader: reading {reading} of {self.requests}, {self.received_bytes} bytes>"

    @property
    def method(self) -> str:
        """The method of the request that is being read, GET before it has come."""
        if self._head is not None:
            return self._head.method
        return self._parser.get_method().decode("latin-1") if self._lines.url else "GET"

    @property
    def path(self) -> str:
        return self._lines.path

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the request that is being read, as far as they have come."""
        return self._lines.headers if self._head is None else self._head.headers

    @property
    def received_bytes(self) -> int:
        """The bytes of the present request's body that have arrived."""
        return len(self._small) if self._large is None else self._large.received

    def take_known(self, data: bytes) -> bool:
        """Take `data` if it is one request, or the beginning of one, whose head is remembered.
        Only while BETWEEN.

        This is what most requests of a kept connection need, instead of a parser.
        """
        key, ended, body = data.partition(b"\r\n\r\n")
        if not ended:
            return False
        head = self._heads.known.get(key) or self._heads.sight(key)
        if head is None:
            return False
        if len(body) == head.body_bytes <= RECEIVE_BYTES:
            self.requests += 1
            self._fed_bytes = 0
            self._deliver(HttpRequest(head, body, self.peer), False)
            return True
        if len(body) <= head.body_bytes:
            self._begin_body(head, body)
            return True
        return False  # other requests follow

    def feed(self, data: bytes | memoryview) -> None:
        """Parse `data`, which is copied where it is kept. Refused if it is not a request for us.

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
                    # it, as HTTP allows: the head is read again without it.
                    data = data[upgrade.args[0] :]
                lines = self._lines.without_upgrade(
                    persistent=self._persistent, http10=self._http10
                )
                head = self._parser.get_method() + lines
                self._parser = self._new_parser()
                self._parser.feed_data(head)
        except httptools.HttpParserError as error:
            if self.state is not OVER:  # else bytes after the last request
                raise _refusal(error) from None
        if self.state is not BETWEEN:
            self._end_of_read()

    def fill(self, data: Buffer) -> None:
        """Put `data`, which is no longer than that, to the start of `direct`."""
        assert self.direct is not None
        self.direct[: len(data)] = data
        self.filled(len(data))

    def filled(self, nbytes: int) -> None:
        """`nbytes` were read to the start of `direct`. No byte beyond it can have come."""
        large = self._large
        assert large is not None
        large.received += nbytes
        self.direct = large.rest
        self.expects_continue = False
        if not self.direct:
            if self._lines.url:
                self._parser = self._new_parser()  # the old one still waits for the body
            self._complete()

    def next_piece(self, data: memoryview) -> tuple[int, int]:
        """How much of `data` to parse next, no further than the end of a request, and what that
        costs, in bytes that are parsed one by one."""
        if self.state is OVER:
            return len(data), 0
        if self.direct is not None:
            return min(len(self.direct), len(data)), 0
        if self.state is BODY:
            if self._chunked:
                return min(CHUNKS_BYTES, len(data)), TURN_BYTES
            assert self._head is not None
            left = self._head.body_bytes - len(self._small)
            return min(left, len(data)), 0
        start = bytes(data[:TURN_BYTES])
        end = start.find(b"\r\n\r\n") + 4
        if end < 4:
            return len(start), len(start)
        head = self._heads.known.get(start[: end - 4]) if self.state is BETWEEN else None
        return (end if head is None else min(end + head.body_bytes, len(data))), end

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
        self._lines.clear()
        self._head = None
        self._chunked = False

    def on_url(self, url: bytes) -> None:
        self._lines.url += url

    def on_headers_complete(self) -> None:
        lines, rules, parser = self._lines, self._rules, self._parser
        headers = lines.headers
        if self._fed_bytes > rules.max_header_bytes or self.one_by_one:
            # The body may be counted, too, and what came in one read with the request before is
            # not: now be exact.
            rules.head_bytes(lines.url, headers, lines.joined_bytes)
        self._persistent = parser.should_keep_alive()
        # Reading the version is slow, and this much is true of HTTP/1.1 alone.
        self._http10 = False
        if not self._persistent or "connection" in headers:
            self._http10 = rules.version(parser.get_http_version())
        method = parser.get_method()
        rules.addressed(method, lines.url, headers, http10=self._http10)
        if "upgrade" in headers and parser.should_upgrade():
            return  # the parser stops at the end of this head: see feed
        length = 0
        if "transfer-encoding" in headers:
            rules.coding(headers["transfer-encoding"], http10=self._http10)
            # A client that sends both may be about to smuggle a request past a proxy that believed
            # the other one: what follows on this connection is not read (RFC 9112, 6.1).
            self._persistent = self._persistent and "content-length" not in headers
            self._chunked = True
            lines.headers = {}  # trailers may follow: they change nothing
        elif "content-length" in headers:
            length = int(headers["content-length"])
            if length > RECEIVE_BYTES or length > rules.max_body_bytes:
                self._large = LargeBody(self._buffers.take(rules.body_bytes(length)))
        if "expect" in headers and not self._http10:
            rules.expectation(headers["expect"])
            self.expects_continue = True
        path, query, sent = rules.targets[lines.url]
        self._head = RequestHead(text_of(method), path, query, headers, length, sent)
        self.state = BODY

    def on_body(self, data: bytes) -> None:
        self._fed_bytes = 0
        self.expects_continue = False  # the client has not waited
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
        if self.state is BODY:  # else refused, or behind the last request
            self._complete()

    def _begin_body(self, head: RequestHead, start: bytes) -> None:
        """Collect the body of a remembered head, of which `start` has come."""
        self.requests += 1
        self._fed_bytes = 0
        self._head = head
        self._http10 = False
        self._persistent = True
        self._large = LargeBody(self._buffers.take(head.body_bytes))
        self.direct = self._large.data
        self.state = BODY
        self.fill(start)

    def _complete(self) -> None:
        """Deliver the request that has come."""
        head, large = self._head, self._large
        assert head is not None
        body: Buffer
        if large is None:
            body, self._small = self._small, b""
        else:
            body = large.data if head.body_bytes > RECEIVE_BYTES else bytes(large.data)
            self._large = self.direct = None
        self._head = None
        self._lines.url = b""
        self.state = BETWEEN if self._persistent else OVER
        self.expects_continue = False
        self._fed_bytes = 0  # what follows in this read counts from the next one on
        self._deliver(HttpRequest(head, body, self.peer), self._http10)

    def _end_of_read(self) -> None:
        """A read has ended inside a request, or behind the last one."""
        if self._large is not None:
            self.direct = self._large.rest
        elif self._fed_bytes > self._rules.max_header_bytes and self.state is not OVER:
            raise self._rules.head_too_large(self._lines.url)

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # A body in chunks that has a Content-Length, too: the chunks count (see _expect_chunks).
        parser.set_dangerous_leniencies(lenient_chunked_length=True)
        return parser


class HeadLines:
    __slots__ = ("_rules", "headers", "joined_bytes", "url")

    def __init__(self, rules: RequestRules) -> None:
        self._rules = rules
        self.clear()

    @property
    def path(self) -> str:
        """The path of the target; "" before it has come."""
        return self._rules.targets[self.url][0] if self.url else ""

    def clear(self) -> None:
        self.url = b""
        self.headers: dict[str, str] = {}
        #: Bytes that joining repeated headers has saved.
        self.joined_bytes = 0

    def add_header(self, name: bytes, value: bytes) -> None:
        key = self._rules.header_names[name]
        headers = self.headers
        if key in headers:
            self.joined_bytes += len(key) + len(": \r\n") - len(", ")
            self._rules.repetition(key, self.joined_bytes)
            headers[key] += ", " + value.decode("latin-1")
        else:
            headers[key] = value.decode("latin-1")

    def without_upgrade(self, *, persistent: bool, http10: bool) -> bytes:
        """The head behind the method, without the upgrade."""
        kept = {name: value for name, value in self.headers.items() if name != "upgrade"}
        kept["connection"] = "keep-alive" if persistent else "close"
        lines = header_lines(list(kept.items()))
        return b" %b HTTP/1.%d\r\n%b\r\n" % (self.url, not http10, lines)


class LargeBody:
    """A body of known length that is collected in a buffer of its own."""

    __slots__ = ("data", "received")

    def __init__(self, data: memoryview) -> None:
        """`data` is as long as the body."""
        self.data = data
        self.received = 0

    @property
    def rest(self) -> memoryview:
        return self.data[self.received :]

    def add(self, data: bytes) -> None:
        end = self.received + len(data)
        self.data[self.received : end] = data
        self.received = end


def ordinary_head(rules: RequestRules, data: bytes) -> RequestHead | None:
    """Read a head as any other. None if it is refused, or is not the head of a request after which
    the connection stays open, and whose body has a known length.

    What is returned depends on nothing but `data` and the settings of `rules`.
    """
    delivered: list[HttpRequest] = []
    reader = RequestReader(rules, lambda request, http10: delivered.append(request))
    try:
        reader.feed(data)
    except Refused:
        return None
    if delivered:
        whole = reader.state is BETWEEN and not delivered[0].body
    else:
        whole = reader.state is BODY and not reader.received_bytes
    head = delivered[0].head if delivered else reader._head
    usual = whole and reader.requests == 1 and reader._persistent
    usual = usual and not (reader._http10 or reader._chunked)
    reader.close()
    if head is None or not usual or not UNREMEMBERED.isdisjoint(head.headers):
        return None
    head.headers = MappingProxyType(head.headers)  # all requests share it
    return head


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
