"""Which model does a request name, how does it enter the runtime, and how does ModelInfer run?

A client that sends tensors of the same shapes to the same model sends the same bytes again, up to
the raw contents. Their meaning is then known, and only the raw contents are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol
from weakref import WeakKeyDictionary, ref

import msgspec

from wherry.core.api import (
    Buffer,
    Columns,
    InferResponse,
    InvalidRequest,
    LoadedModel,
    Pipeline,
    Registry,
    Runtime,
    Unsupported,
)
from wherry.server.calls.call import Beside, Entry, InferCall
from wherry.server.calls.offload import LARGE_BYTES
from wherry.server.grpc.proto import Method
from wherry.server.grpc.rpc import Rpc, fail
from wherry.server.grpc.wire import Message, Values
from wherry.server.grpc.wire_numbers import Malformed, read_block
from wherry.server.v2.common import Common
from wherry.server.v2.grpc.infer_codec import InferCodec
from wherry.server.v2.input_codec import InputCodec
from wherry.server.v2.model_tensors import DecodedRequest, RequestedOutput, tensors_of
from wherry.triton.api import ModelControl

#: Heads that are remembered at most, and the bytes of one.
MOST_HEADS: Final = 256
HEAD_BYTES: Final = 1024
#: Inputs of a request that may be remembered.
MOST_INPUTS: Final = 64

#: The model that a request is for, its codec, and the request.
Decoded = tuple[LoadedModel, InferCodec, DecodedRequest]


class KnownRequests:
    """Remembers the heads of requests: all that comes before the raw contents, without the id.

    Only requests that depend on nothing else are remembered: no parameters, no shared memory. All
    is forgotten when a name may mean another model.
    """

    def __init__(self, kind: Message, registry: Registry) -> None:
        """`kind` is the ModelInferRequest."""
        self._id, self._raw = kind.tag("id"), kind.tag("raw_input_contents")
        in_heads = ("model_name", "model_version", "inputs", "outputs")
        self._in_heads = frozenset(map(kind.tag, in_heads))
        self._registry = registry
        self._generation = -1
        self._heads: dict[bytes, _Head] = {}

    def decode(self, message: Buffer) -> Decoded | None:
        """The same as InferCodec.decode makes of it; None if that is not known.

        None for requests with mistakes, too, and for large ones that take long to decode.
        """
        generation = self._registry.generation
        if generation != self._generation:
            self._heads.clear()
            self._generation = generation
            return None
        split = self._split(message)
        if split is None:
            return None
        bytes_of_head, id, raw = split
        head = self._heads.get(bytes_of_head)
        if head is None or len(raw) != len(head.inputs):
            return None
        loaded = head.loaded()
        if loaded is None or (len(message) > LARGE_BYTES and not head.in_place):
            return None
        columns: Columns = {}
        try:
            for (codec, shape, is_view), data in zip(head.inputs, raw, strict=True):
                columns[codec.name] = codec.from_binary(data, head.rows, shape, shared=is_view)
        except InvalidRequest:
            return None
        if len(columns) > 1:
            columns = head.codec.tensors.complete(columns)
        decoded = DecodedRequest(
            columns,
            head.rows,
            id,
            output_names=head.output_names,
            requested_outputs=head.requested_outputs,
        )
        return loaded, head.codec, decoded

    def learn(self, message: Buffer, wire: Values, found: Decoded) -> None:
        """Remember the head of a request that was read in full, in the same turn of the loop in
        which `decode` was called."""
        loaded, codec, decoded = found
        wire_inputs: Sequence[Values] = wire.get("inputs", ())
        requested_outputs = decoded.requested_outputs or ()
        tensors = codec.tensors.inputs
        if (
            len(wire.get("raw_input_contents", ())) != len(wire_inputs)
            or "parameters" in wire
            or any("parameters" in one for one in wire_inputs)
            or any(one.window is not None for one in requested_outputs)
        ):
            return
        split = self._split(message)
        if split is None or len(split[2]) != len(wire_inputs):
            return
        inputs = [
            (tensors[one["name"]], list(one.get("shape", ())), one["name"] in codec.viewed)
            for one in wire_inputs
        ]
        if len(self._heads) >= MOST_HEADS:
            self._heads.clear()
        self._heads[split[0]] = _Head(
            ref(loaded),
            codec,
            inputs,
            all(one.views for one, _, _ in inputs),
            decoded.rows,
            decoded.requested_outputs,
            decoded.output_names,
        )

    def _split(self, message: Buffer) -> tuple[bytes, str, list[memoryview]] | None:
        """The head, the id and the raw contents; None for other fields, or in another order."""
        in_heads, tag_of_id, tag_of_raw = self._in_heads, self._id, self._raw
        view = memoryview(message)
        position, end = 0, len(view)
        head, id, rest = b"", "", 0  # `head` is what was before the id; `rest` begins behind it
        raw: list[memoryview] = []
        try:
            while position < end:
                tag, size = message[position], message[position + 1]
                start = position + 2
                stop = start + size
                if size > 0x7F:
                    start, stop = read_block(view, position + 1, end)
                if tag == tag_of_raw:
                    if not raw:
                        head += view[rest:position]
                    elif len(raw) == MOST_INPUTS:
                        return None
                    raw.append(view[start:stop])
                elif raw or stop > HEAD_BYTES:
                    return None
                elif tag == tag_of_id and not rest:
                    head, rest = bytes(view[:position]), stop
                    id = str(view[start:stop], "utf-8")
                elif tag not in in_heads:
                    return None
                position = stop
        except (IndexError, UnicodeDecodeError, Malformed):
            return None
        return (head, id, raw) if raw and position == end else None


class _Head(msgspec.Struct, frozen=True):
    #: The model is not kept alive: an unloaded one must give its memory back.
    loaded: ref[LoadedModel]
    codec: InferCodec
    #: Each input with its shape, and whether its column may be a view that is not written to.
    inputs: list[tuple[InputCodec, list[int], bool]]
    #: Whether all columns are views, however large.
    in_place: bool
    rows: int
    requested_outputs: list[RequestedOutput] | None
    output_names: list[str] | None


#: Of a version, which has 64 bits and a sign.
_MOST_DIGITS: Final = 18


class LongCall(Protocol):
    def drain(self) -> None:
        """End the call, as the server stops, once the requests that it has begun are answered."""


class GrpcEntry(Entry):
    """Submits the requests of gRPC calls, and knows the calls that clients keep open."""

    over_grpc = True

    def __init__(
        self, runtime: Runtime, common: Common, control: ModelControl, infer: Method
    ) -> None:
        super().__init__(runtime, *common.of_calls, common.forwarding.grpc)
        self.common = common
        self.control = control
        self.known = KnownRequests(infer.request, runtime.registry)
        self._answer = infer.response
        self.draining = False
        self.streams_end = False
        #: Of health, and of requests: what a client may keep open.
        self.watches: set[LongCall] = set()
        self.streams: set[LongCall] = set()
        # Models are not kept alive: an unloaded one must give its memory back.
        self._codecs: WeakKeyDictionary[LoadedModel, InferCodec] = WeakKeyDictionary()

    def drain(self) -> None:
        self.draining = True
        for call in tuple(self.watches):
            call.drain()

    def end_streams(self) -> None:
        """End each stream when the requests that it has begun are answered."""
        self.streams_end = True
        for call in tuple(self.streams):
            call.drain()

    def not_ready(self) -> str:
        """Why the server cannot answer everything now; "" if it can."""
        reasons = [f"model '{name}': {why}" for name, why in self.control.not_ready().items()]
        if self.draining:
            reasons.insert(0, "the server is draining")
        return "; ".join(reasons)

    def model(self, name: str, version: str) -> LoadedModel:
        """ModelNotFound if it is not loaded; "" is the highest version."""
        return self.runtime.model(name, self.version(version))

    def version(self, version_text: str) -> str | None:
        """A request's model version; None for the highest. InvalidRequest if it is not a number."""
        if not version_text:
            return None
        if len(version_text) <= _MOST_DIGITS and version_text.isascii() and version_text.isdigit():
            return version_text.lstrip("0") or "0"
        raise InvalidRequest(
            f"failed to get model version from specified version string '{version_text}' (details:"
            " stol), version should be an integral value > 0"
        )

    def find(self, wire: Values) -> tuple[LoadedModel, InferCodec]:
        """The model that a ModelInferRequest names, with its codec. Raises what `model` does."""
        loaded = self.model(wire.get("model_name", ""), wire.get("model_version", ""))
        codec = self._codecs.get(loaded)
        if codec is None:
            views = not isinstance(loaded.model, Pipeline)
            tensors = tensors_of(loaded, self.common)
            codec = self._codecs[loaded] = InferCodec(tensors, self._answer, views=views)
        return loaded, codec

    def decode(
        self, message: Buffer, wire: Values, loaded: LoadedModel, codec: InferCodec
    ) -> Decoded:
        """Decode a request that was not known, whose message has these fields, and remember it.

        InvalidRequest as of InferCodec.decode.
        """
        found = loaded, codec, codec.decode(wire)
        self.known.learn(message, wire, found)
        return found


