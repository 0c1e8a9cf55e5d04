"""How are messages framed and compressed in the bytes of a stream, and how are a call's sent?"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from wherry.core.api import Buffer, InvalidRequest, RequestTooLarge
from wherry.server.calls import compression
from wherry.server.connections.held import KeptBuffers
from wherry.server.grpc import frames, heads
from wherry.server.grpc.rpc import Metadata
from wherry.server.grpc.sender import FrameSender

#: Whether it is compressed, and its bytes, which no other object changes.
Message = tuple[bool, Buffer]

#: In front of each message: whether it is compressed, and its length.
PREFIX: Final = struct.Struct(">BL")

FIRST_ROOM: Final = 2**18
"""Bytes of new room for a message of which only the length has come: sending a length costs
nothing."""
KEPT_BYTES: Final = 2**17
"""Messages of at least as many bytes come into kept buffers: small ones cost no fresh pages."""
GROWTH: Final = 4
"""The room grows to this multiple of what has come; all copies add up to a third of a message."""


class BadMessage(Exception):
    """The client sent no valid message, or a refused one. Has a gRPC status code and a text."""

    def __init__(self, code: str, text: str, metadata: Metadata = ()) -> None:
        super().__init__(text)
        self.code = code
        self.metadata = metadata


class Assembly:
    """Assembles the messages of a stream from pieces of any length."""

    __slots__ = (
        "_buffers", "_compressed", "_filled", "_length", "_max_bytes", "_message", "_prefix",
    )  # fmt: skip

    def __init__(self, max_bytes: int, buffers: KeptBuffers) -> None:
        self._max_bytes = max_bytes
        self._buffers = buffers
        self._prefix = b""
        self._compressed = False
        self._message: memoryview | None = None  # as much of it as there is room for by now
        self._length = 0
        self._filled = 0

    @property
    def missing(self) -> int:
        return 0 if self._message is None else self._length - self._filled

    @property
    def filled(self) -> int:
        return 0 if self._message is None else self._filled

    @property
    def between(self) -> bool:
        return self._message is None and not self._prefix

    def fill(self, data: memoryview) -> bool:
        """Add to a message that has begun bytes that do not complete it.

        Returns whether that is done; if not, `feed` must take them.
        """
        message = self._message
        if message is None:
            return False
        filled = self._filled + len(data)
        if filled >= len(message):
            return False
        message[self._filled : filled] = data
        self._filled = filled
        return True

    def feed(self, data: memoryview) -> Iterator[Message]:
        """The messages that these bytes complete. BadMessage if one is too large, or malformed."""
        while data:
            if self._message is not None:
                piece = data[: len(self._message) - self._filled]
                self._message[self._filled : self._filled + len(piece)] = piece
                data = data[len(piece) :]
                yield from self.placed(len(piece))
                continue
            if self._prefix or len(data) < PREFIX.size:
                missing_bytes = PREFIX.size - len(self._prefix)
                self._prefix += data[:missing_bytes]
                data = data[missing_bytes:]
                if len(self._prefix) < PREFIX.size:
                    return
                flag, length = PREFIX.unpack(self._prefix)
                self._prefix = b""
            else:
                flag, length = PREFIX.unpack_from(data)
                data = data[PREFIX.size :]
            if flag > 1:
                raise BadMessage("INTERNAL", f"a message with the flag {flag}")
            if length > self._max_bytes:
                raise BadMessage(
                    "RESOURCE_EXHAUSTED",
                    f"received message larger than max ({length} vs. {self._max_bytes} bytes): send"
                    " less at a time, or raise the server's --max-body-size",
                )
            if length <= len(data):
                yield flag == 1, bytes(data[:length])
                data = data[length:]
            else:
                self._compressed = flag == 1
                self._length = length
                again = self._buffers.again(length) if length >= KEPT_BYTES else None
                self._message = self._room(FIRST_ROOM) if again is None else again
                self._filled = 0

    def place(self) -> memoryview | None:
        """Return room for the next bytes of a message; call `placed` with their number."""
        return None if self._message is None else self._message[self._filled :]

    def placed(self, count: int) -> Iterator[Message]:
        """Take `count` bytes that were put into `place`: the message that they complete, if any."""
        self._filled += count
        message = self._message
        if message is None or self._filled < len(message):
            return
        if self._filled < self._length:
            self._message = self._room(GROWTH * self._filled)
            self._message[: self._filled] = message
            return
        self._message = None
        yield self._compressed, message

    def _room(self, most: int) -> memoryview:
        """Room for the whole message, or for as much as `most` of it."""
        length = self._length
        if KEPT_BYTES <= length <= most:
            return self._buffers.new(length)
        # Not bytearray(n): that writes n zeros first.
        return np.empty(min(length, most), np.uint8).data


def unpacked(message: Buffer, coding: str, max_bytes: int) -> Buffer:
    """A message as it was before it was compressed. BadMessage; never more than `max_bytes` are
    unpacked."""
    if coding == "identity":
        raise BadMessage("INTERNAL", "a compressed message without a grpc-encoding")
    try:
        return compression.decompressed(message, coding, max_bytes)
    except RequestTooLarge:
        raise BadMessage(
            "RESOURCE_EXHAUSTED",
            f"received message larger than max ({max_bytes} bytes) once it is unpacked",
        ) from None
    except InvalidRequest as error:
        raise BadMessage("INTERNAL", str(error)) from None


def packed(message: Sequence[Buffer], coding: str) -> tuple[bytes, Sequence[Buffer], int]:
    """The prefix of a message, the message's pieces, and the length of both together.

    Short and long ones are not compressed.
    """
    size = sum(map(len, message))
    if coding != "identity" and compression.MIN_BYTES <= size <= compression.MAX_BYTES_IN_LOOP:
        whole = compression.compressed(b"".join(message), coding)
        return PREFIX.pack(1, len(whole)), (whole,), len(whole) + PREFIX.size
    return PREFIX.pack(0, size), message, size + PREFIX.size


JOINED_BYTES: Final = frames.DEFAULT_FRAME_BYTES
"""Longest piece of a message, in bytes, that is copied behind the piece before it: above, two
pieces of a write cost less."""

OK: Final = heads.trailers("OK")
_HEADS: Final = {coding: heads.answer_head(coding) for coding in heads.CODINGS}
#: What is in front of the stream's id in the frames around a short answer.
_BEGIN: Final = {
    coding: frames.head(len(block), frames.HEADERS, frames.END_HEADERS, 0)[:5]
    for coding, block in _HEADS.items()
}
_END: Final = frames.head(len(OK), frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 0)[:5]

_Taken = Callable[[], None]


class ResponseMessages:
    """Sends the headers, messages and trailers of one call, within its client's windows.

    Messages are compressed by `coding` where that pays.
    """

    __slots__ = (
        "_coding", "_headed", "_left", "_queue", "_sender", "_stream_id", "_trailers", "_written",
        "window",
    )  # fmt: skip

    def __init__(self, stream_id: int, sender: FrameSender, coding: str) -> None:
        self._stream_id = stream_id
        self._sender = sender
        self._coding = coding
        #: Bytes of DATA that the client takes on this stream.
        self.window = sender.initial_window
        self._headed = False
        #: Made for the first message that waits. With each piece: what is called when it was taken.
        self._queue: deque[tuple[memoryview, _Taken | None]] | None = None
        self._left = 0  # bytes in the queue
        self._trailers: bytes | None = None
        self._written: Callable[[], None] | None = None

    def respond(self, message: Sequence[Buffer], written: Callable[[], None]) -> bool:
        """Write the whole answer of a call that has one message, which comes in pieces.

        Returns whether that is done; if there is no room for it at once, `written` is called
        later.
        """
        prefix, message, size = packed(message, self._coding)
        sender, stream_id = self._sender, self._stream_id
        if size <= sender.room(self.window):
            coding, id = self._coding, stream_id.to_bytes(4)
            sender.write_answer(
                b"".join((
                    _BEGIN[coding], id, _HEADS[coding],
                    frames.HEAD.pack(size >> 16, size & 0xFFFF, frames.DATA, 0, stream_id),
                    prefix, *message,
                    _END, id, OK,
                )),
                size,
            )  # fmt: skip
            return True
        self._trailers, self._written = OK, written
        self._wait(prefix, message, size, None)
        return False

    def send(self, message: Sequence[Buffer], sent: _Taken | None) -> None:
        """Queue one message of a stream; `sent` is called when the client's window has taken it."""
        self._wait(*packed(message, self._coding), sent)

    def _wait(
        self, prefix: bytes, message: Sequence[Buffer], size: int, sent: _Taken | None
    ) -> None:
        queue = self._queue
        if queue is None:
            queue = self._queue = deque()
        short: list[Buffer] = [prefix]
        for piece in message:
            if len(piece) <= JOINED_BYTES:
                short.append(piece)
                continue
            if short:
                queue.append((memoryview(b"".join(short)), None))
                short.clear()
            queue.append((memoryview(piece), None))
        if short:
            queue.append((memoryview(b"".join(short)), sent))
        else:
            queue[-1] = queue[-1][0], sent
        self._left += size
        self._sender.wait(self, size)

    def end(self, trailers: bytes, written: Callable[[], None]) -> None:
        self._trailers = trailers
        self._written = written
        if not self._left:
            self._write_end()

    def _write_end(self) -> None:
        trailers, written, self._written = self._trailers, self._written, None
        assert trailers is not None
        assert written is not None
        block = trailers if self._headed else heads.trailers_only(trailers)
        self._sender.write_headers(self._stream_id, frames.END_STREAM, block)
        written()

    @property
    def has_more(self) -> bool:
        return self._left > 0

    def write_some(self, most: int, frame_bytes: int) -> None:
        """Send at most `most` bytes of what waits, in DATA frames of at most `frame_bytes`, and
        the trailers behind the last."""
        queue, sender, stream_id = self._queue, self._sender, self._stream_id
        assert queue is not None
        if not self._headed:
            self._headed = True
            sender.write_headers(stream_id, 0, _HEADS[self._coding])
        size = nbytes = min(most, self._left)
        self._left -= size
        self.window -= size
        pieces: list[Buffer] = []
        taken: list[_Taken] = []
        whole = frames.head(frame_bytes, frames.DATA, 0, stream_id)
        left = size
        while left:
            buffer, sent = queue[0]
            in_whole = min(left, len(buffer) - 1) // frame_bytes * frame_bytes
            if in_whole:  # most of a long piece
                for start in range(0, in_whole, frame_bytes):
                    pieces += (whole, buffer[start : start + frame_bytes])
                    nbytes += len(whole)
                left -= in_whole
                queue[0] = buffer[in_whole:], sent
                continue
            room = min(left, frame_bytes)
            left -= room
            pieces.append(frames.head(room, frames.DATA, 0, stream_id))
            nbytes += frames.HEAD_BYTES
            while room:
                buffer, sent = queue[0]
                if len(buffer) > room:
                    pieces.append(buffer[:room])
                    queue[0] = buffer[room:], sent
                    break
                pieces.append(buffer)
                room -= len(buffer)
                queue.popleft()
                if sent is not None:
                    taken.append(sent)
        sender.write_data(pieces, nbytes, size)
        if self._trailers is not None and not self._left:
            self._write_end()
        for sent in taken:
            sent()

    def drop(self) -> None:
        if self._queue:
            self._sender.forget(self, self._left)
            self._queue = None
            self._left = 0
        self._written = None
