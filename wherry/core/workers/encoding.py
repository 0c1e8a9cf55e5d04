"""How does a message become the body of a frame and a body a message, and where does a frame end?

Messages are msgpack. An array is an extension with its place, its datatype and its shape: up to
INLINE_BYTES in the message itself, a larger one in the slab or in a memory file. A long row of
bytes may lie in the slab, too. A frame is a header and a body, which is one message:

    4 bytes   length of the body
    4 bytes   bytes of its arrays that lie in shared memory and are copied when it is decoded
    2 bytes   flags: HAS_FILE, KEEPS_SLAB
    2 bytes   a mark that tells frames from garbage
"""

from __future__ import annotations

import math
import mmap
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import numpy as np

from wherry.core.models.row_types import is_pydantic
from wherry.core.values.media import FileBytes
from wherry.core.values.request import MASKED, Array, Column, is_masked
from wherry.core.workers.shared_memory import ArrayFile, Region

#: A longer body is garbage, and a message of that size is refused before it is sent.
MAX_MESSAGE_BYTES = 1 << 30
#: A memory file comes with the frame: its descriptor was sent with, or before, its first byte.
HAS_FILE = 1
#: An array in the slab is still in use by the process that has answered: the next message must not
#: go there.
KEEPS_SLAB = 2
#: Never sent: what follows the frames before it is not a frame, and the body is its beginning.
IS_GARBAGE = 1 << 16

_HEADER = struct.Struct("<IIHH")
_HEADER_BYTES = _HEADER.size
_MARK = 0x7957
_BUFFER_BYTES = 64 << 10

#: A message that has arrived whole: its body, the bytes of its arrays that are copied when it is
#: decoded, and its flags. A plain tuple, as one is made for each message. The body is valid until
#: the next `FrameBuffer.read`.
Frame = tuple[memoryview, int, int]


class Garbage(Exception):
    """What came from the other process is not a message."""


def header(size: int, shared_bytes: int = 0, flags: int = 0) -> bytes:
    """The header of the frame whose body has `size` bytes. ValueError if these are too many."""
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(f"{size} bytes are more than one batch may hold ({MAX_MESSAGE_BYTES})")
    return _HEADER.pack(size, shared_bytes, flags, _MARK)


def flagged(frame: bytes, flag: int) -> bytes:
    """A frame with one more flag."""
    size, shared_bytes, flags, mark = _HEADER.unpack_from(frame)
    return _HEADER.pack(size, shared_bytes, flags | flag, mark) + frame[_HEADER_BYTES:]


class FrameBuffer:
    """Takes bytes as they come, returns frames. Pure: `receive` of `read` puts the next bytes
    in."""

    def __init__(self) -> None:
        self._view = memoryview(bytearray(_BUFFER_BYTES))
        #: What has come of the next frame lies between these.
        self._start = self._stop = 0
        #: How many bytes the next frame has, as far as that is known.
        self._missing_bytes = _HEADER_BYTES

    @property
    def is_empty(self) -> bool:
        return self._start == self._stop

    def read(self, receive: Callable[[memoryview], int]) -> list[Frame]:
        """Have `receive` put the next bytes into free memory; it returns how many. Returns the
        frames that are whole by now; those that came before are no longer valid. Raises EOFError if
        there is no byte."""
        if self._start == self._stop:
            self._start = self._stop = 0
            if len(self._view) > _BUFFER_BYTES:
                self._view = memoryview(bytearray(_BUFFER_BYTES))
            space = self._view
        else:
            if self._start + self._missing_bytes > len(self._view):
                self._make_room(self._missing_bytes)
            space = self._view[self._stop :]
        size = receive(space)
        if not size:
            raise EOFError
        view, start = self._view, self._start
        stop = self._stop = self._stop + size
        frames: list[Frame] = []
        self._missing_bytes = _HEADER_BYTES
        while stop - start >= _HEADER_BYTES:
            length, shared_bytes, flags, mark = _HEADER.unpack_from(view, start)
            if mark != _MARK or length > MAX_MESSAGE_BYTES:
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
            # Not cleared: a frame that only claims to be large takes no memory.
            self._view = memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]
        self._view[: len(waiting)] = waiting
        self._start, self._stop = 0, len(waiting)


#: Arrays up to this size are copied into their message.
INLINE_BYTES = 4096
#: The same for a message that may be read after the next one was sent: it cannot use the slab.
INLINE_BYTES_WITHOUT_SLAB = 64 << 10

