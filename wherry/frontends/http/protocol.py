"""How do bytes on a connection become exchanges, and answers bytes again?

This is the hot path of every HTTP request: no task, future or timer belongs to a request.
`Connection` is the asyncio protocol of one connection; `Connections` is what those of one listener
share: the application, the limits, the receive buffer, and one timer that looks after all of them.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence, Set
from enum import Enum, auto
from typing import Final, cast

import httptools
import numpy as np

from wherry.frontends.access.origins import OriginCheck
from wherry.frontends.connections.gathered import gathered_write
from wherry.frontends.connections.held import FREE_BYTES, Holdings
from wherry.frontends.connections.limits import Limits
from wherry.frontends.connections.open_connection import OpenConnection
from wherry.frontends.connections.open_connections import MayAsk, OpenConnections
from wherry.frontends.connections.sockets import address_text, has_unread, unacknowledged
from wherry.frontends.http.exchange import (
    ANSWERED,
    STREAMING,
    WAITING,
    Application,
    Exchange,
    HttpRequest,
    error_body,
)
from wherry.frontends.http.health_only import HealthOnly
from wherry.frontends.http.turns import TURN_BYTES, Turns, is_one_request
from wherry.frontends.http.wire import (
    BODILESS,
    Memo,
    first_lines,
    head_alone,
    header_lines,
    header_name,
    split_target,
    target_authority,
    text_of,
    total_bytes,
)
from wherry.values.buffer import Buffer

RECEIVE_BYTES: Final = 64 * 2**10
"""One read at most; a larger body is read straight into its own buffer."""

AT_ONCE_BYTES: Final = 2**10
"""Bytes up to which a read is parsed as it comes, in one go."""

CHUNKS_BYTES: Final = 2**13
"""Bytes of a body in chunks that are parsed at a time."""

REQUEST_LINE_BYTES: Final = len("GET  HTTP/1.1\r\n")

REPEATED_BYTES: Final = 2**11
"""Bytes of the names of repeated headers: each repetition joins all values before it anew."""

PROGRESS_BYTES: Final = 2**14
"""Bytes that must move before a time limit of a body, or of an answer, begins anew: a byte now and
then is no progress."""

LINGER: Final = 2.0
"""How long a refused client may go on sending before it is cut off, so that it reads the answer."""


class Refused(Exception):
    """The transport answers this request itself, and then closes the connection."""

    def __init__(self, status: int, message: str, *headers: tuple[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class Reading(Enum):
    """What the next byte from the client belongs to."""

    BETWEEN = auto()  # nothing yet: the next request may begin
    HEAD = auto()
    BODY = auto()
    OVER = auto()  # nothing we want: it is thrown away


class Wait(Enum):
    """What a connection waits for the client to do."""

    BEGIN = auto()
    HEAD = auto()
    BODY = auto()
    READ = auto()  # take what we have written
    LAST = auto()  # begin its last request, as the server drains
    LEAVE = auto()


# Bound once: finding a member on its class each time costs as much as a call.
BETWEEN, HEAD, BODY, OVER = Reading


class Connections(OpenConnections["Connection"]):
    """All open connections of one listener, and what they share. `clock` may be a test's own."""

    def __init__(
        self,
        application: Application,
        limits: Limits,
        *,
        vital: frozenset[str] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
        holdings: Holdings[OpenConnection] | None = None,
    ) -> None:
        super().__init__(clock, limits, holdings)
        self.application = application
        self.turns = Turns()
        self.health_only = HealthOnly(application, vital, limits.max_connections)
        # Safe to share: both loops hand a filled buffer over before they ask for the next one.
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.heads: dict[tuple[int, str, str], bytes] = {}
        self.header_names = Memo(header_name)
        self.methods = Memo(text_of)
        self.targets = Memo(split_target)
        #: Which hosts and pages are answered; without it, any.
        self.origin_check: OriginCheck | None = None
        self.timeouts = {
            Wait.BEGIN: limits.idle_timeout,
            Wait.HEAD: limits.header_timeout,
            Wait.BODY: limits.body_timeout,
            Wait.READ: limits.write_timeout,
            Wait.LAST: 0.0,
            Wait.LEAVE: LINGER,
        }
        self._last_call_until = 0.0

    def __repr__(self) -> str:
        return f"<Connections: {len(self.open)} open>"

    def drain(self, last_call: float) -> None:
        """The answer of the last request that has arrived says that it is the last; a connection
        that is idle for `last_call` seconds is closed."""
        self._last_call_until = self.clock() + last_call
        self.timeouts[Wait.LAST] = last_call
        super().drain(last_call)

    @property
    def last_call_is_over(self) -> bool:
        return self.clock() >= self._last_call_until

    def sweep(self) -> None:
        self.heads.clear()  # the Date in them has passed
        super().sweep()


