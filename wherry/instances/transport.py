"""How do messages and arrays get from one process to the other?

Messages are length-prefixed frames on a unix socketpair. An array up to INLINE_BYTES is part of
its message; a larger one is written once into the slab, memory that both processes map: the
parent writes inputs into its first half, the worker outputs into its second. One batch is in
flight at a time, so each half is simply filled from its start for each batch. What does not fit
travels in a memory file of its own, passed along with the message and gone with its arrays.

    8 bytes   length of the body, flags, a mark that tells our frames from garbage
    body      msgpack; an array is an extension: where it is, its datatype, its shape
"""

from __future__ import annotations

import array
import contextlib
import math
import mmap
import os
import select
import socket
import struct
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from wherry.values.request import Array, Column

T = TypeVar("T")

#: Virtual size of a slab; only what was written to takes memory.
SLAB_BYTES = 64 << 20
#: Arrays up to this size are copied into their message.
INLINE_BYTES = 4096
#: A stream's responses may lie unread for a while: the slab would be written over.
INLINE_BYTES_IN_STREAM = 64 << 10
#: A longer frame is garbage (and text of that size is refused before it is sent).
MAX_MESSAGE_BYTES = 1 << 30
#: Arrays begin at multiples of this: a cache line, and what vector instructions ask for.
ALIGNMENT = 64

_HEADER = struct.Struct("<IHH")
_MARK = 0x7957
_HAS_FILE, _USES_SLAB = 1, 2

_ARRAY = 1  # the msgpack extension's code
_ARRAY_HEAD = struct.Struct("<B8sB")
_OFFSET = struct.Struct("<Q")
_INLINE, _IN_SLAB, _IN_FILE = range(3)

_BUFFER_BYTES = 64 << 10
_ONE_FILE = socket.CMSG_SPACE(array.array("i").itemsize)


#: What sending raises if a message cannot be made; then nothing was sent.
UNSENDABLE = (TypeError, ValueError, OverflowError)


class Garbage(Exception):
    """What came is no message of ours."""


class Gathered:
    """Arrays of several callers that become one, batch first: joined while they are copied."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Array]) -> None:
        self.parts = parts


def gathered(columns: Sequence[Column]) -> list[Any] | Array | Gathered:
    """One input's columns of all callers as one column to send."""
    first = columns[0]
    if len(columns) == 1:
        return first
    if isinstance(first, list):
        return [value for column in columns for value in column]
    return Gathered(columns)  # type: ignore[arg-type]


class Slab:
    """Memory that parent and worker share."""

    def __init__(self, file: int, size: int = SLAB_BYTES) -> None:
        self.memory = mmap.mmap(file, size)
        half = size // 2
        self.inputs = Region(self.memory, 0, half)
        self.outputs = Region(self.memory, half, size)

    @classmethod
    def open(cls, file: int) -> Slab:
        """The slab behind a descriptor that came from the parent."""
        return cls(file, os.fstat(file).st_size)

    def close(self) -> None:
        # A traceback, or a model, may still hold an array in here: then it goes with that.
        with contextlib.suppress(BufferError):
            self.memory.close()


