"""Where does one message end and the next begin in a stream of bytes?

A frame is a header and a body, which is one message:

    4 bytes   length of the body
    4 bytes   bytes of its arrays that lie in shared memory and are copied when it is decoded
    2 bytes   flags: HAS_FILE, KEEPS_SLAB
    2 bytes   a mark that tells frames from garbage
"""

from __future__ import annotations

import struct

import numpy as np

#: A longer body is garbage (and a message of that size is refused before it is sent); where
#: processes of other machines send, less is.
MAX_MESSAGE_BYTES = 1 << 30
#: A memory file comes with the frame: its descriptor was sent with, or before, its first byte.
HAS_FILE = 1
#: An array in the slab is still in use by who has answered: the next message must not go there.
KEEPS_SLAB = 2
#: Never sent: what follows the frames before it is not a frame, and the body is its beginning.
IS_GARBAGE = 1 << 16

_HEADER = struct.Struct("<IIHH")
_HEADER_BYTES = _HEADER.size
_MARK = 0x7957
_BUFFER_BYTES = 64 << 10

#: A message that has arrived whole: its body, the bytes of its arrays that are copied when it is
#: decoded, and its flags. A plain tuple, as one is made for each message. The body is valid until
#: the next `FrameBuffer.space`.
Frame = tuple[memoryview, int, int]


class Garbage(Exception):
    """What came from the other process is not a message."""


def header(
    size: int, shared_bytes: int = 0, flags: int = 0, most: int = MAX_MESSAGE_BYTES
) -> bytes:
    """The header of the frame whose body has `size` bytes. Raises ValueError if that is more than
    `most`."""
    if size > most:
        raise ValueError(f"{size} bytes are more than one batch may hold ({most})")
    return _HEADER.pack(size, shared_bytes, flags, _MARK)


def flagged(frame: bytes, flag: int) -> bytes:
    """A frame with one more flag."""
    size, shared_bytes, flags, mark = _HEADER.unpack_from(frame)
    return _HEADER.pack(size, shared_bytes, flags | flag, mark) + frame[_HEADER_BYTES:]


class FrameBuffer:
    """Takes bytes as they come, gives frames whose bodies have `most` bytes at most. Pure: `space`
    says where to put what comes."""

    def __init__(self, most: int = MAX_MESSAGE_BYTES) -> None:
        self._most = most
        self._view = memoryview(bytearray(_BUFFER_BYTES))
        #: What has come of the next frame lies between these.
        self._start = self._stop = 0
        #: How many bytes the next frame has, as far as that is known.
        self._missing_bytes = _HEADER_BYTES

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come of the next frame."""
        return self._start == self._stop

    def space(self) -> memoryview:
        """Free memory for the next bytes; tell `received` how many came. The frames that were
        received before are no longer valid."""
        start, stop = self._start, self._stop
        if start == stop:
            self._start = self._stop = 0
            if len(self._view) > _BUFFER_BYTES:
                self._view = memoryview(bytearray(_BUFFER_BYTES))
            return self._view
        if start + self._missing_bytes > len(self._view):
            self._make_room(self._missing_bytes)
        return self._view[self._stop :]

    def received(self, size: int) -> list[Frame]:
        """So many bytes have come. Returns the frames that are whole by now."""
        view, start = self._view, self._start
        stop = self._stop = self._stop + size
        frames: list[Frame] = []
        self._missing_bytes = _HEADER_BYTES
        while stop - start >= _HEADER_BYTES:
            length, shared_bytes, flags, mark = _HEADER.unpack_from(view, start)
            if mark != _MARK or length > self._most:
                frames.append((view[start : min(start + 16, stop)], 0, IS_GARBAGE))
                break
            body = start + _HEADER_BYTES
            end = body + length
            if end > stop:
                self._missing_bytes = end - start
                break
            frames.append((view[body:end], shared_bytes, flags))
            start = end
        self._start = start
        return frames

    def _make_room(self, size: int) -> None:
        """Move what has come of a frame of `size` bytes to where all of it has room."""
        waiting = self._view[self._start : self._stop]
        if size > len(self._view):
            # Not cleared: a frame that only says that it is large takes no memory.
            self._view = memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]
        self._view[: len(waiting)] = waiting
        self._start, self._stop = 0, len(waiting)
