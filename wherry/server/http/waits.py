"""For what does a connection wait, and for how long already? (Time is an argument.)"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import Final

from wherry.server.connections.limits import Limits
from wherry.server.connections.sockets import unacknowledged
from wherry.server.http.answer_queue import AnswerQueue
from wherry.server.http.intake import Intake
from wherry.server.http.lingering import LINGER
from wherry.server.http.request_reader import BODY, HEAD, OVER, RequestReader

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
            return ClientWait.READ, -untaken // PROGRESS_BYTES  # it has not heard all yet
        return ClientWait.LAST, reader.requests