class GrpcCall(InferCall):
    __slots__ = ("decoded",)

    entry: GrpcEntry
    codec: InferCodec
    decoded: DecodedRequest

    def submit(self, rpc: Rpc, decoded: DecodedRequest) -> None:
        self.decoded = decoded
        metadata, left = rpc.metadata, rpc.timeout
        if metadata.notes is None:
            metadata.notes = self.entry.terms(metadata, metadata.trace)
        if left is not None:
            decoded.seconds_left = max(left, 0.0)
        self.send(decoded, metadata.notes, rpc.caller, decoded.id, len(rpc.message))


class LargeRequest:
    """Decodes a large message of a request, in another thread if that takes long.

    `done(self, error)` is called once, perhaps by `start`; without an error, `found` is set.
    """

    found: Decoded

    def __init__(
        self,
        entry: GrpcEntry,
        kind: Message,
        message: Buffer,
        done: Callable[[LargeRequest, Exception | None], None],
    ) -> None:
        self.id = ""
        self.entry = entry
        self._kind = kind
        self._message = message
        self._done = done
        self._work: Beside | None = None

    def start(self) -> None:
        error: Exception | None = None
        try:
            self.entry.admission.check()
            if not self._kind.is_light(self._message, "raw_input_contents") or not self._decode():
                self._work = Beside(
                    self.entry, partial(self._decode, beside=True), self._end, len(self._message)
                )
                return
        except Exception as refused:  # noqa: BLE001 - any error is sent to the client
            error = refused
        self._end(error)

    def cancel(self) -> None:
        if self._work is not None:
            self._work.cancel()

    def _decode(self, *, beside: bool = False) -> bool:
        """Set `found`; False if that takes too long for the loop."""
        wire = self._kind.decode(self._message)
        self.id = wire.get("id", "")
        loaded, codec = self.entry.find(wire)
        if beside:
            self.found = loaded, codec, codec.decode(wire).counted()
        elif codec.reads_in_place(wire):
            self.found = self.entry.decode(self._message, wire, loaded, codec)
        else:
            return False
        return True

    def _end(self, outcome: object) -> None:
        self._message = b""  # free it: the columns hold what is needed
        self._done(self, outcome if isinstance(outcome, Exception) else None)


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
    rpc.on_leave = None
    try:
        if error is not None:
            raise error
        submit(request.entry, rpc, request.found)
    except Exception as refused:  # noqa: BLE001 - any error is sent to the client
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
    return call.codec.encode(response, call.decoded.id, call.decoded.requested_outputs)


def respond(rpc: Rpc, written: list[Buffer] | Exception) -> None:
    rpc.on_leave = None
    if isinstance(written, Exception):
        fail(rpc, written)
    else:
        rpc.respond(*written)
