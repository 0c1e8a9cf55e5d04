"""Where do the bytes of a long message go, without fresh memory for each?

Fresh memory is dear: the kernel clears each page when it is first written to, which takes as long
as the message itself.
"""

from __future__ import annotations

import sys
from typing import Final

import numpy as np
import numpy.typing as npt

KEPT_BYTES: Final = 2**17
"""Rooms of at least as many bytes are kept: the allocator keeps small ones itself."""
MAX_KEPT_BYTES: Final = 2**25
"""Bytes of all kept rooms together."""

#: References to a room that no message uses: of `_KeptRoom`, and of the call that counts them.
_FREE: Final = 2


class MessageRooms:
    """Makes room for messages, and uses the rooms of earlier ones again.

    A room is free when nothing refers to it but this. Whatever is made of a message, such as a
    tensor, is a view that refers to its room.
    """

    __slots__ = ("_bytes", "_kept")

    def __init__(self) -> None:
        self._kept: list[_KeptRoom] = []
        self._bytes = 0

    def kept(self, size: int) -> memoryview | None:
        """Return a free room for a message of `size` bytes; None if there is none that fits."""
        for room in self._kept:
            if size <= room.size <= 2 * size and sys.getrefcount(room.array) == _FREE:
                room.was_used = True
                return room.array.data[:size]
        return None

    def new(self, size: int, *, whole: bool) -> memoryview:
        """Make a room; one for a `whole` message is used again when it is free."""
        # Not bytearray(n): that writes n zeros first.
        array = np.empty(size, np.uint8)
        if whole and KEPT_BYTES <= size <= MAX_KEPT_BYTES - self._bytes:
            self._kept.append(_KeptRoom(array))
            self._bytes += size
        return array.data

    def sweep(self) -> None:
        """Forget the rooms that were not used since the last sweep."""
        self._kept = [room for room in self._kept if room.was_used]
        self._bytes = sum(room.size for room in self._kept)
        for room in self._kept:
            room.was_used = False


class _KeptRoom:
    __slots__ = ("array", "size", "was_used")

    def __init__(self, array: npt.NDArray[np.uint8]) -> None:
        self.array = array
        self.size = array.size
        self.was_used = True