class Connection(asyncio.BufferedProtocol):
    """One client's connection: requests in, answers out in the same order."""

    __slots__ = (
        "__weakref__",
        "_application",
        "_at_once_bytes",
        "_body",
        "_discarded_bytes",
        "_early_bytes",
        "_expects_continue",
        "_fed_bytes",
        "_head",
        "_header_names",
        "_headers",
        "_heads",
        "_http10",
        "_joined_bytes",
        "_known_hosts",
        "_large_body",
        "_large_body_bytes",
        "_limits",
        "_lingering",
        "_max_body_bytes",
        "_max_header_bytes",
        "_max_pipelined",
        "_methods",
        "_origin_check",
        "_owed_much",
        "_parser",
        "_peer",
        "_persistent",
        "_reading",
        "_reading_held",
        "_receive_buffer",
        "_requests",
        "_rest",
        "_seen_body_bytes",
        "_shared",
        "_targets",
        "_transport",
        "_turn_comes",
        "_unparsed",
        "_url",
        "_wait",
        "_waiting_since",
        "_write_gathered",
        "_written_bytes",
        "exchanges",
        "writing_paused",
    )

    def __init__(self, shared: Connections) -> None:
        self._shared = shared
        self._application = shared.application
        self._limits = shared.limits
        self._max_body_bytes = shared.limits.max_body_bytes
        self._max_header_bytes = shared.limits.max_header_bytes
        self._max_pipelined = shared.limits.max_pipelined
        self._receive_buffer = shared.receive_buffer
        self._heads = shared.heads
        self._header_names = shared.header_names
        self._methods = shared.methods
        self._targets = shared.targets
        self._origin_check = check = shared.origin_check
        self._known_hosts: Set[str] = check.known if check is not None else frozenset()
        self._transport = cast(asyncio.Transport, None)
        self._peer: str | None = None

        # The request that is being read
        self._parser = self._new_parser()
        self._reading = BETWEEN
        self._requests = 0
        self._fed_bytes = 0  # given to the parser since the last progress it made
        self._url = b""
        self._headers: dict[str, str] = {}
        self._joined_bytes = 0  # what repeated headers were longer than they are when joined
        self._head: dict[str, str] | None = None  # the headers, where trailers may still follow
        self._http10 = False
        self._persistent = True
        self._expects_continue = False
        self._body: bytes | bytearray = b""
        self._seen_body_bytes = 0
        self._large_body: memoryview | None = None
        self._large_body_bytes = 0
        self._rest: memoryview | None = None  # of the large body, once the parser is out of the way
        self._at_once_bytes = AT_ONCE_BYTES
        self._unparsed: bytes | memoryview = b""  # what was read, and must wait for its turn
        self._turn_comes = False
        self._reading_held = False
        self._discarded_bytes = 0
        self._lingering = False

        # The answers
        self.exchanges: deque[_Exchange] = deque()  # not fully answered, in order of arrival
        self.writing_paused = False
        self._written_bytes = 0
        self._early_bytes = 0  # of answers that wait for those before them
        self._owed_much = False  # whether the unsent bytes are in the ledger of all clients

        # What sweeps have seen
        self._wait: tuple[Wait, int] | None = None
        self._waiting_since = 0.0

    def __repr__(self) -> str:
        return (
            f"<Connection from {self._peer}: {len(self.exchanges)} unanswered,"
            f" reading {self._reading.name.lower()}>"
        )

    # What the loop tells us

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._write_gathered = gathered_write(self._transport)
        self._peer = address_text(transport.get_extra_info("peername"))
        self._waiting_since = self._shared.clock()
        may_ask = self._shared.admit(self, transport)
        if may_ask is MayAsk.HEALTH:
            self._application = self._shared.health_only
        elif may_ask is MayAsk.NOTHING:
            self._refuse_to_serve()
        if self._shared.draining:
            self.drain()

    def _refuse_to_serve(self) -> None:
        self._refuse(
            Refused(
                503,
                f"the server has its limit of {len(self._shared.open) - 1} connections;"
                " retry later, or raise max_connections and the limit of open files",
                ("Retry-After", "1"),
            )
        )
        self._transport.close()  # without waiting for the client to have read it

    def connection_lost(self, exc: Exception | None) -> None:
        self._reading = OVER
        self._unparsed = b""
        self._client_left()
        self._shared.remove(self)
        del self._parser  # it holds our bound methods: a cycle that would wait for the collector

    def eof_received(self) -> None:
        # No HTTP client in use closes one half and then waits: an end of file is a client that
        # left. The transport closes when this returns, after sending what is already written.
        self._unparsed = b""
        self._client_left()

    def pause_writing(self) -> None:
        self.writing_paused = True
        self._regulate()

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self._owed_much:
            self._note_unsent()
        self._regulate()
        if self.exchanges:
            self.exchanges[0].drained()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive_buffer if self._rest is None else self._rest

    def buffer_updated(self, nbytes: int) -> None:
        if self._rest is not None:
            self._fill(self._rest, nbytes)
        elif self._reading is OVER:
            self._discard(nbytes)
        elif nbytes <= self._at_once_bytes:
            self._feed(self._receive_buffer[:nbytes])
        elif self._at_once_bytes and not self._unparsed:
            data = self._receive_buffer[:nbytes]
            if self._reading is BETWEEN and is_one_request(data):
                self._feed(data)
            else:
                self._parse_some(data, 1)
        else:
            self._unparsed = memoryview(bytes(self._unparsed) + self._receive_buffer[:nbytes])
            self._regulate()

    # Requests in

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # A body in chunks that has a Content-Length, too: the chunks count (see _prepare_chunks).
        parser.set_dangerous_leniencies(lenient_chunked_length=True)
        return parser

    def _feed(self, data: memoryview) -> None:
        self._fed_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self._parser_failed(error)
        if self._reading is HEAD or self._reading is BODY:
            self._await_the_rest()

    def take_turn(self) -> int:
        """Parse what this connection may cost the others at a time."""
        self._turn_comes = False
        data, self._unparsed = self._unparsed, b""
        return self._parse_some(memoryview(data), TURN_BYTES)

    def _parse_some(self, data: memoryview, budget: int) -> int:
        """Parse request by request, until what that costs has reached the budget. The rest waits
        for its turn."""
        spent = 0
        while data and self._reading is not OVER and not self._is_owed_too_much():
            if (rest := self._rest) is not None:
                size = min(len(rest), len(data))
                rest[:size] = data[:size]
                self._unparsed = data[size:]
                self._fill(rest, size)
            else:
                size, cost = self._next_piece(data)
                if cost and spent >= budget:
                    break
                spent += cost
                self._unparsed = data[size:]
                self._feed(data[:size])
            data = data[size:]
        self._unparsed = b""
        if data and self._reading is OVER:
            self._discard(len(data))
        elif data:
            # Our own copy: the buffer belongs to all connections.
            self._unparsed = data if data.readonly else memoryview(bytes(data))
        if data or self._reading_held:
            self._regulate()
        return spent

    def _next_piece(self, data: memoryview) -> tuple[int, int]:
        """Up to where to parse now, no further than the end of a request; and what that costs, in
        bytes that are parsed one by one."""
        if self._reading is BODY:
            if self._head is not None:
                return min(CHUNKS_BYTES, len(data)), TURN_BYTES
            left = int(self._headers["content-length"]) - len(self._body)
            return min(left, len(data)), 0
        head_bytes = bytes(data[:TURN_BYTES]).find(b"\r\n\r\n") + 4
        size = min(head_bytes if head_bytes > 3 else TURN_BYTES, len(data))
        return size, size

    def _in_turns(self) -> None:
        """Parse request by request from now on, and no more than its turn at a time: a request has
        come behind another one, or the last one must be known."""
        self._at_once_bytes = 0

    def _parse(self, data: memoryview) -> None:
        while True:
            try:
                return self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            # The parser takes any upgrade as granted and leaves the body unread. We ignore it, as
            # we may: read the head again as if it had not asked.
            head = self._head_without_upgrade()
            self._parser = self._new_parser()
            self._parser.feed_data(head)

    def on_message_begin(self) -> None:
        if self._reading is OVER:
            raise Refused(400, "nothing is read after the last request")
        if not self._fed_bytes:
            self._in_turns()  # another request was in the same read
        self._reading = HEAD
        self._requests += 1
        self._url = b""
        self._headers = {}
        self._head = None
        self._joined_bytes = 0
        self._seen_body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key = self._header_names[name]
        headers = self._headers
        if key in headers:
            self._repeated_header(key, value)
        else:
            headers[key] = value.decode("latin-1")

    def _repeated_header(self, key: str, value: bytes) -> None:
        if key == "host":
            raise Refused(400, "the request has more than one Host header; send exactly one")
        self._headers[key] += ", " + value.decode("latin-1")
        self._joined_bytes += len(key) + len(": \r\n") - len(", ")
        if self._joined_bytes > REPEATED_BYTES:
            raise Refused(
                431, f"the request repeats {key!r} too often; send one header with a list"
            )

    def on_headers_complete(self) -> None:
        headers = self._headers
        if self._fed_bytes > self._max_header_bytes:
            self._check_head_size()
        self._persistent = self._parser.should_keep_alive()
        # Asking for the version is slow, and this much is true of HTTP/1.1 alone.
        self._http10 = False
        if not self._persistent or "connection" in headers:
            self._check_version()
        if not self._url.startswith(b"/"):
            self._check_target(headers)
        if (
            headers.get("host") not in self._known_hosts
            or "origin" in headers
            or "sec-fetch-site" in headers
        ):
            self._check_origin(headers)
        if "upgrade" in headers and self._parser.should_upgrade():
            return  # the parser stops at the end of this head: see _parse
        if "transfer-encoding" in headers:
            self._prepare_chunks(headers["transfer-encoding"])
        elif "content-length" in headers:
            self._prepare_body(int(headers["content-length"]))
        if "expect" in headers and not self._http10:
            self._check_expectation(headers["expect"])
        self._reading = BODY

    def on_body(self, data: bytes) -> None:
        if self._large_body is not None:
            end = self._large_body_bytes + len(data)
            self._large_body[self._large_body_bytes : end] = data
            self._large_body_bytes = end
        elif not self._body:
            self._body = data
        else:
            if type(self._body) is bytes:
                self._body = bytearray(self._body)
            self._body += data
        if len(self._body) > self._max_body_bytes:
            raise self._body_too_large()

    def on_message_complete(self) -> None:
        if self._reading is BODY:
            body, self._body = self._body, b""
            self._request_complete(body)

    def _request_complete(self, body: Buffer) -> None:
        if len(body) > FREE_BYTES:
            self._shared.note_received(self, 0)
        path, query = self._targets[self._url]
        method = self._methods[self._parser.get_method()]
        request = HttpRequest(method, path, query, self._head or self._headers, body, self._peer)
        self._reading = BETWEEN if self._persistent else OVER
        self._expects_continue = False
        self._fed_bytes = 0  # what follows in this read counts from the next one on
        exchange = _Exchange(request, self, self._http10)
        self.exchanges.append(exchange)
        try:
            self._application(exchange)
        except Exception as error:  # noqa: BLE001 - our own mistake must not leave a client waiting
            self.report("the application failed", error)
            exchange.give_up()
        if self.writing_paused or len(self.exchanges) > self._max_pipelined:
            self._regulate()

    def _fill(self, rest: memoryview, nbytes: int) -> None:
        """The large body has grown in place. No byte beyond it can have been read."""
        self._rest = rest[nbytes:]
        if self._rest:
            whole = cast(memoryview, self._large_body)
            self._shared.note_received(self, len(whole) - len(self._rest))
        else:
            body, self._large_body, self._rest = cast(memoryview, self._large_body), None, None
            self._large_body_bytes = 0
            self._request_complete(body)
            # The old parser still waits for the body.
            self._parser = self._new_parser()

    def _await_the_rest(self) -> None:
        """A read ended inside a request."""
        if self._large_body is not None:
            self._rest = self._large_body[self._large_body_bytes :]
            self._shared.note_received(self, self._large_body_bytes)
        elif len(self._body) != self._seen_body_bytes:
            self._seen_body_bytes = len(self._body)
            if self._seen_body_bytes > FREE_BYTES:
                self._shared.note_received(self, self._seen_body_bytes)
            self._fed_bytes = 0
            self._expects_continue = False
        elif self._fed_bytes > self._max_header_bytes:
            self._refuse(self._head_too_large())
        self._send_continue_if_due()

    def _head_without_upgrade(self) -> bytes:
        kept = {k: v for k, v in self._headers.items() if k != "upgrade"}
        kept["connection"] = "keep-alive" if self._persistent else "close"
        version = b"1.0" if self._http10 else b"1.1"
        lines = header_lines(list(kept.items()))
        return b"%b %b HTTP/%b\r\n%b\r\n" % (
            self._parser.get_method(), self._url, version, lines
        )  # fmt: skip

    def _send_continue_if_due(self) -> None:
        # Answers owed before this request go first; see _nothing_owed.
        if self._unparsed:
            return  # it has not waited for that
        if self._expects_continue and not self.exchanges and self._reading is BODY:
            self._expects_continue = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # Refusals

    def _check_head_size(self) -> None:
        # _fed_bytes may count the body and neighbours in the same read: now be exact.
        headers = sum(len(name) + len(value) + 4 for name, value in self._headers.items())
        total = REQUEST_LINE_BYTES + len(self._url) + headers + self._joined_bytes
        if total > self._max_header_bytes:
            raise self._head_too_large()

    def _head_too_large(self) -> Refused:
        limit = self._max_header_bytes
        if len(self._url) + REQUEST_LINE_BYTES > limit:
            return Refused(414, f"the request line exceeds the limit of {limit} bytes; shorten it")
        return Refused(
            431, f"the request's headers exceed the limit of {limit} bytes; send fewer or shorter"
        )

    def _check_target(self, headers: dict[str, str]) -> None:
        if self._parser.get_method() == b"CONNECT":
            raise Refused(501, "CONNECT is not supported: this is no proxy")
        authority = target_authority(self._url)
        if authority is not None:
            self._check_origin(headers)
            headers["host"] = authority  # it is what counts: RFC 9112, 3.2.2

    def _check_origin(self, headers: dict[str, str]) -> None:
        if "host" not in headers and not self._http10:
            raise Refused(400, "the request has no Host header, which HTTP/1.1 requires")
        if self._origin_check is not None:
            method = self._methods[self._parser.get_method()]
            refusal = self._origin_check.refusal(method, headers)
            if refusal is not None:
                raise Refused(refusal.status, refusal.message)

    def _check_version(self) -> None:
        version = self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise Refused(505, f"HTTP/{version} is not spoken here; use HTTP/1.1")
        self._http10 = version == "1.0"

    def _prepare_body(self, length: int) -> None:
        if length > self._limits.max_body_bytes:
            raise self._body_too_large()
        if length > RECEIVE_BYTES:
            # Not bytearray(n): that writes n zeros first, so a mere announcement would cost memory.
            self._large_body = np.empty(length, np.uint8).data

    def _body_too_large(self) -> Refused:
        return Refused(
            413,
            f"the body exceeds the limit of {self._limits.max_body_bytes} bytes;"
            " send less at a time, or raise the server's --max-body-size",
        )

    def _prepare_chunks(self, coding: str) -> None:
        if self._http10:
            raise Refused(400, "HTTP/1.0 has no Transfer-Encoding; send Content-Length")
        if coding.lower() != "chunked":
            raise Refused(501, f"Transfer-Encoding {coding!r} is not supported; use chunked")
        # Whoever sends both may be about to smuggle a request past a proxy that believed the other
        # one: what follows on this connection is not read (RFC 9112, 6.1).
        self._persistent = self._persistent and "content-length" not in self._headers
        # Trailers come through on_header too: a field checked by now must not change any more.
        self._head, self._headers = self._headers, {}

    def _check_expectation(self, expectation: str) -> None:
        if expectation.lower() != "100-continue":
            raise Refused(417, f"Expect: {expectation!r} cannot be met; only 100-continue is known")
        self._expects_continue = True

    def _parser_failed(self, error: httptools.HttpParserError) -> None:
        if self._reading is OVER:
            return  # bytes after the last request we wanted; its answer still goes out
        cause = error.__context__
        if isinstance(cause, Refused):
            self._refuse(cause)
        elif isinstance(error, httptools.HttpParserCallbackError):
            self.report("reading a request failed", cause or error)
            self._refuse(Refused(500, "the server failed to read this request"))
        elif isinstance(error, httptools.HttpParserInvalidMethodError):
            self._refuse(Refused(400, "this is not an HTTP/1.1 request: unknown method"))
        else:
            self._refuse(Refused(400, f"malformed HTTP request: {error}"))

    def _refuse(self, refused: Refused) -> None:
        """Answer in turn with an error; read nothing more; close."""
        method = self._parser.get_method().decode("latin-1") if self._requests else "GET"
        headers = refused.headers
        if self._origin_check is not None:  # a page that may call shall see why not
            given = self._headers if self._head is None else self._head
            headers = (*headers, *self._origin_check.origins.answer_headers(given))
        self._reading = OVER
        self._large_body = self._rest = None
        self._body = b""
        self._shared.note_received(self, 0)
        self._lingering = True
        exchange = _Exchange(HttpRequest(method, ""), self, http10=False)
        self.exchanges.append(exchange)
        exchange.respond(refused.status, error_body(str(refused)), headers=headers)

    # Answers out

    def head(self, status: int, content_type: str, exchange: "_Exchange") -> bytes:
        """The start of an answer, without Content-Length and the closing empty line."""
        persistence = ""
        if self._shared.draining:
            self._may_be_the_last(exchange)
        if self._reading is OVER and self.exchanges[-1] is exchange:
            persistence = "close"
        elif exchange.http10:
            persistence = "keep-alive"
        key = (status, content_type, persistence)
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = first_lines(status, content_type, persistence)
        return head

    def write(self, data: bytes) -> None:
        self._written_bytes += len(data)
        self._transport.write(data)
        if self.writing_paused:
            self._note_unsent()

    def write_buffers(self, buffers: Sequence[Buffer]) -> None:
        self._written_bytes += total_bytes(buffers)
        self._write_gathered(buffers)
        if self.writing_paused:
            self._note_unsent()

    def waits(self, nbytes: int) -> None:
        """More of answers waits for its turn, or (below 0) less."""
        self._early_bytes += nbytes
        if self._owed_much or self._early_bytes > FREE_BYTES:
            self._note_unsent()
            self._regulate()

    def _note_unsent(self) -> None:
        unsent = self._early_bytes + self._transport.get_write_buffer_size()
        self._owed_much = unsent > FREE_BYTES
        self._shared.note_unsent(self, unsent)

    def answered(self, exchange: "_Exchange") -> None:
        """An answer is complete. If it has its turn, it is written: go on to those behind it."""
        exchanges = self.exchanges
        if exchanges[0] is not exchange:
            return
        exchanges.popleft()
        while exchanges and exchanges[0].take_turn():
            exchanges.popleft()
        if self._reading_held:
            self._regulate()
        if not exchanges and self._reading is not BETWEEN:
            self._nothing_owed()

    def close_after(self, exchange: "_Exchange") -> None:
        """Nothing can follow this answer."""
        self._reading = OVER
        self._large_body = self._rest = None
        while self.exchanges[-1] is not exchange:
            self.exchanges.pop().leave()

    def _may_be_the_last(self, exchange: "_Exchange") -> None:
        """Nothing is read behind this answer, unless more has arrived already."""
        if self._reading is not BETWEEN or self.exchanges[-1] is not exchange:
            return
        if self._shared.last_call_is_over or not (self._unparsed or has_unread(self._transport)):
            self._reading = OVER

    def drain(self) -> None:
        """Parse in turns from now on, so that the last answer can say that it is the last."""
        self._in_turns()

    @property
    def owes(self) -> bool:
        return bool(self.exchanges) or self._transport.get_write_buffer_size() > 0

    def end(self) -> None:
        if self._reading is HEAD or self._reading is BODY:
            self._refuse(Refused(503, "the server stops before this request has arrived"))
        elif self._reading is BETWEEN:
            self._reading = OVER
            if not self.exchanges:
                self._close()

    def abort(self) -> None:
        self._transport.abort()

    @property
    def idle_since(self) -> float | None:
        idle = self._reading is BETWEEN and not self.exchanges and not self._unparsed
        return self._waiting_since if idle else None

    def make_room(self) -> bool:
        """Close now, if this is idle and no request has come in the last moment."""
        makes_room = (
            self.idle_since is not None and not self.owes and not has_unread(self._transport)
        )
        if makes_room:
            self._transport.abort()  # an end of file, as nothing is unread
        return makes_room

    def _nothing_owed(self) -> None:
        if self._reading is OVER:
            self._close()
        else:
            self._send_continue_if_due()

    def _close(self) -> None:
        # Closing on unread bytes resets the connection, and the client may lose our last answer
        # (RFC 9112, 9.6): we read on until it has closed, too, or has got all (see check).
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _close_idle(self) -> None:
        """Nothing is owed, nothing was read: the client may send elsewhere what it is sending."""
        if not has_unread(self._transport):  # else a request has come in the last moment
            self._reading = OVER
            self._close()

    def _discard(self, nbytes: int) -> None:
        self._lingering = True
        self._discarded_bytes += nbytes
        if self._discarded_bytes > self._limits.max_body_bytes:
            self._transport.abort()  # more than any request we would have taken

    def _regulate(self) -> None:
        """Read no more while the client is owed too much, or does not take what it was given, or
        has sent more than its turn."""
        hold = self._is_owed_too_much()
        if self._unparsed and not hold and not self._turn_comes:
            self._turn_comes = True
            self._shared.turns.wait(self)
        hold = hold or bool(self._unparsed)
        if hold != self._reading_held and not self._transport.is_closing():
            self._reading_held = hold
            if hold:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _is_owed_too_much(self) -> bool:
        owed = len(self.exchanges)
        if owed > self._max_pipelined or (self.writing_paused and not owed):
            return True
        return self._owed_much and self._shared.holdings.unsent.is_full(self)

    def _client_left(self) -> None:
        while self.exchanges:
            self.exchanges.popleft().leave()

    def report(self, message: str, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"HTTP connection from {self._peer}: {message}", "exception": error}
        )

    # Time limits

    def check(self, now: float) -> None:
        """Act if the client has let us wait too long without any progress."""
        if self._owed_much:
            self._note_unsent()
        wait = self._awaited()
        if wait != self._wait:
            self._wait, self._waiting_since = wait, now
        elif wait is not None:
            if now - self._waiting_since >= self._shared.timeouts[wait[0]]:
                self._waited_too_long(wait[0])
            elif wait[0] is Wait.LEAVE and not self._lingering and self._has_all():
                self._transport.abort()

    def _awaited(self) -> tuple[Wait, int] | None:
        """What we wait for, with a number that changes whenever the client makes progress."""
        unsent = self._transport.get_write_buffer_size()
        if unsent:
            return Wait.READ, (self._written_bytes - unsent) // PROGRESS_BYTES
        if self._reading is OVER:
            return None if self.exchanges else (Wait.LEAVE, 0)
        if self._reading_held:
            return None
        if self._reading is HEAD:
            return Wait.HEAD, self._requests
        if self._reading is BODY:
            left = 0 if self._rest is None else len(self._rest)
            return Wait.BODY, (len(self._body) - left) // PROGRESS_BYTES
        if self.exchanges:
            return None
        if not self._shared.draining:
            return Wait.BEGIN, self._requests
        if untaken := unacknowledged(self._transport):
            return Wait.READ, -untaken // PROGRESS_BYTES  # it has not heard all yet
        return Wait.LAST, self._requests

    def _has_all(self) -> bool:
        """Whether the client's kernel has all we wrote, and no unread byte would make a reset."""
        return not has_unread(self._transport) and unacknowledged(self._transport) == 0

    def _waited_too_long(self, wait: Wait) -> None:
        if wait is Wait.BEGIN or wait is Wait.LAST:
            self._close_idle()
        elif wait is Wait.HEAD:
            limit = self._limits.header_timeout
            self._refuse(Refused(408, f"the request's head did not arrive within {limit} s"))
        elif wait is Wait.BODY:
            limit = self._limits.body_timeout
            self._refuse(Refused(408, f"too little of the request's body arrived within {limit} s"))
        else:
            self._transport.abort()


