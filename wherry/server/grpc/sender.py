"""How do the frames of a connection leave, as its transport and its client's windows take them?

Both windows of flow control (RFC 9113, 5.2) and the transport bound the DATA that is written;
streams with something to send take turns, one DATA frame each. The frames of all of them leave in
one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from wherry.core.api import Buffer
from wherry.server.connections.held import HeldBytes
from wherry.server.connections.sockets import gathered_write
from wherry.server.grpc import frames
from wherry.server.grpc.frames import ConnectionFault

JOINED_BYTES: Final = 2**16
"""Bytes of held frames up to which they are copied into one piece: above, many cost less."""
FRAME_BYTES: Final = 2**16
"""Bytes of one DATA frame at most, so that other streams have their turn."""
WRITE_BYTES: Final = 2**20
"""Bytes of one write at most, about: as many may wait in the transport."""

_NO_HEADER_TABLE: Final = b"\x20"  # a table size update: RFC 7541, 4.2 and 6.3


class SendingStream(Protocol):
    """The server's side of one stream."""

    #: Bytes of DATA that the client takes on it.
    window: int

    @property
    def has_more(self) -> bool: ...

    def write_some(self, most: int, frame_bytes: int) -> None: ...


class FrameSender:
    """Writes the frames of one connection to its transport, until it is closed.

    While it is corked, as it is while frames are read and while streams write, frames are held
    back and leave in one piece, so that many of them cost one system call.
    """

    __slots__ = (
        "_held", "_held_bytes", "_in_transport", "_max_frame_bytes", "_table_update", "_transport",
        "_waiting", "_window", "_write_gathered", "closed", "corked", "initial_window", "paused",
        "unsent", "written",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport, unsent: HeldBytes) -> None:
        self._transport = transport
        self._write_gathered = gathered_write(transport)
        self._held: list[Buffer] = []
        self._held_bytes = 0
        self._in_transport = 0  # bytes there that `unsent` has
        self.corked = False
        self.paused = False
        #: Whether the connection has ended, so that what is written is dropped.
        self.closed = False
        #: Bytes written to the transport, and those held back.
        self.written = 0
        #: Bytes of messages that wait for the client, and those in a transport that is full.
        self.unsent = unsent
        self.initial_window = frames.DEFAULT_WINDOW
        self._window = frames.DEFAULT_WINDOW  # the connection's
        self._max_frame_bytes = frames.DEFAULT_FRAME_BYTES
        self._table_update = b""  # goes in front of the next header block
        self._waiting: dict[SendingStream, None] = {}  # in turn

    @property
    def buffered(self) -> int:
        return self._transport.get_write_buffer_size()

    # Frames that no window bounds

    def write(self, data: bytes) -> None:
        if self.closed:
            return
        self.written += len(data)
        if not self.corked:
            self._transport.write(data)
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= WRITE_BYTES:
            self._release()

    def write_headers(self, stream_id: int, flags: int, block: bytes) -> None:
        block, self._table_update = self._table_update + block, b""
        self.write(frames.header_frames(stream_id, flags, block, self._max_frame_bytes))

    def uncork(self) -> None:
        self.corked = False
        if self._waiting:
            self.pump()
        if self._held:
            self._release()

    def _release(self) -> None:
        held, self._held = self._held, []
        size, self._held_bytes = self._held_bytes, 0
        if len(held) == 1:
            self._transport.write(held[0])
        elif size <= JOINED_BYTES:
            self._transport.write(b"".join(held))
        else:
            self._write_gathered(held)

    def finish(self) -> None:
        if self.closed:
            return
        if self._held:
            self._release()
        self.closed = True
        # To close with bytes unread would reset the connection: the client could lose the last
        # frames.
        if self._transport.can_write_eof():
            with suppress(OSError):  # the client has just gone, and the loop does not know yet
                self._transport.write_eof()
        else:
            self._transport.close()

    # DATA

    def room(self, window: int) -> int:
        """How long a message may be that is sent in one go, with a literal header block before it
        and one behind it, on a stream with this window."""
        if self.paused or self._table_update:
            return 0
        return min(self._window, window, self._max_frame_bytes)

    def write_answer(self, frames: bytes, size: int) -> None:
        """Write frames that have a message of `size` bytes, for which there was `room`."""
        self._window -= size
        if self.corked or self.closed:
            self.write(frames)
            return
        self.written += len(frames)
        self._transport.write(frames)

    def wait(self, stream: SendingStream, size: int) -> None:
        """Have `stream` write when it can: it has `size` bytes more to send."""
        self.unsent.add(size)
        self._waiting[stream] = None
        self.pump()

    def write_data(self, pieces: Sequence[Buffer], nbytes: int, size: int) -> None:
        """Write DATA frames of `nbytes` with `size` of the bytes that waited. Called by
        `write_some` only."""
        self.written += nbytes
        self._held += pieces
        self._held_bytes += nbytes
        self._window -= size
        self.unsent.add(-size)

    def forget(self, stream: SendingStream, size: int) -> None:
        """Let `stream` write no more; `size` bytes of it waited."""
        self._waiting.pop(stream, None)
        self.unsent.add(-size)

    def pump(self) -> None:
        """Let streams write until they are done, or the client or the transport take no more."""
        waiting = self._waiting
        if not waiting or self.corked:
            return
        self.corked = True
        try:
            while waiting and self._window > 0 and not (self.paused or self.closed):
                stream = next(iter(waiting))
                del waiting[stream]
                most = min(self._window, stream.window, WRITE_BYTES)
                if waiting:
                    most = min(most, self._max_frame_bytes)
                if most > 0:  # else `wake` puts it back
                    stream.write_some(most, self._max_frame_bytes)
                    self.wake(stream)
                if self._held_bytes >= WRITE_BYTES:
                    self._release()
        finally:
            self.corked = False
        if self._held:
            self._release()

    def note_buffered(self) -> None:
        """Count what the transport holds, if that is so much that it has paused the writing."""
        held = self.buffered if self.paused else 0
        self.unsent.add(held - self._in_transport)
        self._in_transport = held

    # What the client allows

    def wake(self, stream: SendingStream) -> None:
        if stream.has_more:
            self._waiting[stream] = None

    def widen(self, increment: int) -> None:
        self._window = frames.widened(self._window, increment, ConnectionFault)

    def apply(self, settings: Mapping[int, int], streams: Iterable[SendingStream]) -> None:
        for name, value in settings.items():
            if name == frames.INITIAL_WINDOW_SIZE:
                change, self.initial_window = value - self.initial_window, value
                for stream in streams:
                    stream.window += change
                    if stream.window > frames.MAX_WINDOW:
                        raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "a window overflows")
                    self.wake(stream)
            elif name == frames.MAX_FRAME_SIZE:
                self._max_frame_bytes = min(value, FRAME_BYTES)
            elif name == frames.HEADER_TABLE_SIZE:
                self._table_update = _NO_HEADER_TABLE  # none is used, whatever its size
