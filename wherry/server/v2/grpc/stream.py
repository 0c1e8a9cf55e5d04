"""How does ModelStreamInfer run: requests and answers on one call, each at its own pace?

Requests run concurrently. Those of models that give one answer each are answered in the order in
which they came, as in Triton; the answers of one that streams are sent as they come, the last one
marked (`triton_final_response`). While a large request is read beside the loop, those behind it
wait; so do the answers behind a large one that is written. A request that fails is a message, not
the end of the stream, unless the client requested that (metadata `triton_grpc_error: true`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from wherry.core.api import Buffer, InferResponse, LoadedModel
from wherry.server.calls.call import Beside
from wherry.server.calls.offload import LARGE_BYTES
from wherry.server.grpc.proto import Method
from wherry.server.grpc.rpc import SOON, Rpc, status_of
from wherry.server.v2.grpc.entry import Decoded, GrpcCall, GrpcEntry, LargeRequest
from wherry.server.v2.grpc.infer_codec import FINAL_RESPONSE, InferCodec

#: Requests that run and answers that the client has not taken: at this number, reading pauses.
MAX_OWED: Final = 1024


class InferStream:
    def __init__(self, entry: GrpcEntry, method: Method, rpc: Rpc) -> None:
        self.entry = entry
        self.rpc = rpc
        self._method = method
        self._running: set[StreamedRequest] = set()
        self._turns: deque[Turn] = deque()
        self._unsent = 0
        self._paused = False
        self._half_closed = False
        self._reading: LargeRequest | None = None
        self._writing: Beside | None = None
        self._later: deque[Callable[[], object]] = deque()  # what is sent after it
        self.errors_end_it = rpc.metadata.get("triton_grpc_error") == "true"
        rpc.on_message = self._message
        rpc.on_half_close = self._half_close
        rpc.on_leave = self._end
        entry.streams.add(self)

    # From the client

    def _message(self, message: Buffer) -> None:
        request_id = ""
        if len(message) > LARGE_BYTES:
            request = LargeRequest(self.entry, self._method.request, message, self._read)
            self._reading = request
            request.start()
            if self._reading is not None:
                self._hold_back()
            return
        try:
            self.entry.admission.check()
            found = self.entry.known.decode(message)
            if found is None:
                wire = self._method.request.decode(message)
                request_id = wire.get("id", "")
                found = self.entry.decode(message, wire, *self.entry.find(wire))
        except Exception as error:  # noqa: BLE001 - any error is sent to the client
            self._refuse(error, request_id)
            return
        self._submit(found)

    def _read(self, request: LargeRequest, error: Exception | None) -> None:
        """Submit a large request that was decoded, or refuse it with `error`."""
        self._reading = None
        if error is None:
            self._submit(request.found)
        else:
            self._refuse(error, request.id)
        self._hold_back()
        self._end_if_done()

    def _submit(self, found: Decoded) -> None:
        loaded, codec, decoded = found
        turn = None if loaded.signature.streams else self.turn()
        try:
            request = StreamedRequest(self, loaded, codec, turn)
            request.submit(self.rpc, decoded)
        except Exception as error:  # noqa: BLE001 - any error is sent to the client
            self._refuse(error, decoded.id, turn)
            return
        self._running.add(request)
        self._hold_back()

    def _refuse(self, error: Exception, request_id: str, turn: Turn | None = None) -> None:
        if self.errors_end_it:
            self.fail(error, request_id)
        else:
            (turn or self.turn()).fill(lambda: self.fail(error, request_id))

    def _half_close(self) -> None:
        self._half_closed = True
        self._end_if_done()

    def drain(self) -> None:
        self.rpc.pause()
        self._end_if_done()

    # To the client

    def turn(self) -> Turn:
        turn = Turn(self)
        self._turns.append(turn)
        return turn

    def take_turns(self) -> None:
        while self._turns and (send := self._turns[0].send) is not None:
            self._turns.popleft().send = None  # it may hold on to its request
            self.in_order(send)

    def in_order(self, send: Callable[[], object]) -> None:
        """Call `send`, but not before a large answer that is being written is out."""
        if self._writing is not None or self._later:
            self._later.append(send)
        else:
            send()

    def write(
        self,
        encode: Callable[[], list[Buffer]],
        request: StreamedRequest | None,
        failed: Callable[[Exception], None],
    ) -> None:
        """Send a large answer, once it is written beside the loop."""

        def done(outcome: list[Buffer] | Exception) -> None:
            self._writing = None
            if isinstance(outcome, Exception):
                failed(outcome)
            else:
                self._send(outcome, request)
            while self._later and self._writing is None:
                self._later.popleft()()
            self._end_if_done()

        self._writing = Beside(self.entry, lambda: self._around(encode()), done)

    def send(self, answer: list[Buffer], request: StreamedRequest | None) -> None:
        self._send(self._around(answer), request)

    def _around(self, answer: list[Buffer]) -> list[Buffer]:
        return self._method.response.around("infer_response", answer)

    def _send(self, message: list[Buffer], request: StreamedRequest | None) -> None:
        self._unsent += 1

        def sent() -> None:
            self._unsent -= 1
            if request is not None:
                request.consumed()
            self._hold_back()

        self.rpc.send(*message, sent=sent)

    def fail(self, error: Exception, request_id: str, **fields: Any) -> None:
        """Send one request's error, with the fields of its response that are known."""
        if self.errors_end_it:
            self._end()
            self.rpc.fail(*status_of(self.rpc, error))
            return
        _, text, _ = status_of(self.rpc, error)
        fields = {"error_message": text, "infer_response": {"id": request_id, **fields}}
        self._send([self._method.response.encode(fields)], None)

    def done(self, request: StreamedRequest) -> None:
        self._running.discard(request)
        self._hold_back()
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._running or self._reading or self._writing or self._later or self.rpc.ended:
            return
        if self._half_closed:
            self._end()
            self.rpc.finish()
        elif self.entry.streams_end:
            self._end()
            text = "the server is draining; open the stream again elsewhere"
            self.rpc.fail("UNAVAILABLE", text, SOON)

    def _end(self) -> None:
        self.entry.streams.discard(self)
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        self._later.clear()
        for request in self._running:
            request.cancel()

    def _hold_back(self) -> None:
        """Pause reading while too many answers are owed, or a large request is being read."""
        paused = len(self._running) + self._unsent >= MAX_OWED or self._reading is not None
        if paused is self._paused or self.entry.streams_end:
            return
        self._paused = paused
        if paused:
            self.rpc.pause()
        else:
            self.rpc.resume()