class _Exchange(Exchange):
    """An exchange on a `Connection`. What is answered before its turn waits in `_early`."""

    __slots__ = ("_bodiless", "_chunked", "_connection", "_early", "http10")

    def __init__(self, request: HttpRequest, connection: Connection, http10: bool) -> None:
        self.request = request
        self.on_disconnect = None
        self.on_drain = None
        self.http10 = http10
        self._connection = connection
        self._phase = WAITING
        self._early: list[Buffer] = []
        self._bodiless = request.method == "HEAD"
        self._chunked = False

    def respond(
        self,
        status: int,
        body: bytes | Sequence[Buffer] = b"",
        *,
        content_type: str = "application/json",
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        if self._phase is not WAITING and not self._may_go_on(WAITING):
            return
        connection = self._connection
        head = connection.head(status, content_type, self)
        if headers:
            head += header_lines(headers)
        if type(body) is bytes:
            if self._bodiless or status in BODILESS:
                self._write(head_alone(head, status, len(body)))
            else:
                self._write(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
        else:
            self._write_all(head, status, cast(Sequence[Buffer], body))
        self._end()

    def start(
        self,
        status: int,
        *,
        content_type: str = "application/json",
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        if not self._may_go_on(WAITING):
            return
        if self.http10:
            self.be_the_last()  # only the end of the connection will end it
        head = self._connection.head(status, content_type, self) + header_lines(headers)
        self._phase = STREAMING
        self._bodiless |= status in BODILESS
        self._chunked = not self.http10
        if self._chunked and status not in BODILESS:
            head += b"Transfer-Encoding: chunked\r\n"
        self._write(head + b"\r\n")

    def send(self, chunk: bytes) -> None:
        if not self._may_go_on(STREAMING) or not chunk or self._bodiless:
            return  # an empty chunk would end the answer
        self._write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._chunked else chunk)

    def finish(self) -> None:
        if not self._may_go_on(STREAMING):
            return
        if self._chunked and not self._bodiless:
            self._write(b"0\r\n\r\n")
        self._end()

    @property
    def congested(self) -> bool:
        if self._phase not in (WAITING, STREAMING):
            return False
        return self._connection.writing_paused or bool(self._early)

    def take_turn(self) -> bool:
        """All answers before this one are written: write what there is; say if it is complete."""
        if self._early:
            early, self._early = self._early, []
            self._connection.waits(-total_bytes(early))
            self._connection.write_buffers(early)
            self.drained()
        return self._phase is ANSWERED

    def be_the_last(self) -> None:
        """Nothing is read behind this request; the answer says so."""
        self._connection.close_after(self)

    def leave(self) -> None:
        if self._early:
            self._connection.waits(-total_bytes(self._early))
            self._early = []
        super().leave()

    def give_up(self) -> None:
        """The application failed: say so if there is still a way to."""
        if self._phase is WAITING:
            self.respond(500, error_body("the server failed to handle this request"))
        elif self._phase is STREAMING:
            self._connection.abort()  # half an answer must not look like a whole one

    def _end(self) -> None:
        self._phase = ANSWERED
        self.on_disconnect = self.on_drain = None  # they may hold us: no cycle for the collector
        self._connection.answered(self)

    def _write(self, data: bytes) -> None:
        if self._connection.exchanges[0] is self:
            self._connection.write(data)
        else:
            self._early.append(data)
            self._connection.waits(len(data))

    def _write_all(self, head: bytes, status: int, body: Sequence[Buffer]) -> None:
        length = total_bytes(body)
        if self._bodiless or status in BODILESS:
            self._write(head_alone(head, status, length))
            return
        buffers = [b"%bContent-Length: %d\r\n\r\n" % (head, length), *body]
        if length <= RECEIVE_BYTES:
            self._write(b"".join(buffers))
        elif self._connection.exchanges[0] is self:
            self._connection.write_buffers(buffers)
        else:
            self._early.extend(buffers)
            self._connection.waits(total_bytes(buffers))
