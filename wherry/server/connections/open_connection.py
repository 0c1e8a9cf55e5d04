"""What does a listener ask of each of its connections, whatever the protocol?"""

from __future__ import annotations

from typing import Protocol


class OpenConnection(Protocol):
    """One client's connection. Everything is called on the event loop's thread."""

    @property
    def owes(self) -> bool:
        """Whether an answer is not complete, or not yet with the kernel."""

    @property
    def idle_since(self) -> float | None:
        """When a sweep first saw that nothing is asked, owed or half read; None if something is."""

    def make_room(self) -> bool:
        """Close at once, if nothing has come since it was found idle. Returns whether it closed."""

    def check(self, now: float) -> None:
        """Enforce the time limits. Called by each sweep."""

    def drain(self) -> None:
        """Finish what has begun, tell the client which request is the last, and close."""

    def end(self) -> None:
        """Take no more requests; close when the last answer is written."""

    def abort(self) -> None:
        """Close now; what is not sent is lost."""
