"""Where and how does a request end, exactly once?

Whoever takes the one token out of a reply gives it its outcome; everybody else is too late, which
is normal: callers leave, deadlines pass and workers die while a batch runs. Nothing else in the
package ends a request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Reply(Generic[T]):
    """The one outcome of one request. `on_done(reply)` is called once, in the settling thread."""

    __slots__ = ("_on_done", "_token", "outcome")

    outcome: T | Exception

    def __init__(self, on_done: Callable[[Reply[T]], None]) -> None:
        self._on_done = on_done
        # list.pop() is atomic in every CPython: cheaper than a lock for each request.
        self._token = [True]

    @property
    def settled(self) -> bool:
        return not self._token

    def first(self, callback: Callable[[Reply[T]], None]) -> None:
        """Have `callback(reply)` called, too, just before on_done. Not after it was submitted."""
        then = self._on_done

        def both(reply: Reply[T]) -> None:
            callback(reply)
            then(reply)

        self._on_done = both

    def settle(self, outcome: T | Exception) -> bool:
        """Give the request its outcome unless it has one; say whether we did. Any thread."""
        if not self.claim():
            return False
        self.deliver(outcome)
        return True

    def claim(self) -> bool:
        """Be the one who settles it, with `deliver`; False if somebody else is. Any thread."""
        try:
            return self._token.pop()
        except IndexError:
            return False

    def deliver(self, outcome: T | Exception) -> None:
        """Give the request its outcome. Only for whom `claim` said yes to."""
        self.outcome = outcome
        self._on_done(self)

    def result(self) -> T:
        """The outcome, raised if it is an error. Only after it was settled."""
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class StreamReply(Reply[T]):
    """A reply that also carries responses before its outcome.

    `send` is called in the thread that runs the model, `on_response(reply, response)` too. The
    reader says `consumed()` for each response it is done with. A lone reader that is `window`
    responses behind slows its own generation (`wait_for_room`); one that shares a batch must not
    hold back the others and fails at `limit`.
    """

    __slots__ = ("_changed", "_on_response", "_outstanding", "limit", "window")

    def __init__(
        self,
        on_response: Callable[[StreamReply[T], T], None],
        on_done: Callable[[Reply[T]], None],
        *,
        window: int = 64,
        limit: int = 4096,
    ) -> None:
        super().__init__(on_done)
        self._on_response = on_response
        self._outstanding = 0
        self._changed = threading.Condition()
        self.window = window
        self.limit = limit

    def wait_for_room(self, timeout: float) -> bool:
        """Wait until the reader is less than `window` behind, or gone. False: `timeout` is over."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._outstanding < self.window or self.settled, timeout
            )

    def send(self, response: T, *, most: int) -> bool:
        """Hand on one response; False if the caller is gone or `most` responses behind."""
        with self._changed:
            if self.settled or self._outstanding >= most:
                return False
            self._outstanding += 1
        self._on_response(self, response)
        return True

    def consumed(self) -> None:
        with self._changed:
            self._outstanding -= 1
            self._changed.notify()

    def deliver(self, outcome: T | Exception) -> None:
        super().deliver(outcome)
        with self._changed:  # wake a sender that waits for a reader who has just left
            self._changed.notify_all()
