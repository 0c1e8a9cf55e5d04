"""How do bytes on a connection become exchanges, and answers bytes again?

This is the hot path of every HTTP request: no task, future or timer belongs to a request.
`HttpConnection` is the asyncio protocol of one connection. It is made of parts, each with a file of
its own, and decides what one means for the others: when to read, which answer is the last, when to
close.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import cast

from wherry.server.connections.held import FREE_BYTES, Holdings, KeptBuffers
from wherry.server.connections.limits import Limits
from wherry.server.connections.open_connections import Admitted, OpenConnection, OpenConnections
from wherry.server.connections.sockets import address_text, has_unread
from wherry.server.http.answer_queue import AnswerQueue, PipelinedExchange
from wherry.server.http.exchange import (
    SOON,
    Application,
    Exchange,
    HttpRequest,
    RefusalForm,
    RequestHead,
    plain_form,
)
from wherry.server.http.intake import Intake, Turns
from wherry.server.http.request_reader import (
    BETWEEN,
    BODY,
    HEAD,
    OVER,
    RECEIVE_BYTES,
    RequestReader,
    ordinary_head,
)
from wherry.server.http.request_rules import Refused, RememberedHeads, RequestRules
from wherry.server.http.waits import (
    CONTINUE,
    MOMENT,
    ClientWait,
    HalfClosed,
    LingeringClose,
    Waits,
    timeouts,
)
from wherry.server.http.wire import FirstLines


class HttpConnections(OpenConnections["HttpConnection"]):
    """All open connections of one listener, and what they share. `clock` may be a test's own."""

    def __init__(
        self,
        application: Application,
        limits: Limits,
        *,
        vital: frozenset[str] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
        holdings: Holdings[OpenConnection] | None = None,
        refusal_form: RefusalForm = plain_form,
    ) -> None:
        super().__init__(clock, limits, holdings)
        self.refusal_form = refusal_form
        self.application = application
        self._vital = vital
        self.rules = RequestRules(limits)
        self.heads = RememberedHeads(partial(ordinary_head, self.rules))
        self.buffers = KeptBuffers()
        self.turns = Turns()
        # Safe to share: both loops hand a filled buffer over before they request the next one.
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.first_lines = FirstLines()
        self.timeouts = timeouts(limits)
        self.last_call_until = 0.0

    def health_only(self, exchange: Exchange) -> None:
        """The application of a connection beyond the limit: has the vital paths answered, refuses
        all others, and closes the connection behind either answer."""
        cast(PipelinedExchange, exchange).be_the_last()
        if exchange.request.path in self._vital:
            self.application(exchange)
            return
        exchange.respond(503, exchange.refusal(503, self.too_many_text), headers=[SOON])

    def drain(self, last_call: float) -> None:
        """Send `Connection: close` in the answer to the last request that has arrived; close a
        connection that is idle for `last_call` seconds."""
        self.last_call_until = self.clock() + last_call
        self.timeouts = timeouts(self.limits, last_call)
        super().drain(last_call)

    def sweep(self) -> None:
        self.first_lines.clear()
        self.buffers.trim()
        super().sweep()

    def remove(self, connection: HttpConnection) -> None:
        super().remove(connection)
        if not self.open:  # no sweep will come
            self.buffers = KeptBuffers()
            self.first_lines.clear()