#: What encoding raises if a message cannot be made.
UNSENDABLE = (TypeError, ValueError, OverflowError, RecursionError)

#: Rows of bytes from this size on are worth a place in the slab.
BLOB_BYTES = 64 << 10

_ARRAY = 1  # codes of msgpack extensions
_FILE = 2
_BLOB = 3
_ARRAY_HEAD = struct.Struct("<B8sB")
_OFFSET = struct.Struct("<Q")
_LENGTH = struct.Struct("<H")
#: Its name and media type.
_FILE_HEAD = msgspec.msgpack.Decoder(tuple[str | None, str | None])
#: Of a row in the slab: its place and size before them.
_BLOB_HEAD = msgspec.msgpack.Decoder(tuple[int, int, str | None, str | None])
_INLINE, _IN_SLAB, _IN_FILE = range(3)


class Gathered:
    """Arrays of several callers that become one, batch first: joined while they are copied."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Array]) -> None:
        self.parts = parts

    @property
    def nbytes(self) -> int:
        return sum([part.nbytes for part in self.parts])


def gathered(columns: Sequence[Column]) -> list[Any] | Array | Gathered:
    """One input's columns of all callers as one column to send."""
    first = columns[0]
    if len(columns) == 1:
        return first
    if isinstance(first, list):
        return [value for column in columns for value in column]
    return Gathered(columns)  # type: ignore[arg-type]


class Blob:
    """A long row of bytes, which goes to the slab if it finds room there."""

    __slots__ = ("row",)

    def __init__(self, row: bytes) -> None:
        self.row = row


