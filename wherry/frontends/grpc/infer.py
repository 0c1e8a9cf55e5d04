"""How does ModelInfer run: one request, one answer?"""

from __future__ import annotations

from wherry.errors import Unsupported
from wherry.frontends.grpc.answers import fail
from wherry.frontends.grpc.entry import Entry
from wherry.frontends.grpc.infer_codec import Decoded, InferCodec
from wherry.frontends.grpc.proto import Method
from wherry.frontends.grpc.rpc import Rpc
from wherry.loaded_model import LoadedModel
from wherry.reply import Reply
from wherry.request import InferRequest, InferResponse


def infer(entry: Entry, method: Method, rpc: Rpc) -> None:
    """The hot path: one object for a request besides the core's own."""
    entry.admission.check()
    wire = method.request.decode(rpc.message)
    loaded, codec = entry.find(wire.get("model_name", ""), wire.get("model_version", ""))
    if loaded.signature.streams:
        raise Unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")
    decoded = codec.decode(wire)
    call = InferCall(entry, method, rpc, loaded, codec, decoded)
    call.request = entry.submit(rpc, loaded, decoded, call)
    rpc.on_leave = call.cancel


class InferCall(Reply[InferResponse]):
    """The reply of one ModelInfer, with all that its answer needs."""

    __slots__ = ("codec", "decoded", "entry", "loaded", "method", "port", "request", "rpc")

    request: InferRequest | None

    def __init__(
        self,
        entry: Entry,
        method: Method,
        rpc: Rpc,
        loaded: LoadedModel,
        codec: InferCodec,
        decoded: Decoded,
    ) -> None:
        super().__init__(hand_over)  # type: ignore[arg-type]  # it gets this very object
        self.entry = entry
        self.method = method
        self.rpc = rpc
        self.loaded = loaded
        self.codec = codec
        self.decoded = decoded
        self.port = entry.port()
        self.request = None

    def cancel(self) -> None:
        """The client has left."""
        if self.request is not None:
            self.loaded.cancel(self.request)


def hand_over(call: InferCall) -> None:
    """In the thread that settled it: the answer is the loop's business."""
    call.port.call(answer, call)


def answer(call: InferCall) -> None:
    rpc, outcome, decoded = call.rpc, call.outcome, call.decoded
    call.entry.admission.leave()
    # Cut the circles here: else the garbage collector would have to find each of them.
    rpc.on_leave = call.request = None
    try:
        if isinstance(outcome, Exception):
            fail(rpc, outcome)
            return
        encoded = call.codec.encode(outcome, decoded.id, decoded.wanted)
        rpc.respond(call.method.response.encode(encoded))
    except Exception as error:  # noqa: BLE001 - of the model or ours: the client is told either way
        fail(rpc, error)
