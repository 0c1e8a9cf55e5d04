"""How are the messages of one call sent on its stream?"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from wherry.core.api import Buffer
from wherry.server.grpc import frames, heads
from wherry.server.grpc.messages import packed
from wherry.server.grpc.sender import FrameSender

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
        """Write the trailers behind the last message, and call `written` then."""
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
        """Send nothing more: the stream is gone."""
        if self._queue:
            self._sender.forget(self, self._left)
            self._queue = None
            self._left = 0
        self._written = None
