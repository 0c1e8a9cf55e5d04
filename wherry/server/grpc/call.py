"""How does one call run on its stream of an HTTP/2 connection?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from wherry.core.api import Buffer
from wherry.server.connections.held import HeldBytes
from wherry.server.grpc import frames, heads
from wherry.server.grpc.messages import OK, PREFIX, ResponseMessages
from wherry.server.grpc.proto import Method
from wherry.server.grpc.request_messages import MessageReading, RequestMessages
from wherry.server.grpc.rpc import SOON, Metadata, Rpc
from wherry.server.grpc.sender import FrameSender
from wherry.server.grpc.work import CALL_WORK

STREAM_WINDOW: Final = 2**20
"""Flow-control window of a stream in bytes. It is widened for a message that is longer."""
NOT_TAKEN: Final = (
    "{} bytes of answers wait on this connection, and its client has taken none of them: this one"
    " is not kept; read those first, or raise max_connection_unsent_bytes"
)
SPARE_WINDOW: Final = 2**10
"""Bytes of window beside what a message lacks: padding needs some, up to the stream's end."""


class CallOwner(Protocol):
    """The streams of one connection, as one of its calls sees them."""

    reading: MessageReading
    sender: FrameSender
    #: Bytes of messages, of all calls together, that the application has not got.
    received: HeldBytes
    #: Calls that got a part of a message in this turn: `note_fed` follows at its end.
    fed: set[Call]

    def begin(self, call: Call) -> None: ...

    def over(self, call: Call) -> None:
        """Forget the call: its last byte is written, or will never be."""

    def stream_fault(self, stream_id: int, code: int) -> None: ...


