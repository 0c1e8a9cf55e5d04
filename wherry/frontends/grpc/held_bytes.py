"""How much of one kind does one connection hold, and is that too much?"""

from __future__ import annotations

from collections.abc import Callable

from wherry.frontends.connections.held import FREE_BYTES


class HeldBytes:
    """Counts bytes, and has them noted once they are many.

    `note` is told how many there are, at each change; it returns whether there may be no more.
    """

    __slots__ = ("_note", "count", "is_full")

    def __init__(self, note: Callable[[int], bool]) -> None:
        self._note: Callable[[int], bool] | None = note
        self.count = 0
        #: Whether it is more than one connection may hold.
        self.is_full = False

    def __repr__(self) -> str:
        return f"<HeldBytes: {self.count}{', full' if self.is_full else ''}>"

    def add(self, change: int) -> None:
        """Hold more, or less."""
        before, self.count = self.count, self.count + change
        if (before > FREE_BYTES or self.count > FREE_BYTES) and self._note is not None:
            self.is_full = self._note(self.count)

    def close(self) -> None:
        """Have nothing noted any more: the connection is gone."""
        self._note = None
