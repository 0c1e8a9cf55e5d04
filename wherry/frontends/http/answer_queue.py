"""How do answers, given in any order, leave in the order of their requests?"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from wherry.frontends.connections.gathered import gathered_write
from wherry.frontends.connections.held import FREE_BYTES
from wherry.frontends.http.exchange import (
    ANSWERED,
    JSON,
    STREAMING,
    WAITING,
    Body,
    Exchange,
    Headers,
    HttpRequest,
    error_body,
)
from wherry.frontends.http.wire import BODILESS, head_alone, header_lines, total_bytes
from wherry.values.buffer import Buffer

JOINED_BYTES: Final = 64 * 2**10
"""Most bytes of an answer whose buffers are joined before they are written."""


class AnswerQueue:
    """The answers that one connection owes, in the order of its requests.

    The first one is written as it is given; those behind it are kept.
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
        """`note_unsent` is told how many bytes the client has not taken, and says whether these
        are more than one client may hold."""
        self._transport = transport
        self._write_gathered = gathered_write(transport)
        #: Answers that may be owed before no more requests should be taken.
        self.max_pipelined = max_pipelined
        self._note_unsent = note_unsent
        #: Not fully answered, in the order of their requests.
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
        """Tell the ledger how much this client has not taken."""
        unsent = self._early_bytes + self.unsent_bytes
        self._has_much = unsent > FREE_BYTES
        self._is_over_limit = self._note_unsent(unsent)

    def recount(self) -> None:
        """`count_unsent`, where the client may have taken something since."""
        if self._has_much:
            self.count_unsent()

    def resume_writing(self) -> None:
        """Note that the transport's buffer has room again."""
        self.writing_paused = False
        self.recount()

    def go_on(self) -> None:
        """Write the answers behind the first one, which has gone, as far as they are given."""
        exchanges = self.exchanges
        while exchanges and exchanges[0].take_turn():
            exchanges.popleft()

    def drop_behind(self, exchange: PipelinedExchange) -> None:
        """Drop the exchanges behind this one: its answer is the last."""
        while self.exchanges[-1] is not exchange:
            self.exchanges.pop().leave()

    def client_left(self) -> None:
        """Drop all answers, and tell the exchanges that the client has left."""
        while self.exchanges:
            self.exchanges.popleft().leave()

    def close(self) -> None:
        """`client_left`, and drop the reference to the connection."""
        self.client_left()
        self._note_unsent = _uncounted


def _uncounted(nbytes: int) -> bool:
    return False


class Conversation(Protocol):
    """The methods of a connection that its exchanges call."""

    @property
    def answers(self) -> AnswerQueue: ...

    def answer_head(self, status: int, content_type: str, exchange: PipelinedExchange) -> bytes:
        """The start of an answer, without Content-Length and the closing empty line."""

    def answered(self, exchange: PipelinedExchange) -> None: ...

    def close_after(self, exchange: PipelinedExchange) -> None: ...

    @property
    def regulate(self) -> Callable[[], None]:
        """Pauses or resumes reading, as the answers now need it."""

    def abort(self) -> None: ...


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
        self._early: list[Buffer] = []
        self._bodiless = request.method == "HEAD"
        self._chunked = False

    def respond(
        self, status: int, body: Body = b"", *, content_type: str = JSON, headers: Headers = ()
    ) -> None:
        if self._phase is not WAITING and not self._may_go_on(WAITING):
            return
        head = self._connection.answer_head(status, content_type, self)
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

    def start(self, status: int, *, content_type: str = JSON, headers: Headers = ()) -> None:
        if not self._may_go_on(WAITING):
            return
        if self.http10:
            self.be_the_last()  # only the end of the connection will end it
        head = self._connection.answer_head(status, content_type, self) + header_lines(headers)
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
        return self._connection.answers.writing_paused or bool(self._early)

    def take_turn(self) -> bool:
        """Write what is given of this answer, as it is the first now; return whether it is all."""
        if self._early:
            early, self._early = self._early, []
            self._keep(-total_bytes(early))
            self._connection.answers.write_buffers(early)
            self.drained()
        return self._phase is ANSWERED

    def be_the_last(self) -> None:
        """Read nothing behind this request, and say `Connection: close` in the answer."""
        self._connection.close_after(self)

    def leave(self) -> None:
        if self._early:
            self._keep(-total_bytes(self._early))
            self._early = []
        super().leave()

    def give_up(self) -> None:
        """Answer with status 500 after the application failed; abort an answer that has begun."""
        if self._phase is WAITING:
            self.respond(500, error_body("the server failed to handle this request"))
        elif self._phase is STREAMING:
            self._connection.abort()  # half an answer must not look like a whole one

    def _end(self) -> None:
        self._phase = ANSWERED
        self.on_disconnect = self.on_drain = None  # they may hold us: no cycle for the collector
        self._connection.answered(self)

    def _write(self, data: bytes) -> None:
        answers = self._connection.answers
        if answers.exchanges[0] is self:
            answers.write(data)
        else:
            self._early.append(data)
            self._keep(len(data))

    def _write_all(self, head: bytes, status: int, body: Sequence[Buffer]) -> None:
        length = total_bytes(body)
        if self._bodiless or status in BODILESS:
            self._write(head_alone(head, status, length))
            return
        buffers = [b"%bContent-Length: %d\r\n\r\n" % (head, length), *body]
        if length <= JOINED_BYTES:
            self._write(b"".join(buffers))
        elif self._connection.answers.exchanges[0] is self:
            self._connection.answers.write_buffers(buffers)
        else:
            self._early.extend(buffers)
            self._keep(total_bytes(buffers))

    def _keep(self, nbytes: int) -> None:
        if self._connection.answers.keep(nbytes):
            self._connection.regulate()
