"""How are the messages of one call sent on its stream?"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from wherry.frontends.grpc import frames, heads
from wherry.frontends.grpc.messages import packed
from wherry.frontends.grpc.sender import FrameSender
from wherry.values.buffer import Buffer

JOINED_BYTES: Final = frames.DEFAULT_FRAME_BYTES
"""Longest message, in bytes, that is copied behind its prefix: above, two writes cost less."""

OK: Final = heads.trailers("OK")
_HEADS: Final = {coding: heads.answer_head(coding) for coding in heads.CODINGS}
_END: Final = frames.END_HEADERS | frames.END_STREAM


class ResponseMessages:
    """Sends the headers, messages and trailers of one call, within its client's windows.

    Messages are compressed by `coding` where that pays.
    """

    __slots__ = (
        "_coding", "_headed", "_queue", "_sender", "_stream_id", "_trailers", "_written", "window",
    )  # fmt: skip

    def __init__(self, stream_id: int, sender: FrameSender, coding: str) -> None:
        self._stream_id = stream_id
        self._sender = sender
        self._coding = coding
        #: Bytes of DATA that the client takes on this stream.
        self.window = sender.initial_window
        self._headed = False
        self._queue: deque[tuple[memoryview, Callable[[], None] | None]] = deque()
        self._trailers: bytes | None = None
        self._written: Callable[[], None] | None = None

    def respond(self, message: Buffer) -> bool:
        """Write the whole answer of a call that has one message, if there is room for it at once;
        else queue the message. Returns whether it is written."""
        prefix, payload = packed(message, self._coding)
        size = len(prefix) + len(payload)
        sender = self._sender
        if size > sender.room(self.window):
            self._wait(prefix, payload, None)
            return False
        block, stream_id = _HEADS[self._coding], self._stream_id
        pieces = (
            frames.head(len(block), frames.HEADERS, frames.END_HEADERS, stream_id), block,
            frames.head(size, frames.DATA, 0, stream_id), prefix, payload,
            frames.head(len(OK), frames.HEADERS, _END, stream_id), OK,
        )  # fmt: skip
        sender.write_answer(pieces, size)
        return True

    def send(self, message: Buffer, sent: Callable[[], None] | None) -> None:
        """Queue one message of a stream; `sent` is called when the client's window has taken it."""
        self._wait(*packed(message, self._coding), sent)

    def _wait(self, prefix: bytes, payload: Buffer, sent: Callable[[], None] | None) -> None:
        if not self._headed:
            self._headed = True
            self._sender.write_headers(self._stream_id, 0, _HEADS[self._coding])
        if len(payload) <= JOINED_BYTES:
            self._queue.append((memoryview(b"".join((prefix, payload))), sent))
        else:
            self._queue.append((memoryview(prefix), None))
            self._queue.append((memoryview(payload), sent))
        self._sender.wait(self, len(prefix) + len(payload))

    def end(self, trailers: bytes, written: Callable[[], None]) -> None:
        """Write the trailers behind the last message, and call `written` then."""
        self._trailers = trailers
        self._written = written
        if not self._queue:
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
        return bool(self._queue)

    def write_some(self, most: int) -> None:
        """Send one DATA frame of what waits, and the trailers behind the last."""
        queue = self._queue
        pieces: list[Buffer] = [b""]
        taken: list[Callable[[], None]] = []
        size = 0
        while queue and size < most:
            buffer, sent = queue[0]
            piece = buffer[: most - size]
            pieces.append(piece)
            size += len(piece)
            if len(piece) < len(buffer):
                queue[0] = buffer[len(piece) :], sent
            else:
                queue.popleft()
                if sent is not None:
                    taken.append(sent)
        pieces[0] = frames.head(size, frames.DATA, 0, self._stream_id)
        self.window -= size
        self._sender.write_data(pieces, size)
        if self._trailers is not None and not queue:
            self._write_end()
        for sent in taken:
            sent()

    def drop(self) -> None:
        """Send nothing more: the stream is gone."""
        if self._queue:
            self._sender.forget(self, sum(len(buffer) for buffer, _ in self._queue))
            self._queue.clear()
        self._written = None
