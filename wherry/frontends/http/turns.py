"""Which connection is parsed next, when more has come than one turn of the loop may parse?"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

_LENGTH: Final = b"\r\ncontent-length:"

TURN_BYTES: Final = 2**10
"""Bytes of heads and chunks that are parsed for one connection at a time: some twenty tiny
requests."""

LOOP_TURN_BYTES: Final = 2 * TURN_BYTES
"""Bytes that are parsed for all waiting connections in one turn of the loop: a few milliseconds,
however small the requests are. Other connections are served in between."""


def is_one_request(data: memoryview) -> bool:
    """Whether all of this read belongs to its first request, as most reads of this length do: it is
    parsed in one go. A request in chunks is not seen here."""
    start = bytes(data[:TURN_BYTES]).lower()
    end = start.find(b"\r\n\r\n")
    at = start.find(_LENGTH, 0, end) + len(_LENGTH) if end > 0 else 0
    if at < len(_LENGTH):
        return False
    length = start[at : start.find(b"\r\n", at)].strip()
    return len(length) < 12 and length.isdigit() and int(length) >= len(data) - end - 4


class Waiting(Protocol):
    def take_turn(self) -> int:
        """Parse some of what has come; returns how much, as it counts."""


class Turns:
    """Parses in turns what connections with more than one request at a time have sent."""

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()
        self._runs = False

    def __repr__(self) -> str:
        return f"<Turns: {len(self._waiting)} waiting>"

    def wait(self, connection: Waiting) -> None:
        """Have its `take_turn` called, once."""
        self._waiting.append(connection)
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
