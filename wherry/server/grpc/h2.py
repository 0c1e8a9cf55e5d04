"""How does one connection of HTTP/2 run on the event loop? (RFC 9113, as far as gRPC uses it.)

`Connection` is the asyncio protocol of one connection: it moves bytes between the transport and its
parts, and enforces its time limits. `Connections` is what those of one listener share. No task,
future or timer belongs to a call.

The way of a request: `FrameReader` (bytes to frames), `Streams` (frames to calls), `Call`,
`RequestMessages`; the way of its answer: `ResponseMessages`, `FrameSender` (flow control).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Final, cast

from wherry.server.calls.offload import Offload
from wherry.server.connections.held import HeldBytes, Holdings, KeptBuffers
from wherry.server.connections.limits import Limits
from wherry.server.connections.open_connections import Admitted, OpenConnection, OpenConnections
from wherry.server.connections.sockets import address_text, has_unread
from wherry.server.grpc import frames, heads
from wherry.server.grpc.call import STREAM_WINDOW, Call
from wherry.server.grpc.frame_reader import FRAME_BYTES, FrameReader, receive_buffer
from wherry.server.grpc.frames import LINGER, ConnectionFault, GracefulShutdown, ShutdownPhase
from wherry.server.grpc.request_messages import MessageReading
from wherry.server.grpc.rpc import SOON, Application, report
from wherry.server.grpc.sender import FrameSender
from wherry.server.grpc.streams import CONNECTION_WINDOW, Serving, Streams
from wherry.server.grpc.work import MAX_CALLS, ClientWork, TurnBudget

KEEPALIVE_TIME: Final = 60.0
"""Seconds without progress after which the client is sent a PING."""
KEEPALIVE_TIMEOUT: Final = 20.0
"""Seconds the client then has to answer."""


class TimeoutAction(Enum):
    NONE = auto()
    PING = auto()
    ABORT = auto()


class ConnectionTimeouts:
    """Decides what must be done about a connection, from what each sweep sees of it.

    `header_timeout` bounds what must be read whole: the preface with the first SETTINGS, a frame,
    a header block.
    """

    __slots__ = (
        "_header_timeout", "_pinged", "_progress", "_quiet_since", "_unfinished",
        "_unfinished_since",
    )  # fmt: skip

    def __init__(self, header_timeout: float, unfinished: object, now: float) -> None:
        self._header_timeout = header_timeout
        self._progress = 0
        self._quiet_since = now
        self._pinged = False
        self._unfinished = unfinished
        self._unfinished_since = now

    def quiet(self, now: float) -> float:
        """Seconds without progress."""
        return now - self._quiet_since

    def see(self, progress: int, unfinished: object, now: float) -> None:
        """Note the bytes moved since the connection began, and the object, if any, that stands for
        what was begun and is not whole."""
        if progress > self._progress:
            self._progress, self._quiet_since, self._pinged = progress, now, False
        if unfinished is not self._unfinished:
            self._unfinished, self._unfinished_since = unfinished, now

    def action(self, now: float) -> TimeoutAction:
        """What must be done now. PING comes once for each silence."""
        quiet = self.quiet(now)
        if quiet >= KEEPALIVE_TIME + KEEPALIVE_TIMEOUT:
            return TimeoutAction.ABORT
        if self._unfinished is not None and now - self._unfinished_since >= self._header_timeout:
            return TimeoutAction.ABORT
        if quiet >= KEEPALIVE_TIME and not self._pinged:
            self._pinged = True
            return TimeoutAction.PING
        return TimeoutAction.NONE


#: Seconds that a client has for its first calls before the GOAWAY of a server that stops.
SETTLED: Final = 0.1
_KEEPALIVE_PING: Final = frames.frame(frames.PING, 0, 0, b"keepaliv")


class Connections(OpenConnections["Connection"]):
    """All open connections of one listener, and what they share.

    `clock` may be a test's own. `ended` gets each call that was begun, with its client's address.
    """

    def __init__(
        self,
        application: Application,
        limits: Limits,
        *,
        coding: str = "identity",
        ended: Callable[[str, Call], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        holdings: Holdings[OpenConnection] | None = None,
        offload: Offload | None = None,
    ) -> None:
        super().__init__(clock, limits, holdings)
        self.turns = TurnBudget()
        reading = MessageReading(
            limits.max_body_bytes, self.turns, offload or Offload(), KeptBuffers()
        )
        self.serving = Serving(application, coding, clock, reading, ended)
        self.receive_buffer = receive_buffer()

    def sweep(self) -> None:
        super().sweep()
        self.serving.reading.buffers.trim()

    def remove(self, connection: Connection) -> None:
        super().remove(connection)
        if not self.open:  # and no sweep comes
            self.serving.reading.buffers = KeptBuffers()


class Connection(asyncio.BufferedProtocol):
    """One client's connection. Its parts are made when it has its transport."""

    streams: Streams
    _transport: asyncio.Transport
    _sender: FrameSender
    _reader: FrameReader
    _timeouts: ConnectionTimeouts

    def __init__(self, shared: Connections) -> None:
        self._shared = shared
        self._work = ClientWork(shared.turns)
        self._shutdown = GracefulShutdown(shared.clock())
        self._read_bytes = 0
        self._peer = ""

    def __repr__(self) -> str:
        return f"<Connection from {self._peer}: {len(self.streams.by_id)} calls>"

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._make_parts(cast(asyncio.Transport, transport))
        shared = self._shared
        admitted = shared.admit(self, transport)
        self._sender.write(
            frames.settings({
                frames.MAX_CONCURRENT_STREAMS: MAX_CALLS,
                frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                frames.MAX_FRAME_SIZE: FRAME_BYTES,
                frames.MAX_HEADER_LIST_SIZE: shared.limits.max_header_bytes,
            })
            + frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW)
        )  # fmt: skip
        if admitted is Admitted.NOTHING:
            self._fail(frames.ENHANCE_YOUR_CALM, "too many connections; raise the limit of files")
            transport.close()
            return
        if admitted is Admitted.HEALTH:
            self.streams.check_path = self._only_vital
        if shared.draining:
            self.drain()

    def _make_parts(self, transport: asyncio.Transport) -> None:
        shared, limits = self._shared, self._shared.limits
        self._peer = _peer(transport.get_extra_info("peername"))
        self._transport = transport
        self._sender = FrameSender(transport, HeldBytes(partial(shared.note_unsent, self)))
        self.streams = Streams(
            shared.serving,
            self._peer,
            self._work,
            self._sender,
            received=HeldBytes(partial(shared.note_received, self)),
            shutdown=self._shutdown,
            max_header_bytes=limits.max_header_bytes,
        )
        self._reader = FrameReader(
            self.streams, self._work, shared.receive_buffer, limits.max_header_bytes
        )
        self._timeouts = ConnectionTimeouts(
            limits.header_timeout, self._reader.unfinished, shared.clock()
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose_client()
        self._shared.remove(self)
        # Cut the cycles: else the garbage collector would have to find them.
        self._sender.unsent.close()
        self.streams.received.close()
        self.streams.check_path = None

    def eof_received(self) -> None:
        # The transport closes when this returns; no client of gRPC closes one half and waits.
        self._lose_client()

    def _lose_client(self) -> None:
        self._sender.closed = True
        self.streams.drop_all()

    def pause_writing(self) -> None:
        self._sender.paused = True
        self._sender.note_buffered()
        self._regulate()

    def resume_writing(self) -> None:
        self._sender.paused = False
        self._sender.note_buffered()
        self._regulate()
        self._sender.pump()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._read_bytes += nbytes
        if self._reader.unread:
            self._reader.received(nbytes)
        elif not self._sender.closed:
            self._read(nbytes)

    def _read(self, nbytes: int | None) -> None:
        """Read what the loop has received, or (None) what had to wait for this turn."""
        reader, sender, work = self._reader, self._sender, self._work
        work.begin_turn()
        sender.corked = True
        try:
            if nbytes is None:
                reader.read_on()
            else:
                reader.received(nbytes)
            if self.streams.fed:
                self.streams.end_turn()
        except ConnectionFault as fault:
            self._fail(fault.code, str(fault))
        except Exception as error:  # noqa: BLE001 - a bug must not leave clients waiting
            report(f"reading from {self!r} failed", error)
            self._fail(frames.INTERNAL_ERROR, "the server failed to read this")
        self._shared.turns.spend(work.done)
        sender.uncork()
        if reader.unread:
            self._shared.turns.later(self._read_on)
            self._regulate()

    def _read_on(self) -> None:
        self._read(None)
        self._regulate()

    def _regulate(self) -> None:
        """Stop reading from a client that does not read its answers, or has sent too much.

        Else acknowledgements of pings and settings would take memory without bound, too.
        """
        if self._transport.is_closing():
            return
        if self._sender.paused or self._reader.unread:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # Its end

    def drain(self) -> None:
        """Finish the calls that have begun, and those that are on their way; then close.

        A new connection gets its GOAWAY later: gRPC's C core, if a GOAWAY comes together with the
        first SETTINGS, goes on to begin calls on a closed connection for ever.
        """
        young = SETTLED - (self._shared.clock() - self._shutdown.since)
        if young > 0 and self._shutdown.phase is ShutdownPhase.SERVING:
            asyncio.get_running_loop().call_later(young, self.drain)
            return
        if self._sender.closed:
            return
        if announcement := self._shutdown.announce(self._shared.clock()):
            self._sender.write(announcement)

    def end(self) -> None:
        self.streams.refuse_more()

    def abort(self) -> None:
        self._transport.abort()

    def _fail(self, code: int, text: str) -> None:
        self.streams.go_away(code, text)
        self.streams.close()
        self.streams.drop_all()

    # Called by the listener

    @property
    def owes(self) -> bool:
        return bool(self.streams.by_id) or self._sender.buffered > 0

    @property
    def idle_since(self) -> float | None:
        """When the last call was begun; None if a call is open, owed or half read."""
        is_busy = self._sender.closed or self.owes or not self._reader.is_between
        return None if is_busy else self.streams.begun_at

    def make_room(self) -> bool:
        if self.idle_since is None or has_unread(self._transport):
            return False
        self.streams.go_away(frames.NO_ERROR, "others need the room")
        self._sender.closed = True
        self._transport.close()
        return True

    def _only_vital(self, path: str) -> None:
        """Refuse calls but those about health, as long as there are too many connections."""
        shared = self._shared
        too_many = len(shared.open) > shared.limits.max_connections
        if too_many and path not in shared.serving.application.vital:
            raise heads.refusal("UNAVAILABLE", shared.too_many_text, SOON)

    def check(self, now: float) -> None:
        limits, sender = self._shared.limits, self._sender
        sender.note_buffered()
        if self._shared.draining:
            self.drain()
        self._work.sweep()
        self.streams.expire(now, limits.body_timeout)
        unsent = sender.buffered
        progress = sender.written - unsent + (0 if sender.closed else self._read_bytes)
        self._timeouts.see(progress, self._reader.unfinished, now)
        if sender.closed:
            timeout = limits.write_timeout if unsent else LINGER
            if min(self._timeouts.quiet(now), now - self._shutdown.since) >= timeout:
                self.abort()
        elif self._shutdown.is_overdue(now):
            self.streams.refuse_more()
        else:
            action = self._timeouts.action(now)
            if action is TimeoutAction.ABORT:
                self.abort()
            elif action is TimeoutAction.PING:
                self._transport.write(_KEEPALIVE_PING)  # past the sender: it is no progress


def _peer(address: object) -> str:
    """The client's address as gRPC writes it."""
    if not isinstance(address, tuple):
        return str(address or "unix:")
    return f"ipv{6 if ':' in address[0] else 4}:{address_text(address)}"
