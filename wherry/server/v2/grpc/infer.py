"""How does ModelInfer run: one request, one answer?"""

from __future__ import annotations

from functools import partial

from wherry.core.api import Buffer, InferResponse, LoadedModel, LoopPort, Unsupported
from wherry.server.calls.offload import LARGE_BYTES
from wherry.server.grpc.handler import fail
from wherry.server.grpc.proto import Method
from wherry.server.grpc.rpc import Rpc
from wherry.server.v2.decoded import DecodedRequest
from wherry.server.v2.entry import Beside, InferCall, answer
from wherry.server.v2.grpc.entry import GrpcEntry
from wherry.server.v2.grpc.infer_codec import InferCodec
from wherry.server.v2.grpc.known_requests import Decoded
from wherry.server.v2.grpc.large_request import LargeRequest


def infer(entry: GrpcEntry, method: Method, rpc: Rpc) -> None:
    """Handle a ModelInfer. The hot path: one object for a request besides the runtime's own."""
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
    port = entry.port()
    call = GrpcInferCall(entry, port, rpc, loaded, codec, decoded)
    call.request = request = entry.request(rpc, loaded, decoded, call)
    port.submit(loaded, request)
    rpc.on_leave = call.cancel
    rpc.message = b""  # free it: the columns hold what is needed


def no_single_answer() -> Unsupported:
    return Unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")


class GrpcInferCall(InferCall):
    """The reply of a ModelInfer."""

    __slots__ = ("codec", "decoded", "rpc")

    def __init__(
        self,
        entry: GrpcEntry,
        port: LoopPort,
        rpc: Rpc,
        loaded: LoadedModel,
        codec: InferCodec,
        decoded: DecodedRequest,
    ) -> None:
        # All in one place: the constructors of the base classes would be two calls more.
        self.on_done = answer  # type: ignore[assignment]  # it gets this very object
        self.loop = port
        self.settled = False
        self.unclaimed = True
        self.entry = entry
        self.loaded = loaded
        self.request = None
        self.rpc = rpc
        self.codec = codec
        self.decoded = decoded

    def write(self, response: InferResponse) -> None:
        decoded, rpc = self.decoded, self.rpc
        rpc.on_leave = None
        if self.codec.is_large(response, decoded.requested_outputs):
            if rpc.takes_nothing:
                rpc.respond()  # it is refused: spare the encoding
                return
            work = Beside(self.entry, partial(written, self, response), partial(respond, rpc))
            rpc.on_leave = work.cancel
            return
        rpc.respond(*self.codec.encode(response, decoded.id, decoded.requested_outputs))

    def fail(self, error: Exception) -> None:
        self.rpc.on_leave = None
        fail(self.rpc, error)


def written(call: GrpcInferCall, response: InferResponse) -> list[Buffer]:
    """Encode the message of a large answer, in another thread."""
    return call.codec.encode(response, call.decoded.id, call.decoded.requested_outputs)


def respond(rpc: Rpc, written: list[Buffer] | Exception) -> None:
    rpc.on_leave = None
    if isinstance(written, Exception):
        fail(rpc, written)
    else:
        rpc.respond(*written)
