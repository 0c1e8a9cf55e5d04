"""How do bytes on an HTTP/2 connection become calls, and answers bytes again?

The server's side of RFC 9113, as far as gRPC has use for it. This is the hot path of every gRPC
request: no task, future or timer belongs to a call. `Connection` is the asyncio protocol of one
connection; `Connections` is what those of one listener share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, cast

import numpy as np

from wherry.frontends.connections.gathered import gathered_write
from wherry.frontends.connections.held import FREE_BYTES, Holdings
from wherry.frontends.connections.limits import Limits
from wherry.frontends.connections.open_connection import OpenConnection
from wherry.frontends.connections.open_connections import OpenConnections
from wherry.frontends.connections.sockets import has_unread
from wherry.frontends.grpc import frames, heads
from wherry.frontends.grpc.call import CALL_WORK, STREAM_WINDOW, Call
from wherry.frontends.grpc.frames import ConnectionFault, StreamFault
from wherry.frontends.grpc.hpack import (
    HeaderBomb,
    HeaderDecoder,
    HpackError,
    TooManyHeaders,
    header_bytes,
)
from wherry.frontends.grpc.rpc import Application
from wherry.frontends.offload import Offload
from wherry.values.buffer import Buffer

RECEIVE_BYTES: Final = 2**16
"""One read at most; what a message lacks of more than that is read straight into it."""
FRAME_BYTES: Final = 2**20
"""The largest frame that is taken."""
WRITE_BYTES: Final = 2**16
"""Of one call at a time, so that others have their turn."""

CONNECTION_WINDOW: Final = 2**24
"""What may be on its way to us, of all calls together."""
MAX_CALLS: Final = 1024
"""At once on one connection; more wait at the client."""

MAX_RESETS: Final = 2 * MAX_CALLS
"""Calls that may come to nothing between two sweeps: opening and cancelling them is cheap for a
client, and not for us."""
RESETS_OF_A_FAULT: Final = 16
"""What a stream counts for that we had to reset: no client of gRPC has use for that, and it would
get around a client's own limit of calls."""
MAX_NOISE: Final = 10_000
"""Frames between two sweeps that move no call: pings, settings, empty data, late headers."""
KEEPALIVE_TIME: Final = 60.0
"""After so much silence the client is asked whether it is still there."""
KEEPALIVE_TIMEOUT: Final = 20.0
LAST_CALL: Final = 2.0
"""How long a client may take to hear that the connection is to end."""
LINGER: Final = 2.0
"""How long it may take to leave then, having read all."""

TURN_WORK: Final = 2048
"""What all connections may do in one turn of the loop, together: frames read. It takes some 10 ms,
for which all other work of the loop waits."""
HEADERS_A_FRAME: Final = 4
"""Headers of a call that count for one frame."""

REMEMBERED_BYTES: Final = 2**14
"""Bytes of the header blocks that are remembered with their decoded headers."""
T = TypeVar("T")

_SHUTDOWN_PING: Final = b"goodbye!"
_KEEPALIVE_PING: Final = frames.frame(frames.PING, 0, 0, b"anybody?")