class Region:
    """A part of a slab, filled from its start."""

    def __init__(self, memory: mmap.mmap, start: int, stop: int) -> None:
        self.memory = memory
        self._start = self._next = start
        self._stop = stop

    def clear(self) -> None:
        self._next = self._start

    def take(self, size: int) -> int | None:
        """The offset of `size` free bytes; None: they do not fit."""
        offset = self._next
        if offset + size > self._stop:
            return None
        self._next = offset + -(-size // ALIGNMENT) * ALIGNMENT
        return offset


class Connection:
    """One end of the socketpair.

    `receives` is the type of what may come. The parent's end does not block: it calls
    `wait(events)` when it would, and its arrays are copies; the worker's are views of the slab,
    which the next batch overwrites.
    """

    def __init__(
        self,
        end: socket.socket,
        receives: Any,
        *,
        wait: Callable[[int], None] | None = None,
        copies: bool,
    ) -> None:
        self._socket = end
        self._wait = wait
        self._copies = copies
        self._memory: mmap.mmap | None = None
        self._region: Region | None = None
        #: What is sent now must outlast the messages after it: nothing goes into the slab.
        self.lasting = False
        # What goes out
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._encode_other)
        self._out = bytearray()
        self._out_file: _MemoryFile | None = None
        self._out_in_slab = False
        # What comes in
        self._decoder = msgspec.msgpack.Decoder(receives, ext_hook=self._decode_array)
        self._in = bytearray(_BUFFER_BYTES)
        self._read = self._filled = 0
        self._files: deque[int] = deque()
        self._poll: select.poll | None = None
        self._in_file: mmap.mmap | None = None

    def use(self, slab: Slab, region: Region) -> None:
        """Arrays come out of this slab, and go into this region of it."""
        self._memory, self._region = slab.memory, region

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()
        while self._files:
            os.close(self._files.popleft())

    # Sending

    @property
    def unsent(self) -> bool:
        """Is there something for `flush` to send?"""
        return bool(self._out)

    def send(self, message: msgspec.Struct, file: int | None = None) -> None:
        """Send a message, and a descriptor with it. Raises UNSENDABLE, and OSError if the other
        process is gone."""
        if self._region is not None:
            self._region.clear()
        self.add(message, file)
        self.flush()

    def send_now(self, message: msgspec.Struct) -> bool:
        """`send`, but False, and nothing was sent, where it would wait. Of a message that went out
        in part the next `flush` sends the rest."""
        if self._region is not None:
            self._region.clear()
        self.add(message)
        # Not ours any more once it is sent: another thread may have the answer, and send the next.
        out, self._out = self._out, bytearray()
        try:
            sent = self._socket.send(out)
        except BlockingIOError:
            return False
        if sent < len(out):
            self._out = out[sent:]
        return True

    def add(self, message: msgspec.Struct, file: int | None = None) -> None:
        """Put a message behind those that the next `flush` sends."""
        out = self._out
        start = len(out)
        self._out_in_slab = False
        try:
            self._encoder.encode_into(message, out, start + _HEADER.size)
            size = len(out) - start - _HEADER.size
            if size > MAX_MESSAGE_BYTES:
                raise ValueError(f"{size} bytes are more than one batch may hold")
        except BaseException:
            del out[start:]
            self._drop_file()
            raise
        if self._out_file is not None:
            file = self._out_file.fileno
        flags = _HAS_FILE * (file is not None) | _USES_SLAB * self._out_in_slab
        _HEADER.pack_into(out, start, size, flags, _MARK)
        if file is not None:
            try:
                self._send_all([(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))])
            finally:
                self._drop_file()

    def flush(self) -> None:
        if self._out:
            self._send_all([])

    def _send_all(self, ancillary: list[tuple[int, int, Any]]) -> None:
        out, self._out = self._out, bytearray()
        with memoryview(out) as rest:
            sent = 0
            while sent < len(rest):
                try:
                    if ancillary:
                        sent += self._socket.sendmsg([rest[sent:]], ancillary)
                        ancillary = []
                    else:
                        sent += self._socket.send(rest[sent:])
                except BlockingIOError:
                    assert self._wait is not None
                    self._wait(select.POLLOUT)
        if len(out) <= _BUFFER_BYTES:
            del out[:]
            self._out = out  # its memory serves the next message

    def _encode_other(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return self._encode_array((value,), value.shape)
        if isinstance(value, Gathered):
            rows = sum(map(len, value.parts))
            return self._encode_array(value.parts, (rows, *value.parts[0].shape[1:]))
        return _plain(value)

    def _encode_array(self, parts: Sequence[Array], shape: tuple[int, ...]) -> msgspec.msgpack.Ext:
        dtype = parts[0].dtype
        size = dtype.itemsize * math.prod(shape)
        if size <= (INLINE_BYTES_IN_STREAM if self.lasting else INLINE_BYTES):
            head = _array_head(_INLINE, dtype, shape)
            return msgspec.msgpack.Ext(_ARRAY, b"".join([head, *(p.tobytes() for p in parts)]))
        place = None if self._region is None or self.lasting else self._region.take(size)
        if place is None:
            if self._out_file is None:
                self._out_file = _MemoryFile()
            offset, where = self._out_file.append(parts), _IN_FILE
        else:
            offset, where, self._out_in_slab = place, _IN_SLAB, True
            _write(parts, np.frombuffer(self._memory, dtype, math.prod(shape), offset), shape)  # type: ignore[arg-type]
        return msgspec.msgpack.Ext(_ARRAY, _array_head(where, dtype, shape) + _OFFSET.pack(offset))

    def _drop_file(self) -> None:
        if self._out_file is not None:
            self._out_file.close()
            self._out_file = None

    # Receiving

    def receive(self, *, told: bool = False) -> Any:
        """The next message, one of `receives`. Raises EOFError or OSError if the other process
        is gone, and Garbage. `told`: a poll has said that something is there."""
        while (frame := self._frame()) is None:
            if self._wait is not None and not told:
                self._wait(select.POLLIN)
            told = False
            self._fill()
        start, stop, flags = frame
        self._read = stop
        if flags & _HAS_FILE:
            self._in_file = self._next_file()
        try:
            with memoryview(self._in)[start:stop] as body:
                return self._decoder.decode(body)
        except Exception as error:  # whatever the bytes of a stranger make msgspec or numpy raise
            raise Garbage(str(error)) from error
        finally:
            self._in_file = None

    def readable(self) -> bool:
        """Is there something to receive, or the end? Does not block."""
        if self._frame() is not None:
            return True
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._socket, select.POLLIN)
        return bool(self._poll.poll(0))

    def arrived(self) -> bool:
        """Receive what is there, without waiting: is it a whole message, with all that is in it?"""
        self._fill()
        frame = self._frame()
        return frame is not None and not frame[2]

    def _frame(self) -> tuple[int, int, int] | None:
        """Where the next message lies in the buffer, if all of it is there, and its flags."""
        waiting = self._filled - self._read
        if waiting < _HEADER.size:
            return None
        size, flags, mark = _HEADER.unpack_from(self._in, self._read)
        if mark != _MARK or size > MAX_MESSAGE_BYTES:
            raise Garbage(f"no message begins with {bytes(self._in[self._read :][:16])!r}")
        start = self._read + _HEADER.size
        if waiting < _HEADER.size + size:
            self._make_room(_HEADER.size + size)
            return None
        return start, start + size, flags

    def _make_room(self, size: int) -> None:
        """Have a buffer that holds a frame of `size` bytes from `_read` on."""
        if self._read + size <= len(self._in):
            return
        waiting = self._in[self._read : self._filled]
        if size > len(self._in):
            self._in = bytearray(size)
        self._in[: len(waiting)] = waiting
        self._read, self._filled = 0, len(waiting)

    def _fill(self) -> None:
        if self._read == self._filled:
            self._read = self._filled = 0
            if len(self._in) > _BUFFER_BYTES:
                self._in = bytearray(_BUFFER_BYTES)
        elif len(self._in) - self._read < _HEADER.size:
            self._make_room(_HEADER.size)
        try:
            with memoryview(self._in)[self._filled :] as free:
                size, ancillary, _, _ = self._socket.recvmsg_into([free], _ONE_FILE)
        except BlockingIOError:
            return
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                files = array.array("i")
                files.frombytes(data[: len(data) - len(data) % files.itemsize])
                self._files += files
        if size == 0:
            raise EOFError
        self._filled += size

    def next_file(self) -> int:
        """The descriptor that came with the last message; the caller closes it."""
        try:
            return self._files.popleft()
        except IndexError:
            raise Garbage("a message without its descriptor") from None

    def _next_file(self) -> mmap.mmap | None:
        if self._memory is None:
            return None  # the slab itself: `next_file` is for it
        file = self.next_file()
        try:
            return mmap.mmap(file, 0)
        except (OSError, ValueError) as error:
            raise Garbage(str(error)) from error
        finally:
            os.close(file)

    def _decode_array(self, code: int, data: memoryview) -> Array:
        if code != _ARRAY:
            raise Garbage(f"extension {code}")
        where, dtype_name, dimensions = _ARRAY_HEAD.unpack_from(data)
        dtype = np.dtype(dtype_name.rstrip(b"\0").decode())
        shape = struct.unpack_from(f"<{dimensions}Q", data, _ARRAY_HEAD.size)
        offset = _ARRAY_HEAD.size + 8 * dimensions
        count = math.prod(shape)
        if where == _INLINE:
            return np.frombuffer(data, dtype, count, offset).reshape(shape).copy()
        (offset,) = _OFFSET.unpack_from(data, offset)
        memory = self._memory if where == _IN_SLAB else self._in_file
        if memory is None:
            raise Garbage("an array outside of its message")
        view: Array = np.frombuffer(memory, dtype, count, offset).reshape(shape)
        # A file of its own goes with its arrays; the slab is written over by the next batch.
        return view.copy() if self._copies and where == _IN_SLAB else view


