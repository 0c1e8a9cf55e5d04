"""How are messages with tensors exchanged with a Python model's process?

Both ends use this file, so it needs only the standard library and numpy. A message is a list whose
first element is its kind. It travels in a frame like those of `wherry.core.workers.encoding`, and
encoded as JSON it is the head of the frame's body, followed by its small tensors. Larger tensors
are written into memory that both processes map (the slab) or, if that is full, into a memory file
whose descriptor is sent along.

    12 bytes  length of the body, bytes of tensors elsewhere that take long to decode, flags, a mark
    4 bytes   length of the head
    head      JSON; a tensor in it is [name, datatype, shape, where, offset, bytes]
    tensors   one after the other, each at a multiple of 16
"""

from __future__ import annotations

import array
import mmap
import os
import select
import socket
import struct
import tempfile
from bisect import bisect_left
from collections import deque
from typing import Any

import numpy as np

#: Virtual size of the slab: half for each direction. Only written pages take memory.
SLAB_BYTES = 128 << 20
#: Tensors up to this size are part of their frame.
INLINE_BYTES = 8192
ALIGNMENT = 64
#: A message with more bytes is not sent.
MAX_MESSAGE_BYTES = 1 << 30

INLINE, IN_SLAB, IN_FILE = range(3)
#: Most blocks of the slab in use in one direction.
MAX_BLOCKS = 256

_HEADER = struct.Struct("<IIHH")
_HEADER_BYTES = _HEADER.size
_MARK = 0x7957
_HAS_FILE = 1
_BUFFER_BYTES = 64 << 10
_ONE_FILE = socket.CMSG_SPACE(4)
_LENGTH = struct.Struct("<I")
#: The header, and the length of the head that follows it.
_BEGINNING = struct.Struct("<IIHHI")
_PADDING = bytes(16)
#: Datatypes whose tensors are converted where they arrive.
_DECODED = ("BYTES", "BF16")

try:
    import msgspec

    encode_head = msgspec.json.Encoder().encode
    decode_head = msgspec.json.Decoder().decode

except ImportError:  # a user's environment without msgspec: the same JSON, slower
    import json

    def encode_head(message: Any) -> bytes:
        return json.dumps(message, separators=(",", ":")).encode()

    def decode_head(data: Any) -> Any:
        return json.loads(bytes(data))


class BadFrame(Exception):
    """The received data is not a valid frame."""


class Arena:
    """A region of the slab in which one end places tensors: a block for each, in the first gap.

    `take` is for one thread at a time; `release` for any, as it may come from a destructor.
    """

    def __init__(self, start: int, stop: int) -> None:
        self._start = start
        self._stop = stop
        #: Where each block in use begins and ends, in order.
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._released: deque[int] = deque()

    def take(self, size: int) -> int | None:
        """The offset of `size` free bytes; None if they do not fit, or too many blocks are in
        use."""
        begins, ends = self._begins, self._ends
        while self._released:
            self._free(self._released.popleft())
        place, offset = 0, self._start
        while place < len(begins) and begins[place] < offset + size:
            offset = ends[place]
            place += 1
        if offset + size > self._stop or len(begins) >= MAX_BLOCKS:
            return None
        begins.insert(place, offset)
        ends.insert(place, _aligned(offset + size))
        return offset

    def release(self, offset: int) -> None:
        """Note that the block at this offset is free."""
        self._released.append(offset)

    def _free(self, offset: int) -> None:
        place = bisect_left(self._begins, offset)
        if place < len(self._begins) and self._begins[place] == offset:
            del self._begins[place], self._ends[place]


class Outgoing:
    """The tensors of a message being built."""

    __slots__ = (
        "_arena",
        "_file_size",
        "_memory",
        "blocks",
        "chunks",
        "decoded_bytes",
        "file",
        "size",
    )

    def __init__(self, memory: Any = None, arena: Arena | None = None) -> None:
        self._memory = memory
        self._arena = arena
        self.chunks: list[Any] = []
        self.size = 0
        #: A memory file with the tensors that do not fit elsewhere.
        self.file: int | None = None
        self._file_size = 0
        #: The offsets of its blocks in the slab.
        self.blocks: list[int] = []
        #: Bytes of tensors outside of the message that the receiver converts.
        self.decoded_bytes = 0

    def put(self, name: str, datatype: str, shape: Any, data: Any) -> list[Any]:
        """Add a tensor to the message. Returns its descriptor for the head. `data` is an array or
        bytes."""
        is_array = isinstance(data, np.ndarray)
        size = data.nbytes if is_array else len(data)
        if size <= INLINE_BYTES:
            offset = self.size
            self.chunks.append(data.tobytes() if is_array else data)
            padding = -size % 16
            if padding:
                self.chunks.append(_PADDING[:padding])
            self.size = offset + size + padding
            return [name, datatype, shape, INLINE, offset, size]
        if datatype in _DECODED:
            self.decoded_bytes += size
        place = None if self._arena is None else self._arena.take(size)
        if place is not None:
            self.blocks.append(place)
            _write(self._memory, place, data)
            return [name, datatype, shape, IN_SLAB, place, size]
        if self.file is None:
            self.file = memory_file("wherry-tensors")
        offset = self._file_size
        with memoryview(_flat(data)) as rest:
            written = 0
            while written < size:
                written += os.pwrite(self.file, rest[written:], offset + written)
        self._file_size = _aligned(offset + size)
        return [name, datatype, shape, IN_FILE, offset, size]

    def give_up(self) -> None:
        self.close()
        assert self._arena is not None or not self.blocks
        while self.blocks:
            self._arena.release(self.blocks.pop())  # type: ignore[union-attr]

    def close(self) -> None:
        if self.file is not None:
            os.close(self.file)
            self.file = None


