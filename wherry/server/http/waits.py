"""For what does a connection wait, for how long already, and how does it end?

Time is an argument. A client that sends no more has left, or waits for its answers: either end of
file looks the same (`HalfClosed`). Closing on unread bytes resets the connection, and the client
may lose its last answer (RFC 9112, 9.6; `LingeringClose`).
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import Final

from wherry.server.connections.limits import Limits
from wherry.server.connections.sockets import has_unread, unacknowledged, was_reset
from wherry.server.http.answer_queue import AnswerQueue
from wherry.server.http.intake import Intake
from wherry.server.http.request_reader import BODY, HEAD, OVER, RequestReader

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

MOMENT: Final = 0.005
"""Seconds for an answer without an interim response before it. What the client left behind runs
longer by that time."""


class HalfClosed:
    """Cuts off one client that sends no more, once it is known to have left.

    A write shows it: the kernel of a client that has left resets the connection, as no one can read
    there any more. So a client that still waits after a moment gets an interim response, which
    HTTP/1.1 has it skip (RFC 9110, 15.2).
    """

    __slots__ = ("_answers", "_has_request", "_transport")

    def __init__(self, transport: asyncio.Transport, answers: AnswerQueue) -> None:
        self._transport = transport
        self._answers = answers
        self._has_request = False

    def look(self) -> None:
        """Cut it off if it has left; at first, send an interim response and look once more."""
        exchanges = self._answers.exchanges
        if not exchanges or self._transport.is_closing():
            return
        if was_reset(self._transport):
            self._transport.abort()
        elif (
            not self._has_request and exchanges[0].takes_interim and not self._answers.unsent_bytes
        ):
            self._has_request = True
            self._answers.write(CONTINUE)
            asyncio.get_running_loop().call_later(MOMENT, self.look)


LINGER: Final = 2.0
"""Seconds that a refused client may go on sending, so that it can read the answer."""


class LingeringClose:
    """Closes one connection after its last answer.

    Our half is closed first, and what still comes is read and dropped until the client has closed,
    or has got all, or time is up.
    """

    __slots__ = ("_dropped_bytes", "_max_bytes", "_transport", "is_refused", "sends_no_more")

    def __init__(self, transport: asyncio.Transport, max_bytes: int) -> None:
        """`max_bytes` is the most that is read and dropped before the connection is aborted."""
        self._transport = transport
        self._max_bytes = max_bytes
        self._dropped_bytes = 0
        #: The client sends, or may send, what is refused: it gets the whole LINGER.
        self.is_refused = False
        self.sends_no_more = False

    def begin(self) -> None:
        """Close the sending half, behind all that was written; all of it if the client's is."""
        if self._transport.can_write_eof() and not self.sends_no_more:
            self._transport.write_eof()
        else:
            self._transport.close()

    def drop(self, nbytes: int) -> None:
        self.is_refused = True
        self._dropped_bytes += nbytes
        if self._dropped_bytes > self._max_bytes:
            self._transport.abort()

    def is_complete(self) -> bool:
        """Whether it may be closed early: the client's kernel has all we wrote, and no unread byte
        would make a reset."""
        if self.is_refused or has_unread(self._transport):
            return False
        return unacknowledged(self._transport) == 0


PROGRESS_BYTES: Final = 2**14
"""Bytes that must move before a time limit of a body, or of an answer, begins anew: a byte now and
then is no progress."""


class ClientWait(Enum):
    """The act of the client that a connection waits for."""

    BEGIN = auto()  # begin a request
    HEAD = auto()  # complete the head of one
    BODY = auto()  # complete its body
    READ = auto()  # take what we have written
    LAST = auto()  # begin its last request, as the server drains
    LEAVE = auto()  # close the connection


def timeouts(limits: Limits, last_call: float = 0.0) -> dict[ClientWait, float]:
    """Seconds that each wait may take. `last_call`: the time for last requests in a drain."""
    return {
        ClientWait.BEGIN: limits.idle_timeout,
        ClientWait.HEAD: limits.header_timeout,
        ClientWait.BODY: limits.body_timeout,
        ClientWait.READ: limits.write_timeout,
        ClientWait.LAST: last_call,
        ClientWait.LEAVE: LINGER,
    }


class Waits:
    """Notes what one connection waits for, and since when there is no progress."""

    __slots__ = ("_answers", "_awaited", "_intake", "_reader", "_transport", "since")

    def __init__(
        self,
        transport: asyncio.Transport,
        reader: RequestReader,
        answers: AnswerQueue,
        intake: Intake,
        now: float,
    ) -> None:
        self._transport = transport
        self._reader = reader
        self._answers = answers
        self._intake = intake
        self._awaited: tuple[ClientWait, int] | None = None
        #: When a sweep first saw the present wait.
        self.since = now

    def see(self, now: float, *, draining: bool) -> tuple[ClientWait | None, float]:
        """Return what is awaited, and the seconds without progress. None: nothing, or a sweep
        sees it for the first time."""
        awaited = self.awaited(draining=draining)
        if awaited != self._awaited:
            self._awaited, self.since = awaited, now
            return None, 0.0
        return (None if awaited is None else awaited[0]), now - self.since

    def awaited(self, *, draining: bool) -> tuple[ClientWait, int] | None:
        """Return what is awaited, and a number that changes when the client makes progress."""
        reader = self._reader
        if self._answers.unsent_bytes:
            return ClientWait.READ, self._answers.sent_bytes // PROGRESS_BYTES
        if reader.state is OVER:
            return None if self._answers.exchanges else (ClientWait.LEAVE, 0)
        if self._intake.paused:
            return None
        if reader.state is HEAD:
            return ClientWait.HEAD, reader.requests
        if reader.state is BODY:
            return ClientWait.BODY, reader.received_bytes // PROGRESS_BYTES
        if self._answers.exchanges:
            return None
        if not draining:
            return ClientWait.BEGIN, reader.requests
        if untaken := unacknowledged(self._transport):
            return ClientWait.READ, -untaken // PROGRESS_BYTES  # it has not received all yet
        return ClientWait.LAST, reader.requests
