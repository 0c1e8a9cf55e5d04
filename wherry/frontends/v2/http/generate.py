"""How do `generate` and `generate_stream` run: one request, one or many responses?"""

from __future__ import annotations

from abc import ABC, abstractmethod

from wherry.frontends.http.answers import fail, respond
from wherry.frontends.http.exchange import Exchange
from wherry.frontends.http.sse import EventStream
from wherry.frontends.v2.decoded import DecodedRequest
from wherry.frontends.v2.http.entry import ModelPath
from wherry.values.errors import InvalidRequest
from wherry.values.reply import Reply, StreamReply
from wherry.values.request import InferRequest, InferResponse


def generate(model: ModelPath, exchange: Exchange) -> None:
    """One answer as one JSON object, also of a model that streams, if it has exactly one."""
    GenerateCall(model, exchange).begin()


def generate_stream(model: ModelPath, exchange: Exchange) -> None:
    """Each answer as an event, also the only one of a model that does not stream."""
    StreamCall(model, exchange).begin()


class GenerateRequest(ABC):
    """A generate request, to a model that streams or one that does not."""

    def __init__(self, model: ModelPath, exchange: Exchange) -> None:
        self.entry = model.entry
        self.exchange = exchange
        self.entry.admission.check()
        self.loaded, self.codec = model.find()
        self.id = ""
        self._request: InferRequest | None = None
        self._reply: Reply[InferResponse] | None = self.entry.reply(
            self.loaded, self._responded, self._settled
        )

    def begin(self) -> None:
        """Read the request, here or in another thread, and `submit` it."""
        entry, exchange, codec = self.entry, self.exchange, self.codec
        body = entry.small_body(exchange)
        if body is not None:
            self.submit(codec.generate.decode(body))
        else:
            entry.off_loop(
                exchange,
                lambda: codec.generate.decode_large(entry.body(exchange)),
                self.submit,
                reads=True,
            )

    def submit(self, decoded: DecodedRequest) -> None:
        """Send the request on its way: `respond` comes for each response, then `end`."""
        assert self._reply is not None
        self.id = decoded.id
        self._request = self.entry.submit(self.exchange, self.loaded, decoded, self._reply)
        self.exchange.on_disconnect = self.cancel

    def cancel(self) -> None:
        if self._request is not None:
            self.loaded.cancel(self._request)

    def consumed(self) -> None:
        """Note that the client has read a response: the model may go on."""
        if isinstance(self._reply, StreamReply):
            self._reply.consumed()

    def encoded(self, response: InferResponse) -> bytes:
        return self.codec.generate.encode(response.outputs, self.id, response.parameters)

    def _responded(self, _: Reply[InferResponse], response: InferResponse) -> None:
        self.respond(response)

    def _settled(self, reply: Reply[InferResponse]) -> None:
        outcome = reply.outcome
        self.entry.admission.leave()
        # Reference cycles would keep the request alive until the garbage collector runs.
        self.exchange.on_disconnect = self._request = self._reply = None
        if isinstance(outcome, Exception):
            self.end(outcome)
            return
        if outcome.outputs:  # a stream's end is an empty response
            self.respond(outcome)
        self.end(None)

    @abstractmethod
    def respond(self, response: InferResponse) -> None:
        """Take one response."""

    @abstractmethod
    def end(self, error: Exception | None) -> None:
        """Take the end of the responses, with the error if the request failed."""


class GenerateCall(GenerateRequest):
    """A request to `generate`: exactly one response is the answer, any other number an error."""

    def __init__(self, model: ModelPath, exchange: Exchange) -> None:
        super().__init__(model, exchange)
        self._responses: list[InferResponse] = []

    def respond(self, response: InferResponse) -> None:
        self._responses.append(response)
        if len(self._responses) == 2:
            self.cancel()  # it has failed already: spare the model the rest

    def end(self, error: Exception | None) -> None:
        try:
            count = len(self._responses)
            if count > 1 or (count == 0 and error is None):
                raise InvalidRequest(
                    "generate expects model to produce exactly 1 response, use generate_stream for"
                    f" models that produce any other number; model '{self.loaded.name}' produced"
                    f" {'more than 1' if count else 'none'}"
                )
            if error is not None:
                raise error
            respond(self.exchange, self.encoded(self._responses[0]))
        except Exception as problem:  # noqa: BLE001 - whatever it is, the client is told
            fail(self.exchange, problem)


class StreamCall(GenerateRequest):
    """A request to `generate_stream`: each response is an event."""

    def __init__(self, model: ModelPath, exchange: Exchange) -> None:
        super().__init__(model, exchange)
        self._events = EventStream(exchange, self.consumed)
        self._failed: Exception | None = None

    def submit(self, decoded: DecodedRequest) -> None:
        super().submit(decoded)  # may refuse it: then there is no stream
        self._events.keep_alive()

    def respond(self, response: InferResponse) -> None:
        if self._failed is not None:
            return
        try:
            self._events.send(self.encoded(response))
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            self._failed = error
            self.cancel()

    def end(self, error: Exception | None) -> None:
        self._events.end(self._failed or error)
