"""What do the frames of one connection do to its streams and their calls?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from wherry.server.connections.held import HeldBytes
from wherry.server.grpc import frames, heads
from wherry.server.grpc.call import Call
from wherry.server.grpc.frames import ConnectionFault, GracefulShutdown, StreamFault
from wherry.server.grpc.hpack import TooManyHeaders
from wherry.server.grpc.request_messages import MessageReading
from wherry.server.grpc.rpc import SOON, Application, report
from wherry.server.grpc.sender import FrameSender
from wherry.server.grpc.work import CALL_WORK, MAX_CALLS, RESETS_OF_A_FAULT, ClientWork

CONNECTION_WINDOW: Final = 2**24
"""Bytes of DATA that may be on their way to the server, of all calls together."""

MAX_CUT: Final = 1024
"""Streams that are remembered as cut off; the oldest are forgotten first."""


@dataclass(slots=True)
class Serving:
    """What the calls of all connections of one listener share."""

    application: Application
    #: What answers are compressed by, for clients that take it.
    coding: str
    clock: Callable[[], float]
    reading: MessageReading
    #: Called for each call that the application got, when it has ended, with the client's address.
    ended: Callable[[str, Call], None] | None = None
    calls: int = 0


class StreamIds:
    """Remembers the last stream that the client has begun, and those that the server ended first.

    Frames of those may still come, until the client learns of it; frames of other streams
    that are not open are faults.
    """

    __slots__ = ("_cut", "last", "served")

    def __init__(self) -> None:
        self.last = 0
        #: The last that was served, as GOAWAY names it.
        self.served = 0
        self._cut: dict[int, None] = {}

    def check_known(self, stream_id: int, what: str) -> None:
        """Check a frame `what` on a stream that is not open. ConnectionFault if the client has not
        begun it, or has ended it."""
        self.check_begun(stream_id)
        if stream_id not in self._cut:
            raise ConnectionFault(frames.STREAM_CLOSED, f"{what} on a closed stream")

    def check_begun(self, stream_id: int) -> None:
        """ConnectionFault if the client has not begun this stream."""
        if not stream_id & 1 or stream_id > self.last:
            raise ConnectionFault(frames.PROTOCOL_ERROR, f"stream {stream_id} has not begun")

    def cut_off(self, stream_id: int) -> None:
        """Remember that the server has ended a stream before its client."""
        self._cut[stream_id] = None
        if len(self._cut) > MAX_CUT:
            del self._cut[next(iter(self._cut))]


class Streams:
    """Opens and ends the streams of one connection, and gives each call what its frames bring.

    Every method for a frame may raise ConnectionFault, which ends the connection; those for whole
    frames of a stream may raise StreamFault, which resets the stream (`stream_fault`).
    """

    __slots__ = (
        "_heads", "_ids", "_peer", "_serving", "_shutdown", "_to_credit", "_work", "begun_at",
        "by_id", "check_path", "fed", "reading", "received", "sender",
    )  # fmt: skip

    def __init__(
        self,
        serving: Serving,
        peer: str,
        work: ClientWork,
        sender: FrameSender,
        *,
        received: HeldBytes,
        shutdown: GracefulShutdown,
        max_header_bytes: int,
    ) -> None:
        self._serving = serving
        self._peer = peer
        self._work = work
        self._shutdown = shutdown
        self._heads = heads.HeadReader(work, max_header_bytes)
        self._ids = StreamIds()
        self._to_credit = 0  # bytes of DATA since the connection's last WINDOW_UPDATE
        self.by_id: dict[int, Call] = {}
        self.fed: set[Call] = set()
        self.sender = sender
        self.reading = serving.reading
        self.received = received
        #: Raises heads.Refusal for paths that are not served on this connection.
        self.check_path: Callable[[str], None] | None = None
        #: When the application last got a call.
        self.begun_at = serving.clock()

    # HEADERS

    def header_block(self, stream_id: int, ends: bool, block: bytes) -> None:
        """Take HEADERS with all its CONTINUATIONs. `ends`: the client's side of the stream ends."""
        if stream_id <= self._ids.last:
            self._late_block(stream_id, ends, block)
            return
        self._ids.last = stream_id
        try:
            head = self._heads.remembered.get(block) or self._heads.head(block)
            if self._shutdown.is_refusing:
                self._ids.cut_off(stream_id)
                return  # the client knows, or will in a moment
            self._open(stream_id, head)
        except heads.Refusal as refusal:
            self._refuse(stream_id, refusal)
        except TooManyHeaders as error:
            text = f"metadata of {error.size} bytes, of at most {self._heads.max_bytes}"
            self._refuse(stream_id, heads.refusal("RESOURCE_EXHAUSTED", text))
        if ends and (call := self.by_id.get(stream_id)) is not None:
            call.half_close()

    def _open(self, stream_id: int, head: heads.Head) -> None:
        """Open a call. heads.Refusal if its method is unknown, or not served on this connection."""
        serving, unsent = self._serving, self.sender.unsent
        if len(self.by_id) >= MAX_CALLS:
            raise StreamFault(frames.REFUSED_STREAM, "too many calls at once")
        if unsent.is_full:
            raise heads.refusal(
                "RESOURCE_EXHAUSTED",
                f"{unsent.count} bytes of answers wait on this connection for their client to take"
                " them; read those first, or raise max_connection_unsent_bytes",
                SOON,
            )
        self._ids.served = stream_id
        method = serving.application.methods.get(head.path)
        if method is None:
            raise heads.refusal("UNIMPLEMENTED", "Method not found!")
        if self.check_path is not None:
            self.check_path(head.path)
        coding = serving.coding
        if coding != "identity":
            coding = head.best_coding(coding)
        call = self.by_id[stream_id] = Call(self, stream_id, head, method, coding)
        if head.timeout is not None:
            call.deadline = serving.clock() + head.timeout
        if method.takes_stream:
            self.begin(call)

    def _refuse(self, stream_id: int, refusal: heads.Refusal) -> None:
        self._work.done += CALL_WORK
        # Without a reset, at which some clients forget that there was an answer: what is still to
        # come of the request fits into its window, and is skipped.
        self.sender.write_headers(stream_id, frames.END_STREAM, refusal.block)
        self._ids.cut_off(stream_id)
        self._work.note_reset()

    def _late_block(self, stream_id: int, ends: bool, block: bytes) -> None:
        """Read trailers, which gRPC clients do not send: decoded for the table of HPACK alone."""
        try:
            headers = self._heads.headers(block)
        except TooManyHeaders as error:
            raise StreamFault(frames.ENHANCE_YOUR_CALM, str(error)) from None
        self._work.note_noise(len(headers))
        call = self.by_id.get(stream_id)
        if call is None:
            self._ids.check_known(stream_id, "HEADERS")
        elif call.half_closed:
            raise StreamFault(frames.STREAM_CLOSED, "HEADERS behind the end of the stream")
        elif not ends or any(name[:1] == b":" for name, _ in headers):
            raise StreamFault(frames.PROTOCOL_ERROR, "a second head")
        else:
            call.half_close()

    # DATA

    def begin_data(self, stream_id: int, length: int) -> Call | None:
        """Begin a DATA frame of `length` bytes, padding included.

        Returns the call that takes its content; None: it is dropped.
        """
        self._to_credit += length
        if self._to_credit >= CONNECTION_WINDOW // 2:
            self._credit()
        call = self.by_id.get(stream_id)
        if call is None:
            self._ids.check_known(stream_id, "DATA")
            return None
        call.receive_window -= length
        if call.half_closed:
            self.stream_fault(stream_id, frames.STREAM_CLOSED)
            return None
        if call.receive_window < 0:
            self.stream_fault(stream_id, frames.FLOW_CONTROL_ERROR)
            return None
        return call

    def end_turn(self) -> None:
        for call in self.fed:
            call.note_fed()
        self.fed.clear()

    def _credit(self) -> None:
        """Let the client send as much DATA as was read.

        What a call does not read is held back by its own window, so no call waits for another.
        """
        self.sender.write(frames.window_update(0, self._to_credit))
        self._to_credit = 0

    # Other frames

    def window_update(self, stream_id: int, increment: int) -> None:
        if stream_id == 0:
            self.sender.widen(increment)
        elif (call := self.by_id.get(stream_id)) is not None:
            response = call.response
            response.window = frames.widened(response.window, increment, StreamFault)
            self.sender.wake(response)
        else:
            self._ids.check_begun(stream_id)

    def reset_by_client(self, stream_id: int) -> None:
        self._ids.check_begun(stream_id)
        call = self.by_id.get(stream_id)
        if call is not None:
            call.half_closed = True  # nothing more comes of it
            self._drop(call)
            self._work.note_reset()

    def settings(self, values: dict[int, int]) -> None:
        self._work.note_noise(len(self.by_id))  # for this is what it costs
        self.sender.apply(values, [call.response for call in self.by_id.values()])
        self.sender.write(frames.frame(frames.SETTINGS, frames.ACK, 0, b""))

    def ping(self, payload: bytes) -> None:
        self.sender.write(frames.frame(frames.PING, frames.ACK, 0, payload))

    def pong(self, payload: bytes) -> None:
        if self._shutdown.is_acknowledged(payload):
            self.refuse_more()

    def stream_fault(self, stream_id: int, code: int) -> None:
        self.sender.write(frames.reset(stream_id, code))
        call = self.by_id.get(stream_id)
        if call is None:
            self._ids.cut_off(stream_id)
        else:
            self._drop(call)
        # A client may open too many calls before it knows the limit.
        self._work.note_reset(1 if code == frames.REFUSED_STREAM else RESETS_OF_A_FAULT)

    # Calls

    def begin(self, call: Call) -> None:
        serving = self._serving
        serving.calls += 1
        self._work.done += CALL_WORK
        self.begun_at = call.begun_at = serving.clock()
        if call.deadline is not None:
            call.timeout = call.deadline - call.begun_at
        try:
            serving.application(call)
        except Exception as error:  # noqa: BLE001 - a bug must not leave a client waiting
            report(f"the application failed in {call!r}", error)
            call.fail("INTERNAL", "internal error; the server's log has it")

    def over(self, call: Call) -> None:
        if self.by_id.pop(call.id, None) is None:
            return
        if not call.half_closed:
            self._ids.cut_off(call.id)
        if call.begun_at is not None:
            self._serving.calls -= 1
            if self._serving.ended is not None:
                self._serving.ended(self._peer, call)
        if not self.by_id and self._shutdown.is_refusing:
            self.close()

    def expire(self, now: float, body_timeout: float) -> None:
        for call in tuple(self.by_id.values()):
            call.expire(now, body_timeout)

    def drop_all(self) -> None:
        """End all calls without writing a frame: the connection is closed, or will be."""
        for call in tuple(self.by_id.values()):
            self._drop(call)

    def _drop(self, call: Call) -> None:
        call.drop()
        self.over(call)

    # The end of the connection

    def refuse_more(self) -> None:
        """Serve the calls that have begun, and close behind the last of them."""
        if goaway := self._shutdown.refuse(self._ids.served):
            self.sender.write(goaway)
        if not self.by_id:
            self.close()

    def go_away(self, code: int, text: str) -> None:
        self.sender.write(frames.goaway(self._ids.served, code, text))

    def close(self) -> None:
        if not self.sender.closed:
            self._shutdown.close(self._serving.clock())
            self.sender.finish()