class HttpConnection(asyncio.Protocol):
    """One client's connection: requests in, answers out in the same order."""

    __slots__ = (
        "__weakref__",
        "_application",
        "_closing",
        "_half_closed",
        "_holds_much",
        "_reader",
        "_reads_large",
        "_shared",
        "_transport",
        "_waits",
        "answers",
        "ends",
        "intake",
        "regulate",
        "usual_lines",
    )

    def __init__(self, shared: HttpConnections) -> None:
        self._shared = shared
        self._application = shared.application
        self.usual_lines = shared.first_lines
        self.ends = False
        self._holds_much = False  # whether the ledger of all clients counts what was received
        self._reads_large = False

    def __repr__(self) -> str:
        return f"<HttpConnection from {self._reader.peer}: {self.answers!r}, {self._reader!r}>"

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        shared, limits = self._shared, self._shared.limits
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = address_text(transport.get_extra_info("peername"))
        self._reader = RequestReader(
            shared.rules, self._arrived, peer, shared.heads, shared.buffers
        )
        note_unsent = partial(shared.note_unsent, self)
        self.answers = AnswerQueue(transport, limits.max_pipelined, note_unsent)
        self.intake = Intake(transport, self._reader, self.answers, shared.turns, self._parse)
        self.regulate = self.intake.regulate
        self._closing = LingeringClose(transport, limits.max_body_bytes)
        self._half_closed: HalfClosed | None = None
        self._waits = Waits(transport, self._reader, self.answers, self.intake, shared.clock())
        admitted = shared.admit(self, transport)
        if admitted is Admitted.HEALTH:
            self._application = shared.health_only
        elif admitted is Admitted.NOTHING:
            text = (
                f"the server has its limit of {len(shared.open) - 1} connections;"
                " retry later, or raise max_connections and the limit of open files"
            )
            self._refuse(Refused(503, text, SOON))
            transport.close()  # without waiting for the client to have read it
        if shared.draining:
            self.drain()

    def connection_lost(self, exc: Exception | None) -> None:
        # Each part lets go of this object: a cycle would wait for the garbage collector.
        self._reader.close()
        self.intake.close()
        self.answers.close()
        self._shared.remove(self)

    def eof_received(self) -> bool:
        """Answer what has come in full, if the client has closed its sending half alone. One that
        has left is found out; and taken to have left if an answer has begun, or over TLS, which
        has no half."""
        if self._half_closed is None:
            exchanges = self.answers.exchanges
            waits = bool(self.intake.pending if not exchanges else not exchanges[0].has_begun)
            if not waits or not self._transport.can_write_eof():
                self.intake.clear()
                self.answers.client_left()
                return False
            self._half_closed = HalfClosed(self._transport, self.answers)
            self._closing.sends_no_more = True
            if self.intake.pending:
                self.drain()  # the last answer to it is the last
            else:
                self._stop_reading()
            asyncio.get_running_loop().call_later(MOMENT, self._half_closed.look)
        return True

    def pause_writing(self) -> None:
        self.answers.writing_paused = True
        self.regulate()

    def resume_writing(self) -> None:
        self.answers.resume_writing()
        self.regulate()
        if self.answers.exchanges:
            self.answers.exchanges[0].drained()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        # Most reads are one request with a head that was read before: these go no other way.
        if (
            reader.state is not BETWEEN
            or reader.one_by_one
            or self.intake.pending
            or not reader.take_known(data)
        ):
            self.intake.take(data)
        if reader.state is not BETWEEN or self.intake.pending:
            self.after_read()

    # Requests in

    def _parse(self, data: bytes | memoryview) -> None:
        reader = self._reader
        if reader.direct is not None:
            reader.fill(data)
        elif reader.state is OVER:
            self._closing.drop(len(data))
            return
        else:
            try:
                reader.feed(data)
            except Refused as refused:
                self._refuse(refused)
        if reader.state is not BETWEEN or self._holds_much:
            self.after_read()

    def after_read(self) -> None:
        """Act on a request that has arrived in part: count its bytes, read the rest of a large
        body where it belongs, answer `Expect`."""
        reader = self._reader
        held = reader.received_bytes + len(self.intake.pending)
        if held > FREE_BYTES or self._holds_much:
            self._holds_much = held > FREE_BYTES
            self._shared.note_received(self, held)
        if reader.direct is not None and not self._reads_large and len(reader.direct) > FREE_BYTES:
            self._reads_large = True
            self._transport.set_protocol(LargeReads(self, reader, self._shared.receive_buffer))
        if not reader.expects_continue or reader.state is not BODY:
            return
        # Answers that are owed go first; and a client that has sent more has not waited.
        if not self.answers.exchanges and not self.intake.pending:
            reader.expects_continue = False
            self.answers.write(CONTINUE)

    def _arrived(self, request: HttpRequest, http10: bool) -> None:
        exchange = PipelinedExchange(request, self, http10)
        answers = self.answers
        exchanges = answers.exchanges
        exchanges.append(exchange)
        if self._reader.state is OVER:
            self.ends = True
        try:
            self._application(exchange)
        except Exception as error:  # noqa: BLE001 - our own mistake must not leave a client waiting
            self._shared.report(self, "the application failed", error)
            exchange.give_up()
        if answers.writing_paused or len(exchanges) > answers.max_pipelined:
            self.regulate()

    def _refuse(self, refused: Refused) -> None:
        """Answer with an error behind the answers that are owed, read nothing more, and close."""
        if refused.bug is not None:
            self._shared.report(self, "reading a request failed", refused.bug)
        reader = self._reader
        # A web page that may call this server can read why it was refused.
        headers = (*refused.headers, *self._shared.rules.cors_headers(reader.headers))
        self._stop_reading()
        self._shared.note_received(self, 0)
        self._closing.is_refused = True
        exchange = PipelinedExchange(
            HttpRequest(RequestHead(reader.method, reader.path)), self, http10=False
        )
        self.answers.exchanges.append(exchange)
        body = exchange.refusal(refused.status, str(refused))
        exchange.respond(refused.status, body, headers=headers)

    # Answers out

    @property
    def refusal_form(self) -> RefusalForm:
        return self._shared.refusal_form

    def first_lines(self, status: int, content_type: str, exchange: PipelinedExchange) -> bytes:
        is_ending = self._shared.draining or self._half_closed is not None
        if is_ending and not self._more_follow(exchange):
            self._stop_reading()
        persistence = ""
        if self._reader.state is OVER and self.answers.exchanges[-1] is exchange:
            persistence = "close"
        elif exchange.http10:
            persistence = "keep-alive"
        return self._shared.first_lines[status, content_type, persistence]

    def _more_follow(self, exchange: PipelinedExchange) -> bool:
        """Whether a request has come behind this one, while the server still takes requests."""
        if self._reader.state is not BETWEEN or self.answers.exchanges[-1] is not exchange:
            return True
        if self._half_closed is not None:
            return bool(self.intake.pending)
        if self._shared.clock() >= self._shared.last_call_until:
            return False
        return bool(self.intake.pending) or has_unread(self._transport)

    def answered(self, exchange: PipelinedExchange, rest: bytes = b"") -> None:
        answers = self.answers
        answers.finish(exchange, rest)
        if self.intake.paused:
            self.regulate()
        if self._reader.state is not BETWEEN and not answers.exchanges:
            if self._reader.state is OVER:
                self._closing.begin()
            else:
                self.after_read()

    def close_after(self, exchange: PipelinedExchange) -> None:
        self._stop_reading()
        self.answers.drop_behind(exchange)

    def _stop_reading(self) -> None:
        self._reader.stop()
        self.ends = True

    # What the listener calls: see OpenConnection

    @property
    def owes(self) -> bool:
        return bool(self.answers.exchanges) or self.answers.unsent_bytes > 0

    @property
    def idle_since(self) -> float | None:
        busy = self._reader.state is not BETWEEN or self.answers.exchanges or self.intake.pending
        return None if busy else self._waits.since

    def make_room(self) -> bool:
        if self.idle_since is None or self.owes or has_unread(self._transport):
            return False
        self._transport.abort()  # an end of file, as nothing is unread
        return True

    def drain(self) -> None:
        self._reader.one_by_one = True  # so that the last answer has `Connection: close`
        self.ends = True

    def end(self) -> None:
        if self._reader.state is HEAD or self._reader.state is BODY:
            self._refuse(Refused(503, "the server stops before this request has arrived", SOON))
        elif self._reader.state is BETWEEN:
            self._stop_reading()
            if not self.answers.exchanges:
                self._closing.begin()

    def abort(self) -> None:
        self._transport.abort()

    def check(self, now: float) -> None:
        self.answers.recount()
        if self._half_closed is not None:
            self._half_closed.look()
        wait, seconds = self._waits.see(now, draining=self._shared.draining)
        if wait is not None and seconds >= self._shared.timeouts[wait]:
            self._waited_too_long(wait)
        elif wait is ClientWait.LEAVE and self._closing.is_complete():
            self._transport.abort()

    def _waited_too_long(self, wait: ClientWait) -> None:
        limits = self._shared.limits
        if wait is ClientWait.HEAD:
            text = f"the request's head did not arrive within {limits.header_timeout} s"
            self._refuse(Refused(408, text))
        elif wait is ClientWait.BODY:
            text = f"too little of the request's body arrived within {limits.body_timeout} s"
            self._refuse(Refused(408, text))
        elif wait is ClientWait.READ or wait is ClientWait.LEAVE:
            self._transport.abort()
        elif not has_unread(self._transport):  # else a request has come in the last moment
            self._stop_reading()
            self._closing.begin()


class LargeReads(asyncio.BufferedProtocol):
    """Reads for a connection that gets large bodies: straight into the buffer of the body."""

    __slots__ = ("_buffer", "_connection", "_reader")

    def __init__(
        self, connection: HttpConnection, reader: RequestReader, buffer: memoryview
    ) -> None:
        """`buffer` takes what is not of a large body."""
        self._connection = connection
        self._reader = reader
        self._buffer = buffer

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        direct = self._reader.direct
        return self._buffer if direct is None else direct

    def buffer_updated(self, nbytes: int) -> None:
        if self._reader.direct is None:
            self._connection.data_received(bytes(self._buffer[:nbytes]))
        else:
            self._reader.filled(nbytes)
            self._connection.after_read()
