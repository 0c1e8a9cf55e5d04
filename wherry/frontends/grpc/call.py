"""How does one call run on its stream of an HTTP/2 connection?

`Call` is the transport's Rpc: it makes messages of the stream's bytes, and of the application's
answer what the client's window and the connection take at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from wherry.frontends.grpc import frames, heads
from wherry.frontends.grpc.messages import PREFIX, Assembly, BadMessage, Message, packed, unpacked
from wherry.frontends.grpc.proto import Method
from wherry.frontends.grpc.rpc import Metadata, Rpc
from wherry.frontends.offload import LARGE_BYTES, Job, SoonPort
from wherry.values.buffer import Buffer
from wherry.values.errors import ServerBusy

if TYPE_CHECKING:
    from wherry.frontends.grpc.h2 import Connection

STREAM_WINDOW: Final = 2**20
"""What a client may send of one call unasked. A message that has begun may always be finished."""

CALL_WORK: Final = 32
"""Frames that cost as much as a call, or a message of a stream, does. A connection may
begin one in each turn of the loop, whatever the others have done in it."""

UNPACKED_A_FRAME: Final = 2**12
"""Unpacked bytes that count for one frame."""

PACKED_BYTES: Final = 2**13
"""The longest compressed message, in bytes, that is unpacked in the loop, if it is no more than
`LARGE_BYTES` then."""

MESSAGE_BYTES: Final = 128
"""What a message that waits costs besides its own bytes."""

JOINED_BYTES: Final = frames.DEFAULT_FRAME_BYTES
"""Up to here, copying a message into one piece costs less than sending two."""

_HEADS: Final = {coding: heads.answer_head(coding) for coding in heads.CODINGS}
_OK: Final = heads.trailers("OK")


class Call(Rpc):
    """One call of one method, from its head to its last byte."""

    __slots__ = (
        "_assembly", "_coding", "_connection", "_end_waits", "_has_message", "_headed", "_heard",
        "_queue", "_trailers", "_unpacking", "_waiting", "_waiting_bytes", "begun_at", "coding",
        "counted", "deadline", "half_closed", "id", "method", "paused", "receive_window",
        "send_window", "status",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        stream_id: int,
        head: heads.Head,
        method: Method,
        *,
        send_window: int,
        coding: str,
    ) -> None:
        self.path = head.path
        self.metadata = head.metadata
        self.caller = ""
        self.timeout = head.timeout
        self.message = b""
        self.ended = False
        self.on_message = self.on_half_close = self.on_leave = None
        self.id = stream_id
        self.method = method
        #: How the call has ended; who leaves has not waited for that.
        self.status = "CANCELLED"
        #: When the application got it, and when it must be over; by the loop's clock.
        self.begun_at: float | None = None
        self.deadline: float | None = None
        self._connection = connection

        # In
        self.coding = head.coding
        self.half_closed = False
        self.receive_window = STREAM_WINDOW
        self.paused = False
        self._assembly: Assembly | None = None
        self._has_message = False
        self._waiting: deque[Message] = deque()
        self._waiting_bytes = 0
        #: What the connection believes to be `held`.
        self.counted = 0
        #: How much that was when a sweep last saw a change, and when that was.
        self._heard: tuple[int, float] | None = None
        self._end_waits = False
        self._unpacking: Job | None = None  # of the first that waits

        # Out
        self.send_window = send_window
        self._coding = coding
        self._headed = False
        self._queue: deque[tuple[memoryview, Callable[[], None] | None]] = deque()
        self._trailers: bytes | None = None

    # From the client

    def feed(self, data: memoryview) -> None:
        """The next bytes of the stream."""
        if self.ended:
            return  # but not all of it is sent
        if self._assembly is None:
            if self._is_all(data):
                return
            self._assembly = Assembly(self._connection.max_message_bytes)
        self._take(self._assembly.feed(data))

    def _is_all(self, data: memoryview) -> bool:
        """The way of nearly all requests: one message in one frame."""
        if len(data) < PREFIX.size or self._has_message or self.method.takes_stream:
            return False
        flag, length = PREFIX.unpack_from(data)
        if flag or length != len(data) - PREFIX.size or length > self._connection.max_message_bytes:
            return False
        self.message = bytes(data[PREFIX.size :])
        self._has_message = True
        return True

    def place(self) -> memoryview | None:
        """Where the next bytes may be put straight away (then say so: `placed`)."""
        return None if self._assembly is None or self.ended else self._assembly.place()

    def placed(self, count: int) -> None:
        if self._assembly is not None and not self.ended:
            self._take(self._assembly.placed(count))

    def _take(self, messages: Iterator[Message]) -> None:
        try:
            shared = self._connection.shared
            most = shared.share // CALL_WORK
            for count, message in enumerate(messages):
                if self.paused or self._waiting:
                    self._wait(message)
                elif count >= most or (message[0] and shared.is_spent):
                    self._wait(message)
                    self._catch_up_soon()
                else:
                    self._hand_on(*message)
        except BadMessage as error:
            self._refuse(error)

    def _wait(self, message: Message) -> None:
        self._waiting.append(message)
        self._waiting_bytes += len(message[1]) + MESSAGE_BYTES

    @property
    def held(self) -> int:
        """Bytes of messages that the application has not got."""
        if self.ended:
            return 0
        held = self._waiting_bytes
        if self._assembly is not None:
            held += self._assembly.filled
        if self.begun_at is None:
            held += len(self.message)
        return held

    def _hand_on(self, compressed: bool, message: Buffer) -> None:
        """To the application; if it is to be unpacked beside the loop, it waits for that, first."""
        if compressed:
            small = self._unpacked_here(message)
            if small is None:
                self._unpack_beside(message)
                return
            message = small
        if self.method.takes_stream:
            self._connection.shared.spend(CALL_WORK)
            self.tell(self.on_message, message)
        elif self._has_message:
            raise BadMessage("UNIMPLEMENTED", "a second message for a method that takes one")
        else:
            self.message = message
            self._has_message = True

    def _unpacked_here(self, message: Buffer) -> Buffer | None:
        """The unpacked message, if it is short enough to be unpacked in the loop; else None."""
        if len(message) > PACKED_BYTES:
            return None
        most = self._connection.max_message_bytes
        spent = LARGE_BYTES
        try:
            whole = unpacked(message, self.coding, min(most, LARGE_BYTES))
            spent = len(whole)
            return whole
        except BadMessage as error:
            if error.code != "RESOURCE_EXHAUSTED" or most <= LARGE_BYTES:
                raise
            return None
        finally:
            self._connection.shared.spend(spent // UNPACKED_A_FRAME)

    def _unpack_beside(self, message: Buffer) -> None:
        connection = self._connection
        work = partial(unpacked, message, self.coding, connection.max_message_bytes)
        size = max(len(message), LARGE_BYTES)  # also a small one may be much, once it is inflated
        port = SoonPort(asyncio.get_running_loop())
        try:
            job = connection.shared.offload.submit(work, size, port, self._unpacked)
        except ServerBusy as error:
            raise BadMessage("UNAVAILABLE", str(error)) from None
        self._unpacking = job
        self._waiting.appendleft((True, message))
        self._waiting_bytes += len(message) + MESSAGE_BYTES

    def _unpacked(self, outcome: Buffer | Exception) -> None:
        """Take the outcome of unpacking the first message that waits."""
        self._unpacking = None
        if isinstance(outcome, BadMessage):
            self._refuse(outcome)
        elif isinstance(outcome, Exception):
            self._connection.report("unpacking a message failed", outcome)
            self.refuse("INTERNAL", "internal error; the server's log has it")
        else:
            self._waiting_bytes += len(outcome) - len(self._waiting[0][1])
            self._waiting[0] = False, outcome
            self._connection.recount(self)
            if not self.ended:
                self._catch_up_soon()

    def half_close(self) -> None:
        """The client's stream has ended."""
        self.half_closed = True
        if self.ended:
            return
        if self._assembly is not None and not self._assembly.between:
            self._refuse(BadMessage("INTERNAL", "the client's stream ends within a message"))
        elif self._waiting and not self.paused:
            self._end_waits = True
        elif not self.method.takes_stream:
            if self._has_message:
                self._connection.begin(self)
            else:
                self._refuse(BadMessage("UNIMPLEMENTED", "no message for a method that takes one"))
        elif self.paused or self._waiting:
            self._end_waits = True
        else:
            self.tell(self.on_half_close)

    def grant(self) -> None:
        """Let the client send on."""
        if self.half_closed or self.ended or self.paused or self._waiting:
            return
        wanted = STREAM_WINDOW
        if self._assembly is not None:
            wanted = max(wanted, self._assembly.missing)
        if self.receive_window < wanted // 2:
            self._connection.write(frames.window_update(self.id, wanted - self.receive_window))
            self.receive_window = wanted

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self._catch_up_soon()  # whoever resumes is in the middle of something

    def _catch_up_soon(self) -> None:
        self._connection.shared.behind += 1
        asyncio.get_running_loop().call_soon(self._catch_up)

    def _catch_up(self) -> None:
        """Hand on what came while the call was paused, or too much at once."""
        shared = self._connection.shared
        shared.behind -= 1
        if self._unpacking is not None:
            return
        try:
            for _ in range(min(shared.share // CALL_WORK, len(self._waiting))):
                if self.paused or self.ended or (self._waiting[0][0] and shared.is_spent):
                    break
                message = self._waiting.popleft()
                self._waiting_bytes -= len(message[1]) + MESSAGE_BYTES
                self._hand_on(*message)
                if self._unpacking is not None:
                    break
        except BadMessage as error:
            self._refuse(error)
        if self.counted:
            self._connection.recount(self)
        if self.paused or self.ended or self._unpacking is not None:
            return
        if self._waiting:
            self._catch_up_soon()
            return
        self.grant()
        if self._end_waits:
            self._end_waits = False
            self.half_close()

    def _refuse(self, error: BadMessage) -> None:
        self.refuse(error.code, str(error))

    def refuse(self, code: str, text: str) -> None:
        """The client's stream cannot be read: its call ends, and so does what it has begun."""
        if not self.ended:
            self.tell(self.on_leave)
            self.fail(code, text)

    def expire(self, now: float, patience: float) -> None:
        """End the call if its deadline has passed: the client may not be there to do that. And if
        nothing of its one message has come for `patience` seconds."""
        if self.deadline is not None and now >= self.deadline:
            self.refuse("DEADLINE_EXCEEDED", "the call's deadline has passed")
        elif self.begun_at is None and not self.ended and self._unpacking is None:
            if self._heard is None or self._heard[0] != self.held:
                self._heard = self.held, now
            elif now - self._heard[1] >= patience:
                text = f"nothing of the call's message arrived for {patience} s"
                self.refuse("CANCELLED", text)

    # To the client

    def respond(self, message: Buffer) -> None:
        if self.ended:
            return
        prefix, payload = packed(message, self._coding)
        size = len(prefix) + len(payload)
        if size > self._connection.room(self):
            self._send(prefix, payload, None)
            self.finish()
            return
        block, stream_id = _HEADS[self._coding], self.id
        pieces = (
            frames.head(len(block), frames.HEADERS, frames.END_HEADERS, stream_id), block,
            frames.head(size, frames.DATA, 0, stream_id), prefix, payload,
            frames.head(
                len(_OK), frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream_id
            ), _OK,
        )  # fmt: skip
        self._connection.write(b"".join(pieces))
        self._connection.sent(size)
        self.ended = True
        self.status = "OK"
        self._connection.over(self)
        self.forget()

    def send(self, message: Buffer, sent: Callable[[], None] | None = None) -> None:
        if not self.ended:
            self._send(*packed(message, self._coding), sent)

    def _send(self, prefix: bytes, payload: Buffer, sent: Callable[[], None] | None) -> None:
        connection = self._connection
        if not self._headed:
            self._headed = True
            connection.write(connection.header_frames(self.id, 0, _HEADS[self._coding]))
        if len(payload) <= JOINED_BYTES:
            self._queue.append((memoryview(b"".join((prefix, payload))), sent))
        else:
            self._queue.append((memoryview(prefix), None))
            self._queue.append((memoryview(payload), sent))
        connection.waits(len(prefix) + len(payload))
        connection.want_to_write(self)

    def finish(self) -> None:
        if not self.ended:
            self._end("OK", _OK)

    def fail(self, code: str, text: str, metadata: Metadata = ()) -> None:
        if not self.ended:
            self._end(code, heads.trailers(code, text, metadata))

    def _end(self, status: str, block: bytes) -> None:
        self.ended = True
        self.status = status
        self._trailers = block
        self._forget_messages()
        if not self._queue:
            self._write_end()
        self.forget()

    def _forget_messages(self) -> None:
        self._assembly = None
        if self._unpacking is not None:
            self._unpacking.cancel()
            self._unpacking = None
        self._waiting.clear()
        self.message = b""
        if self.counted:
            self._connection.recount(self)

    def _write_end(self) -> None:
        assert self._trailers is not None
        block = self._trailers if self._headed else heads.trailers_only(self._trailers)
        data = self._connection.header_frames(self.id, frames.END_STREAM, block)
        if not self.half_closed:
            data += frames.reset(self.id, frames.NO_ERROR)  # nobody reads what is still to come
        self._connection.write(data)
        self._connection.over(self)

    @property
    def has_more(self) -> bool:
        """Whether messages wait for the client's window."""
        return bool(self._queue)

    def write_some(self, most: int) -> None:
        """One DATA frame of what waits; the call's end behind the last."""
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
        pieces[0] = frames.head(size, frames.DATA, 0, self.id)
        self.send_window -= size
        self._connection.write_buffers(pieces)
        self._connection.sent(size)
        self._connection.waits(-size)
        if self._trailers is not None and not queue:
            self._write_end()
        for sent in taken:
            self.tell(sent)

    def drop(self) -> None:
        """The stream is gone: nothing more of it goes out or comes in."""
        if self._queue:
            self._connection.waits(-sum(len(buffer) for buffer, _ in self._queue))
            self._queue.clear()
        self.leave()
        self._forget_messages()
