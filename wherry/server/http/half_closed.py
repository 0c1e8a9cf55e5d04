"""A client sends no more: has it left, or does it wait for its answers?

Either end of file looks the same. What is written tells: the kernel of a client that has left
resets the connection, as nobody can read there any more. So a client that still waits after a
moment gets an interim response, which HTTP/1.1 has it skip (RFC 9110, 15.2).
"""

from __future__ import annotations

import asyncio
from typing import Final

from wherry.server.connections.sockets import was_reset
from wherry.server.http.answer_queue import AnswerQueue

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

MOMENT: Final = 0.005
"""Seconds for an answer without an interim response before it. What the client left behind runs for
so much longer."""


class HalfClosed:
    """Cuts off one client that sends no more, once it is known to have left."""

    __slots__ = ("_answers", "_has_request", "_transport")

    def __init__(self, transport: asyncio.Transport, answers: AnswerQueue) -> None:
        self._transport = transport
        self._answers = answers
        self._has_request = False

    def look(self) -> None:
        """Cut it off if it has left; ask it at the first time, and look once more then."""
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
