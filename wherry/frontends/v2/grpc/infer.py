"""How does ModelInfer run: one request, one answer?"""

from __future__ import annotations

from functools import partial

from wherry.frontends.grpc.answers import fail
from wherry.frontends.grpc.proto import Method
from wherry.frontends.grpc.rpc import Rpc
from wherry.frontends.offload import LARGE_BYTES, join_in_slices
from wherry.frontends.v2.grpc.beside import Beside, LargeRequest
from wherry.frontends.v2.grpc.entry import Entry
from wherry.frontends.v2.grpc.infer_codec import Decoded, InferCodec
from wherry.runtime.loaded_model import LoadedModel
from wherry.values.buffer import Buffer
from wherry.values.errors import Unsupported
from wherry.values.reply import Reply
from wherry.values.request import InferRequest, InferResponse


def infer(entry: Entry, method: Method, rpc: Rpc) -> None:
    """The hot path: one object for a request besides the core's own."""
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
    decoded = codec.decode(wire)
    call = InferCall(entry, method, rpc, loaded, codec, decoded)
    call.request = entry.submit(rpc, loaded, decoded, call)
    rpc.on_leave = call.cancel


def read(method: Method, rpc: Rpc, request: LargeRequest, error: Exception | None) -> None:
    """Submit a large request that was decoded, or answer with `error`."""
    rpc.on_leave = None
    try:
        if error is not None:
            raise error
        entry, loaded, decoded = request.entry, request.loaded, request.decoded
        if loaded.signature.streams:
            raise no_single_answer()
        call = InferCall(entry, method, rpc, loaded, request.codec, decoded)
        call.request = entry.submit(rpc, loaded, decoded, call)
        rpc.message = b""  # free it: the columns hold what is needed
        rpc.on_leave = call.cancel
    except Exception as refused:  # noqa: BLE001 - whatever it is, the client is told
        fail(rpc, refused)


def no_single_answer() -> Unsupported:
    return Unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")


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
        if call.codec.is_large(outcome, decoded.wanted):
            write = Beside(call.entry, partial(written, call, outcome), partial(respond, rpc))
            rpc.on_leave = write.cancel
            return
        encoded = call.codec.encode(outcome, decoded.id, decoded.wanted)
        rpc.respond(call.method.response.encode(encoded))
    except Exception as error:  # noqa: BLE001 - of the model or ours: the client is told either way
        fail(rpc, error)


def written(call: InferCall, response: InferResponse) -> Buffer:
    """The message of a large answer, in another thread."""
    encoded = call.codec.encode(response, call.decoded.id, call.decoded.wanted)
    return join_in_slices(call.method.response.parts(encoded))


def respond(rpc: Rpc, written: Buffer | Exception) -> None:
    rpc.on_leave = None
    if isinstance(written, Exception):
        fail(rpc, written)
    else:
        rpc.respond(written)
