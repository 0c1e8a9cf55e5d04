"""How do answers, which come in any order, leave in the order of their requests?"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from wherry.core.api import Buffer
from wherry.server.connections.held import FREE_BYTES
from wherry.server.connections.sockets import gathered_write
from wherry.server.http.exchange import (
    ANSWERED,
    JSON,
    STREAMING,
    WAITING,
    Body,
    Exchange,
    Headers,
    HttpRequest,
    RefusalForm,
)
from wherry.server.http.wire import BODILESS, FirstLines, header_lines, total_bytes

JOINED_BYTES: Final = 64 * 2**10
"""Most bytes of an answer whose buffers are joined before they are written."""


class AnswerQueue:
    """The answers that one connection owes, in the order of its requests.

    The first one is written as it comes; those behind it are kept.
    """

    __slots__ = (
        "_early_bytes",
        "_has_much",
        "_is_over_limit",
        "_note_unsent",
        "_transport",
        "_write_gathered",
        "_written_bytes",
        "exchanges",
        "max_pipelined",
        "writing_paused",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        max_pipelined: int,
        note_unsent: Callable[[int], bool],
    ) -> None:
        """`note_unsent` gets the number of bytes that the client has not taken, and returns whether
        these are more than one client may hold."""
        self._transport = transport
        self._write_gathered = gathered_write(transport)
        #: Answers that may be owed before no more requests should be taken.
        self.max_pipelined = max_pipelined
        self._note_unsent = note_unsent
        self.exchanges: deque[PipelinedExchange] = deque()
        self.writing_paused = False
        self._written_bytes = 0
        self._early_bytes = 0  # of answers that wait for those before them
        self._has_much = False  # whether the ledger of all clients counts this one
        self._is_over_limit = False

    def __repr__(self) -> str:
        return f"<AnswerQueue: {len(self.exchanges)} unanswered>"

    @property
    def is_full(self) -> bool:
        """Whether no more requests should be taken from this client."""
        owed = len(self.exchanges)
        if owed > self.max_pipelined or (self.writing_paused and not owed):
            return True
        return self._is_over_limit

    @property
    def unsent_bytes(self) -> int:
        """The bytes that were written and that the kernel has not taken."""
        return self._transport.get_write_buffer_size()

    @property
    def sent_bytes(self) -> int:
        """The bytes that the kernel has taken since the connection was made."""
        return self._written_bytes - self.unsent_bytes

    def write(self, data: bytes) -> None:
        self._written_bytes += len(data)
        self._transport.write(data)
        if self.writing_paused:
            self.count_unsent()

    def write_buffers(self, buffers: Sequence[Buffer]) -> None:
        self._written_bytes += total_bytes(buffers)
        self._write_gathered(buffers)
        if self.writing_paused:
            self.count_unsent()

    def keep(self, nbytes: int) -> bool:
        """Count bytes of answers that wait for their turn (below 0: they wait no longer). Return
        whether that can change `is_full`."""
        self._early_bytes += nbytes
        if not self._has_much and self._early_bytes <= FREE_BYTES:
            return False
        self.count_unsent()
        return True

    def count_unsent(self) -> None:

        unsent = self._early_bytes + self.unsent_bytes
        self._has_much = unsent > FREE_BYTES
        self._is_over_limit = self._note_unsent(unsent)

    def recount(self) -> None:
        """`count_unsent`, where the client may have taken something since."""
        if self._has_much:
            self.count_unsent()

    def resume_writing(self) -> None:
        self.writing_paused = False
        self.recount()

    def finish(self, exchange: PipelinedExchange, rest: bytes) -> None:
        """Write `rest`, with which the answer of `exchange` is complete, and the answers behind it
        as far as they have come; or keep it until its turn comes."""
        exchanges = self.exchanges
        if exchanges[0] is not exchange:
            if rest:
                exchange.keep((rest,))
            return
        if rest:  # as `write` does, without a call
            self._written_bytes += len(rest)
            self._transport.write(rest)
            if self.writing_paused:
                self.count_unsent()
        exchanges.popleft()
        while exchanges and exchanges[0].take_turn():
            exchanges.popleft()

    def drop_behind(self, exchange: PipelinedExchange) -> None:
        while self.exchanges[-1] is not exchange:
            self.exchanges.pop().leave()

    def client_left(self) -> None:
        while self.exchanges:
            self.exchanges.popleft().leave()

    def close(self) -> None:
        self.client_left()
        self._note_unsent = lambda nbytes: False


class Conversation(Protocol):
    """The methods of a connection that its exchanges call."""

    @property
    def answers(self) -> AnswerQueue: ...

    @property
    def ends(self) -> bool:
        """Whether an answer may be the last on this connection."""

    @property
    def usual_lines(self) -> FirstLines:
        """Of answers behind which the connection stays open."""

    def first_lines(self, status: int, content_type: str, exchange: PipelinedExchange) -> bytes:
        """The start of an answer's head, without Content-Length and the closing empty line."""

    def answered(self, exchange: PipelinedExchange, rest: bytes = b"") -> None:
        """`rest` is the end of the answer, or all of it."""

    def close_after(self, exchange: PipelinedExchange) -> None: ...

    @property
    def regulate(self) -> Callable[[], None]:
        """Pauses or resumes reading, as the answers now need it."""

    def abort(self) -> None: ...

    @property
    def refusal_form(self) -> RefusalForm: ...


