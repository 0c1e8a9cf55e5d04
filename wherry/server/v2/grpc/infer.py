"""How does ModelInfer run: one request, one answer?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from wherry.core.api import Buffer, InferResponse, Unsupported
from wherry.server.calls.call import Beside
from wherry.server.calls.offload import LARGE_BYTES
from wherry.server.grpc.handler import fail
from wherry.server.grpc.proto import Method
from wherry.server.grpc.rpc import Rpc
from wherry.server.grpc.wire import Message, Values
from wherry.server.v2.grpc.entry import Decoded, GrpcCall, GrpcEntry


class LargeRequest:
    """Decodes a large message of a request in steps, in another thread where one takes long.

    `done(self, error)` is told once, perhaps by `start`; without an error, `found` is set.
    """

    found: Decoded

    def __init__(
        self,
        entry: GrpcEntry,
        kind: Message,
        message: Buffer,
        done: Callable[[LargeRequest, Exception | None], None],
    ) -> None:
        #: The request's id, as far as it is known.
        self.id = ""
        self.entry = entry
        self._kind = kind
        self._message = message
        self._done = done
        self._is_light = False
        self._work: Beside | None = None

    def start(self) -> None:
        kind, message = self._kind, self._message
        self._is_light = kind.is_light(message, "raw_input_contents")
        self._step(self._begin, None)

    def cancel(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.cancel()

    def _begin(self, _: None) -> bool:
        self.entry.admission.check()
        decode = partial(self._kind.decode, self._message)
        if self._is_light:
            return self._find(decode())
        return self._beside(decode, self._find)

    def _find(self, wire: Values) -> bool:
        self.id = wire.get("id", "")
        loaded, codec = self.entry.find(wire)
        if self._is_light and codec.reads_in_place(wire):
            return self._take(self.entry.decode(self._message, wire, loaded, codec))
        return self._beside(lambda: (loaded, codec, codec.decode(wire).counted()), self._take)

    def _take(self, found: Decoded) -> bool:
        self.found = found
        return True

    def _beside(self, work: Callable[[], Any], then: Callable[[Any], bool]) -> bool:
        done = partial(self._step, then)
        self._work = Beside(self.entry, work, done, len(self._message))
        return False

    def _step(self, then: Callable[[Any], bool], outcome: Any) -> None:
        """Call `then` with the outcome of a step; it returns whether this was the last one."""
        self._work = None
        error: Exception | None = None
        try:
            if isinstance(outcome, Exception):
                raise outcome
            if not then(outcome):
                return
        except Exception as refused:  # noqa: BLE001 - whatever it is, the client is told
            error = refused
        self._message = b""  # free it: the columns hold what is needed
        self._done(self, error)


def infer(entry: GrpcEntry, method: Method, rpc: Rpc) -> None:
    """Handle a ModelInfer. The hot path: one object for a request besides the runtime's own."""
    if entry.admission.max_in_flight is not None:
        entry.admission.check()
    message = rpc.message
    found = entry.known.decode(message)
    if found is None:
        if len(message) > LARGE_BYTES:
            request = LargeRequest(entry, method.request, message, partial(read, rpc))
            rpc.on_leave = request.cancel
            request.start()
            return
        wire = method.request.decode(message)
        loaded, codec = entry.find(wire)
        if loaded.signature.streams:
            raise no_single_answer()
        found = entry.decode(message, wire, loaded, codec)
    submit(entry, rpc, found)


def read(rpc: Rpc, request: LargeRequest, error: Exception | None) -> None:
    """Submit a large request that was decoded, or answer with `error`."""
    rpc.on_leave = None
    try:
        if error is not None:
            raise error
        submit(request.entry, rpc, request.found)
    except Exception as refused:  # noqa: BLE001 - whatever it is, the client is told
        fail(rpc, refused)


def submit(entry: GrpcEntry, rpc: Rpc, found: Decoded) -> None:
    loaded, codec, decoded = found
    if loaded.signature.streams:
        raise no_single_answer()
    call = GrpcInferCall(entry, loaded, codec, rpc)
    call.submit(rpc, decoded)
    rpc.on_leave = call.cancel
    rpc.message = b""  # free it: the columns hold what is needed


def no_single_answer() -> Unsupported:
    return Unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")


class GrpcInferCall(GrpcCall):
    """A ModelInfer."""

    __slots__ = ()

    client: Rpc

    def write(self, response: InferResponse) -> None:
        decoded, rpc = self.decoded, self.client
        rpc.on_leave = None
        usual = self.codec.encode_usual(response, decoded.id, decoded.requested_outputs)
        if usual is not None:
            rpc.respond(*usual)
            return
        if self.codec.is_large(response, decoded.requested_outputs):
            if rpc.takes_nothing:
                rpc.respond()  # it is refused: spare the encoding
                return
            work = Beside(self.entry, partial(written, self, response), partial(respond, rpc))
            rpc.on_leave = work.cancel
            return
        rpc.respond(*self.codec.encode(response, decoded.id, decoded.requested_outputs))

    def fail(self, error: Exception) -> None:
        self.client.on_leave = None
        fail(self.client, error)


def written(call: GrpcInferCall, response: InferResponse) -> list[Buffer]:
    """Encode the message of a large answer, in another thread."""
    return call.codec.encode(response, call.decoded.id, call.decoded.requested_outputs)


def respond(rpc: Rpc, written: list[Buffer] | Exception) -> None:
    rpc.on_leave = None
    if isinstance(written, Exception):
        fail(rpc, written)
    else:
        rpc.respond(*written)
