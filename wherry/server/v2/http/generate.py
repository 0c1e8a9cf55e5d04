"""How do `generate` and `generate_stream` run: one request, one or many responses?"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Protocol

from wherry.core.api import Buffer, InferResponse, InvalidRequest, LoadedModel
from wherry.server.http.answers import EventStream, fail
from wherry.server.http.exchange import Exchange, RequestHead
from wherry.server.v2.http.entry import HttpCall, HttpEntry, ModelPath
from wherry.server.v2.http.generate_codec import AnswerBody, OutputFormat
from wherry.server.v2.model_tensors import DecodedRequest
from wherry.server.v2.output_codec import is_large
from wherry.server.v2.row_values import url_files


class BodyCodec(Protocol):
    """The wire form of one model's requests and answers."""

    fetches: bool

    def output_format(self, head: RequestHead) -> OutputFormat:
        """The form of the answer that the request accepts. NotAcceptable."""

    def read(self, head: RequestHead, body: Buffer) -> DecodedRequest:
        """Decode a body of any type, in any thread. InvalidRequest, UnsupportedMediaType."""

    def answer(self, response: InferResponse, output_format: OutputFormat) -> AnswerBody: ...


class GenerateRequest(HttpCall):
    takes_streams = True
    codec: BodyCodec

    def __init__(
        self, entry: HttpEntry, loaded: LoadedModel, codec: BodyCodec, exchange: Exchange
    ) -> None:
        super().__init__(entry, loaded, codec, exchange)
        self.output_format = OutputFormat()

    @classmethod
    def handle(cls, model: ModelPath, exchange: Exchange) -> None:
        """Handle a request to a path of `model`."""
        model.entry.admission.check()
        loaded, codec = model.find()
        cls(model.entry, loaded, codec.generate, exchange).begin()

    def begin(self) -> None:
        entry, exchange, codec = self.entry, self.client, self.codec
        head = exchange.request.head
        body = entry.small_body(exchange)
        done = self._fetch if codec.fetches else self.submit
        if body is not None:
            done(codec.read(head, body))
        else:
            entry.off_loop(
                exchange, lambda: codec.read(head, entry.body(exchange)).counted(), done, reads=True
            )

    def _fetch(self, decoded: DecodedRequest) -> None:
        if files := url_files(decoded.columns):
            self.entry.fetch(self.client, self.loaded, decoded, files, self.submit)
        else:
            self.submit(decoded)

    def submit(self, decoded: DecodedRequest) -> None:
        self.output_format.decoded(decoded)
        super().submit(decoded)

    def write(self, response: InferResponse) -> None:
        self.client.on_disconnect = None
        if response.outputs:  # a stream's end is an empty response
            self.respond(response)
        self.end(None)

    def fail(self, error: Exception) -> None:
        self.client.on_disconnect = None
        self.end(error)

    @abstractmethod
    def end(self, error: Exception | None) -> None: ...


class GenerateCall(GenerateRequest):
    """A request to `generate`, also of a model that streams: exactly one response is the answer,
    any other number an error."""

    def __init__(
        self, entry: HttpEntry, loaded: LoadedModel, codec: BodyCodec, exchange: Exchange
    ) -> None:
        super().__init__(entry, loaded, codec, exchange)
        self.output_format = codec.output_format(exchange.request.head)
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
                    "generate expects model to produce exactly 1 response",
                    more=", use generate_stream for models that produce any other number; model"
                    f" '{self.loaded.name}' produced {'more than 1' if count else 'none'}",
                )
            if error is not None:
                raise error
            response = self._responses[0]
            encode = partial(self.codec.answer, response, self.output_format)
            may_pack = "accept-encoding" in self.client.request.headers
            if (may_pack or not self.output_format.file) and is_large(response.outputs):
                self.encode_beside(encode)
            else:
                self.reply(encode())
        except Exception as problem:  # noqa: BLE001 - any error is sent to the client
            fail(self.client, problem)


class StreamCall(GenerateRequest):
    """A request to `generate_stream`: each response is an event, also the only one of a model that
    does not stream."""

    def __init__(
        self, entry: HttpEntry, loaded: LoadedModel, codec: BodyCodec, exchange: Exchange
    ) -> None:
        super().__init__(entry, loaded, codec, exchange)
        self._events = self.events(exchange)
        self._failed: Exception | None = None

    def events(self, exchange: Exchange) -> EventStream:
        return EventStream(exchange)

    def submit(self, decoded: DecodedRequest) -> None:
        super().submit(decoded)  # may refuse it: then there is no stream
        self._events.keep_alive()

    def respond(self, response: InferResponse) -> None:
        if self._failed is not None:
            return
        try:
            data = self.codec.answer(response, self.output_format).body
            assert isinstance(data, bytes)
            self._events.send(data, consumed=self.consumed)
        except Exception as error:  # noqa: BLE001 - any error is sent to the client
            self._failed = error
            self.cancel()

    def end(self, error: Exception | None) -> None:
        self._events.end(self._failed or error)
