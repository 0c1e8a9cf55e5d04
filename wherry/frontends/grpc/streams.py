"""How do the frames of one connection become calls?"""

from __future__ import annotations

from typing import Final

from wherry.frontends.grpc import frames, heads
from wherry.frontends.grpc.connection_calls import ConnectionCalls
from wherry.frontends.grpc.floods import MAX_CALLS, RESETS_OF_A_FAULT, FloodLimits
from wherry.frontends.grpc.frames import ConnectionFault, StreamFault
from wherry.frontends.grpc.head_reader import HeadReader
from wherry.frontends.grpc.hpack import TooManyHeaders
from wherry.frontends.grpc.turn_budget import CALL_WORK, ReadTurn

CONNECTION_WINDOW: Final = 2**24
"""Bytes of DATA that may be on their way to the server, of all calls together."""


class Streams:
    """Checks what each frame means for its stream, and tells its call: the FrameSink.

    Raises the faults that end the connection.
    """

    __slots__ = (
        "_by_id", "_calls", "_floods", "_heads", "_ids", "_sender", "_shutdown", "_to_credit",
        "_turn", "_writer",
    )  # fmt: skip

    def __init__(
        self, calls: ConnectionCalls, heads: HeadReader, turn: ReadTurn, floods: FloodLimits
    ) -> None:
        self._calls = calls
        self._by_id = calls.by_id
        self._ids = calls.ids
        self._sender = calls.sender
        self._writer = calls.writer
        self._shutdown = calls.shutdown
        self._heads = heads
        self._turn = turn
        self._floods = floods
        self._to_credit = 0  # bytes of DATA read since the connection's last WINDOW_UPDATE

    def __repr__(self) -> str:
        return f"<Streams of {self._calls!r}>"

    @property
    def closed(self) -> bool:
        return self._writer.closed

    # Heads of calls

    def header_block(self, stream_id: int, ends: bool, block: bytes) -> None:
        if stream_id <= self._ids.last:
            self._late_block(stream_id, ends, block)
            return
        self._ids.last = stream_id
        try:
            head = self._heads.head(block)
            if self._shutdown.is_refusing:
                self._ids.cut_off(stream_id)
                return  # the client knows, or will in a moment
            if len(self._by_id) >= MAX_CALLS:
                raise StreamFault(frames.REFUSED_STREAM, "too many calls at once")
            if self._sender.unsent.is_full:
                raise self._owed_too_much()
            self._ids.served = stream_id
            self._calls.open(stream_id, head)
        except heads.Refusal as refusal:
            self._refuse(stream_id, refusal)
        except TooManyHeaders as error:
            self._refuse(stream_id, self._too_many(error))
        if ends and (call := self._by_id.get(stream_id)) is not None:
            call.half_close()

    def _refuse(self, stream_id: int, refusal: heads.Refusal) -> None:
        self._turn.work += CALL_WORK
        # Without a reset, at which some clients forget that there was an answer: what is still to
        # come of the request fits into its window, and is skipped.
        self._sender.write_headers(stream_id, frames.END_STREAM, refusal.block)
        self._ids.cut_off(stream_id)
        self._floods.note_reset()

    def _too_many(self, error: TooManyHeaders) -> heads.Refusal:
        text = f"metadata of {error.size} bytes, of at most {self._heads.max_bytes}"
        return heads.refusal("RESOURCE_EXHAUSTED", text)

    def _owed_too_much(self) -> heads.Refusal:
        text = (
            f"{self._sender.unsent.count} bytes of answers wait on this connection for their client"
            " to take them; read those first, or raise max_connection_unsent_bytes"
        )
        return heads.refusal("RESOURCE_EXHAUSTED", text)

    def _late_block(self, stream_id: int, ends: bool, block: bytes) -> None:
        """Trailers, which gRPC clients do not send. They are decoded for HPACK's table alone."""
        try:
            self._floods.note_noise(len(self._heads.headers(block)))
        except TooManyHeaders as error:
            raise StreamFault(frames.ENHANCE_YOUR_CALM, str(error)) from None
        call = self._by_id.get(stream_id)
        if call is None:
            if not self._ids.is_cut_off(stream_id):
                raise ConnectionFault(frames.STREAM_CLOSED, "HEADERS on a closed stream")
        elif call.half_closed:
            raise StreamFault(frames.STREAM_CLOSED, "HEADERS behind the end of the stream")
        elif not ends:
            raise StreamFault(frames.PROTOCOL_ERROR, "a second head")
        else:
            call.half_close()

    # DATA

    def begin_data(self, stream_id: int, length: int, content: int) -> None:
        call = self._by_id.get(stream_id)
        if call is None:
            self._ids.check_begun(stream_id)
            if not self._ids.is_cut_off(stream_id):
                raise ConnectionFault(frames.STREAM_CLOSED, "DATA on a closed stream")
        else:
            call.receive_window -= length
            if call.half_closed:
                self.stream_fault(stream_id, frames.STREAM_CLOSED)
            elif call.receive_window < 0:
                self.stream_fault(stream_id, frames.FLOW_CONTROL_ERROR)
        if length != content:
            self._credit(length - content)

    def data(self, stream_id: int, data: memoryview, ends: bool) -> None:
        self._credit(len(data))
        call = self._by_id.get(stream_id)
        if call is not None:
            call.feed(data, ends)

    def place(self, stream_id: int) -> memoryview | None:
        call = self._by_id.get(stream_id)
        return None if call is None else call.place()

    def placed(self, stream_id: int, count: int, ends: bool) -> None:
        self._credit(count)
        call = self._by_id.get(stream_id)
        if call is not None:
            call.placed(count, ends)

    def end_stream(self, stream_id: int) -> None:
        call = self._by_id.get(stream_id)
        if call is not None:
            call.half_close()

    def _credit(self, count: int) -> None:
        """Let the client send as much DATA as was read.

        What a call does not read is held back by its own window, so no call waits for another.
        """
        self._to_credit += count
        if self._to_credit >= CONNECTION_WINDOW // 2:
            self._sender.write(frames.window_update(0, self._to_credit))
            self._to_credit = 0

    # Other frames

    def window_update(self, stream_id: int, increment: int) -> None:
        if stream_id == 0:
            self._sender.widen(increment)
        elif (call := self._by_id.get(stream_id)) is not None:
            response = call.response
            response.window = frames.widened(response.window, increment, StreamFault)
            self._sender.wake(response)
        else:
            self._ids.check_begun(stream_id)

    def reset_by_client(self, stream_id: int) -> None:
        self._ids.check_begun(stream_id)
        call = self._by_id.get(stream_id)
        if call is not None:
            call.half_closed = True  # nothing more comes of it
            self._calls.drop(call)
            self._floods.note_reset()

    def settings(self, values: dict[int, int]) -> None:
        self._floods.note_noise(len(self._by_id))  # for this is what it costs
        self._sender.set(values, [call.response for call in self._by_id.values()])
        self._sender.write(frames.frame(frames.SETTINGS, frames.ACK, 0, b""))

    def ping(self, payload: bytes) -> None:
        self._sender.write(frames.frame(frames.PING, frames.ACK, 0, payload))

    def pong(self, payload: bytes) -> None:
        self._calls.pong(payload)

    def stream_fault(self, stream_id: int, code: int) -> None:
        """Reset a stream that went wrong."""
        self._sender.write(frames.reset(stream_id, code))
        call = self._by_id.get(stream_id)
        if call is None:
            self._ids.cut_off(stream_id)
        else:
            self._calls.drop(call)
        # A client may open too many calls before it has heard of the limit.
        self._floods.note_reset(1 if code == frames.REFUSED_STREAM else RESETS_OF_A_FAULT)
