"""How do the answers on one connection share what its client takes?

The client's windows (RFC 9113, 5.2) and the transport bound what is written; streams with something
to send take turns, a DATA frame at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from wherry.frontends.grpc import frames
from wherry.frontends.grpc.frame_writer import FrameWriter
from wherry.frontends.grpc.frames import ConnectionFault
from wherry.frontends.grpc.held_bytes import HeldBytes
from wherry.values.buffer import Buffer

WRITE_BYTES: Final = 2**16
"""Most of one stream at a time, so that others have their turn."""

_NO_HEADER_TABLE: Final = b"\x20"  # a table size update: RFC 7541, 4.2 and 6.3


class SendingStream(Protocol):
    """The server's side of one stream."""

    #: Bytes of DATA that the client takes on it.
    window: int

    @property
    def has_more(self) -> bool:
        """Whether messages wait to be sent."""

    def write_some(self, most: int) -> None:
        """Send one DATA frame of at most `most` bytes."""


class ResponseSender:
    """Gives the streams of one connection room to send, in turn."""

    __slots__ = (
        "_max_frame_bytes", "_pumping", "_table_update", "_waiting", "_window", "_writer",
        "initial_window", "unsent",
    )  # fmt: skip

    def __init__(self, writer: FrameWriter, unsent: HeldBytes) -> None:
        self._writer = writer
        #: Bytes of messages that wait for the client.
        self.unsent = unsent
        #: The window of a new stream.
        self.initial_window = frames.DEFAULT_WINDOW
        self._window = frames.DEFAULT_WINDOW  # the connection's
        self._max_frame_bytes = frames.DEFAULT_FRAME_BYTES
        self._table_update = b""  # goes in front of the next header block
        self._waiting: dict[SendingStream, None] = {}  # in turn
        self._pumping = False

    def __repr__(self) -> str:
        return f"<ResponseSender: {len(self._waiting)} streams wait, window {self._window}>"

    # For streams

    def write(self, data: bytes) -> None:
        """Write frames that no window bounds."""
        self._writer.write(data)

    def room(self, window: int) -> int:
        """How long a message may be that is sent in one go, with a literal header block before it
        and one behind it, on a stream with this window."""
        if self._writer.paused or self._table_update:
            return 0
        return min(self._window, window, self._max_frame_bytes)

    def answer(self, pieces: Iterable[Buffer], size: int) -> None:
        """Write frames that have a message of `size` bytes, for which there was `room`."""
        self._writer.write(b"".join(pieces))
        self._window -= size

    def write_headers(self, stream_id: int, flags: int, block: bytes) -> None:
        block, self._table_update = self._table_update + block, b""
        self._writer.write(frames.header_frames(stream_id, flags, block, self._max_frame_bytes))

    def wait(self, stream: SendingStream, size: int) -> None:
        """Have `stream` write when it can: it has `size` bytes more to send."""
        self.unsent.add(size)
        self._waiting[stream] = None
        self.pump()

    def write_data(self, buffers: Sequence[Buffer], size: int) -> None:
        """Write a DATA frame with `size` of the bytes that waited."""
        self._writer.write_buffers(buffers)
        self._window -= size
        self.unsent.add(-size)

    def forget(self, stream: SendingStream, size: int) -> None:
        """Let `stream` write no more; `size` bytes of it waited."""
        self._waiting.pop(stream, None)
        self.unsent.add(-size)

    # For the connection

    def wake(self, stream: SendingStream) -> None:
        """The window of `stream` has grown."""
        if stream.has_more:
            self._waiting[stream] = None

    def widen(self, increment: int) -> None:
        """The connection's window has grown."""
        self._window = frames.widened(self._window, increment, ConnectionFault)

    def set(self, values: Mapping[int, int], streams: Iterable[SendingStream]) -> None:
        """Apply the client's SETTINGS. `streams` are all that are open."""
        for name, value in values.items():
            if name == frames.INITIAL_WINDOW_SIZE:
                change, self.initial_window = value - self.initial_window, value
                for stream in streams:
                    stream.window += change
                    if stream.window > frames.MAX_WINDOW:
                        raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "a window overflows")
                    self.wake(stream)
            elif name == frames.MAX_FRAME_SIZE:
                self._max_frame_bytes = min(value, WRITE_BYTES)
            elif name == frames.HEADER_TABLE_SIZE:
                self._table_update = _NO_HEADER_TABLE  # none is used, whatever its size

    def pump(self) -> None:
        """Let streams write until they are done, or the client or the transport take no more."""
        writer, waiting = self._writer, self._waiting
        if not waiting or self._pumping or writer.corked:
            return
        self._pumping = True
        try:
            while waiting and self._window > 0 and not (writer.paused or writer.closed):
                stream = next(iter(waiting))
                del waiting[stream]
                most = min(self._window, stream.window, self._max_frame_bytes)
                if most > 0:  # else `wake` puts it back
                    stream.write_some(most)
                    self.wake(stream)
        finally:
            self._pumping = False