class PipelinedExchange(Exchange):
    """An exchange on a connection. What is answered before its turn waits in `_early`."""

    __slots__ = ("_bodiless", "_chunked", "_connection", "_early", "http10")

    def __init__(self, request: HttpRequest, connection: Conversation, http10: bool) -> None:
        self.request = request
        self.on_disconnect = None
        self.on_drain = None
        self.http10 = http10
        self._connection = connection
        self._phase = WAITING
        self._early: list[Buffer] | None = None
        self._bodiless = request.head.method == "HEAD"

    @property
    def takes_interim(self) -> bool:
        """Whether an interim response may be written before this answer."""
        return self._phase is WAITING and not self.http10

    @property
    def has_begun(self) -> bool:
        return self._phase is not WAITING

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        if self._phase is not WAITING and not self._may_go_on(WAITING):
            return
        connection = self._connection
        if (
            type(body) is bytes
            and not headers
            and not (self._bodiless or self.http10 or connection.ends or status in BODILESS)
            and len(body) <= JOINED_BYTES
        ):
            lines = connection.usual_lines[status, content_type, ""]
            data = b"%bContent-Length: %d\r\n\r\n%b" % (lines, len(body), body)
        else:
            data = self._unusual(status, body, content_type, headers)
        self._phase = ANSWERED
        self.on_disconnect = self.on_drain = None  # they may hold us: no cycle for the collector
        connection.answered(self, data)

    def _unusual(self, status: int, body: Body, content_type: str, headers: Headers) -> bytes:
        """Write an answer but for its end, which is returned."""
        head = self._connection.first_lines(status, content_type, self) + header_lines(headers)
        buffers = (body,) if type(body) is bytes else cast(Sequence[Buffer], body)
        length = total_bytes(buffers)
        head += b"\r\n" if status in BODILESS else b"Content-Length: %d\r\n\r\n" % length
        if self._bodiless or status in BODILESS:  # for HEAD: the length of the body alone
            return head
        if length <= JOINED_BYTES:
            return b"".join((head, *buffers))
        self._write_all((head, *buffers))
        return b""

    def start(self, status: int, *, content_type: str = JSON, headers: Headers = ()) -> None:
        if not self._may_go_on(WAITING):
            return
        if self.http10:
            self.be_the_last()  # only the end of the connection will end it
        head = self._connection.first_lines(status, content_type, self) + header_lines(headers)
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
        self._phase = ANSWERED
        self.on_disconnect = self.on_drain = None
        self._connection.answered(self)

    @property
    def congested(self) -> bool:
        if self._phase not in (WAITING, STREAMING):
            return False
        return self._connection.answers.writing_paused or bool(self._early)

    def take_turn(self) -> bool:
        """Write what has come of this answer, the first now; return whether it is all."""
        early, self._early = self._early, None
        if early:
            self._keep(-total_bytes(early))
            self._connection.answers.write_buffers(early)
        is_all = self._phase is ANSWERED
        if early:
            self.drained()  # which may end it: then it has taken itself out of the queue
        return is_all

    def refusal(self, status: int, message: str) -> bytes:
        return self._connection.refusal_form(self.request.path, status, message)

    def be_the_last(self) -> None:
        """Read nothing behind this request, and send `Connection: close` in the answer."""
        self._connection.close_after(self)

    def leave(self) -> None:
        if self._early:
            self._keep(-total_bytes(self._early))
            self._early = None
        super().leave()

    def give_up(self) -> None:
        if self._phase is WAITING:
            self.respond(500, self.refusal(500, "the server failed to handle this request"))
        elif self._phase is STREAMING:
            self._connection.abort()  # half an answer must not look like a whole one

    def keep(self, data: Sequence[Buffer]) -> None:

        if self._early is None:
            self._early = []
        self._early += data
        self._keep(total_bytes(data))

    def _write(self, data: bytes) -> None:
        answers = self._connection.answers
        if answers.exchanges[0] is self:
            answers.write(data)
        else:
            self.keep((data,))

    def _write_all(self, buffers: Sequence[Buffer]) -> None:
        answers = self._connection.answers
        if answers.exchanges[0] is self:
            answers.write_buffers(buffers)
        else:
            self.keep(buffers)

    def _keep(self, nbytes: int) -> None:
        if self._connection.answers.keep(nbytes):
            self._connection.regulate()
