"""Which connection makes room when there are too many, and what may those beyond the limit ask?"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final, Protocol, cast

from wherry.frontends.http.exchange import Application, Exchange, error_body

RESERVE: Final = 64
"""Connections beyond the limit, for questions about health. The oldest of them goes first."""

SCAN_INTERVAL: Final = 0.1
"""Seconds between two searches for idle connections: one costs a step for each connection."""


class Member(Protocol):
    """A connection, as far as it may have to make room for another one."""

    @property
    def is_idle(self) -> bool: ...

    @property
    def idle_since(self) -> float: ...

    def make_room(self) -> bool: ...

    def abort(self) -> None: ...


class LastExchange(Protocol):
    def be_the_last(self) -> None: ...


class Crowd:
    """What happens at `max_connections`.

    The connection that has been idle for longest makes room for a new one. While none is idle, a
    few more are let in; of these only the `vital` paths are answered, everything else is refused.
    """

    def __init__(
        self, application: Application, vital: Collection[str], max_connections: int
    ) -> None:
        self._application = application
        self._vital = frozenset(vital)
        self._max_connections = max_connections
        self._idle: deque[Member] = deque()
        self._looked_at = float("-inf")
        self._reserve: deque[Member] = deque()

    def __repr__(self) -> str:
        return f"<Crowd: {len(self._reserve)} beyond {self._max_connections}>"

    def admit(self, new: Member, open_: Collection[Member]) -> Application:
        """The application for this connection, for which none has made room."""
        self._reserve = deque(member for member in self._reserve if member in open_)
        if len(self._reserve) >= RESERVE:
            self._reserve.popleft().abort()
        self._reserve.append(new)
        return self._answer_if_vital

    def one_makes_room(self, new: Member, open_: Collection[Member], now: float) -> bool:
        """Close the connection that has been idle for longest; False if none is.

        `new` is the latest of `open_`, and beyond the limit.
        """
        if not self._idle and now - self._looked_at >= SCAN_INTERVAL:
            self._looked_at = now
            found = [member for member in open_ if member.is_idle and member is not new]
            self._idle.extend(sorted(found, key=lambda member: member.idle_since))
        while self._idle:
            member = self._idle.popleft()
            if member in open_ and member.make_room():
                return True
        return False

    def _answer_if_vital(self, exchange: Exchange) -> None:
        cast(LastExchange, exchange).be_the_last()
        if exchange.request.path in self._vital:
            self._application(exchange)
            return
        message = (
            f"the server has its limit of {self._max_connections} connections, and none of them is"
            " idle; retry later, or raise max_connections"
        )
        exchange.respond(503, error_body(message), headers=[("Retry-After", "1")])
