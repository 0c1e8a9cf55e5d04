"""How does an infer request run: one request, one answer?"""

from __future__ import annotations

from functools import partial
from typing import Any

from wherry.core.api import Buffer, InferResponse, Unsupported
from wherry.server.calls.compression import MAX_BYTES, MIN_BYTES
from wherry.server.calls.offload import LARGE_BYTES
from wherry.server.http.answers import fail, packed, respond
from wherry.server.http.exchange import Exchange
from wherry.server.v2.http.entry import HeadNotes, HttpCall, ModelPath
from wherry.server.v2.http.infer_codec import (
    OCTET_STREAM,
    AnswerBody,
    ModelCodec,
    json_bytes_of,
)


def infer(model: ModelPath, exchange: Exchange) -> None:
    """Handle an infer request. The hot path: one object besides the runtime's own, no task."""
    entry = model.entry
    if entry.admission.max_in_flight is not None:
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
    notes: HeadNotes = head.notes or entry.note(head, json_bytes_of(head.headers))
    json_bytes = notes.json_bytes
    body: Buffer | None = request.body
    if notes.coding is not None:
        body = entry.small_body(exchange)
    elif len(request.body) > LARGE_BYTES and not codec.reads_in_place(json_bytes):
        body = None
    if body is not None:
        decoded = codec.decode(body, json_bytes)
        HttpInferCall(entry, loaded, codec, exchange).submit(decoded)
        return
    entry.off_loop(
        exchange,
        lambda: codec.decode(entry.body(exchange), json_bytes).counted(),
        HttpInferCall(entry, loaded, codec, exchange).submit,
        reads=True,
    )


class HttpInferCall(HttpCall):
    """An infer request that came over HTTP."""

    __slots__ = ()

    codec: ModelCodec

    def fail(self, error: Exception) -> None:
        self.client.on_disconnect = None
        fail(self.client, error)

    def write(self, response: InferResponse) -> None:
        exchange, codec, decoded = self.client, self.codec, self.decoded
        exchange.on_disconnect = None
        notes: HeadNotes = exchange.request.head.notes
        is_packed = notes.accepts is not None
        usual = codec.encode_usual(response, decoded, packed=is_packed)
        if usual is not None:
            body = usual.body
            is_small = not is_packed or len(body) < MIN_BYTES
            if is_small and usual.json_bytes is None and not notes.request_id:
                exchange.respond(200, body)
            else:
                self._send(usual)
            return
        what = response.outputs, decoded.requested_outputs, decoded.id, response.parameters
        if codec.is_large(response.outputs, decoded.requested_outputs, packed=is_packed):
            work = partial(self._encoded_beside, *what)
            self.entry.off_loop(exchange, work, self._send, reads=False)
            return
        self._send(codec.encode(*what))

    def _encoded_beside(self, *what: Any) -> AnswerBody:
        """Encode and compress an answer in another thread."""
        encoded = self.codec.encode(*what, in_slices=True)
        accepts = self.client.request.head.notes.accepts
        if accepts is not None:
            encoded.body, encoded.headers = packed(encoded.body, accepts, MAX_BYTES)
        return encoded

    def _send(self, encoded: AnswerBody) -> None:
        content_type, headers = "application/json", encoded.headers
        if encoded.json_bytes is not None:
            content_type = OCTET_STREAM
            headers = (*headers, ("Inference-Header-Content-Length", str(encoded.json_bytes)))
        body, notes = encoded.body, self.client.request.head.notes
        as_it_is = notes.accepts is None or (type(body) is bytes and len(body) < MIN_BYTES)
        if as_it_is and not notes.request_id:
            self.client.respond(200, body, content_type=content_type, headers=headers)
            return
        respond(
            self.client,
            body,
            content_type=content_type,
            headers=headers,
            compress=not encoded.headers,
        )
