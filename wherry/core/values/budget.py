"""How many bytes are held, and how many may be?"""

from __future__ import annotations

from collections import deque


class Reservation:
    """Bytes taken from a budget that are returned when this object is freed, in any thread.

    For memory that changes owners: it is counted as long as it exists.
    """

    __slots__ = ("_budget", "count")

    def __init__(self, budget: Budget, count: int) -> None:
        self._budget = budget
        self.count = count

    def __del__(self) -> None:
        self._budget.return_later(self.count)


class Budget:
    """Counts held bytes against a limit.

    For one thread (an event loop) or under one lock; only `return_later` is safe from any thread.
    Bytes taken here count in `within` too.
    """

    __slots__ = ("_returned", "limit", "refused", "taken", "within")

    def __init__(self, limit: int, *, within: Budget | None = None) -> None:
        self.limit = limit
        self.within = within
        #: Bytes held, including those returned by `return_later` but not subtracted yet.
        self.taken = 0
        #: Number of refused `take` calls.
        self.refused = 0
        self._returned: deque[int] = deque()

    def __repr__(self) -> str:
        return f"<Budget: {self.held} of {self.limit} bytes held, {self.refused} refused>"

    @property
    def held(self) -> int:
        """Bytes held now. Any thread."""
        return self.taken - sum(list(self._returned))

    def take(self, count: int) -> bool:
        """Hold `count` more bytes. False, without a change, if that exceeds the limit."""
        if self._returned:
            self._count_returned()
        if self.taken + count > self.limit or (
            self.within is not None and not self.within.take(count)
        ):
            self.refused += 1
            return False
        self.taken += count
        return True

    def give_back(self, count: int) -> None:
        """Release `count` bytes."""
        self.taken -= count
        if self.within is not None:
            self.within.give_back(count)

    def return_later(self, count: int) -> None:
        """Release `count` bytes from any thread; counted at the next `take`."""
        self._returned.append(count)

    def _count_returned(self) -> None:
        while self._returned:
            self.give_back(self._returned.popleft())
