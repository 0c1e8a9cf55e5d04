"""Where and how does a request end, exactly once?

The one that claims a reply gives it its outcome; all others are too late, which is normal: callers
leave, deadlines pass and workers die while a batch runs. Nothing else ends a request.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: Unread responses of a stream, in bytes: beyond these it waits for its reader, or is failed.
WINDOW_BYTES: Final = 4 * 2**20
LIMIT_BYTES: Final = 64 * 2**20


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
        """Take the right to settle it, with `deliver`; False if it is taken. Any thread."""
        try:
            return self._token.pop()
        except IndexError:
            return False

    def deliver(self, outcome: T | Exception) -> None:
        """Give the request its outcome. Only after a `claim` that returned True."""
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
    responses or WINDOW_BYTES behind slows its own generation (`wait_for_room`); one that shares a
    batch must not hold back the others and fails at `limit` or LIMIT_BYTES. Bytes are those that
    `measure` says, if it is set, of responses sent while there were unread ones.
    """

    __slots__ = (
        "_changed",
        "_on_response",
        "_on_room",
        "_sizes",
        "_unread_bytes",
        "limit",
        "measure",
        "window",
    )

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
        self._sizes: deque[int] = deque()
        self._unread_bytes = 0
        self.measure: Callable[[T], int] | None = None
        self._on_room: Callable[[], None] | None = None
        self._changed = threading.Condition()
        self.window = window
        self.limit = limit

    def has_room(self) -> bool:
        """Is the reader less than a window behind, or gone? Any thread."""
        return self._has_room(self.window, WINDOW_BYTES) or self.settled

    def wait_for_room(self, timeout: float) -> bool:
        """Block until `has_room`, for `timeout` seconds at most; False if they are over."""
        with self._changed:
            return self._changed.wait_for(self.has_room, timeout)

    def when_room(self, callback: Callable[[], None]) -> None:
        """Have `callback()` called once as soon as `has_room`, maybe at once: in this thread, the
        reader's, or the one that settles the reply. A later callback takes the place of one that
        was not called yet."""
        with self._changed:
            if not self.has_room():
                self._on_room = callback
                return
        callback()

    @property
    def unread(self) -> int:
        """How many responses behind the reader is."""
        return len(self._sizes)

    def send(self, response: T, *, lone: bool = False) -> bool:
        """Hand on one response. False if the reader is gone or too far behind: by `window` if it is
        `lone` (alone in its batch), else by `limit`."""
        # A reader that keeps up is not measured.
        size = 0 if self.measure is None or not self._sizes else self.measure(response)
        with self._changed:
            room = (
                self._has_room(self.window, WINDOW_BYTES)
                if lone
                else self._has_room(self.limit, LIMIT_BYTES)
            )
            if self.settled or not room:
                return False
            self._sizes.append(size)
            self._unread_bytes += size
        self._on_response(self, response)
        return True

    def consumed(self) -> None:
        with self._changed:
            self._unread_bytes -= self._sizes.popleft()
            self._changed.notify()
            told = self._taken_on_room()
        if told is not None:
            told()

    def _has_room(self, responses: int, nbytes: int) -> bool:
        return len(self._sizes) < responses and self._unread_bytes < nbytes

    def deliver(self, outcome: T | Exception) -> None:
        super().deliver(outcome)
        with self._changed:  # wake a sender that waits for a reader that has just left
            self._changed.notify_all()
            told = self._taken_on_room()
        if told is not None:
            told()

    def _taken_on_room(self) -> Callable[[], None] | None:
        """Under the lock: what must be called now that there may be room."""
        if self._on_room is None or not self.has_room():
            return None
        told, self._on_room = self._on_room, None
        return told