class Call(Rpc):
    """One call of one method on one stream, from its request headers to its trailers.

    `RequestMessages` and `ResponseMessages` are its two directions. A request that comes in one
    frame, as most do, needs no `RequestMessages`.
    """

    __slots__ = (
        "_coding", "_owner", "_request", "begun_at", "deadline", "half_closed", "id", "method",
        "receive_window", "response", "status",
    )  # fmt: skip

    def __init__(
        self, owner: CallOwner, stream_id: int, head: heads.Head, method: Method, coding: str
    ) -> None:
        """`coding` compresses the response; that of the request is in `head`."""
        self.path = head.path
        self.metadata = head.metadata
        self.caller = ""
        self.timeout = head.timeout
        self.message = b""
        self.ended = False
        self.on_message = self.on_half_close = self.on_leave = None
        self.id = stream_id
        self.method = method
        #: Final status; CANCELLED unless the call ends otherwise.
        self.status = "CANCELLED"
        #: When the application got the call, and its deadline; by the listener's clock.
        self.begun_at: float | None = None
        self.deadline: float | None = None
        self._owner = owner

        # From the client
        self.half_closed = False
        self.receive_window = STREAM_WINDOW
        self._coding = head.coding
        self._request: RequestMessages | None = None
        if head.content_length is not None:
            self._messages().to_come = head.content_length

        # To the client
        self.response = ResponseMessages(stream_id, owner.sender, coding)

    # From the client

    def feed(self, data: memoryview, ends: bool) -> None:
        request = self._request
        if request is not None:
            if request.to_come is not None and not self._agrees(request, len(data), ends):
                return
        else:
            if ends and not self.ended and not self.method.takes_stream:
                size = len(data) - PREFIX.size
                if (
                    0 <= size <= self._owner.reading.max_bytes
                    and PREFIX.unpack_from(data) == (0, size)  # a whole message, not compressed
                ):
                    self.message = bytes(data[PREFIX.size :])
                    self.half_closed = True
                    self._owner.begin(self)
                    return
            if self.ended:  # it may have ended with messages still to send
                self.half_closed = self.half_closed or ends
                return
            request = self._messages()
        if ends:
            request.feed(data)
            self.half_close()
            return
        if not request.assembly.fill(data):
            request.feed(data)
        self._owner.fed.add(self)

    def _agrees(self, request: RequestMessages, count: int, ends: bool) -> bool:
        """Whether `count` more bytes agree with content-length. If not, the stream is reset: a
        proxy in between may have seen another end of it (RFC 9113, 8.1.1)."""
        assert request.to_come is not None
        request.to_come -= count
        if request.to_come < 0 or (ends and request.to_come):
            self._owner.stream_fault(self.id, frames.PROTOCOL_ERROR)
            return False
        return True

    def _messages(self) -> RequestMessages:
        if self._request is None:
            owner = self._owner
            self._request = RequestMessages(
                self, self._coding, owner.reading, owner.received, one=not self.method.takes_stream
            )
        return self._request

    def place(self) -> memoryview | None:
        """Return room for the next bytes of a message; call `placed` with their number."""
        return None if self._request is None or self.ended else self._request.assembly.place()

    def placed(self, count: int, ends: bool) -> None:
        request = self._request
        if request is not None and not self.ended:
            if request.to_come is not None and not self._agrees(request, count, ends):
                return
            request.placed(count)
        if ends:
            self.half_close()
        else:
            self._owner.fed.add(self)

    def note_fed(self) -> None:
        """Let the client send on, and count what is held, at the end of a turn in which some of
        the stream has come."""
        if self._request is not None and not self.half_closed:
            self.grant()
            self._request.recount()

    def half_close(self) -> None:
        """Take the end of the client's side of the stream (END_STREAM)."""
        self.half_closed = True
        if self.ended:
            return
        request = self._messages()
        if request.to_come is None or self._agrees(request, 0, ends=True):
            request.end()

    def grant(self) -> None:
        """Widen the window of the stream when it runs low, unless messages wait."""
        if self.half_closed or self.ended:
            return
        missing = 0
        if self._request is not None:
            if self._request.must_wait:
                return
            missing = self._request.assembly.missing + SPARE_WINDOW
        window = max(STREAM_WINDOW, missing)
        least = window // 2 if self.method.takes_stream else min(window // 2, missing)
        if self.receive_window < least:
            increment = window - self.receive_window
            self._owner.sender.write(frames.window_update(self.id, increment))
            self.receive_window = window

    def take_message(self, message: Buffer) -> None:
        """Give a message to the application, or keep it until the call begins."""
        if self.method.takes_stream:
            self._owner.reading.turns.spend(CALL_WORK)
            self.call_back(self.on_message, message)
        else:
            self.message = message

    def take_end(self) -> None:
        if self.method.takes_stream:
            self.call_back(self.on_half_close)
        else:
            self._owner.begin(self)

    def pause(self) -> None:
        if not self.ended:
            self._messages().pause()

    def resume(self) -> None:
        if self._request is not None:
            self._request.resume()

    def refuse(self, code: str, text: str, metadata: Metadata = ()) -> None:
        """Fail the call and cancel the application's work for it: its stream is read no further."""
        if not self.ended:
            self.call_back(self.on_leave)
            self.fail(code, text, metadata)

    def expire(self, now: float, timeout: float) -> None:
        """End the call if its deadline has passed, or if no byte of its one message has come for
        `timeout` seconds."""
        if self.deadline is not None and now >= self.deadline:
            self.refuse("DEADLINE_EXCEEDED", "the call's deadline has passed")
        elif self.begun_at is None and not self.ended and self._messages().is_stuck(now, timeout):
            self.refuse("CANCELLED", f"nothing of the call's message arrived for {timeout} s")

    # To the client

    def respond(self, *message: Buffer) -> None:
        if self.ended:
            return
        if (unsent := self._owner.sender.unsent).is_stuck:
            self.fail("RESOURCE_EXHAUSTED", NOT_TAKEN.format(unsent.count), SOON)
            return
        self.status = "OK"
        self.forget()
        if self.metadata.trailers is not None:
            self.response.send(message, None)
            self.response.end(self._ok(), self._over)
        elif self.response.respond(message, self._over):
            self._owner.over(self)

    def send(self, *message: Buffer, sent: Callable[[], None] | None = None) -> None:
        if self.ended:
            return
        if self.takes_nothing:  # in the next turn: not while the application sends
            loop = asyncio.get_running_loop()
            loop.call_soon(self._owner.stream_fault, self.id, frames.ENHANCE_YOUR_CALM)
        else:
            self.response.send(message, sent and partial(self.call_back, sent))

    @property
    def takes_nothing(self) -> bool:
        return self._owner.sender.unsent.is_stuck

    def finish(self) -> None:
        if not self.ended:
            self._end("OK", self._ok())

    def _ok(self) -> bytes:
        more = self.metadata.trailers
        return OK if more is None else heads.trailers("OK", metadata=more())

    def fail(self, code: str, text: str, metadata: Metadata = ()) -> None:
        if not self.ended:
            if (more := self.metadata.trailers) is not None:
                metadata = (*metadata, *more())
            self._end(code, heads.trailers(code, text, metadata))

    def _end(self, status: str, trailers: bytes) -> None:
        self.status = status
        self.forget()
        self.response.end(trailers, self._over)

    def _over(self) -> None:
        if not self.half_closed:  # the rest of the request is not needed
            self._owner.sender.write(frames.reset(self.id, frames.NO_ERROR))
        self._owner.over(self)

    def drop(self) -> None:
        self.response.drop()
        self.leave()

    def forget(self) -> None:
        self.ended = True
        self.on_message = self.on_half_close = self.on_leave = None
        self.message = b""
        request, self._request = self._request, None
        if request is not None:
            request.cancel()