class SlabViews:
    """Arrays over the tensors that the other end has placed in the slab. Any thread.

    The block of a tensor is released when the last array over it is gone, which the next message
    reports to the other end: `take_released`. A tensor of fewer bytes than `least` is copied, and
    any while `most` blocks are in use.
    """

    def __init__(self, memory: Any, *, least: int = 0, most: int | None = None) -> None:
        self._whole = np.frombuffer(memory, np.uint8)
        self._address = self._whole.ctypes.data
        self._least = least
        self._most = MAX_BLOCKS if most is None else most
        self._in_use: set[int] = set()
        self._released: deque[int] = deque()

    def array(self, offset: int, size: int) -> Any:
        """The bytes of a tensor as an array of uint8. Raises BadFrame if it is not in the slab."""
        part = self._whole[offset : offset + size]
        if offset < 0 or part.nbytes != size:
            raise BadFrame("a tensor outside of the slab")
        if size < self._least or len(self._in_use) >= self._most:
            part = part.copy()
            self._released.append(offset)
            return part
        self._in_use.add(offset)
        return np.asarray(_Block(self, self._whole, offset, self._address + offset, size))

    def release(self, offset: int) -> None:
        self._in_use.discard(offset)
        self._released.append(offset)

    def close(self) -> None:
        """Make no more arrays; the memory is freed with the last one."""
        self._whole = np.empty(0, np.uint8)

    def take_released(self) -> list[int]:
        released = self._released
        return [released.popleft() for _ in range(len(released))] if released else []

    def put_back(self, released: list[int]) -> None:
        """Return these with the next `take_released` again: the message was not sent."""
        self._released.extend(released)


class _Block:
    """The base of the arrays over a tensor in the slab; in use while one of them exists."""

    __slots__ = ("__array_interface__", "_memory", "_offset", "_views")

    def __init__(self, views: SlabViews, memory: Any, offset: int, address: int, size: int) -> None:
        self._views = views
        self._memory = memory
        self._offset = offset
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": (size,),
            "typestr": "|u1",
        }

    def __del__(self) -> None:
        self._views.release(self._offset)


class Incoming:
    """The tensors of a received message."""

    __slots__ = ("_file", "_inline", "_views")

    def __init__(self, inline: Any, file: Any, views: SlabViews | None) -> None:
        self._inline = inline
        self._file = file
        self._views = views

    def get(self, where: int, offset: int, size: int) -> Any:
        if not size:
            return np.empty(0, np.uint8)
        if where == IN_SLAB and self._views is not None:
            return self._views.array(offset, size)
        return np.frombuffer(self._own(where), np.uint8, size, offset)

    def array(self, where: int, offset: int, size: int, dtype: Any, shape: Any) -> Any:
        """A tensor of numbers. ValueError or TypeError if `size` does not fit dtype and shape."""
        if where != INLINE or self._inline is None:
            return self.get(where, offset, size).view(dtype).reshape(shape)
        array = np.ndarray(shape, dtype, self._inline, offset)
        if array.nbytes != size:
            raise ValueError(f"{size} bytes are not {array.dtype}{list(shape)}")
        return array

    def _own(self, where: int) -> Any:
        memory = (self._inline, None, self._file)[where]
        if memory is None:
            raise BadFrame("a tensor outside of its message")
        return memory


def framed(message: list[Any], tensors: Outgoing) -> bytes:
    """The frame of a message, whose memory file is `tensors.file`. ValueError if it is too
    large."""
    head = encode_head(message)
    size = _LENGTH.size + len(head) + tensors.size
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(f"{size} bytes are more than one message may hold")
    flags = 0 if tensors.file is None else _HAS_FILE
    decoded_bytes = tensors.decoded_bytes
    if decoded_bytes > 0xFFFFFFFF:
        decoded_bytes = 0xFFFFFFFF
    beginning = _BEGINNING.pack(size, decoded_bytes, flags, _MARK, len(head))
    return b"".join([beginning, head, *tensors.chunks])


def read_body(body: Any, file: Any, views: SlabViews | None) -> tuple[list[Any], Incoming]:
    """The message in a frame's body, and its tensors. Raises BadFrame."""
    try:
        stop = _LENGTH.size + _LENGTH.unpack_from(body)[0]
        message = decode_head(body[_LENGTH.size : stop])
    except Exception as error:  # the other end's data may be anything
        raise BadFrame(str(error)) from error
    if not isinstance(message, list) or not message:
        raise BadFrame("a message that is not a list")
    # A copy: the body is overwritten, and models may write to their inputs.
    inline = bytearray(body[stop:]) if len(body) > stop else None
    return message, Incoming(inline, file, views)


