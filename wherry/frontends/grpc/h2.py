"""How do bytes on an HTTP/2 connection become calls, and answers bytes again?

The server's side of RFC 9113, as far as gRPC has use for it. This is the hot path of every gRPC
request: no task, future or timer belongs to a call. `Connection` is the asyncio protocol of one
connection; `Connections` is what those of one listener share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, cast

from wherry.frontends.grpc import frames, heads
from wherry.frontends.grpc.call import STREAM_WINDOW, Call
from wherry.frontends.grpc.frames import ConnectionFault, StreamFault
from wherry.frontends.grpc.hpack import HeaderDecoder, HpackError
from wherry.frontends.grpc.rpc import Application, Buffer
from wherry.frontends.http.exchange import Limits

RECEIVE_BYTES: Final = 2**18
"""One read at most; what a large message lacks is read straight into it."""
DIRECT_BYTES: Final = 2**16
FRAME_BYTES: Final = 2**20
"""The largest frame that is taken."""
WRITE_BYTES: Final = 2**16
"""Of one call at a time, so that others have their turn."""

CONNECTION_WINDOW: Final = 2**24
"""What may be on its way to us, and in calls that do not read on, of all calls together."""
MAX_CALLS: Final = 1024
"""At once on one connection; more wait at the client."""

SWEEP_INTERVAL: Final = 0.5
MAX_RESETS: Final = 2 * MAX_CALLS
"""Calls that may come to nothing between two sweeps: opening and cancelling them is cheap for a
client, and not for us."""
MAX_NOISE: Final = 10_000
"""Frames between two sweeps that move no call: pings, settings, empty data."""
KEEPALIVE_TIME: Final = 60.0
"""After so much silence the client is asked whether it is still there."""
KEEPALIVE_TIMEOUT: Final = 20.0
LAST_CALL: Final = 2.0
"""How long a client may take to hear that the connection is to end."""
LINGER: Final = 2.0
"""How long it may take to leave then, having read all."""

MAX_HEADS: Final = 256
_SHUTDOWN_PING: Final = b"goodbye!"
_KEEPALIVE_PING: Final = b"anybody?"
_GREETING: Final = frames.settings({
    frames.MAX_CONCURRENT_STREAMS: MAX_CALLS,
    frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
    frames.MAX_FRAME_SIZE: FRAME_BYTES,
}) + frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW)  # fmt: skip


class Connections:
    """All open connections of one listener, and what they share.

    `sweep` looks after the time limits, twice a second while anything is open; with no connection
    there is no timer. `clock` may be a test's own. `ended` is told of each call that was begun.
    """

    def __init__(
        self,
        application: Application,
        limits: Limits,
        *,
        coding: str = "identity",
        ended: Callable[[Connection, Call], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.application = application
        self.limits = limits
        self.coding = coding
        self.ended = ended
        self.clock = clock
        self.open: set[Connection] = set()
        #: How many calls the application has.
        self.calls = 0
        self.draining = False
        # Safe to share: both loops hand a filled buffer over before they ask for the next one.
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._timer: asyncio.TimerHandle | None = None
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    def __repr__(self) -> str:
        return f"<Connections: {len(self.open)} open, {self.calls} calls>"

    def add(self, connection: Connection) -> None:
        self.open.add(connection)
        self._all_closed.clear()
        if self._timer is None:
            self._schedule_sweep()

    def remove(self, connection: Connection) -> None:
        self.open.discard(connection)
        if not self.open:
            self._all_closed.set()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    async def all_closed(self) -> None:
        await self._all_closed.wait()

    def drain(self) -> None:
        """Let each connection finish its calls, and close."""
        self.draining = True
        for connection in tuple(self.open):
            connection.drain()

    def abort(self) -> None:
        for connection in tuple(self.open):
            connection.abort()

    def sweep(self) -> None:
        now = self.clock()
        for connection in tuple(self.open):
            connection.check(now)

    def _schedule_sweep(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SWEEP_INTERVAL, self._sweep_again)

    def _sweep_again(self) -> None:
        self._schedule_sweep()
        self.sweep()


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, shared: Connections) -> None:
        self.shared = shared
        self.peer = ""
        self.calls: dict[int, Call] = {}
        self.max_message_bytes = shared.limits.max_body_bytes
        self._max_header_bytes = shared.limits.max_header_bytes
        self._transport = cast(asyncio.Transport, None)
        self._over = False  # whatever still comes is thrown away

        # In
        self._greeted = False
        self._settled = False  # the client's first frame has come
        self._rest = b""  # of the last read: a frame that is not whole yet
        self._headers = HeaderDecoder()
        self._heads: dict[bytes, heads.Head] = {}  # by block, while the decoder's table stays
        self._block: tuple[int, int, bytearray] | None = None  # CONTINUATION must follow
        self._last_id = 0
        self._cut: dict[int, None] = {}  # what we ended first; the client may not know yet
        self._receive_window = CONNECTION_WINDOW
        self._to_credit = 0
        self._resets = self._noise = 0
        # The DATA frame that is being read
        self._data_call: Call | None = None
        self._data_left = self._padding_left = 0
        self._data_ends = False
        self._place: memoryview | None = None

        # Out
        self.writing_paused = False
        self._send_window = self._initial_window = frames.DEFAULT_WINDOW
        self._max_frame_bytes = frames.DEFAULT_FRAME_BYTES
        self._table_update = b""
        self._writers: dict[Call, None] = {}  # those with something to send, in turn
        self._pumping = False
        self._refusing = False  # the client has been told which call was its last
        self._asked_to_leave = False

        # What sweeps have seen
        self._read_bytes = self._written_bytes = 0
        self._progress = (0, 0)
        self._quiet_since = self._closing_since = self._told_since = shared.clock()
        self._pinged = False

    def __repr__(self) -> str:
        return f"<Connection from {self.peer}: {len(self.calls)} calls>"

    # What the loop tells us

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = _peer(transport.get_extra_info("peername"))
        self.shared.add(self)
        self.write(_GREETING)
        if len(self.shared.open) > self.shared.limits.max_connections:
            self._fail(frames.ENHANCE_YOUR_CALM, "too many connections; raise max_connections")
        elif self.shared.draining:
            self.drain()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._drop_calls()
        self.shared.remove(self)

    def eof_received(self) -> None:
        # The transport closes when this returns; no client of gRPC closes one half and waits.
        self._over = True
        self._drop_calls()

    def pause_writing(self) -> None:
        # Who does not take our answers is not read: nothing can pile up here, acknowledgements
        # of pings and settings included.
        self.writing_paused = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.writing_paused = False
        if not self._transport.is_closing():
            self._transport.resume_reading()
        self._pump()

    def get_buffer(self, sizehint: int) -> memoryview:
        self._place = self._direct_place()
        if self._place is not None:
            return self._place
        buffer, rest = self.shared.receive_buffer, self._rest
        if not rest:
            return buffer
        buffer[: len(rest)] = rest
        return buffer[len(rest) :]

    def buffer_updated(self, nbytes: int) -> None:
        self._read_bytes += nbytes
        if self._over:
            return
        try:
            if self._place is not None:
                self._placed(nbytes)
                return
            data = self.shared.receive_buffer[: len(self._rest) + nbytes]
            used = self._read(data)
            self._rest = bytes(data[used:])
        except ConnectionFault as fault:
            self._fail(fault.code, str(fault))
        except Exception as error:  # noqa: BLE001 - a bug of ours must not leave clients waiting
            self.report("reading failed", error)
            self._fail(frames.INTERNAL_ERROR, "the server failed to read this")

    # Frames in

    def _read(self, data: memoryview) -> int:
        """Take all whole frames, and what there is of DATA; returns how much that was."""
        position, end = 0, len(data)
        if not self._greeted:
            if bytes(data[: len(frames.PREFACE)]) != frames.PREFACE[:end]:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "this is not HTTP/2")
            if end < len(frames.PREFACE):
                return 0
            self._greeted = True
            position = len(frames.PREFACE)
        while not self._over:
            if self._data_left or self._padding_left:
                position += self._take_data(data[position:])
                if self._data_left or self._padding_left:
                    break
            if end - position < frames.HEAD_BYTES:
                break
            high, low, kind, flags, stream_id = frames.HEAD.unpack_from(data, position)
            length = high << 16 | low
            stream_id &= frames.MAX_STREAM_ID
            self._check_frame(kind, flags, length)
            begin = position + frames.HEAD_BYTES
            if kind == frames.DATA:
                if not flags & frames.PADDED:
                    padding = 0
                elif begin < end:
                    padding = 1 + data[begin] if length else length + 1
                    length -= 1
                    position += 1
                else:
                    break
                position += frames.HEAD_BYTES
                self._begin_data(stream_id, length, padding, flags)
            elif begin + length > end:
                break
            else:
                self._frame(kind, flags, stream_id, bytes(data[begin : begin + length]))
                position = begin + length
        return position

    def _check_frame(self, kind: int, flags: int, length: int) -> None:
        if length > FRAME_BYTES or (kind != frames.DATA and length > self._max_header_bytes):
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
        if not self._settled:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._settled = True
        if self._block is not None and kind != frames.CONTINUATION:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a header block that does not go on")
