"""How do texts become vectors, in one request whose rows are batched with other callers'?"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np

from wherry.frontends.http.answers import respond
from wherry.frontends.http.exchange import Exchange
from wherry.frontends.offload import give_way
from wherry.frontends.openai.errors import BadField, fail
from wherry.frontends.openai.fields.embeddings import EmbeddingRequest
from wherry.frontends.openai.spans import asked_for
from wherry.frontends.terms import terms_of
from wherry.frontends.v2.http.entry import HttpEntry
from wherry.frontends.v2.output_codec import is_large
from wherry.observability.otel.following import FollowedRequest
from wherry.runtime.loaded_model import LoadedModel
from wherry.values.buffer import Buffer
from wherry.values.datatypes import Form
from wherry.values.reply import Reply
from wherry.values.request import InferRequest, InferResponse

#: Numbers written between two pauses, which takes some milliseconds.
VECTORS_AT_ONCE: Final = 16


class Embedding:
    """One embedding request: a batch of texts, and their vectors as JSON."""

    def __init__(
        self, entry: HttpEntry, exchange: Exchange, loaded: LoadedModel, wanted: EmbeddingRequest
    ) -> None:
        self._entry = entry
        self._exchange = exchange
        self._loaded = loaded
        self._wanted = wanted

    def submit(self) -> None:
        texts, signature = self._wanted.texts(), self._loaded.signature
        headers, port = self._exchange.request.headers, self._entry.port()
        terms = terms_of(headers, self._entry.common.tenant_key)
        reply: Reply[InferResponse] = Reply(self._settled, port)
        request = self._loaded.request(
            {signature.inputs[0].name: texts},
            len(texts),
            reply,
            timeout=terms.timeout,
            tenant=terms.tenant_of(self._exchange.request.caller),
        )
        if (trace := self._exchange.request.head.trace) is not None:
            loaded = self._loaded
            FollowedRequest(trace, loaded.name, loaded.version).follow(request)
            trace.draft.attributes.update(asked_for(self._wanted, "embeddings"))
        self._entry.admission.enter(request)
        self._exchange.request.body = b""  # free it: the columns hold what is needed
        self._exchange.on_disconnect = lambda: self._cancel(request)
        port.submit(self._loaded, request)

    def _cancel(self, request: InferRequest) -> None:
        self._loaded.cancel(request)

    def _settled(self, reply: Reply[InferResponse]) -> None:
        self._entry.admission.leave()
        self._exchange.on_disconnect = None
        try:
            response = reply.result()
            if is_large(response.outputs):
                write = partial(self._encoded, response)
                self._entry.off_loop(self._exchange, write, self._send, fail, reads=False)
            else:
                self._send(self._encoded(response))
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            fail(self._exchange, error)

    def _send(self, body: Sequence[Buffer]) -> None:
        respond(self._exchange, b"".join(body))

    def _encoded(self, response: InferResponse) -> list[Buffer]:
        """The answer's JSON in parts: a vector each."""
        name = next(s.name for s in self._loaded.signature.outputs if s.form is Form.ARRAY)
        vectors = np.asarray(response.outputs[name], np.dtype("<f4"))
        width, wanted = vectors.shape[1], self._wanted.dimensions
        if wanted not in (None, width):
            raise BadField("dimensions", f"the model '{self._loaded.name}' has {width}")
        counts = response.outputs.get("tokens", ())
        tokens = int(sum(int(count) for count in counts))
        # Counted by models that have an output `tokens`.
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        about = {"object": "list", "model": self._loaded.name, "usage": usage}
        parts: list[Buffer] = [msgspec.json.encode(about)[:-1], b',"data":[']
        as_text = self._wanted.encoding_format == "base64"
        for index, vector in enumerate(vectors):
            values: Any = (
                base64.b64encode(vector.tobytes()).decode() if as_text else vector.tolist()
            )
            one = {"object": "embedding", "index": index, "embedding": values}
            parts += [b"," if index else b"", msgspec.json.encode(one)]
            if not index % VECTORS_AT_ONCE:
                give_way()
        return [*parts, b"]}"]
