"""Which model does a request name, and how does it enter the runtime?"""

from __future__ import annotations

from typing import Final, Protocol
from weakref import WeakKeyDictionary

from wherry.core.api import (
    Buffer,
    InferRequest,
    InferResponse,
    InvalidRequest,
    LoadedModel,
    Pipeline,
    Reply,
    Runtime,
)
from wherry.server.calls.admission import SMALL_BODY
from wherry.server.grpc.proto import Method
from wherry.server.grpc.rpc import Rpc
from wherry.server.grpc.wire import Values
from wherry.server.v2.common import Common
from wherry.server.v2.decoded import DecodedRequest
from wherry.server.v2.entry import Entry
from wherry.server.v2.grpc.infer_codec import InferCodec
from wherry.server.v2.grpc.known_requests import Decoded, KnownRequests
from wherry.triton.api import ModelControl

#: Of a version, which has 64 bits and a sign.
_MOST_DIGITS: Final = 18


class LongCall(Protocol):
    """A call that a client may keep open as long as it likes."""

    def drain(self) -> None:
        """End the call, as the server stops, once the requests that it has begun are answered."""


class GrpcEntry(Entry):
    """Submits the requests of gRPC calls, and knows the calls that clients keep open."""

    over_grpc = True

    def __init__(
        self, runtime: Runtime, common: Common, control: ModelControl, infer: Method
    ) -> None:
        """`infer` is the description of ModelInfer."""
        super().__init__(runtime, common, common.forwarding.grpc)
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
        """Report "not ready" from now on, to open Watch calls, too."""
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
        """A request's model version; None for the highest. InvalidRequest if it is no number."""
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
            tensors = self.tensors(loaded)
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

    def request(
        self, rpc: Rpc, loaded: LoadedModel, decoded: DecodedRequest, reply: Reply[InferResponse]
    ) -> InferRequest:
        """Make the request of a call, as `admitted` does."""
        metadata, left = rpc.metadata, rpc.timeout
        if metadata.notes is None:
            metadata.notes = self.terms(metadata, metadata.trace)
        return self.admitted(
            loaded,
            decoded,
            reply,
            metadata.notes,
            rpc.caller,
            decoded.id,
            len(rpc.message) or SMALL_BODY + 1,
            None if left is None else max(left, 0.0),
        )
