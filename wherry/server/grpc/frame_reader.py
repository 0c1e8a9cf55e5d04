"""How do the bytes of a connection become frames, however the network has cut them?

Without I/O: `buffer` is where the next bytes go, and `received` reads them. `Streams` gets DATA
as it comes, and all other frames whole.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wherry.server.grpc import frames
from wherry.server.grpc.call import Call
from wherry.server.grpc.frames import ConnectionFault, StreamFault
from wherry.server.grpc.streams import Streams
from wherry.server.grpc.work import ClientWork

RECEIVE_BYTES: Final = 2**18
"""Most bytes of one read, but for those that go straight to their place."""
PLACED_BYTES: Final = 2**16
"""A DATA frame that lacks at least as many is read straight into the place of its message."""
ROW_BYTES: Final = 2**12
"""DATA frames of at least as many bytes are looked at for others like them."""
FRAME_BYTES: Final = 2**20
"""The largest frame that is taken (MAX_FRAME_SIZE)."""
_PARTS: Final = frames.END_HEADERS | frames.PADDED | frames.WITH_PRIORITY


def receive_buffer() -> memoryview:
    """Make the buffer that all connections of one event loop read into.

    They can share it because a loop hands a filled buffer over before it requests the next. The
    rest of one read is put in front of the next: at most a part of a frame's head, or the preface.
    """
    return memoryview(bytearray(len(frames.PREFACE) + RECEIVE_BYTES))


class FrameReader:
    """Reads the frames of one connection, as much in one turn of the loop as `work` allows.

    ConnectionFault if the client breaks the protocol: nothing more may be read then.
    """

    __slots__ = (
        "_block", "_buffer", "_call", "_data_ends", "_data_left", "_direct", "_filled", "_greeted",
        "_max_header_bytes", "_plain_bytes", "_rest", "_settled", "_skip", "_streams", "_whole",
        "_work", "unread",
    )  # fmt: skip

    def __init__(
        self, streams: Streams, work: ClientWork, buffer: memoryview, max_header_bytes: int
    ) -> None:
        self._streams = streams
        self._work = work
        self._max_header_bytes = max_header_bytes
        self._plain_bytes = min(max_header_bytes, FRAME_BYTES)  # any frame may have as many
        self._greeted = False  # the preface has come
        self._settled = False  # the first frame has come
        # Where bytes wait
        self._buffer = buffer
        self._rest = b""  # of the last read: less than the head of a frame
        #: Bytes that have come and wait for the next turn: `read_on` must be called then.
        self.unread = b""
        self._whole: memoryview | None = None  # a frame that must be whole
        self._filled = 0
        self._direct = False  # whether the loop reads into a call's place
        # What was begun
        self._block: tuple[int, bool, bytearray] | None = None  # CONTINUATION must follow
        self._call: Call | None = None  # that takes the DATA; None if it is dropped
        self._data_left = 0
        self._data_ends = False
        self._skip = 0  # bytes of padding, or of a frame that is not known

    @property
    def is_between(self) -> bool:
        """Whether all frames that have begun are read."""
        begun = self.unread or self._rest or self._whole or self._block
        return not (begun or self._data_left or self._skip)

    @property
    def unfinished(self) -> object:
        """An object for each unfinished preface, frame or header block; None if there is none."""
        if not self._settled:
            return frames.PREFACE
        return self._block or self._whole

    # Bytes

    def buffer(self) -> memoryview:
        """Return room for the next bytes; `received` must follow if any are put there."""
        self._direct = False
        if self._whole is not None:
            return self._whole[self._filled :]
        if self.unread:  # reading is paused, but what was on its way may still come
            return self._buffer[:RECEIVE_BYTES]
        if self._data_left >= PLACED_BYTES and self._call is not None:
            place = self._call.place()
            if place is not None and len(place) >= PLACED_BYTES:
                self._direct = True
                return place[: self._data_left]
        begin = len(self._rest)
        self._buffer[:begin] = self._rest
        return self._buffer[begin : begin + RECEIVE_BYTES]

    def received(self, count: int) -> None:
        if self.unread:
            self.unread += self._buffer[:count]
        elif self._direct:
            self._data_left -= count
            if self._call is not None:
                self._call.placed(count, self._data_ends and not self._data_left)
        elif self._whole is not None:
            self._filled += count
            if self._filled == len(self._whole):
                whole, self._whole = self._whole, None
                self._read(whole)
        else:
            self._read(self._buffer[: len(self._rest) + count])

    def read_on(self) -> None:
        unread, self.unread = self.unread, b""
        self._read(memoryview(unread))

    def _read(self, data: memoryview) -> None:
        """Read the frames in these bytes, as far as this turn may, and keep the rest."""
        used = self._frames(data)
        self._rest = b""
        if used < len(data):
            if self._work.done >= self._work.share:
                self.unread = bytes(data[used:])
            else:
                self._rest = bytes(data[used:])

    # Frames

    def _frames(self, data: memoryview) -> int:
        """Read whole frames, and DATA as far as it has come. Returns the number of bytes read."""
        streams, work = self._streams, self._work
        sender = streams.sender
        position, end = 0, len(data)
        if not self._greeted:
            if bytes(data[: len(frames.PREFACE)]) != frames.PREFACE[:end]:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "this is not HTTP/2")
            if end < len(frames.PREFACE):
                return 0
            self._greeted = True
            position = len(frames.PREFACE)
        while work.done < work.share and not sender.closed:
            work.done += 1
            if self._data_left or self._skip:
                position += self._take(data[position:])
                if self._data_left or self._skip:
                    break
            begin = position + frames.HEAD_BYTES
            if begin > end:
                break
            high, low, kind, flags, stream_id = frames.HEAD.unpack_from(data, position)
            length = high << 16 | low
            stop = begin + length
            stream_id &= frames.MAX_STREAM_ID
            if length > self._plain_bytes or self._block is not None or not self._settled:
                self._check(kind, flags, length)
            if kind == frames.DATA:
                if stop <= end and length and not flags & frames.PADDED:  # as most are
                    call = streams.begin_data(stream_id, length)
                    if call is not None:
                        call.feed(data[begin:stop], bool(flags & frames.END_STREAM))
                        if length >= ROW_BYTES:
                            stop += self._take_row(call, data[position:], length)
                    position = stop
                    continue
                padding = 0
                if flags & frames.PADDED:
                    if length and begin == end:
                        break
                    padding = 1 + (data[begin] if length else 0)
                    begin += 1
                self._begin_data(stream_id, flags, length, padding)
                position = begin
            elif (  # as most of these are
                kind == frames.HEADERS
                and stop <= end
                and stream_id & 1
                and flags & _PARTS == frames.END_HEADERS
            ):
                ends = bool(flags & frames.END_STREAM)
                try:
                    streams.header_block(stream_id, ends, bytes(data[begin:stop]))
                except StreamFault as fault:
                    streams.stream_fault(stream_id, fault.code)
                position = stop
            elif kind > frames.CONTINUATION:  # of some extension
                work.note_noise()
                self._skip = length
                position = begin
            elif stop > end:
                self._await_whole(data[position:], frames.HEAD_BYTES + length)
                return end
            else:
                self._frame(kind, flags, stream_id, bytes(data[begin:stop]))
                position = stop
        return position

    def _take_row(self, call: Call, data: memoryview, length: int) -> int:
        """Take the frames behind the first that have the same head, as those of a long message do.
        Returns the number of bytes used."""
        place, work = call.place(), self._work
        step = frames.HEAD_BYTES + length
        if place is None:
            return 0
        count = min(len(data) // step - 1, len(place) // length, work.share - work.done)
        if count < 2:
            return 0
        row = np.frombuffer(data, np.uint8, (count + 1) * step).reshape(count + 1, step)
        heads = row[:, : frames.HEAD_BYTES]
        differ = (heads != heads[0]).any(axis=1)
        if differ.any():
            count = int(differ.argmax()) - 1
        size = count * length
        if count and self._streams.begin_data(call.id, size) is not None:
            work.done += count
            into = np.frombuffer(place, np.uint8, size).reshape(count, length)
            into[:] = row[1 : count + 1, frames.HEAD_BYTES :]
            call.placed(size, ends=False)
        return count * step

    def _await_whole(self, begin: memoryview, length: int) -> None:
        self._filled = len(begin)
        self._whole = np.empty(length, np.uint8).data
        self._whole[: len(begin)] = begin

    def _check(self, kind: int, flags: int, length: int) -> None:
        is_whole = frames.HEADERS <= kind <= frames.CONTINUATION  # kept until it is complete
        if length > FRAME_BYTES or (is_whole and length > self._max_header_bytes):
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
        if not self._settled:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._settled = True
        if self._block is not None and kind != frames.CONTINUATION:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a header block that does not go on")

    def _begin_data(self, stream_id: int, flags: int, length: int, padding: int) -> None:
        content = length - padding
        if content < 0:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "DATA with more padding than it is long")
        call = self._call = self._streams.begin_data(stream_id, length)
        self._data_ends = bool(flags & frames.END_STREAM)
        self._data_left, self._skip = content, max(padding - 1, 0)
        if content:
            return
        if not self._data_ends:
            self._work.note_noise()
        elif call is not None:
            call.half_close()

    def _take(self, data: memoryview) -> int:
        """Pass on DATA and skip padding. Returns the number of bytes used."""
        taken = min(self._data_left, len(data))
        if taken:
            left = self._data_left = self._data_left - taken
            if self._call is not None:
                self._call.feed(data[:taken], self._data_ends and not left)
            if left:
                return taken
        skipped = min(self._skip, len(data) - taken)
        self._skip -= skipped
        return taken + skipped

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        try:
            if kind == frames.HEADERS:
                self._headers(flags, stream_id, payload)
            elif kind == frames.WINDOW_UPDATE:
                self._streams.window_update(stream_id, frames.number(payload, "WINDOW_UPDATE"))
            elif kind == frames.RST_STREAM:
                frames.number(payload, "RST_STREAM")
                self._streams.reset_by_client(stream_id)
            elif kind == frames.CONTINUATION:
                self._continuation(flags, stream_id, payload)
            else:
                self._work.note_noise()
                self._rare_frame(kind, flags, stream_id, payload)
        except StreamFault as fault:
            self._streams.stream_fault(stream_id, fault.code)

    def _headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "HEADERS on no stream of a client")
        if flags & (frames.PADDED | frames.WITH_PRIORITY):
            payload = frames.header_fragment(flags, payload)
        ends = bool(flags & frames.END_STREAM)
        if flags & frames.END_HEADERS:
            self._streams.header_block(stream_id, ends, payload)
        else:
            self._block = (stream_id, ends, bytearray(payload))

    def _continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "CONTINUATION of nothing")
        _, ends, block = self._block
        block += payload
        if len(block) > self._max_header_bytes:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "a header block without end")
        if flags & frames.END_HEADERS:
            self._block = None
            self._streams.header_block(stream_id, ends, bytes(block))
        elif not payload:
            self._work.note_noise()

    def _rare_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if (kind == frames.PRIORITY) == (stream_id == 0):
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"frame type {kind} on this stream")
        frames.check_length(kind, len(payload))
        if kind == frames.SETTINGS:
            if not flags & frames.ACK:
                self._streams.settings(frames.read_settings(payload))
            elif payload:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "SETTINGS ACK with settings")
        elif kind == frames.PING:
            (self._streams.pong if flags & frames.ACK else self._streams.ping)(payload)
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "clients do not push")
