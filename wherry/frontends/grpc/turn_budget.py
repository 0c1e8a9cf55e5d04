"""How much may the connections of one listener do in one turn of the event loop?

Work is counted in frames, so that no clock is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

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


class TurnBudget:
    """Divides each turn of the loop between all that has work to do in it."""

    __slots__ = ("_resets", "_spent", "behind")

    def __init__(self) -> None:
        #: Connections and streams that go on in the next turn.
        self.behind = 0
        self._spent = 0
        self._resets = False  # whether the end of this turn is waited for

    def __repr__(self) -> str:
        return f"<TurnBudget: {self._spent} of {TURN_WORK} spent, {self.behind} behind>"

    @property
    def share(self) -> int:
        """Work that one connection may do in this turn."""
        return max(CALL_WORK, (TURN_WORK - self._spent) // (self.behind + 1))

    @property
    def is_spent(self) -> bool:
        """Whether what can wait for the next turn should."""
        return self._spent >= TURN_WORK

    def spend(self, work: int) -> None:
        self._spent += work
        # The callback has a cost, too: it is asked for only in turns with much work.
        if self._spent >= TURN_WORK // 4 and not self._resets:
            self._resets = True
            asyncio.get_running_loop().call_soon(self._reset)

    def later(self, callback: Callable[[], None]) -> None:
        """Call back in the next turn."""
        self.behind += 1
        asyncio.get_running_loop().call_soon(self._go_on, callback)

    def _go_on(self, callback: Callable[[], None]) -> None:
        self.behind -= 1
        callback()

    def _reset(self) -> None:
        self._resets = False
        self._spent = 0


class ReadTurn:
    """What one connection does with one read: it stops when `work` has reached `share`."""

    __slots__ = ("_budget", "share", "work")

    def __init__(self, budget: TurnBudget) -> None:
        self._budget = budget
        self.work = self.share = 0

    def begin(self) -> None:
        self.work = 0
        self.share = self._budget.share

    def end(self) -> None:
        self._budget.spend(self.work)