class Turn:
    """The place of an answer: it is sent after those of the requests before it."""

    def __init__(self, stream: InferStream) -> None:
        self._stream = stream
        self.send: Callable[[], object] | None = None

    def fill(self, send: Callable[[], object]) -> None:
        self.send = send
        self._stream.take_turns()


class StreamedRequest(GrpcCall):
    takes_streams = True
    client: InferStream

    def __init__(
        self, stream: InferStream, loaded: LoadedModel, codec: InferCodec, turn: Turn | None
    ) -> None:
        super().__init__(stream.entry, loaded, codec, stream)
        self._failed: Exception | None = None
        self._final_sent = False
        self._turn = turn

    def respond(self, response: InferResponse) -> None:
        self.client.in_order(partial(self._respond, response))

    def write(self, response: InferResponse) -> None:
        self._in_turn(response)

    def fail(self, error: Exception) -> None:
        self._in_turn(error)

    def _respond(self, response: InferResponse, *, settled: bool = False) -> None:
        stream, decoded = self.client, self.decoded
        if self._failed is not None or stream.rpc.ended:
            return
        self._final_sent = final = settled or response.final
        taker = None if settled else self
        encode = partial(
            self.codec.encode, response, decoded.id, decoded.requested_outputs, final=final
        )
        try:
            if self.codec.is_large(response, decoded.requested_outputs):
                stream.write(encode, taker, self._cannot_be_sent)
            else:
                stream.send(encode(), taker)
        except Exception as error:  # noqa: BLE001 - any error is sent to the client
            self._cannot_be_sent(error)

    def _cannot_be_sent(self, error: Exception) -> None:
        self._failed = error
        self.cancel()

    def _in_turn(self, outcome: InferResponse | Exception) -> None:
        stream = self.client
        if stream.errors_end_it and isinstance(outcome, Exception):
            self._settled(outcome)
        elif self._turn is None:
            stream.in_order(partial(self._settled, outcome))
        else:
            self._turn.fill(lambda: self._settled(outcome))

    def _settled(self, outcome: InferResponse | Exception) -> None:
        if not isinstance(outcome, Exception):
            # A stream's end is an empty response, unless the last one was marked as final.
            if outcome.outputs or (self.decoded.empty_final_response and not self._final_sent):
                self._respond(outcome, settled=True)
        elif self._failed is None:
            self._failed = outcome
        self.client.in_order(self._end)

    def _end(self) -> None:
        stream = self.client
        if self._failed is not None:
            # Here it is the model's last response; before it was submitted, it had no model.
            stream.fail(
                self._failed,
                self.decoded.id,
                model_name=self.loaded.name,
                parameters={FINAL_RESPONSE: {"bool_param": True}},
            )
            self._failed = None
        stream.done(self)
