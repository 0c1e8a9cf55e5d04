"""Where do the bytes of large bodies go, without fresh memory for each?

The pages of a fresh buffer are made and cleared by the kernel as it fills: for 600 KB that costs
more than reading them. So a few buffers are kept, and used again.
"""

from __future__ import annotations

import sys
from typing import Final

import numpy as np

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
            # One that is much too large would keep more memory than it was asked for.
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