class Channel:
    """The stub's ends of its two sockets, which block. One thread may send while another
    receives."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self._source = source
        self._target = target
        self._use(_BUFFER_BYTES)
        self._read = self._filled = 0
        self._files: deque[int] = deque()
        self._poll: Any = None
        #: Arrays over what arrives in the slab.
        self.views: SlabViews | None = None

    def fileno(self) -> int:
        return self._source.fileno()

    def send(self, message: list[Any], tensors: Outgoing) -> None:
        """Send a message with its tensors. OSError if the other process has ended; ValueError if it
        is too large, in which case nothing was sent."""
        data = framed(message, tensors)
        if tensors.file is None:
            self._target.sendall(data)
        else:
            file = array.array("i", [tensors.file])
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, file)]
            sent = self._target.sendmsg([data], rights)
            self._target.sendall(data[sent:])

    def receive(self) -> list[tuple[list[Any], Incoming]]:
        """The next messages, at least one, with their tensors. Raises EOFError or OSError if the
        other process has ended, and BadFrame."""
        messages: list[tuple[list[Any], Incoming]] = []
        while not messages:
            self._fill()
            waiting = self._filled - self._read
            while waiting >= _HEADER_BYTES:
                size, _, flags, mark = _HEADER.unpack_from(self._in, self._read)
                if mark != _MARK or size > MAX_MESSAGE_BYTES:
                    raise BadFrame(f"no message begins with {bytes(self._in[self._read :][:16])!r}")
                waiting -= _HEADER_BYTES + size
                if waiting < 0:
                    self._make_room(_HEADER_BYTES + size)
                    break
                start = self._read + _HEADER_BYTES
                self._read = start + size
                file = self._next_map() if flags & _HAS_FILE else None
                messages.append(read_body(self._view[start : start + size], file, self.views))
        return messages

    def readable(self) -> bool:
        """Whether there is data or an end of file. Does not block."""
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._source, select.POLLIN)
        return bool(self._poll.poll(0))

    def _use(self, size: int) -> None:
        self._in = bytearray(size)
        self._view = memoryview(self._in)

    def _make_room(self, size: int) -> None:
        """Make the buffer hold a frame of `size` bytes from `_read` on."""
        if self._read + size <= len(self._in):
            return
        waiting = self._in[self._read : self._filled]
        if size > len(self._in):
            self._use(size)
        self._in[: len(waiting)] = waiting
        self._read, self._filled = 0, len(waiting)

    def _fill(self) -> None:
        if self._read == self._filled:
            self._read = self._filled = 0
            if len(self._in) > _BUFFER_BYTES:
                self._use(_BUFFER_BYTES)
        elif len(self._in) - self._read < _HEADER_BYTES:
            self._make_room(_HEADER_BYTES)
        size, ancillary, _, _ = self._source.recvmsg_into([self._view[self._filled :]], _ONE_FILE)
        for level, kind, rights in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                files = array.array("i")
                files.frombytes(rights[: len(rights) - len(rights) % files.itemsize])
                self._files.extend(files)
        if size == 0:
            raise EOFError
        self._filled += size

    def _next_map(self) -> mmap.mmap:
        if not self._files:
            raise BadFrame("a message without its descriptor")
        file = self._files.popleft()
        try:
            return mmap.mmap(file, 0)
        finally:
            os.close(file)


def memory_file(name: str, size: int = 0) -> int:
    """A descriptor of anonymous memory, freed with its last user."""
    create = getattr(os, "memfd_create", None)
    if create is not None:
        file: int = create(name)
    else:
        with tempfile.TemporaryFile() as unlinked:
            file = os.dup(unlinked.fileno())
    if size:
        os.ftruncate(file, size)
    return file


# BYTES: each element with its length before it, as in the V2 protocol


def pack_elements(elements: Any) -> bytes:
    chunks: list[bytes] = []
    for element in elements:
        chunks.append(_LENGTH.pack(len(element)))
        chunks.append(element)
    return b"".join(chunks)


def unpack_elements(data: Any) -> list[bytes]:
    """The elements; ValueError if the data is cut off."""
    data = bytes(data)
    elements: list[bytes] = []
    position, end = 0, len(data)
    while position < end:
        if position + 4 > end:
            raise ValueError("BYTES data ends within the length of an element")
        (size,) = _LENGTH.unpack_from(data, position)
        start = position + 4
        position = start + size
        if position > end:
            raise ValueError("BYTES data ends within an element")
        elements.append(data[start:position])
    return elements


def _write(memory: Any, offset: int, data: Any) -> None:
    if isinstance(data, np.ndarray):
        place = np.frombuffer(memory, data.dtype, data.size, offset).reshape(data.shape)
        place[...] = data
    else:
        memory[offset : offset + len(data)] = data


def _flat(data: Any) -> Any:
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    return data


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
