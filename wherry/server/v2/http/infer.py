"""How does an infer request run: one request, one answer?"""

from __future__ import annotations

from functools import partial
from typing import Any

from wherry.core.api import InferResponse, LoadedModel, LoopPort, Unsupported
from wherry.server.calls.admission import SMALL_BODY
from wherry.server.calls.compression import MAX_BYTES, MIN_BYTES
from wherry.server.calls.offload import LARGE_BYTES
from wherry.server.http.answers import fail, packed, respond
from wherry.server.http.exchange import Exchange
from wherry.server.v2.entry import InferCall, answer
from wherry.server.v2.http.entry import HeadNotes, HttpEntry, ModelPath
from wherry.server.v2.http.infer_codec import (
    OCTET_STREAM,
    AnswerBody,
    ModelCodec,
    json_bytes_of,
)
from wherry.server.v2.model_tensors import DecodedRequest, counted


def infer(model: ModelPath, exchange: Exchange) -> None:
    """Handle an infer request. The hot path: one object besides the runtime's own, no task."""
    entry = model.entry
    entry.admission.check()
    loaded, codec = model.find()
    if loaded.signature.streams:
        raise Unsupported(
            "HTTP end point doesn't support models with decoupled transaction policy",
            more=f": model '{model.name}' streams its responses, which infer cannot carry; POST to"
            f" /v2/models/{model.name}/generate_stream",
        )
    request = exchange.request
    head = request.head
    notes = head.notes or entry.note(head, json_bytes_of(head.headers))
    call = HttpInferCall(entry, entry.port(), exchange, loaded, codec, notes)
    body, json_bytes = request.body, notes.json_bytes
    if notes.coding is None:
        if len(body) <= LARGE_BYTES or codec.reads_in_place(json_bytes):
            call.submit(codec.decode(body, json_bytes))
            return
    elif (small := entry.small_body(exchange)) is not None:
        call.submit(codec.decode(small, json_bytes))
        return
    entry.off_loop(
        exchange,
        lambda: counted(codec.decode(entry.body(exchange), json_bytes)),
        call.submit,
        reads=True,
    )


class HttpInferCall(InferCall):
    """The reply of an infer request that came over HTTP."""

    __slots__ = ("codec", "decoded", "exchange", "notes", "port")

    entry: HttpEntry
    decoded: DecodedRequest

    def __init__(
        self,
        entry: HttpEntry,
        port: LoopPort,
        exchange: Exchange,
        loaded: LoadedModel,
        codec: ModelCodec,
        notes: HeadNotes,
    ) -> None:
        # All in one place: the constructors of the base classes would be two calls more.
        self.on_done = answer  # type: ignore[assignment]  # it gets this very object
        self.loop = port
        self.settled = False
        self.unclaimed = True
        self.entry = entry
        self.loaded = loaded
        self.request = None
        self.port = port
        self.exchange = exchange
        self.codec = codec
        self.notes = notes

    def submit(self, decoded: DecodedRequest) -> None:
        """Do what HttpEntry.submit does. In the loop."""
        self.decoded = decoded
        exchange, notes = self.exchange, self.notes
        http_request = exchange.request
        size = len(http_request.body) if notes.coding is None else SMALL_BODY + 1
        http_request.body = b""
        self.request = request = self.entry.admitted(
            self.loaded,
            decoded,
            self,
            notes.terms,
            http_request.caller,
            decoded.id or notes.request_id,
            size,
        )
        self.port.submit(self.loaded, request)
        exchange.on_disconnect = self.cancel

    def fail(self, error: Exception) -> None:
        self.exchange.on_disconnect = None
        fail(self.exchange, error)

    def write(self, response: InferResponse) -> None:
        exchange, codec, notes = self.exchange, self.codec, self.notes
        exchange.on_disconnect = None
        outputs, decoded = response.outputs, self.decoded
        usual = codec.encode_usual(response, decoded, packed=notes.accepts is not None)
        if usual is not None:
            self._send(usual)
            return
        what = outputs, decoded.requested_outputs, decoded.id, response.parameters
        if codec.is_large(outputs, decoded.requested_outputs, packed=notes.accepts is not None):
            work = partial(self._encoded_beside, *what)
            self.entry.off_loop(exchange, work, self._send, reads=False)
            return
        self._send(codec.encode(*what))

    def _encoded_beside(self, *what: Any) -> AnswerBody:
        """Encode and compress an answer in another thread."""
        encoded = self.codec.encode(*what, in_slices=True)
        accepts = self.notes.accepts
        if accepts is not None:
            encoded.body, encoded.headers = packed(encoded.body, accepts, MAX_BYTES)
        return encoded

    def _send(self, encoded: AnswerBody) -> None:
        content_type, headers = "application/json", encoded.headers
        if encoded.json_bytes is not None:
            content_type = OCTET_STREAM
            headers = (*headers, ("Inference-Header-Content-Length", str(encoded.json_bytes)))
        body, notes = encoded.body, self.notes
        as_it_is = notes.accepts is None or (type(body) is bytes and len(body) < MIN_BYTES)
        if as_it_is and not notes.request_id:
            self.exchange.respond(200, body, content_type=content_type, headers=headers)
            return
        respond(
            self.exchange,
            body,
            content_type=content_type,
            headers=headers,
            compress=not encoded.headers,
        )
