"""How does each request get exactly one outcome?

The first `claim` wins and delivers the outcome. Later ones are normal and have no effect: callers
cancel, deadlines pass and workers die while a batch runs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from wherry.core.values.errors import Cancelled

T = TypeVar("T")

#: Bytes of unread responses at which a stream waits for its reader, or fails.
WINDOW_BYTES: Final = 4 * 2**20
LIMIT_BYTES: Final = 64 * 2**20


class ReplyLoop(Protocol):
    def call(self, callback: Callable[[Any], None], argument: Any) -> None:
        """Call `callback(argument)` in the loop. Any thread."""


class Reply(Generic[T]):
    """The outcome of one request. `on_done(reply)` is called once: in `loop`, else in the settling
    thread."""

    __slots__ = ("loop", "on_done", "outcome", "settled", "unclaimed")

    outcome: T | Exception
    #: Whether responses come before the outcome, and whether one was sent.
    streams: ClassVar[bool] = False
    has_begun = False

    def __init__(self, on_done: Callable[[Reply[T]], None], loop: ReplyLoop | None = None) -> None:
        self.on_done = on_done
        self.loop = loop
        #: Whether the request has an outcome, or is about to get it.
        self.settled = False
        self.unclaimed = True

    def first(self, callback: Callable[[Reply[T]], None]) -> None:
        """Call `callback(reply)` before on_done, in the settling thread. Only before the request is
        submitted."""
        then, loop = self.on_done, self.loop

        def both(reply: Reply[T]) -> None:
            callback(reply)
            if loop is None:
                then(reply)
            else:
                loop.call(then, reply)

        self.on_done, self.loop = both, None

    def settle(self, outcome: T | Exception) -> bool:
        """Set the outcome unless there is one; return whether it was set. Any thread."""
        if not self.claim():
            return False
        self.deliver(outcome)
        return True

    def claim(self) -> bool:
        """Reserve the right to set the outcome with `deliver`; False if it is taken. Any thread."""
        try:
            # Atomic in every CPython, and cheaper than a lock for each request: of two threads
            # that delete a slot one gets the error.
            del self.unclaimed
        except AttributeError:
            return False
        self.settled = True
        return True

    def deliver(self, outcome: T | Exception) -> None:
        """Set the outcome. Only after a `claim` that returned True."""
        self.outcome = outcome
        if self.loop is None:
            self.on_done(self)
        else:
            self.loop.call(self.on_done, self)

    def result(self) -> T:
        """The outcome, raised if it is an error. Only after settling."""
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def notify(replies: Iterable[Reply[Any]]) -> None:
    """Call `on_done` of each: in their loop, once they have their outcomes."""
    waiting = iter(replies)
    try:
        for reply in waiting:
            reply.on_done(reply)
    finally:  # one raised: the others are still notified
        rest = list(waiting)
        if rest:
            notify(rest)


class StreamReply(Reply[T]):
    """A reply with responses before its outcome.

    `send` and `on_response(reply, response)` run in the thread of the model. The reader calls
    `consumed()` for each response it has processed. A reader that is alone in its batch slows the
    generation when `window` responses or WINDOW_BYTES are unread (`wait_for_room`). A reader that
    shares a batch must not delay the others: its stream fails at `limit` or LIMIT_BYTES. `measure`,
    if set, returns the bytes of a response; it is called only while there are unread ones.
    """

    __slots__ = (
        "_changed", "_on_response", "_on_room", "_sizes", "_unread_bytes", "has_begun", "limit",
        "measure", "on_consumed", "window"
    )  # fmt: skip
    streams = True

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
        self.has_begun = False
        self.measure: Callable[[T], int] | None = None
        self._on_room: Callable[[], None] | None = None
        #: Called after each `consumed`, in the reader's thread.
        self.on_consumed: Callable[[], None] | None = None
        self._changed = threading.Condition()
        self.window = window
        self.limit = limit

    def has_room(self) -> bool:
        """Whether the reader is less than a window behind, or gone. Any thread."""
        return self._has_room(self.window, WINDOW_BYTES) or self.settled

    def wait_for_room(self, timeout: float) -> bool:
        """Block until `has_room`, for at most `timeout` seconds; False after the timeout."""
        with self._changed:
            return self._changed.wait_for(self.has_room, timeout)

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call `callback()` once as soon as `has_room`: at once in this thread, or later in the
        reader's or the settling thread. A later callback replaces one that was not called yet."""
        with self._changed:
            if not self.has_room():
                self._on_room = callback
                return
        callback()

    @property
    def unread(self) -> int:
        return len(self._sizes)

    def dropped(self, model: str) -> Cancelled:
        """The error of a stream that ends after `send` has returned False."""
        return Cancelled(f"model {model!r}: the caller left {self.unread} responses unread")

    def send(self, response: T, *, lone: bool = False, together: bool = False) -> bool:
        """Pass on one response. False if the reader is gone or too far behind: by `window` if it is
        `lone` (alone in its batch), else by `limit`. A response that comes `together` with the one
        before it is never too much: the reader had no time to read that one."""
        # Responses are measured only if the reader falls behind.
        size = 0 if self.measure is None or not self._sizes else self.measure(response)
        with self._changed:
            room = together or (
                self._has_room(self.window, WINDOW_BYTES)
                if lone
                else self._has_room(self.limit, LIMIT_BYTES)
            )
            if self.settled or not room:
                return False
            self.has_begun = True
            self._sizes.append(size)
            self._unread_bytes += size
        self._on_response(self, response)
        return True

    def consumed(self) -> None:
        with self._changed:
            self._unread_bytes -= self._sizes.popleft()
            self._changed.notify()
            callbacks = self._taken_on_room()
        if callbacks is not None:
            callbacks()
        if self.on_consumed is not None:
            self.on_consumed()

    def _has_room(self, responses: int, nbytes: int) -> bool:
        return len(self._sizes) < responses and self._unread_bytes < nbytes

    def deliver(self, outcome: T | Exception) -> None:
        super().deliver(outcome)
        with self._changed:  # wake a sender that waits for this reader
            self._changed.notify_all()
            callbacks = self._taken_on_room()
        if callbacks is not None:
            callbacks()

    def _taken_on_room(self) -> Callable[[], None] | None:
        """The callback to call after the lock is released, if there is room. Call under the
        lock."""
        if self._on_room is None or not self.has_room():
            return None
        callbacks, self._on_room = self._on_room, None
        return callbacks
