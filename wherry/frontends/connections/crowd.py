"""Which connection makes room when there are too many?"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import Final

from wherry.frontends.connections.open_connection import OpenConnection

RESERVE: Final = 64
"""Connections beyond the limit, for questions about health. The oldest of them is closed first."""

SCAN_INTERVAL: Final = 0.1
"""Seconds between two searches for idle connections: one costs a step for each connection."""


class Crowd:
    """Makes room among the connections of a listener that has reached its limit of them.

    The one that has been idle for longest makes room for a new one. While none is idle, a few more
    are admitted, which may ask about health and nothing else.
    """

    def __init__(self) -> None:
        self._idle: deque[OpenConnection] = deque()
        self._looked_at = float("-inf")
        self._reserve: dict[OpenConnection, None] = {}  # the oldest first

    def reserve(self, new: OpenConnection) -> None:
        """Admit `new` beyond the limit, for questions about health."""
        if len(self._reserve) >= RESERVE:
            oldest = next(iter(self._reserve))
            del self._reserve[oldest]
            oldest.abort()
        self._reserve[new] = None

    def forget(self, closed: OpenConnection) -> None:
        """Keep nothing of a connection that is closed."""
        self._reserve.pop(closed, None)

    def one_makes_room(
        self, new: OpenConnection, open_: Collection[OpenConnection], now: float
    ) -> bool:
        """Close the connection that has been idle for longest; False if none is."""
        if not self._idle and now - self._looked_at >= SCAN_INTERVAL:
            self._looked_at = now
            self._idle.extend(_by_idle_time(member for member in open_ if member is not new))
        while self._idle:
            member = self._idle.popleft()
            if member in open_ and member.make_room():
                return True
        return False


def _by_idle_time(members: Iterable[OpenConnection]) -> list[OpenConnection]:
    """Those that are idle, the longest first."""
    found = [(since, member) for member in members if (since := member.idle_since) is not None]
    return [member for _, member in sorted(found, key=lambda pair: pair[0])]
