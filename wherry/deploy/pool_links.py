"""How does a front's pool of links become what the keeper of its owners follows?"""

from __future__ import annotations

import asyncio

from wherry.deploy.replicas import OwnerAddress, OwnerEvents
from wherry.server.pool import OwnerPool

#: States of an owner: it has told of its models; it takes no more, and answers what it has.
READY, LEAVING = "ready", "leaving"


class PoolLinks:
    """OwnerLinks of an OwnerPool that no other adds to. Everything happens in its loop."""

    events: OwnerEvents

    def __init__(self, pool: OwnerPool) -> None:
        self._pool = pool
        #: The owners to follow, by the address of their rows.
        self._numbers: dict[str, int] = {}
        self._joined: set[int] = set()
        self._draining: set[int] = set()
        #: Those that take no more though they were not told to.
        self._leaving: set[int] = set()
        self._is_closed = False
        pool.on_change = self._look

    def join(self, number: int, address: OwnerAddress) -> None:
        self._numbers[address.rows] = number
        self._pool.add(address.rows)

    def drain(self, number: int) -> None:
        self._draining.add(number)
        self._remove(number)
        # An owner that nothing was sent to is gone without a change.
        asyncio.get_running_loop().call_soon(self._look)

    def leave(self, number: int) -> None:
        self._remove(number)
        self._numbers = {rows: one for rows, one in self._numbers.items() if one != number}
        self._joined.discard(number)
        self._draining.discard(number)
        self._leaving.discard(number)

    def close(self) -> None:
        """Tell of nothing more but that owners are drained: the pool ends, with all its links."""
        self._is_closed = True

    def _remove(self, number: int) -> None:
        for rows, one in self._numbers.items():
            if one == number and not self._is_closed:
                self._pool.remove(rows)

    def _look(self) -> None:
        """Tell what has changed."""
        states = {replica.address: replica for replica in self._pool.replicas()}
        for rows, number in list(self._numbers.items()):
            replica = states.get(rows)
            if number in self._draining:
                if replica is None or self._is_closed:
                    self._draining.discard(number)
                    self.events.drained(number)
            elif self._is_closed:
                continue
            elif replica is not None and replica.state == READY:
                if number not in self._joined:
                    self._joined.add(number)
                    self.events.joined(number)
            elif number not in self._joined:
                continue
            elif replica is not None and replica.state == LEAVING:
                if number not in self._leaving:
                    self._leaving.add(number)
                    self.events.leaving(number)
            else:
                self._joined.discard(number)
                why = "" if replica is None else replica.error
                self.events.cut(number, ConnectionError(why or "the link has ended"))
