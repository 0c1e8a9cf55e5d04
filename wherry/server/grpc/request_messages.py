"""How do the bytes of a client's stream become messages that the application gets in order?"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from wherry.core.api import Buffer, ServerBusy
from wherry.server.calls.offload import LARGE_BYTES, Job, Offload, SoonPort
from wherry.server.connections.held import HeldBytes, KeptBuffers
from wherry.server.grpc.messages import Assembly, BadMessage, Message, unpacked
from wherry.server.grpc.rpc import SOON, Metadata, report
from wherry.server.grpc.work import CALL_WORK, UNPACKED_A_FRAME, TurnBudget

PACKED_BYTES: Final = 2**13
"""The longest compressed message that is unpacked on the event loop, in bytes; and at most to
`LARGE_BYTES`."""

MESSAGE_BYTES: Final = 128
"""Bytes that a waiting message counts for besides its content."""


@dataclass(slots=True)
class MessageReading:
    """What all calls of one listener read their messages with."""

    #: The largest message that is taken, unpacked or not.
    max_bytes: int
    turns: TurnBudget
    offload: Offload
    buffers: KeptBuffers


class MessageReceiver(Protocol):
    """The call that gets the messages."""

    ended: bool

    def take_message(self, message: Buffer) -> None: ...

    def take_end(self) -> None: ...

    def grant(self) -> None: ...

    def refuse(self, code: str, text: str, metadata: Metadata = ()) -> None:
        """Fail the call: its stream is read no further."""


class RequestMessages:
    """Assembles the messages of one call and gives them to it in order.

    They wait while the application has paused the stream, while one before them is unpacked in
    another thread, and when this turn of the loop has had its share of work. A method that takes
    `one` message gets it when the client's stream has ended. What waits is counted by `received`.
    """

    __slots__ = (
        "_call", "_coding", "_counted", "_end_waits", "_kept", "_last_progress", "_one", "_paused",
        "_reading", "_received", "_unpacking", "_waiting", "_waiting_bytes", "assembly", "to_come",
    )  # fmt: skip

    def __init__(
        self,
        call: MessageReceiver,
        coding: str,
        reading: MessageReading,
        received: HeldBytes,
        *,
        one: bool,
    ) -> None:
        self._call = call
        self._coding = coding
        self._reading = reading
        self._received = received
        self._counted = 0  # what `received` has of `held`
        #: `held`, and when a sweep first saw it.
        self._last_progress: tuple[int, float] | None = None
        self._one = one
        self._kept: Buffer | None = None  # the one
        self.assembly = Assembly(reading.max_bytes, reading.buffers)
        #: Bytes that are still to come by the content-length; None: the client sent none.
        self.to_come: int | None = None
        self._paused = False
        self._waiting: deque[Message] = deque()
        self._waiting_bytes = 0
        self._unpacking: Job | None = None  # of the first that waits
        self._end_waits = False

    @property
    def held(self) -> int:
        """Bytes of messages that the application has not got."""
        kept = 0 if self._kept is None else len(self._kept)
        return self._waiting_bytes + self.assembly.filled + kept

    @property
    def must_wait(self) -> bool:
        """Whether the client should send no more for now."""
        return self._paused or bool(self._waiting)

    def feed(self, data: memoryview) -> None:
        self._take(self.assembly.feed(data))

    def placed(self, count: int) -> None:
        self._take(self.assembly.placed(count))

    def end(self) -> None:
        if not self.assembly.between:
            self._call.refuse("INTERNAL", "the client's stream ends within a message")
        elif self.must_wait:
            self._end_waits = True
        else:
            self._end()

    def _end(self) -> None:
        if self._one:
            message, self._kept = self._kept, None
            if message is None:
                text = "no message for a method that takes one"
                self._call.refuse("UNIMPLEMENTED", text)
                return
            self.recount()
            self._call.take_message(message)
        self._call.take_end()

    def recount(self) -> None:
        """Count anew what is held. Refuses the call if its connection holds too much then."""
        change = self.held - self._counted
        if not change or self._call.ended:
            return
        self._counted += change
        received = self._received
        received.add(change)
        if change > 0 and received.is_full:
            self._call.refuse(
                "RESOURCE_EXHAUSTED",
                f"{received.count} bytes of messages wait on this connection to be whole, or to be"
                " read; send fewer at a time, or raise max_connection_received_bytes",
                SOON,
            )

    def is_stuck(self, now: float, timeout: float) -> bool:
        """Whether no byte has come for `timeout` seconds, as calls of this method see it."""
        if self._unpacking is not None:
            return False
        if self._last_progress is None or self._last_progress[0] != self.held:
            self._last_progress = self.held, now
        return now - self._last_progress[1] >= timeout

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._catch_up_soon()  # not at once: the application is in the middle of something

    def cancel(self) -> None:
        if self._unpacking is not None:
            self._unpacking.cancel()
            self._unpacking = None
        self._waiting.clear()
        self._received.add(-self._counted)
        self._counted = 0

    def _take(self, messages: Iterator[Message]) -> None:
        turns = self._reading.turns
        most = turns.share // CALL_WORK
        try:
            for count, message in enumerate(messages):
                if self.must_wait:
                    self._wait(message)
                elif count >= most or (message[0] and turns.is_spent):
                    self._wait(message)
                    self._catch_up_soon()
                else:
                    self._hand_on(*message)
        except BadMessage as error:
            self._call.refuse(error.code, str(error), error.metadata)

    def _wait(self, message: Message) -> None:
        self._waiting.append(message)
        self._waiting_bytes += len(message[1]) + MESSAGE_BYTES

    def _hand_on(self, compressed: bool, message: Buffer) -> None:
        if compressed:
            small = self._unpacked_here(message)
            if small is None:
                self._unpack_beside(message)
                return
            message = small
        if not self._one:
            self._call.take_message(message)
        elif self._kept is None:
            self._kept = message
        else:
            raise BadMessage("UNIMPLEMENTED", "a second message for a method that takes one")

    def _unpacked_here(self, message: Buffer) -> Buffer | None:
        """The unpacked message, if it is short enough to be unpacked in the loop; else None."""
        if len(message) > PACKED_BYTES:
            return None
        most = self._reading.max_bytes
        spent = LARGE_BYTES
        try:
            whole = unpacked(message, self._coding, min(most, LARGE_BYTES))
            spent = len(whole)
            return whole
        except BadMessage as error:
            if error.code != "RESOURCE_EXHAUSTED" or most <= LARGE_BYTES:
                raise
            return None
        finally:
            self._reading.turns.spend(spent // UNPACKED_A_FRAME)

    def _unpack_beside(self, message: Buffer) -> None:
        """Unpack a message in another thread. It waits meanwhile, before all others."""
        work = partial(unpacked, message, self._coding, self._reading.max_bytes)
        size = max(len(message), LARGE_BYTES)  # also a small one may be much, once it is inflated
        port = SoonPort(asyncio.get_running_loop())
        try:
            self._unpacking = self._reading.offload.submit(work, size, port, self._unpacked)
        except ServerBusy as error:
            raise BadMessage("UNAVAILABLE", str(error), SOON) from None
        self._waiting.appendleft((True, message))
        self._waiting_bytes += len(message) + MESSAGE_BYTES

    def _unpacked(self, outcome: Buffer | Exception) -> None:
        self._unpacking = None
        if isinstance(outcome, BadMessage):
            self._call.refuse(outcome.code, str(outcome), outcome.metadata)
        elif isinstance(outcome, Exception):
            report(f"unpacking a message for {self._call!r} failed", outcome)
            self._call.refuse("INTERNAL", "internal error; the server's log has it")
        else:
            self._waiting_bytes += len(outcome) - len(self._waiting[0][1])
            self._waiting[0] = False, outcome
            self.recount()
            if not self._call.ended:
                self._catch_up_soon()

    def _catch_up_soon(self) -> None:
        self._reading.turns.later(self._catch_up)

    def _catch_up(self) -> None:
        """Hand on messages that waited, as many as this turn has room for."""
        turns = self._reading.turns
        if self._unpacking is not None:
            return
        try:
            for _ in range(min(turns.share // CALL_WORK, len(self._waiting))):
                if self._paused or self._call.ended or (self._waiting[0][0] and turns.is_spent):
                    break
                message = self._waiting.popleft()
                self._waiting_bytes -= len(message[1]) + MESSAGE_BYTES
                self._hand_on(*message)
                if self._unpacking is not None:
                    break
        except BadMessage as error:
            self._call.refuse(error.code, str(error), error.metadata)
        self.recount()
        if self._paused or self._call.ended or self._unpacking is not None:
            return
        if self._waiting:
            self._catch_up_soon()
            return
        self._call.grant()
        if self._end_waits:
            self._end_waits = False
            self._end()
