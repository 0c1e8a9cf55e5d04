"""How many bytes may be held at a time, and how many are?"""

from __future__ import annotations

from collections import deque


class Loan:
    """Bytes taken of a budget, which are given back when this object is gone, in any thread.

    For what changes hands: what is counted is then what is there.
    """

    __slots__ = ("_budget", "count")

    def __init__(self, budget: Budget, count: int) -> None:
        self._budget = budget
        self.count = count

    def __del__(self) -> None:
        self._budget.return_later(self.count)


class Budget:
    """Counts the bytes that something holds against a limit.

    Used by one thread (an event loop) or under one lock; only `return_later` is for any thread.
    With `within`, what is taken here counts there, too.
    """

    __slots__ = ("_returned", "limit", "refused", "taken", "within")

    def __init__(self, limit: int, *, within: Budget | None = None) -> None:
        self.limit = limit
        self.within = within
        #: What is held, and what was returned and is not counted yet.
        self.taken = 0
        #: How often `take` said no.
        self.refused = 0
        self._returned: deque[int] = deque()

    def __repr__(self) -> str:
        return f"<Budget: {self.held} of {self.limit} bytes held, {self.refused} refused>"

    @property
    def held(self) -> int:
        """Bytes. Any thread."""
        return self.taken - sum(list(self._returned))

    def take(self, count: int) -> bool:
        """Hold `count` bytes more; False, and nothing is held, if that is beyond the limit."""
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
        """Free `count` of the bytes taken."""
        self.taken -= count
        if self.within is not None:
            self.within.give_back(count)

    def return_later(self, count: int) -> None:
        """`give_back` from any thread: it counts from the next `take` on."""
        self._returned.append(count)

    def _count_returned(self) -> None:
        while self._returned:
            self.give_back(self._returned.popleft())
