"""When are the bytes that a connection has read parsed, and when does it read on?"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from wherry.server.http.answer_queue import AnswerQueue
from wherry.server.http.request_reader import BETWEEN, OVER, TURN_BYTES, RequestReader

AT_ONCE_BYTES: Final = 2**10
"""Bytes up to which a read is parsed at once, without an Intake, until a client pipelines."""

LOOP_TURN_BYTES: Final = 2 * TURN_BYTES
"""Bytes that are parsed for all waiting connections in one turn of the loop: a few milliseconds,
however small the requests are. Other connections are served in between."""

Bytes = bytes | memoryview

_LENGTH: Final = b"\r\ncontent-length:"


class Intake:
    """Holds the bytes that a connection has read and must not parse yet.

    A read with many requests is parsed in turns with other connections' reads. While any of it is
    left, or too many answers are owed, the transport does not read.
    """

    __slots__ = (
        "_answers",
        "_parse",
        "_reader",
        "_transport",
        "_turn_comes",
        "_turns",
        "paused",
        "pending",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        reader: RequestReader,
        answers: AnswerQueue,
        turns: Turns,
        parse: Callable[[Bytes], None],
    ) -> None:
        """`parse` takes bytes in their order, whatever they belong to."""
        self._transport = transport
        self._reader = reader
        self._answers = answers
        self._turns = turns
        self._parse = parse
        self.pending: Bytes = b""
        self.paused = False
        self._turn_comes = False

    def take(self, data: bytes) -> None:
        reader = self._reader
        if self.pending:
            self.pending = memoryview(bytes(self.pending) + data)
            self.regulate()
        elif reader.one_by_one or reader.direct is not None:
            self._parse_some(memoryview(data), 1)
        elif len(data) <= AT_ONCE_BYTES or (reader.state is BETWEEN and is_one_request(data)):
            self._parse(data)
        else:
            self._parse_some(memoryview(data), 1)

    def take_turn(self) -> int:
        """Parse about TURN_BYTES of what is pending; return the bytes that count as parsed."""
        self._turn_comes = False
        return self._parse_some(memoryview(self.pending), TURN_BYTES)

    def regulate(self) -> None:
        """Pause or resume reading, and wait for a turn if something is pending."""
        hold = self._answers.is_full
        if self.pending and not hold and not self._turn_comes:
            self._turn_comes = True
            self._turns.wait(self)
        hold = hold or bool(self.pending)
        if hold != self.paused and not self._transport.is_closing():
            self.paused = hold
            if hold:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def clear(self) -> None:
        self.pending = b""

    def close(self) -> None:
        self.pending = b""
        self._parse = lambda data: None

    def _parse_some(self, data: memoryview, budget: int) -> int:
        spent = 0
        reader = self._reader
        while data and (reader.state is OVER or not self._answers.is_full):
            size, cost = reader.next_piece(data)
            if cost and spent >= budget:
                break
            spent += cost
            piece, data = data[:size], data[size:]
            self.pending = data
            if reader.state is not BETWEEN or not reader.take_known(bytes(piece)):
                self._parse(piece)
        self.pending = data
        if data or self.paused:
            self.regulate()
        return spent


def is_one_request(data: bytes) -> bool:
    """Whether all of this read belongs to its first request, as most reads of this length do: it is
    parsed in one go. A request in chunks is not seen here."""
    start = data[:TURN_BYTES].lower()
    end = start.find(b"\r\n\r\n")
    at = start.find(_LENGTH, 0, end) + len(_LENGTH) if end > 0 else 0
    if at < len(_LENGTH):
        return False
    length = start[at : start.find(b"\r\n", at)].strip()
    return len(length) < 12 and length.isdigit() and int(length) >= len(data) - end - 4


class Turns:
    """Lets connections that have read more than one request parse them in turns."""

    def __init__(self) -> None:
        self._waiting: deque[Intake] = deque()
        self._runs = False

    def wait(self, intake: Intake) -> None:
        """Call `intake.take_turn()` once, in a later turn of the loop at the latest."""
        self._waiting.append(intake)
        if not self._runs:
            self._runs = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        spent = 0
        while self._waiting and spent < LOOP_TURN_BYTES:
            spent += self._waiting.popleft().take_turn()
        self._runs = bool(self._waiting)
        if self._runs:
            asyncio.get_running_loop().call_soon(self._run)
