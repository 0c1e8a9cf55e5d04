"""How much do clients hold that they do not take or do not finish, and which is cut off first?

Pure: time is an argument, and the connections to cut off are returned. Two of these are kept: one
for answers that clients have not taken, one for requests that have not come in full. Then the
buffers that large bodies are read into.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np

#: Bytes that a connection may hold without being counted.
FREE_BYTES: Final = 2**16
#: Seconds within which bytes count as as old as the first of them.
GRAIN: Final = 0.1

H = TypeVar("H")


class Held(Generic[H]):
    """Counts what each connection holds, against a limit of all and one of each.

    Beyond the limit of all, the connection with the oldest bytes is cut off first: a byte taken now
    and then does not make the rest younger. A connection beyond its own limit must get no more
    to hold, and is cut off when nothing has been taken for a while.
    """

    def __init__(self, limit: int, connection_limit: int) -> None:
        self.limit = limit
        self.connection_limit = connection_limit
        #: Bytes of all holders but those with no more than FREE_BYTES.
        self.total = 0
        self._accounts: dict[H, _Account] = {}

    def __repr__(self) -> str:
        return f"<Held: {self.total} of {self.limit} bytes by {len(self._accounts)} connections>"

    def note(self, holder: H, held: int, now: float) -> list[H]:
        """Record that `holder` holds `held` bytes. Returns those that must be cut off."""
        account = self._accounts.get(holder)
        if held <= FREE_BYTES:
            if account is not None:
                self.forget(holder)
            return []
        if account is None:
            account = self._accounts[holder] = _Account(now)
        change = held - account.held
        self.total += change
        if change > 0:
            account.grow(change, now)
            return self._make_room()
        if change < 0:
            account.shrink(-change, now)
        return []

    def forget(self, holder: H) -> None:
        account = self._accounts.pop(holder, None)
        if account is not None:
            self.total -= account.held

    def is_full(self, holder: H) -> bool:
        """Whether it holds more than one connection may."""
        account = self._accounts.get(holder)
        return account is not None and account.held > self.connection_limit

    def stalled(self, now: float, timeout: float) -> list[H]:
        """Holders beyond their own limit from which nothing was taken for `timeout` seconds: they
        must be cut off."""
        return [
            holder
            for holder, account in self._accounts.items()
            if account.held > self.connection_limit and now - account.moved_at >= timeout
        ]

    def _make_room(self) -> list[H]:
        gone: list[H] = []
        while self.total > self.limit:
            oldest = min(self._accounts, key=lambda holder: self._accounts[holder].waits_since)
            self.forget(oldest)
            gone.append(oldest)
        return gone


@dataclass(frozen=True, slots=True)
class Holdings(Generic[H]):
    """What the connections of one server hold, over whichever protocol."""

    unsent: Held[H]
    received: Held[H]


class _Account:
    """What one connection holds, the oldest first."""

    __slots__ = ("_taken", "_waiting", "held", "moved_at")

    def __init__(self, now: float) -> None:
        self.held = 0
        #: When some of it was taken, or it began to hold.
        self.moved_at = now
        self._taken = 0
        #: When bytes came, and how many had come by then.
        self._waiting: deque[tuple[float, int]] = deque()

    @property
    def waits_since(self) -> float:
        return self._waiting[0][0]

    def grow(self, count: int, now: float) -> None:
        self.held += count
        come = self._taken + self.held
        if self._waiting and now - self._waiting[-1][0] < GRAIN:
            now = self._waiting.pop()[0]
        self._waiting.append((now, come))

    def shrink(self, count: int, now: float) -> None:
        self.held -= count
        self._taken += count
        self.moved_at = now
        while self._waiting[0][1] <= self._taken:
            self._waiting.popleft()


class HeldBytes:
    """Counts what one connection holds of one kind, and has it noted once it is much.

    `note` gets the count at each change; it returns whether the connection may hold no more.
    """

    __slots__ = ("_note", "_taken", "count", "is_full", "is_stuck")

    def __init__(self, note: Callable[[int], bool]) -> None:
        self._note: Callable[[int], bool] | None = note
        self.count = 0
        self._taken = False
        self.is_full = False
        #: Whether it is, and nothing was taken of it yet.
        self.is_stuck = False

    def add(self, change: int) -> None:
        before, self.count = self.count, self.count + change
        if change < 0:
            self._taken = self.count > 0
        if (before > FREE_BYTES or self.count > FREE_BYTES) and self._note is not None:
            self.is_full = self._note(self.count)
            self.is_stuck = self.is_full and not self._taken

    def close(self) -> None:
        """Stop noting: the connection is gone."""
        self._note = None


# The pages of a fresh buffer are made and cleared by the kernel as it fills: for 600 KB that costs
# more than reading them. So a few buffers of large bodies are kept, and used again.

KEPT_BYTES: Final = 2**24
"""The most that one listener keeps."""

LARGEST_BYTES: Final = 2**22
"""The largest buffer that is kept."""

_PROBE: Final = (np.empty(0, np.uint8),)
_UNUSED: Final = sys.getrefcount(_PROBE[0])
"""The count of references to a buffer that only one container refers to."""


class KeptBuffers:
    """Gives buffers, and gives one again when nothing refers to it any more. One thread takes;
    any thread may drop the last reference."""

    def __init__(self) -> None:
        self._buffers: list[np.ndarray[tuple[int], np.dtype[np.uint8]]] = []
        self._bytes = 0
        self._taken: set[int] = set()  # by number in the list, since the last trim

    def __repr__(self) -> str:
        return f"<KeptBuffers: {len(self._buffers)} of {self._bytes} bytes>"

    def take(self, length: int) -> memoryview:
        """Return a writable buffer of `length` bytes, with whatever was in them. It is the
        caller's while the caller, a slice or an array of it refers to it."""
        buffer = self.again(length)
        return self.new(length) if buffer is None else buffer

    def again(self, length: int) -> memoryview | None:
        """`take` a buffer that was used before; None if none of this length is free."""
        buffers = self._buffers
        for number in range(len(buffers)):
            # One that is much too large would keep more memory than requested.
            fits = length <= buffers[number].nbytes <= 2 * length
            if fits and sys.getrefcount(buffers[number]) == _UNUSED:
                self._taken.add(number)
                return buffers[number].data[:length]
        return None

    def new(self, length: int) -> memoryview:
        """`take` a new buffer, which is kept if there is room for it."""
        # Not bytearray(n): that writes n zeros first, so a mere announcement would cost memory.
        buffer = np.empty(length, np.uint8)
        if length <= LARGEST_BYTES and self._bytes + length <= KEPT_BYTES:
            self._taken.add(len(self._buffers))
            self._buffers.append(buffer)
            self._bytes += length
        return buffer.data

    def trim(self) -> None:
        """Keep only what was taken since the last call."""
        self._buffers = [self._buffers[number] for number in sorted(self._taken)]
        self._bytes = sum(buffer.nbytes for buffer in self._buffers)
        self._taken.clear()