def why_not_sent(value: Any) -> str | None:
    """What in this value cannot be sent; None if all of it can."""
    try:
        _CHECKER.encode(value)
    except UNSENDABLE as error:
        return str(error)
    return None


def _plain(value: Any) -> Any:
    """What msgpack does not know itself as something that it knows."""
    if isinstance(value, np.ndarray):  # of Python objects
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    plain: Any
    for plain in (str, bytes, int, float):
        if isinstance(value, plain):  # a subclass
            return plain(value)
    raise TypeError(f"a {type(value).__name__} cannot be sent to or from a worker process")


def _without_arrays(value: Any) -> Any:
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return _array_head(_INLINE, value.dtype, value.shape)
    return _plain(value)


_CHECKER = msgspec.msgpack.Encoder(enc_hook=_without_arrays)


class _MemoryFile:
    """Memory for the arrays of one message that do not fit into the slab."""

    def __init__(self) -> None:
        self.fileno = memory_file("wherry-arrays")
        self._size = 0

    def append(self, parts: Sequence[Array]) -> int:
        offset = at = self._size
        for part in parts:
            flat: Any = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
            with memoryview(flat) as data:
                written = 0
                while written < len(data):
                    written += os.pwrite(self.fileno, data[written:], at + written)
                at += written
        self._size = -(-at // ALIGNMENT) * ALIGNMENT
        return offset

    def close(self) -> None:
        os.close(self.fileno)


def memory_file(name: str, size: int = 0) -> int:
    """A descriptor of memory without a name in any file system: it goes with its last user."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create(name)
    else:
        with tempfile.TemporaryFile() as unlinked:
            file = os.dup(unlinked.fileno())
    if size:
        os.ftruncate(file, size)
    return file


def _write(parts: Sequence[Array], place: Array, shape: tuple[int, ...]) -> None:
    place = place.reshape(shape)
    if len(parts) == 1:
        place[...] = parts[0]
        return
    row = 0
    for part in parts:
        place[row : row + len(part)] = part
        row += len(part)


def _array_head(where: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    name = dtype.str.encode()
    if len(name) > 8 or dtype.kind == "V":
        raise TypeError(f"an array of {dtype} cannot be sent to or from a worker process")
    head = _ARRAY_HEAD.pack(where, name, len(shape))
    return head + struct.pack(f"<{len(shape)}Q", *shape)
