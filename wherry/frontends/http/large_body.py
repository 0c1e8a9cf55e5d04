"""Where does a large body go while it is read?"""

from __future__ import annotations

from typing import Final

import numpy as np

RECEIVE_BYTES: Final = 64 * 2**10
"""One read at most; a larger body is read straight into its own buffer."""


class LargeBody:
    """A body of known length that is collected in a buffer of its own."""

    __slots__ = ("data", "received")

    def __init__(self, length: int) -> None:
        # Not bytearray(n): that writes n zeros first, so a mere announcement would cost memory.
        self.data = np.empty(length, np.uint8).data
        #: Bytes that have come: the first of `data`.
        self.received = 0

    def __repr__(self) -> str:
        return f"<LargeBody: {self.received} of {len(self.data)} bytes>"

    @property
    def rest(self) -> memoryview:
        """The part that is still to come, to be written to."""
        return self.data[self.received :]

    def add(self, data: bytes) -> None:
        """Append a copy of `data`."""
        end = self.received + len(data)
        self.data[self.received : end] = data
        self.received = end
