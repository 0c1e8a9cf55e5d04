"""How much work may clients make: in one turn of the event loop, and work that leads to nothing?

Work is counted in frames, so that no clock is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from wherry.server.grpc.frames import ENHANCE_YOUR_CALM, ConnectionFault

TURN_WORK: Final = 2048
"""Frames read in one turn by all connections together. It takes some 10 ms, for which all other
work of the loop waits."""
CALL_WORK: Final = 32
"""Frames that cost as much as beginning a call, or as one message of a stream. A connection may
always begin one call in a turn."""
UNPACKED_A_FRAME: Final = 2**12
"""Unpacked bytes that count as one frame."""
HEADERS_A_FRAME: Final = 4
"""Decoded headers that count as one frame."""

MAX_CALLS: Final = 1024
"""Calls open at once on one connection (MAX_CONCURRENT_STREAMS)."""
MAX_RESETS: Final = 2 * MAX_CALLS
"""Calls between two sweeps that were reset or refused: opening and cancelling them costs a client
little (rapid reset, CVE-2023-44487)."""
RESETS_OF_A_FAULT: Final = 16
"""Resets that a stream counts for that the server had to reset. gRPC clients cause none, and they
would get around a client's own limit of open calls."""
MAX_NOISE: Final = 10_000
"""Frames between two sweeps that move no call: PING, SETTINGS, PRIORITY, empty DATA, late headers,
unknown ones."""


class TurnBudget:
    """Divides each turn of the loop between the connections of one listener."""

    __slots__ = ("_resets", "behind", "spent")

    def __init__(self) -> None:
        #: Connections and streams that go on in the next turn.
        self.behind = 0
        #: Work that was done in this turn, and in some before it if that was little.
        self.spent = 0
        self._resets = False  # whether `_reset` is scheduled

    @property
    def share(self) -> int:
        return max(CALL_WORK, (TURN_WORK - self.spent) // (self.behind + 1))

    @property
    def is_spent(self) -> bool:
        """Whether what can wait for the next turn should."""
        return self.spent >= TURN_WORK

    def spend(self, work: int) -> None:
        self.spent += work
        # The callback has a cost, too: it is scheduled only in turns with much work.
        if self.spent >= TURN_WORK // 4 and not self._resets:
            self._resets = True
            asyncio.get_running_loop().call_soon(self._reset)

    def later(self, callback: Callable[[], None]) -> None:
        self.behind += 1
        asyncio.get_running_loop().call_soon(self._go_on, callback)

    def _go_on(self, callback: Callable[[], None]) -> None:
        self.behind -= 1
        callback()

    def _reset(self) -> None:
        self._resets = False
        self.spent = 0


class ClientWork:
    """Counts the work that one client makes. Reading stops when `done` has reached `share`.

    ConnectionFault for too much that leads to nothing, between two sweeps of the listener.
    """

    __slots__ = ("_budget", "_noise", "_resets", "done", "share")

    def __init__(self, budget: TurnBudget) -> None:
        self._budget = budget
        self.done = self.share = 0
        self._noise = self._resets = 0

    def begin_turn(self) -> None:
        self.done = 0
        budget = self._budget
        self.share = TURN_WORK - budget.spent
        if budget.behind or self.share < CALL_WORK:
            self.share = budget.share

    def note_reset(self, count: int = 1) -> None:
        self._resets += count
        if self._resets > MAX_RESETS:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many calls that come to nothing")

    def note_noise(self, count: int = 1) -> None:
        self._noise += count
        if self._noise > MAX_NOISE:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many frames that move no call")

    def sweep(self) -> None:
        self._noise = self._resets = 0