def with_blobs(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns with long rows of bytes as Blobs: in a message each byte is copied five times."""
    return {name: _with_blobs(column) for name, column in columns.items()}


def _with_blobs(column: Any) -> Any:
    if not isinstance(column, list) or not column or not isinstance(column[0], bytes):
        return column
    return [
        Blob(row) if isinstance(row, bytes) and len(row) >= BLOB_BYTES else row for row in column
    ]


class MessageEncoder:
    """Makes frames of messages. For one thread at a time. `inline`: arrays of any size lie in
    them."""

    def __init__(self, *, inline: bool = False) -> None:
        self._inline_bytes = sys.maxsize if inline else INLINE_BYTES_WITHOUT_SLAB
        #: Where arrays go that are too large for their message, if they may.
        self.region: Region | None = None
        #: The next message may not use the slab: the other process still uses what lies there.
        self.slab_is_kept = False
        #: The memory file to send with the last frame, if there is one. Its user closes it, and
        #: sets this to None.
        self.file: ArrayFile | None = None
        #: Encodes the body of a message that needs no shared memory. Raises UNSENDABLE.
        self.body = msgspec.msgpack.Encoder(enc_hook=self._encode_other).encode
        self._slab: Region | None = None
        self._shared_bytes = 0

    def frame(self, message: Any, *, slab: bool) -> bytes:
        """The frame of a message. Raises UNSENDABLE, then there is no `file`.

        With `slab` the message may take the whole region: what was written there before must have
        been read.
        """
        self._slab = self.region if slab and not self.slab_is_kept else None
        if slab:
            self.slab_is_kept = False  # the answer to this message shows whether it still is
        try:
            body = self.body(message)
            size = len(body)
            if (
                size <= MAX_MESSAGE_BYTES and not self._shared_bytes and self.file is None
            ):  # as most
                return _HEADER.pack(size, 0, 0, _MARK) + body
            flags = 0 if self.file is None else HAS_FILE
            return header(size, self._shared_bytes, flags) + body
        except BaseException:
            if self.file is not None:
                self.file.close()
                self.file = None
            raise
        finally:
            self._shared_bytes = 0

    def _encode_other(self, value: Any) -> Any:
        if type(value) is np.ndarray and not value.dtype.hasobject:
            return self._encode_array((value,), value.shape)
        if isinstance(value, np.ndarray) and _has_numbers(value):
            return self._encode_array((value,), value.shape)
        if isinstance(value, Gathered):
            rows = sum(map(len, value.parts))
            return self._encode_array(value.parts, (rows, *value.parts[0].shape[1:]))
        if isinstance(value, Blob):
            return self._encode_blob(value.row)
        if isinstance(value, FileBytes):
            head = msgspec.msgpack.encode((value.name, value.media_type))
            return msgspec.msgpack.Ext(_FILE, b"".join([_LENGTH.pack(len(head)), head, value]))
        return _plain(value)

    def _encode_blob(self, row: bytes) -> Any:
        place = self._place(len(row))
        if place is None:
            return row
        assert self._slab is not None
        self._slab.memory[place : place + len(row)] = row
        name, media_type = (
            (row.name, row.media_type) if isinstance(row, FileBytes) else (None, None)
        )
        head = msgspec.msgpack.encode((place, len(row), name, media_type))
        return msgspec.msgpack.Ext(_BLOB, head)

    def _place(self, size: int) -> int | None:
        """Where `size` bytes may go in the slab, if there is one with room."""
        if self._slab is None:
            return None
        if not self._shared_bytes:  # the first one of this message
            self._slab.clear()
        place = self._slab.take(size)
        if place is not None:
            self._shared_bytes += size
        return place

    def _encode_array(self, parts: Sequence[Array], shape: tuple[int, ...]) -> msgspec.msgpack.Ext:
        dtype = parts[0].dtype
        size = dtype.itemsize * math.prod(shape)
        if size <= (self._inline_bytes if self._slab is None else INLINE_BYTES):
            head = _array_head(_INLINE, dtype, shape)
            return msgspec.msgpack.Ext(_ARRAY, b"".join([head, *(p.tobytes() for p in parts)]))
        place = self._place(size)
        if place is None:
            if self.file is None:
                self.file = ArrayFile()
            offset, where = self.file.append(parts), _IN_FILE
        else:
            assert self._slab is not None
            self._slab.write(parts, shape, place)
            offset, where = place, _IN_SLAB
        return msgspec.msgpack.Ext(_ARRAY, _array_head(where, dtype, shape) + _OFFSET.pack(offset))


#: From a body, why it cannot be decoded, and a function that decodes a part of it: a message in its
#: place, or None.
Salvage = Callable[[memoryview, Exception, Callable[[Any], Any]], Any]


#: Held while msgspec looks at the types of messages: it lets other threads use what it knows of a
#: type before it knows all, and crashes.
_BUILDING = threading.Lock()


class MessageDecoder:
    """Decodes messages of one type. With `copies` arrays in the slab are copied; else they are
    views, and `keeps_slab` is whether any of them is still used. `salvage` makes a message of a
    body that cannot be decoded. For one thread at a time."""

    def __init__(
        self,
        message_type: Any,
        *,
        copies: bool,
        salvage: Salvage | None = None,
    ) -> None:
        self._copies = copies
        self._salvage = salvage
        #: The slab's.
        self.memory: mmap.mmap | None = None
        #: The arrays in the slab that may still be used: each view of one keeps it alive.
        self.views: list[weakref.ref[Array]] = []
        self._file: mmap.mmap | None = None
        #: Decodes the body of a message without a memory file; may raise anything.
        with _BUILDING:
            decoder = msgspec.msgpack.Decoder(message_type, ext_hook=self._decode_extension)
        self.body = decoder.decode

    def decode(self, body: memoryview, file: mmap.mmap | None = None) -> Any:
        """The message in the body of a frame, whose memory file is `file`. Raises Garbage."""
        self._file = file
        try:
            try:
                return self.body(body)
            except Exception as error:
                message = self._decoded_again(body, error)
                if message is None:
                    raise
                return message
        except Exception as error:  # any bytes may come, and make msgspec, numpy or these raise it
            raise Garbage(str(error)) from error
        finally:
            self._file = None

    def _decoded_again(self, body: memoryview, error: Exception) -> Any:
        if isinstance(error, RecursionError):
            with suppress(Exception):
                return _with_a_whole_stack(partial(self.body, body))
        if self._salvage is None:
            return None
        decode = msgspec.msgpack.Decoder(ext_hook=self._decode_extension).decode
        return self._salvage(body, error, decode)

    def _decode_extension(self, code: int, data: memoryview) -> Array | bytes:
        if code == _ARRAY:
            return self._decode_array(data)
        if code == _BLOB:
            return self._decode_blob(data)
        if code != _FILE:
            raise Garbage(f"extension {code}")
        (length,) = _LENGTH.unpack_from(data)
        start = _LENGTH.size + length
        name, media_type = _FILE_HEAD.decode(data[_LENGTH.size : start])
        return FileBytes(data[start:], name, media_type)

    def _decode_blob(self, data: memoryview) -> bytes:
        place, size, name, media_type = _BLOB_HEAD.decode(data)
        if self.memory is None or not 0 <= place <= place + size <= len(self.memory):
            raise Garbage("a row outside of its message")
        if name is None and media_type is None:
            return self.memory[place : place + size]
        with memoryview(self.memory) as memory:
            return FileBytes(memory[place : place + size], name, media_type)

    def _decode_array(self, data: memoryview) -> Array:
        where, dtype_name, dimensions = _ARRAY_HEAD.unpack_from(data)
        dtype = np.dtype(dtype_name.rstrip(b"\0").decode())
        shape = struct.unpack_from(f"<{dimensions}Q", data, _ARRAY_HEAD.size)
        offset = _ARRAY_HEAD.size + 8 * dimensions
        count = math.prod(shape)
        if where == _INLINE:
            return np.frombuffer(data, dtype, count, offset).reshape(shape).copy()
        (offset,) = _OFFSET.unpack_from(data, offset)
        memory = self.memory if where == _IN_SLAB else self._file
        if memory is None:
            raise Garbage("an array outside of its message")
        view: Array = np.frombuffer(memory, dtype, count, offset)
        if where == _IN_SLAB:  # a file goes with its arrays
            if self._copies:
                return view.reshape(shape).copy()
            self.views.append(weakref.ref(view))
        return view.reshape(shape)

    def keeps_slab(self) -> bool:
        """Is an array in the slab, or a view of one, still used here?"""
        self.views = [view for view in self.views if view() is not None]
        return bool(self.views)


def _with_a_whole_stack(function: Callable[[], Any]) -> Any:
    """What it returns or raises in a thread of its own: with a stack less deep than the caller's, a
    message can be decoded that was encoded."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def copied(value: Any) -> Any:
    """The value as another process would have it. UNSENDABLE."""
    body = packed(value)
    with suppress(Exception):  # of any type: `unpacked` names it, or has a deeper stack
        return _DECODER.body(body)
    try:
        return unpacked(memoryview(body))
    except Garbage as error:
        raise ValueError(str(error)) from None


def why_not_sent(value: Any) -> str | None:
    """What in this value cannot be sent; None if all of it can."""
    try:
        _CHECKER.encode([[[[[[[[value]]]]]]]])  # a message nests it, too, and may be encoded deeper
    except RecursionError:
        return "it holds itself, or is nested too deeply"
    except UNSENDABLE as error:
        return str(error)
    return None


def _has_numbers(array: Array) -> bool:
    """Not Python objects. TypeError if some of it is masked."""
    if is_masked(array):
        raise TypeError(MASKED)
    return not array.dtype.hasobject


def _plain(value: Any) -> Any:
    """Replace what msgpack does not know by something that it knows."""
    if isinstance(value, np.ndarray):  # of Python objects
        return value.tolist()
    if isinstance(value, np.generic) and not isinstance(item := value.item(), np.generic):
        return item
    plain: Any
    kind = type(value)
    try:
        if is_pydantic(kind):
            return value.model_dump(mode="json")
        for plain in (str, bytes, int, float):
            if isinstance(value, plain):  # a subclass
                return plain(value)
    except Exception as error:  # the user's own methods: a bug there costs no instance
        raise TypeError(f"a {kind.__name__} raised {type(error).__name__}: {error}") from error
    raise TypeError(f"a {kind.__name__} is not JSON")


def _without_arrays(value: Any) -> Any:
    if isinstance(value, np.ndarray) and _has_numbers(value):
        return _array_head(_INLINE, value.dtype, value.shape)
    return _plain(value)


_CHECKER = msgspec.msgpack.Encoder(enc_hook=_without_arrays)
_ENCODER = MessageEncoder(inline=True)
_DECODER = MessageDecoder(Any, copies=True)
#: A value as bytes (UNSENDABLE), and bytes as a value (Garbage), without a worker.
packed, unpacked = _ENCODER.body, _DECODER.decode


def _array_head(where: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    name = dtype.str.encode()
    if len(name) > 8 or dtype.char in "VgG":  # Python has no long doubles
        raise TypeError(f"an array of {dtype} cannot be sent to or from a worker process")
    head = _ARRAY_HEAD.pack(where, name, len(shape))
    return head + struct.pack(f"<{len(shape)}Q", *shape)
