"""Which connection makes room when there are too many?"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final, Protocol

RESERVE: Final = 64
"""Connections beyond the limit, for questions about health. The oldest of them is closed first."""

SCAN_INTERVAL: Final = 0.1
"""Seconds between two searches for idle connections: one costs a step for each connection."""


class Member(Protocol):
    """A connection, as far as it may have to make room for another one."""

    @property
    def is_idle(self) -> bool: ...

    @property
    def idle_since(self) -> float: ...

    def make_room(self) -> bool:
        """Close at once if it is idle still; say whether it was."""

    def abort(self) -> None: ...


class Crowd:
    """The connections of one listener that has its limit of them.

    The one that has been idle for longest makes room for a new one. While none is idle, a few more
    are let in, which are answered questions about health and nothing else.
    """

    def __init__(self) -> None:
        self._idle: deque[Member] = deque()
        self._looked_at = float("-inf")
        self._reserve: deque[Member] = deque()

    def __repr__(self) -> str:
        return f"<Crowd: {len(self._reserve)} in reserve>"

    def admit(self, new: Member, open_: Collection[Member], now: float) -> bool:
        """Whether `new`, one of `open_` and beyond the limit, is a connection like any other."""
        if self.one_makes_room(new, open_, now):
            return True
        self.reserve(new, open_)
        return False

    def reserve(self, new: Member, open_: Collection[Member]) -> None:
        """Let `new` in beyond the limit, for questions about health."""
        self._reserve = deque(member for member in self._reserve if member in open_)
        if len(self._reserve) >= RESERVE:
            self._reserve.popleft().abort()
        self._reserve.append(new)

    def one_makes_room(self, new: Member, open_: Collection[Member], now: float) -> bool:
        """Close the connection that has been idle for longest; False if none is."""
        if not self._idle and now - self._looked_at >= SCAN_INTERVAL:
            self._looked_at = now
            found = [member for member in open_ if member.is_idle and member is not new]
            self._idle.extend(sorted(found, key=lambda member: member.idle_since))
        while self._idle:
            member = self._idle.popleft()
            if member in open_ and member.make_room():
                return True
        return False
