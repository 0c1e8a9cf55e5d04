"""How does ModelInfer run: one request, one answer?"""

from __future__ import annotations

from functools import partial

from wherry.frontends.grpc.answers import fail
from wherry.frontends.grpc.proto import Method
from wherry.frontends.grpc.rpc import Rpc
from wherry.frontends.offload import LARGE_BYTES
from wherry.frontends.v2.decoded import DecodedRequest
from wherry.frontends.v2.entry import Beside, InferCall
from wherry.frontends.v2.grpc.entry import GrpcEntry
from wherry.frontends.v2.grpc.infer_codec import InferCodec
from wherry.frontends.v2.grpc.large_request import LargeRequest
from wherry.runtime.loaded_model import LoadedModel
from wherry.values.buffer import Buffer
from wherry.values.errors import Unsupported
from wherry.values.request import InferResponse


def infer(entry: GrpcEntry, method: Method, rpc: Rpc) -> None:
    """Handle a ModelInfer. The hot path: one object for a request besides the runtime's own."""
    entry.admission.check()
    if len(rpc.message) > LARGE_BYTES:
        request = LargeRequest(entry, method.request, rpc.message, partial(read, method, rpc))
        rpc.on_leave = request.cancel
        request.start()
        return
    wire = method.request.decode(rpc.message)
    loaded, codec = entry.find(wire.get("model_name", ""), wire.get("model_version", ""))
    if loaded.signature.streams:
        raise no_single_answer()
    GrpcInferCall(entry, method, rpc, loaded, codec, codec.decode(wire)).submit()


def read(method: Method, rpc: Rpc, request: LargeRequest, error: Exception | None) -> None:
    """Submit a large request that was decoded, or answer with `error`."""
    rpc.on_leave = None
    try:
        if error is not None:
            raise error
        entry, loaded = request.entry, request.loaded
        if loaded.signature.streams:
            raise no_single_answer()
        GrpcInferCall(entry, method, rpc, loaded, request.codec, request.decoded).submit()
        rpc.message = b""  # free it: the columns hold what is needed
    except Exception as refused:  # noqa: BLE001 - whatever it is, the client is told
        fail(rpc, refused)


def no_single_answer() -> Unsupported:
    return Unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")


class GrpcInferCall(InferCall):
    """The reply of a ModelInfer."""

    __slots__ = ("codec", "decoded", "method", "rpc")

    entry: GrpcEntry

    def __init__(
        self,
        entry: GrpcEntry,
        method: Method,
        rpc: Rpc,
        loaded: LoadedModel,
        codec: InferCodec,
        decoded: DecodedRequest,
    ) -> None:
        super().__init__(entry, loaded)
        self.method = method
        self.rpc = rpc
        self.codec = codec
        self.decoded = decoded

    def submit(self) -> None:
        self.request = self.entry.submit(self.rpc, self.loaded, self.decoded, self)
        self.rpc.on_leave = self.cancel

    def write(self, response: InferResponse) -> None:
        decoded, rpc = self.decoded, self.rpc
        rpc.on_leave = None
        if self.codec.is_large(response, decoded.wanted):
            work = Beside(self.entry, partial(written, self, response), partial(respond, rpc))
            rpc.on_leave = work.cancel
            return
        encoded = self.codec.encode(response, decoded.id, decoded.wanted)
        rpc.respond(*self.method.response.parts(encoded))

    def fail(self, error: Exception) -> None:
        self.rpc.on_leave = None
        fail(self.rpc, error)


def written(call: GrpcInferCall, response: InferResponse) -> list[Buffer]:
    """Encode the message of a large answer, in another thread."""
    encoded = call.codec.encode(response, call.decoded.id, call.decoded.wanted)
    return call.method.response.parts(encoded)


def respond(rpc: Rpc, written: list[Buffer] | Exception) -> None:
    rpc.on_leave = None
    if isinstance(written, Exception):
        fail(rpc, written)
    else:
        rpc.respond(*written)
