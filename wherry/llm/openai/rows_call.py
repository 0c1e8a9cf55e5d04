"""How do rows of one request, batched with other callers', become one JSON answer?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial

import msgspec

from wherry.core.api import (
    Buffer,
    Columns,
    FollowedRequest,
    InferRequest,
    InferResponse,
    LoadedModel,
    Reply,
)
from wherry.llm.openai.errors import fail
from wherry.llm.openai.spans import request_attributes
from wherry.server.api import Exchange, HttpEntry, held_bytes, is_large, respond, terms_of


class ReadTokens(msgspec.Struct):
    """How many tokens were read."""

    prompt_tokens: int
    total_tokens: int


class RowsCall(ABC):
    """One request of several rows to a model that does not stream."""

    #: What it does, in a span.
    operation: str

    def __init__(self, entry: HttpEntry, loaded: LoadedModel, fields: object) -> None:
        self._entry = entry
        self._loaded = loaded
        self._fields = fields

    @property
    def model_name(self) -> str:
        """What the answer calls the model."""
        return self._loaded.reported_name(getattr(self._fields, "model", None))

    @abstractmethod
    def columns(self) -> tuple[Columns, int]:
        """The columns of the request, and their rows. BadField."""

    @abstractmethod
    def encoded(self, response: InferResponse) -> Sequence[Buffer]:
        """The answer in parts. Another thread, if it is large."""

    def prepare(self) -> None:
        """Make and measure the columns, in the thread that has read the request. BadField."""
        self._columns, self._rows = self.columns()
        self._nbytes = held_bytes(self._columns)

    def submit(self, exchange: Exchange) -> None:
        """Send the request; what is refused at once is raised."""
        self._exchange = exchange
        headers, port = exchange.request.headers, self._entry.port()
        terms = terms_of(headers, self._entry.common.tenant_key)
        reply: Reply[InferResponse] = Reply(self._settled, port)
        request = self._loaded.request(
            self._columns,
            self._rows,
            reply,
            timeout=terms.timeout,
            priority=getattr(self._fields, "priority", None) or 0,
            tenant=terms.tenant_of(exchange.request.caller),
        )
        request.nbytes = self._nbytes
        self._columns = {}  # they are the request's
        if (trace := self._exchange.request.head.trace) is not None:
            loaded = self._loaded
            FollowedRequest(trace, loaded.name, loaded.version).follow(request)
            trace.draft.attributes.update(request_attributes(self._fields, self.operation))
        self._entry.admission.enter(request)
        self._exchange.request.body = b""  # free it: the columns hold what is needed
        self._exchange.on_disconnect = lambda: self._cancel(request)
        port.submit(self._loaded, request)

    def usage(self, response: InferResponse, otherwise: int = 0) -> ReadTokens:
        """The tokens that were read, of models that have an output `tokens`."""
        counts = response.outputs.get("tokens")
        tokens = otherwise if counts is None else int(sum(int(count) for count in counts))
        return ReadTokens(tokens, tokens)

    def _cancel(self, request: InferRequest) -> None:
        self._loaded.cancel(request)

    def _settled(self, reply: Reply[InferResponse]) -> None:
        self._entry.admission.leave()
        self._exchange.on_disconnect = None
        try:
            response = reply.result()
            if is_large(response.outputs):
                write = partial(self.encoded, response)
                self._entry.off_loop(self._exchange, write, self._send, fail, reads=False)
            else:
                self._send(self.encoded(response))
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            fail(self._exchange, error)

    def _send(self, body: Sequence[Buffer]) -> None:
        respond(self._exchange, b"".join(body))
