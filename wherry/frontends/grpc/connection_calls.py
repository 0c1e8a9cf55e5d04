"""Which calls are open on one connection, and how do they and it end?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from wherry.frontends.grpc import frames, heads
from wherry.frontends.grpc.call import Call
from wherry.frontends.grpc.frame_writer import FrameWriter
from wherry.frontends.grpc.held_bytes import HeldBytes
from wherry.frontends.grpc.request_messages import MessageReading
from wherry.frontends.grpc.response_sender import ResponseSender
from wherry.frontends.grpc.rpc import Application
from wherry.frontends.grpc.shutdown import GracefulShutdown
from wherry.frontends.grpc.stream_ids import StreamIds
from wherry.frontends.grpc.turn_budget import CALL_WORK, ReadTurn


@dataclass(slots=True)
class Serving:
    """What the calls of all connections of one listener share."""

    application: Application
    #: What answers are compressed by, for clients that take it.
    coding: str
    clock: Callable[[], float]
    reading: MessageReading
    #: Told of each call that has ended and the application had, with the client's address.
    ended: Callable[[str, Call], None] | None = None
    #: How many calls the application has.
    calls: int = 0


class ConnectionCalls:
    """Opens and ends the calls of one connection: their CallOwner."""

    __slots__ = (
        "_peer", "_serving", "_turn", "begun_at", "by_id", "door", "ids", "reading", "received",
        "sender", "shutdown", "writer",
    )  # fmt: skip

    def __init__(
        self,
        serving: Serving,
        peer: str,
        turn: ReadTurn,
        *,
        writer: FrameWriter,
        sender: ResponseSender,
        received: HeldBytes,
        shutdown: GracefulShutdown,
    ) -> None:
        self._serving = serving
        self._peer = peer
        self._turn = turn
        self.writer = writer
        self.shutdown = shutdown
        self.reading = serving.reading
        self.sender = sender
        self.received = received
        self.ids = StreamIds()
        self.by_id: dict[int, Call] = {}
        #: Raises heads.Refusal for paths that are not served on this connection.
        self.door: Callable[[str], None] | None = None
        #: When the application was last given a call.
        self.begun_at = serving.clock()

    def __repr__(self) -> str:
        return f"<ConnectionCalls from {self._peer}: {len(self.by_id)} open>"

    def open(self, stream_id: int, head: heads.Head) -> None:
        """Open a call. heads.Refusal if there is no such method, or not on this connection."""
        serving = self._serving
        method = serving.application.methods.get(head.path)
        if method is None:
            raise heads.refusal("UNIMPLEMENTED", "Method not found!")
        if self.door is not None:
            self.door(head.path)
        coding = serving.coding
        if coding != "identity":
            coding = head.best_coding(coding)
        call = self.by_id[stream_id] = Call(self, stream_id, head, method, coding)
        if head.timeout is not None:
            call.deadline = serving.clock() + head.timeout
        if method.takes_stream:
            self.begin(call)

    def begin(self, call: Call) -> None:
        serving = self._serving
        serving.calls += 1
        self._turn.work += CALL_WORK
        self.begun_at = call.begun_at = serving.clock()
        if call.deadline is not None:
            call.timeout = call.deadline - call.begun_at
        try:
            serving.application(call)
        except Exception as error:  # noqa: BLE001 - a bug must not leave a client waiting
            self.report("the application failed", error)
            call.fail("INTERNAL", "internal error; the server's log has it")

    def over(self, call: Call) -> None:
        if self.by_id.pop(call.id, None) is None:
            return
        if not call.half_closed:
            self.ids.cut_off(call.id)
        if call.begun_at is not None:
            self._serving.calls -= 1
            if self._serving.ended is not None:
                self._serving.ended(self._peer, call)
        if not self.by_id and self.shutdown.is_refusing:
            self.close()

    def report(self, message: str, error: BaseException) -> None:
        """Have a bug logged."""
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"gRPC connection from {self._peer}: {message}", "exception": error}
        )

    def expire(self, now: float, body_timeout: float) -> None:
        """End the calls whose client has taken too long."""
        for call in tuple(self.by_id.values()):
            call.expire(now, body_timeout)

    def drop_all(self) -> None:
        """End all calls: the client is gone, or is to go."""
        for call in tuple(self.by_id.values()):
            self.drop(call)

    def drop(self, call: Call) -> None:
        """End a call whose stream is gone."""
        call.drop()
        self.over(call)

    # The end

    def refuse_more(self) -> None:
        """Serve the calls that have begun, and close behind the last of them."""
        if last := self.shutdown.refuse(self.ids.served):
            self.sender.write(last)
        if not self.by_id:
            self.close()

    def pong(self, payload: bytes) -> None:
        """Go on with a shutdown that waits for this answer to its PING."""
        if self.shutdown.is_acknowledged(payload):
            self.refuse_more()

    def go_away(self, code: int, text: str) -> None:
        """Tell the client why the connection ends now."""
        self.sender.write(frames.goaway(self.ids.served, code, text))

    def close(self) -> None:
        """Write nothing more, and read nothing."""
        if not self.writer.closed:
            self.shutdown.close(self._serving.clock())
            self.writer.finish()
