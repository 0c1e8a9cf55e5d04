"""Where does one message end and the next begin in a stream of bytes?

A frame is a header and a body, which is one message:

    4 bytes   length of the body
    4 bytes   bytes of its arrays that lie in shared memory and are copied when it is decoded
    2 bytes   flags: HAS_FILE
    2 bytes   a mark that tells frames from garbage
"""

from __future__ import annotations

import struct
from typing import NamedTuple

#: A longer body is garbage (and a message of that size is refused before it is sent).
MAX_MESSAGE_BYTES = 1 << 30
#: A memory file comes with the frame: its descriptor was sent with, or before, its first byte.
HAS_FILE = 1

HEADER_BYTES = 12
_HEADER = struct.Struct("<IIHH")
_MARK = 0x7957
_BUFFER_BYTES = 64 << 10


class Garbage(Exception):
    """What came from the other process is no message."""


class Frame(NamedTuple):
    """A message that has arrived whole. `body` is valid until the next `FrameBuffer.space`."""

    body: memoryview
    shared_bytes: int
    flags: int

    @property
    def nbytes(self) -> int:
        """How much is copied when it is decoded."""
        return len(self.body) + self.shared_bytes


def put_header(out: bytearray, start: int, *, shared_bytes: int, flags: int) -> None:
    """Write the header of the frame that takes `out` from `start` to its end."""
    size = len(out) - start - HEADER_BYTES
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(f"{size} bytes are more than one batch may hold")
    _HEADER.pack_into(out, start, size, shared_bytes, flags, _MARK)


class FrameBuffer:
    """Takes bytes as they come, gives frames. Pure: `space` says where to put what comes."""

    def __init__(self) -> None:
        self._buffer = bytearray(_BUFFER_BYTES)
        #: What was received and not read yet lies between these.
        self._read = self._filled = 0

    def space(self) -> memoryview:
        """Free memory for the next bytes; tell `received` how many came."""
        if self._read == self._filled:
            self._read = self._filled = 0
            if len(self._buffer) > _BUFFER_BYTES:
                self._buffer = bytearray(_BUFFER_BYTES)
        elif len(self._buffer) - self._read < HEADER_BYTES:
            self._make_room(HEADER_BYTES)
        return memoryview(self._buffer)[self._filled :]

    def received(self, size: int) -> None:
        self._filled += size

    def has_frame(self) -> bool:
        return self._size() is not None

    def next(self) -> Frame | None:
        """The next frame, once all of it is here. Raises Garbage."""
        found = self._size()
        if found is None:
            return None
        size, shared_bytes, flags = found
        start = self._read + HEADER_BYTES
        self._read = start + size
        return Frame(memoryview(self._buffer)[start : start + size], shared_bytes, flags)

    def _size(self) -> tuple[int, int, int] | None:
        waiting = self._filled - self._read
        if waiting < HEADER_BYTES:
            return None
        size, shared_bytes, flags, mark = _HEADER.unpack_from(self._buffer, self._read)
        if mark != _MARK or size > MAX_MESSAGE_BYTES:
            start = bytes(self._buffer[self._read : self._read + 16])
            raise Garbage(f"no message begins with {start!r}")
        if waiting < HEADER_BYTES + size:
            self._make_room(HEADER_BYTES + size)
            return None
        return size, shared_bytes, flags

    def _make_room(self, size: int) -> None:
        """Have a buffer that holds a frame of `size` bytes from `_read` on."""
        if self._read + size <= len(self._buffer):
            return
        waiting = self._buffer[self._read : self._filled]
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        self._buffer[: len(waiting)] = waiting
        self._read, self._filled = 0, len(waiting)