class Connections(OpenConnections["Connection"]):
    """All open connections of one listener, and what they share.

    `clock` may be a test's own. `ended` is told of each call that was begun.
    """

    def __init__(
        self,
        application: Application,
        limits: Limits,
        *,
        coding: str = "identity",
        ended: Callable[[Connection, Call], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        holdings: Holdings[OpenConnection] | None = None,
        offload: Offload | None = None,
    ) -> None:
        super().__init__(clock, limits, holdings)
        self.application = application
        #: Where large compressed messages are unpacked.
        self.offload = offload or Offload()
        self.coding = coding
        self.ended = ended
        #: How many calls the application has.
        self.calls = 0
        #: Connections and streams with more than their share of this turn: they go on in the next.
        self.behind = 0
        self._spent = 0  # of TURN_WORK, about in this turn
        self._turn_ends = False
        # Safe to share: both loops hand a filled buffer over before they ask for the next one.
        # What is left of one read goes in front of the next: a part of a frame's head at most,
        # or of the preface.
        self.receive_buffer = memoryview(bytearray(len(frames.PREFACE) + RECEIVE_BYTES))

    def __repr__(self) -> str:
        return f"<Connections: {len(self.open)} open, {self.calls} calls>"

    @property
    def is_full(self) -> bool:
        return len(self.open) > self.limits.max_connections

    @property
    def share(self) -> int:
        """How much work one of them may do in this turn of the loop."""
        return max(CALL_WORK, (TURN_WORK - self._spent) // (self.behind + 1))

    @property
    def is_spent(self) -> bool:
        """Whether this turn has had its work: what may wait should."""
        return self._spent >= TURN_WORK

    def spend(self, work: int) -> None:
        """Count `work` (frames) as done in this turn."""
        self._spent += work
        # A callback in the next turn costs, too: asked for only where much was done.
        if self._spent >= TURN_WORK // 4 and not self._turn_ends:
            self._turn_ends = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_ends = False
        self._spent = 0


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
        self._in_reserve = False  # for health, while there are too many connections

        # In
        self._greeted = False
        self._settled = False  # the client's first frame has come
        self._rest = b""  # of the last read: the head of a frame that is not whole yet
        self._frame_place: memoryview | None = None  # where a frame that must be whole is put
        self._frame_filled = 0
        self._work = 0  # of this read
        self._share = 0
        self._unread = b""  # what is read in the next turn
        self._headers = HeaderDecoder()
        self._heads: dict[bytes, heads.Head] = {}  # by block, while the decoder's table stays
        self._heads_bytes = 0
        self._block: tuple[int, int, bytearray] | None = None  # CONTINUATION must follow
        self._last_id = self._served_id = 0
        self._cut: dict[int, None] = {}  # what we ended first; the client may not know yet
        self._to_credit = 0
        self._resets = self._noise = 0
        self._received = 0  # bytes of messages that are not whole, or not with the application
        # The DATA frame that is being read
        self._data_call: Call | None = None
        self._data_id = self._data_left = self._padding_left = 0
        self._data_ends = False
        self._place: memoryview | None = None

        # Out
        self.writing_paused = False
        self._unsent = 0  # bytes of answers that wait for the client's windows
        self._send_window = self._initial_window = frames.DEFAULT_WINDOW
        self._max_frame_bytes = frames.DEFAULT_FRAME_BYTES
        self._table_update = b""
        self._writers: dict[Call, None] = {}  # those with something to send, in turn
        self._pumping = False
        self._reading = False  # what is written meanwhile goes out in one piece
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._refusing = False  # the client has been told which call was its last
        self._asked_to_leave = False

        # What sweeps have seen
        self._read_bytes = self._written_bytes = 0
        self._progress = 0
        self._made_at = self._quiet_since = self._told_since = shared.clock()
        self._pinged = False
        self._called_at, self._seen_id = self._made_at, 0
        self._half: object = None  # a head or frame that was not whole
        self._half_since = self._made_at

    def __repr__(self) -> str:
        return f"<Connection from {self.peer}: {len(self.calls)} calls>"

    # What the loop tells us

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._write_gathered = gathered_write(self._transport)
        self.peer = _peer(transport.get_extra_info("peername"))
        self.shared.add(self)
        self.write(
            frames.settings({
                frames.MAX_CONCURRENT_STREAMS: MAX_CALLS,
                frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                frames.MAX_FRAME_SIZE: FRAME_BYTES,
                frames.MAX_HEADER_LIST_SIZE: self._max_header_bytes,
            })
            + frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW)
        )  # fmt: skip
        if self.shared.lacks_descriptors(transport):
            self._fail(frames.ENHANCE_YOUR_CALM, "too many connections; raise the limit of files")
            transport.close()
        elif self.shared.draining:
            self.drain()
        elif self.shared.is_full:
            self._in_reserve = not self.shared.crowd.admit(self, self.shared.open, self._made_at)

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._drop_calls()
        self.shared.remove(self)

    def eof_received(self) -> None:
        # The transport closes when this returns; no client of gRPC closes one half and waits.
        self._over = True
        self._drop_calls()

    def pause_writing(self) -> None:
        self.writing_paused = True
        self._regulate()

    def resume_writing(self) -> None:
        self.writing_paused = False
        self._regulate()
        self._pump()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame_place is not None:
            return self._frame_place[self._frame_filled :]
        if self._unread:  # reading is paused, but what was on its way may still come
            return self.shared.receive_buffer[:RECEIVE_BYTES]
        self._place = self._direct_place()
        if self._place is not None:
            return self._place
        buffer, rest = self.shared.receive_buffer, self._rest
        begin = len(rest)
        buffer[:begin] = rest
        return buffer[begin : begin + RECEIVE_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self._read_bytes += nbytes
        if self._over:
            return
        if self._unread:
            self._unread += self.shared.receive_buffer[:nbytes]
        elif self._place is not None:
            self._while_reading(self._placed, nbytes)
        elif self._frame_place is not None:
            self._while_reading(self._frame_grows, nbytes)
        else:
            data = self.shared.receive_buffer[: len(self._rest) + nbytes]
            self._while_reading(self._read_all, data)

    def _while_reading(self, read: Callable[[T], None], what: T) -> None:
        self._reading = True
        self._work = 0
        self._share = self.shared.share
        try:
            read(what)
        except ConnectionFault as fault:
            self._fail(fault.code, str(fault))
        except Exception as error:  # noqa: BLE001 - a bug of ours must not leave clients waiting
            self.report("reading failed", error)
            self._fail(frames.INTERNAL_ERROR, "the server failed to read this")
        self._reading = False
        self.shared.spend(self._work)
        if self._held:
            self._release()
        if self._writers:
            self._pump()

    # Frames in

    def _read_all(self, data: memoryview) -> None:
        used = self._read(data)
        if self._work < self._share or used == len(data):
            self._rest = bytes(data[used:])
            return
        self._rest = b""
        self._unread = bytes(data[used:])
        self.shared.behind += 1
        self._regulate()
        asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        """Read what had to wait for this turn."""
        self.shared.behind -= 1
        unread, self._unread = self._unread, b""
        if not self._over:
            self._while_reading(self._read_all, memoryview(unread))
        self._regulate()

    def _regulate(self) -> None:
        """Read no more while the client does not take what it is sent, or has sent too much."""
        if self._transport.is_closing():
            return
        # Stop reading from a client that does not read its answers: acknowledgements of pings
        # and settings would take memory without bound, too.
        if self.writing_paused or self._unread:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

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
        while not self._over and self._work < self._share:
            self._work += 1
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
                content, padding = length, 0
                if flags & frames.PADDED:
                    if length and begin == end:
                        break
                    padding = data[begin] if length else 0
                    content -= 1 + padding
                    begin += 1
                self._begin_data(stream_id, flags, length, content, padding)
            elif kind > frames.CONTINUATION:  # of some extension: skipped
                self._make_noise()
                self._data_left = length
            elif begin + length > end:
                self._await_frame(data[position:], frames.HEAD_BYTES + length)
                return end
            else:
                self._frame(kind, flags, stream_id, bytes(data[begin : begin + length]))
                begin += length
            position = begin
        return position

    def _await_frame(self, begin: memoryview, length: int) -> None:
        """Collect a frame that must be whole: the next reads go behind `begin`."""
        self._frame_filled = len(begin)
        self._frame_place = np.empty(length, np.uint8).data
        self._frame_place[: len(begin)] = begin

    def _frame_grows(self, nbytes: int) -> None:
        self._frame_filled += nbytes
        place = self._frame_place
        if place is not None and self._frame_filled == len(place):
            self._frame_place = None
            self._read(place)

    def _check_frame(self, kind: int, flags: int, length: int) -> None:
        whole = frames.HEADERS <= kind <= frames.CONTINUATION  # these are read in one piece
        if length > FRAME_BYTES or (whole and length > self._max_header_bytes):
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
        if not self._settled:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._settled = True
        if self._block is not None and kind != frames.CONTINUATION:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a header block that does not go on")

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        try:
            if kind == frames.HEADERS:
                self._headers_frame(flags, stream_id, payload)
            elif kind == frames.WINDOW_UPDATE:
                self._window_update(stream_id, frames.number(payload, "WINDOW_UPDATE"))
            elif kind == frames.RST_STREAM:
                self._reset_by_client(stream_id, frames.number(payload, "RST_STREAM"))
            elif kind == frames.CONTINUATION:
                self._continuation(flags, stream_id, payload)
            else:
                self._make_noise()
                self._rare_frame(kind, flags, stream_id, payload)
        except StreamFault as fault:
            self._reset(stream_id, fault.code)

    def _rare_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if (kind == frames.PRIORITY) == (stream_id == 0):
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"frame type {kind} on this stream")
        if kind == frames.SETTINGS:
            self._settings(flags, payload)
        elif kind == frames.PING:
            if len(payload) != 8:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "PING of other than 8 bytes")
            if not flags & frames.ACK:
                self.write(frames.frame(frames.PING, frames.ACK, 0, payload))
            elif payload == _SHUTDOWN_PING and self._asked_to_leave and not self._refusing:
                self._refuse_calls()
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "clients do not push")
        elif kind == frames.PRIORITY and len(payload) != 5:
            raise StreamFault(frames.FRAME_SIZE_ERROR, "PRIORITY of other than 5 bytes")

    def _make_noise(self, frames_worth: int = 1) -> None:
        self._noise += frames_worth
        if self._noise > MAX_NOISE:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "too many frames that move no call")

    def _settings(self, flags: int, payload: bytes) -> None:
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "SETTINGS ACK with settings")
            return
        self._make_noise(len(self.calls))  # for this is what it costs
        for name, value in frames.read_settings(payload).items():
            if name == frames.INITIAL_WINDOW_SIZE:
                change, self._initial_window = value - self._initial_window, value
                for call in self.calls.values():
                    call.send_window += change
                    if call.send_window > frames.MAX_WINDOW:
                        raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "a window overflows")
                    self._wake(call)
            elif name == frames.MAX_FRAME_SIZE:
                self._max_frame_bytes = min(value, WRITE_BYTES)
            elif name == frames.HEADER_TABLE_SIZE:
                self._table_update = b"\x20"  # we use none: say so, as RFC 7541, 4.2 has it
        self.write(frames.frame(frames.SETTINGS, frames.ACK, 0, b""))

    def _window_update(self, stream_id: int, increment: int) -> None:
        if stream_id == 0:
            self._send_window = frames.widened(self._send_window, increment, ConnectionFault)
        elif (call := self.calls.get(stream_id)) is not None:
            call.send_window = frames.widened(call.send_window, increment, StreamFault)
            self._wake(call)
        else:
            self._check_known(stream_id)

    def _reset_by_client(self, stream_id: int, code: int) -> None:
        self._check_known(stream_id)
        call = self.calls.get(stream_id)
        if call is not None:
            call.half_closed = True  # nothing more comes of it
            self._drop(call)
            self._count_reset()

    def _check_known(self, stream_id: int) -> None:
        if not stream_id & 1 or stream_id > self._last_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"stream {stream_id} has not begun")

    def _count_reset(self, resets: int = 1) -> None:
        self._resets += resets
        if self._resets > MAX_RESETS:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "too many calls that come to nothing")

    # Heads of calls

    def _headers_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "HEADERS on no stream of a client")
        if flags & (frames.PADDED | frames.WITH_PRIORITY):
            payload = frames.header_fragment(flags, payload)
        if flags & frames.END_HEADERS:
            self._header_block(flags, stream_id, payload)
        else:
            self._block = (flags, stream_id, bytearray(payload))

    def _continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None or self._block[1] != stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "CONTINUATION of nothing")
        first_flags, _, block = self._block
        block += payload
        if len(block) > self._max_header_bytes:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "a header block without end")
        if flags & frames.END_HEADERS:
            self._block = None
            self._header_block(first_flags, stream_id, bytes(block))
        elif not payload:
            self._make_noise()

    def _header_block(self, flags: int, stream_id: int, block: bytes) -> None:
        ends = flags & frames.END_STREAM
        if stream_id <= self._last_id:
            self._late_block(stream_id, bool(ends), block)
            return
        self._last_id = stream_id
        try:
            head = self._head(block)
            if self._refusing:
                self._cut_off(stream_id)
                return  # the client knows, or will in a moment
            if len(self.calls) >= MAX_CALLS:
                raise StreamFault(frames.REFUSED_STREAM, "too many calls at once")
            if self._unsent > FREE_BYTES and self.shared.holdings.unsent.is_full(self):
                raise self._owed_too_much()
            self._served_id = stream_id
            self._open(stream_id, head)
        except (heads.Refusal, TooManyHeaders) as error:
            self._work += CALL_WORK
            refusal = self._too_many(error) if isinstance(error, TooManyHeaders) else error
            # Without a reset, at which some clients forget that there was an answer: what is still
            # to come of the request fits into its window, and is skipped.
            self.write(self.header_frames(stream_id, frames.END_STREAM, refusal.block))
            self._cut_off(stream_id)
            self._count_reset()
        if ends and (call := self.calls.get(stream_id)) is not None:
            call.half_close()

    def _too_many(self, error: TooManyHeaders) -> heads.Refusal:
        text = f"metadata of {error.size} bytes, of at most {self._max_header_bytes}"
        return heads.refusal("RESOURCE_EXHAUSTED", text)

    def _owed_too_much(self) -> heads.Refusal:
        text = (
            f"{self._unsent} bytes of answers wait on this connection for their client to take"
            " them; read those first, or raise max_connection_unsent_bytes"
        )
        return heads.refusal("RESOURCE_EXHAUSTED", text)

    def _late_block(self, stream_id: int, ends: bool, block: bytes) -> None:
        """Trailers, which no client of gRPC has reason to send: only decoded."""
        try:
            self._make_noise(len(self._decoded(block)))
        except TooManyHeaders as error:
            raise StreamFault(frames.ENHANCE_YOUR_CALM, str(error)) from None
        call = self.calls.get(stream_id)
        if call is None:
            if stream_id not in self._cut:
                raise ConnectionFault(frames.STREAM_CLOSED, "HEADERS on a closed stream")
        elif call.half_closed:
            raise StreamFault(frames.STREAM_CLOSED, "HEADERS behind the end of the stream")
        elif not ends:
            raise StreamFault(frames.PROTOCOL_ERROR, "a second head")
        else:
            call.half_close()

    def _decoded(self, block: bytes) -> list[tuple[bytes, bytes]]:
        version = self._headers.version
        try:
            headers = self._headers.decode(block, self._max_header_bytes)
            self._work += len(headers) // HEADERS_A_FRAME
            return headers
        except HeaderBomb as error:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, str(error)) from None
        except HpackError as error:
            raise ConnectionFault(frames.COMPRESSION_ERROR, str(error)) from None
        finally:
            if version != self._headers.version:
                self._forget_heads()

    def _head(self, block: bytes) -> heads.Head:
        """Clients say the same again and again: what has been read is remembered."""
        head = self._heads.get(block)
        if head is None:
            version = self._headers.version
            headers = self._decoded(block)
            head = heads.Head(headers)
            if version == self._headers.version:
                self._remember(block, head, header_bytes(headers))
        return head

    def _remember(self, block: bytes, head: heads.Head, size: int) -> None:
        if self._heads_bytes + size > REMEMBERED_BYTES:
            self._forget_heads()
        if size <= REMEMBERED_BYTES:
            self._heads[block] = head
            self._heads_bytes += size

    def _forget_heads(self) -> None:
        self._heads.clear()
        self._heads_bytes = 0

    def _open(self, stream_id: int, head: heads.Head) -> None:
        shared = self.shared
        method = shared.application.methods.get(head.path)
        if method is None:
            raise heads.refusal("UNIMPLEMENTED", "Method not found!")
        if self._in_reserve and head.path not in shared.application.vital and shared.is_full:
            raise self._no_room()
        coding = shared.coding
        if coding != "identity":
            coding = head.best_coding(coding)
        call = self.calls[stream_id] = Call(
            self, stream_id, head, method, send_window=self._initial_window, coding=coding
        )
        if head.timeout is not None:
            call.deadline = shared.clock() + head.timeout
        if method.takes_stream:
            self.begin(call)

    def _no_room(self) -> heads.Refusal:
        text = (
            f"the server has its limit of {self.shared.limits.max_connections} connections, and"
            " none of them is idle; retry later, or raise max_connections"
        )
        return heads.refusal("UNAVAILABLE", text)

    def begin(self, call: Call) -> None:
        """The application's turn."""
        shared = self.shared
        shared.calls += 1
        self._work += CALL_WORK
        call.begun_at = shared.clock()
        if call.deadline is not None:
            call.timeout = call.deadline - call.begun_at
        if call.counted:
            self.recount(call)
        try:
            shared.application(call)
        except Exception as error:  # noqa: BLE001 - a bug of ours must not leave a client waiting
            self.report("the application failed", error)
            call.fail("INTERNAL", "internal error; the server's log has it")

    # Their messages

    def _begin_data(
        self, stream_id: int, flags: int, length: int, content: int, padding: int
    ) -> None:
        self._check_known(stream_id)
        if content < 0:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "DATA with more padding than it is long")
        call = self.calls.get(stream_id)
        if call is not None:
            call.receive_window -= length
            if call.half_closed:
                self._reset(stream_id, frames.STREAM_CLOSED)
            elif call.receive_window < 0:
                self._reset(stream_id, frames.FLOW_CONTROL_ERROR)
            call = self.calls.get(stream_id)
        elif stream_id not in self._cut:
            raise ConnectionFault(frames.STREAM_CLOSED, "DATA on a closed stream")
        self._data_call, self._data_id = call, stream_id
        self._data_left, self._padding_left = content, padding
        self._data_ends = bool(flags & frames.END_STREAM)
        if length != content:
            self._credit(length - content)
        if not content:
            if not self._data_ends:
                self._make_noise()
            if not padding:
                self._end_data()

    def _take_data(self, data: memoryview) -> int:
        """What there is of a frame's content and padding; returns how much that was."""
        taken = min(self._data_left, len(data))
        if taken:
            self._data_left -= taken
            call = self._data_call
            if call is not None:
                call.feed(data[:taken])
            self._account(taken)
        if self._data_left:
            return taken
        skipped = min(self._padding_left, len(data) - taken)
        self._padding_left -= skipped
        if not self._padding_left:
            self._end_data()
        return taken + skipped

    def _direct_place(self) -> memoryview | None:
        """Where in a message the next bytes belong, if they are many."""
        if self._data_left < RECEIVE_BYTES or self._data_call is None:
            return None
        place = self._data_call.place()
        if place is None or len(place) < RECEIVE_BYTES:
            return None
        return place[: self._data_left]

    def _placed(self, nbytes: int) -> None:
        assert self._data_call is not None
        self._data_left -= nbytes
        self._data_call.placed(nbytes)
        self._account(nbytes)
        if not self._data_left and not self._padding_left:
            self._end_data()

    def _account(self, nbytes: int) -> None:
        if self._data_id:
            self._credit(nbytes)
        call = self._data_call
        if call is not None:
            call.grant()
            if not self._data_ends or self._data_left:  # else the application gets it at once
                self.recount(call)

    def recount(self, call: Call) -> None:
        """Count anew what `call` holds of what its client has sent."""
        held = call.held
        change = held - call.counted
        if not change:
            return
        call.counted = held
        before, self._received = self._received, self._received + change
        if before > FREE_BYTES or self._received > FREE_BYTES:
            self.shared.note_received(self, self._received)
            if change > 0 and self.shared.holdings.received.is_full(self):
                call.refuse(
                    "RESOURCE_EXHAUSTED",
                    f"{self._received} bytes of messages wait on this connection to be whole, or"
                    " to be read; send fewer at a time, or raise max_connection_received_bytes",
                )

    def _end_data(self) -> None:
        stream_id, self._data_id, self._data_call = self._data_id, 0, None
        call = self.calls.get(stream_id)
        if call is not None and self._data_ends:
            call.half_close()

    def _credit(self, nbytes: int) -> None:
        """So many bytes of DATA are done with: others may come.

        What a call does not read on for is held back by its own window: calls never wait for each
        other here, and a client cannot have more on its way than this window.
        """
        self._to_credit += nbytes
        if self._to_credit >= CONNECTION_WINDOW // 2:
            self.write(frames.window_update(0, self._to_credit))
            self._to_credit = 0

    # Answers out

    def room(self, call: Call) -> int:
        """How much of an answer may be written at once."""
        if self.writing_paused or self._table_update:
            return 0
        return min(self._send_window, call.send_window, self._max_frame_bytes)

    def sent(self, nbytes: int) -> None:
        self._send_window -= nbytes

    def waits(self, nbytes: int) -> None:
        """More of answers waits for the client, or (below 0) less."""
        before, self._unsent = self._unsent, self._unsent + nbytes
        if before > FREE_BYTES or self._unsent > FREE_BYTES:
            self.shared.note_unsent(self, self._unsent)

    def want_to_write(self, call: Call) -> None:
        self._writers[call] = None
        self._pump()

    def _wake(self, call: Call) -> None:
        if call.has_more:
            self._writers[call] = None

    def _pump(self) -> None:
        """Write what the client's windows and the transport take; calls take turns."""
        if self._pumping or self._reading:
            return
        self._pumping = True
        writers = self._writers
        try:
            while writers and self._send_window > 0 and not self.writing_paused and not self._over:
                call = next(iter(writers))
                del writers[call]
                most = min(self._send_window, call.send_window, self._max_frame_bytes)
                if most > 0:  # else it comes back with its window
                    call.write_some(most)
                    self._wake(call)
        finally:
            self._pumping = False

    def write(self, data: bytes) -> None:
        if self._over:
            return
        self._written_bytes += len(data)
        if not self._reading:
            self._transport.write(data)
            return
        # Many small frames that we answer cost one system call together.
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= WRITE_BYTES:
            self._release()

    def _release(self) -> None:
        """Write what was held while the client's frames were read."""
        data = b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        self._transport.write(data)

    def write_buffers(self, buffers: Sequence[Buffer]) -> None:
        if not self._over:
            self._written_bytes += sum(map(len, buffers))
            self._write_gathered(buffers)

    def header_frames(self, stream_id: int, flags: int, block: bytes) -> bytes:
        block, self._table_update = self._table_update + block, b""
        return frames.header_frames(stream_id, flags, block, self._max_frame_bytes)

    # The end of calls

    def over(self, call: Call) -> None:
        """Its last byte is written, or will never be."""
        if self.calls.pop(call.id, None) is None:
            return
        self._writers.pop(call, None)
        if call.counted:
            self.recount(call)
        if not call.half_closed:
            self._cut_off(call.id)
        if call.begun_at is not None:
            self.shared.calls -= 1
            if self.shared.ended is not None:
                self.shared.ended(self, call)
        if self._refusing and not self.calls:
            self._close()

    def _drop(self, call: Call) -> None:
        call.drop()
        self.over(call)

    def _drop_calls(self) -> None:
        for call in tuple(self.calls.values()):
            self._drop(call)

    def _reset(self, stream_id: int, code: int) -> None:
        """End a stream that went wrong."""
        self.write(frames.reset(stream_id, code))
        call = self.calls.get(stream_id)
        if call is None:
            self._cut_off(stream_id)
        else:
            self._drop(call)
        # A client may open too many calls before it has heard of the limit.
        self._count_reset(1 if code == frames.REFUSED_STREAM else RESETS_OF_A_FAULT)

    def _cut_off(self, stream_id: int) -> None:
        """The client may not know yet that this stream is closed."""
        self._cut[stream_id] = None
        if len(self._cut) > MAX_CALLS:
            del self._cut[next(iter(self._cut))]

    # The end of the connection

    def drain(self) -> None:
        """Finish the calls that have begun, and those that are on their way; then close.

        The client is told twice: first that it should open no more calls, and, when it has heard
        that, which one was the last. So none is lost.
        """
        if not self._over and not self._asked_to_leave:
            self._asked_to_leave = True
            self._told_since = self.shared.clock()
            self.write(frames.goaway(frames.MAX_STREAM_ID, frames.NO_ERROR, "the server stops"))
            self.write(frames.frame(frames.PING, 0, 0, _SHUTDOWN_PING))

    @property
    def owes(self) -> bool:
        return bool(self.calls) or self._transport.get_write_buffer_size() > 0

    def end(self) -> None:
        if not self._over and not self._refusing:
            self._asked_to_leave = True
            self._refuse_calls()

    def _refuse_calls(self) -> None:
        self._refusing = True
        self.write(frames.goaway(self._served_id, frames.NO_ERROR))
        if not self.calls:
            self._close()

    def _fail(self, code: int, text: str) -> None:
        self.write(frames.goaway(self._served_id, code, text))
        self._close()
        self._drop_calls()

    def _close(self) -> None:
        if self._over:
            return
        self._over = True
        self._told_since = self.shared.clock()
        if self._held:
            self._release()
        # Closing on unread bytes resets the connection, and the client may lose our last words.
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    @property
    def idle_since(self) -> float | None:
        """When a sweep last saw a new call; None if something is asked, owed or half read."""
        half_read = self._unread or self._rest or self._frame_place or self._block
        busy = self._over or self.owes or half_read or self._data_left
        return None if busy else self._called_at

    def make_room(self) -> bool:
        """Close now, if this is idle and no call has come in the last moment."""
        makes_room = self.idle_since is not None and not has_unread(self._transport)
        if makes_room:
            self.write(frames.goaway(self._served_id, frames.NO_ERROR, "others need the room"))
            self._over = True
            self._transport.close()
        return makes_room

    def abort(self) -> None:
        self._transport.abort()

    def report(self, message: str, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"gRPC connection from {self.peer}: {message}", "exception": error}
        )

    # Time limits

    def check(self, now: float) -> None:
        """Act if the client has let us wait too long without any progress."""
        self._resets = self._noise = 0
        if self._last_id != self._seen_id:
            self._seen_id, self._called_at = self._last_id, now
        for call in tuple(self.calls.values()):
            call.expire(now, self.shared.limits.body_timeout)
        unsent = self._transport.get_write_buffer_size()
        progress = self._written_bytes - unsent + (0 if self._over else self._read_bytes)
        if progress > self._progress:
            self._progress, self._quiet_since, self._pinged = progress, now, False
        quiet = now - self._quiet_since
        half = self._block or self._frame_place
        if half is None or half is not self._half:
            self._half, self._half_since = half, now
        never_ends = half and now - self._half_since >= self.shared.limits.header_timeout
        never_began = not self._settled and now - self._made_at >= self.shared.limits.header_timeout
        if self._over:
            patience = self.shared.limits.write_timeout if unsent else LINGER
            if min(quiet, now - self._told_since) >= patience:
                self.abort()
        elif self._asked_to_leave and not self._refusing and now - self._told_since >= LAST_CALL:
            self._refuse_calls()
        elif never_began or never_ends or quiet >= KEEPALIVE_TIME + KEEPALIVE_TIMEOUT:
            self.abort()
        elif quiet >= KEEPALIVE_TIME and not self._pinged:
            self._pinged = True
            self._transport.write(_KEEPALIVE_PING)  # uncounted: it is no progress of the client's


def _peer(address: object) -> str:
    """As gRPC writes addresses."""
    if not isinstance(address, tuple):
        return str(address or "unix:")
    host, port = address[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
