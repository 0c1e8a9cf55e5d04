"""Which model does a path name, how does an HTTP request enter the runtime, how does infer run?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar
from weakref import ref

import msgspec

from wherry.core.api import (
    Buffer,
    DeadlineExceeded,
    InferResponse,
    InvalidRequest,
    LoadedModel,
    RequestTooLarge,
    Runtime,
    Unsupported,
    WherryError,
)
from wherry.server.calls.call import Beside, Entry, InferCall
from wherry.server.calls.compression import MAX_BYTES, MIN_BYTES, decompressed
from wherry.server.calls.offload import LARGE_BYTES
from wherry.server.calls.terms import Terms, client_request_id, shorter_timeout
from wherry.server.content.urls import TIMEOUT, Fetching
from wherry.server.http.answers import fail, packed, respond
from wherry.server.http.exchange import Exchange, RequestHead
from wherry.server.v2.common import Common
from wherry.server.v2.http.generate_codec import AnswerBody
from wherry.server.v2.http.infer_codec import ModelCodec, json_bytes_of
from wherry.server.v2.json_elements import parse_object
from wherry.server.v2.long_arrays import check_values
from wherry.server.v2.model_tensors import DecodedRequest, tensors_of
from wherry.server.v2.row_values import UrlFile, fetch_files
from wherry.triton.api import ModelControl

#: Bytes of an operator's command, and of one with files once it is inflated.
COMMAND_BYTES: Final = 2**20
#: Values, names and brackets in one: a load may bring a thousand files.
COMMAND_VALUES: Final = 2**14

T = TypeVar("T")


class HeadNotes(msgspec.Struct, frozen=True):
    """The head of an infer request, read once for all requests with the same head."""

    terms: Terms
    json_bytes: int | None
    #: Content-Encoding and Accept-Encoding as they came.
    coding: str | None
    accepts: str | None
    #: X-Request-Id; "" if there is no valid one.
    request_id: str


class HttpEntry(Entry):
    """Reads bodies and submits requests. Shared by all V2 and OpenAI routes of one server."""

    def __init__(
        self, runtime: Runtime, common: Common, control: ModelControl | None = None
    ) -> None:
        super().__init__(runtime, *common.of_calls, common.forwarding.http)
        self.common = common
        self.control = control or ModelControl(runtime)
        self.max_body_bytes = common.max_body_bytes

    def body(self, exchange: Exchange, most: int | None = None) -> Buffer:
        """Return the request's body without its Content-Encoding. RequestTooLarge if it has more
        than `most` bytes when unpacked."""
        request = exchange.request
        coding = request.headers.get("content-encoding")
        if coding is None:
            return request.body
        limit = self.max_body_bytes
        return decompressed(request.body, coding, limit if most is None else min(most, limit))

    def note(self, head: RequestHead, json_bytes: int | None = None) -> HeadNotes:
        """Read the head of a request to a model, and keep the result in it. InvalidRequest."""
        headers = head.headers
        notes = head.notes = HeadNotes(
            self.terms(headers, head.trace),
            json_bytes,
            headers.get("content-encoding"),
            headers.get("accept-encoding"),
            client_request_id(headers),
        )
        return notes

    def small_body(self, exchange: Exchange) -> Buffer | None:
        """Return `body` if it costs little; None if it is work for another thread."""
        request = exchange.request
        if len(request.body) > LARGE_BYTES:
            return None
        if "content-encoding" not in request.head.headers:
            return request.body
        try:
            return self.body(exchange, LARGE_BYTES)
        except RequestTooLarge:
            if self.max_body_bytes <= LARGE_BYTES:
                raise
            return None

    def off_loop(
        self,
        exchange: Exchange,
        work: Callable[[], T],
        done: Callable[[T], None],
        fail: Callable[[Exchange, Exception], None] = fail,
        *,
        reads: bool,
    ) -> None:
        """Have `work()` done by another thread, and then `done` called in the loop with its result.

        An error of either is the answer. The work of a client that leaves is cancelled. Work that
        `reads` the request is refused with ServerBusy if too much is being read; work that writes
        the answer never is.
        """

        def ended(outcome: Any) -> None:
            exchange.on_disconnect = None
            if isinstance(outcome, Exception):
                fail(exchange, outcome)
                return
            try:
                done(outcome)
            except Exception as error:  # noqa: BLE001 - any error is sent to the client
                fail(exchange, error)

        # Also a small body may be much, once it is inflated.
        nbytes = max(len(exchange.request.body), LARGE_BYTES) if reads else 0
        exchange.on_disconnect = Beside(self, work, ended, nbytes).cancel

    def fetch(
        self,
        exchange: Exchange,
        loaded: LoadedModel,
        decoded: DecodedRequest,
        files: list[UrlFile],
        done: Callable[[DecodedRequest], None],
    ) -> None:
        """Have `files` fetched by another thread, and then `done` called in the loop.

        An error of either is the answer. It ends with the time for URLs, with the request's own
        timeout, or when the client leaves, whatever the thread waits for.
        """
        notes: HeadNotes = exchange.request.head.notes or self.note(exchange.request.head)
        timeout = shorter_timeout(notes.terms.timeout, decoded.parameters)
        timeout = loaded.config.request_timeout if timeout is None else timeout
        seconds = TIMEOUT if timeout is None else min(TIMEOUT, timeout)
        offload, loop = self.common.fetching, self.port().loop
        began, taken = loop.time(), 0

        def take(nbytes: int) -> None:
            nonlocal taken
            offload.take(nbytes)
            taken += nbytes

        fetching = Fetching(take, seconds)

        def work() -> None:
            try:
                urls = self.common.input_urls
                fetch_files(decoded.columns, files, urls, self.max_body_bytes, fetching)
                decoded.counted()
            finally:
                offload.release(taken)

        def ended(outcome: Any) -> None:
            timer.cancel()
            exchange.on_disconnect = None
            try:
                if isinstance(outcome, Exception):
                    raise late() if fetching.is_over else outcome
                if timeout is not None:
                    decoded.seconds_left = max(0.0, timeout - (loop.time() - began))
                done(decoded)
            except Exception as error:  # noqa: BLE001 - any error is sent to the client
                fail(exchange, error)

        def late() -> WherryError:
            what = f"model '{loaded.name}': the URLs of the request could not be fetched within"
            if seconds == timeout:
                return DeadlineExceeded(f"{what} its timeout ({seconds:g} s)")
            return InvalidRequest(f"{what} {seconds:g} s")

        def stop() -> None:
            timer.cancel()
            fetching.end()
            beside.cancel()

        def expire() -> None:
            exchange.on_disconnect = None
            stop()
            fail(exchange, late())

        beside = Beside(self, work, ended, LARGE_BYTES, offload)
        timer = loop.call_later(seconds, expire)
        exchange.on_disconnect = stop

    def members(self, exchange: Exchange, *, has_files: bool = False) -> dict[str, Any]:
        """Return the members of the JSON object in the body of an operator's command; {} for an
        empty one. RequestTooLarge for many bytes or values: it is read in the loop, unless it
        `has_files`, for which another thread reads it."""
        most = self.max_body_bytes if has_files else COMMAND_BYTES
        body = self.body(exchange, COMMAND_BYTES)
        if len(body) > most:
            raise RequestTooLarge(f"the body has {len(body)} bytes, and may have {most} here")
        check_values(body, COMMAND_VALUES)
        return parse_object(body) if len(body) else {}


class ModelPath:
    """The model that a path names. It is looked up again whenever it may be another one."""

    def __init__(self, entry: HttpEntry, name: str, version: str | None) -> None:
        self.entry = entry
        self.name = name
        self.version = version
        # Not kept alive: paths are remembered, and an unloaded model must give its memory back.
        self._found: Callable[[], LoadedModel | None] = lambda: None
        self._generation = -1
        self._codec: ModelCodec | None = None

    def loaded(self) -> LoadedModel:
        """The model as it is loaded now. ModelNotFound if it is not."""
        return self.entry.runtime.model(self.name, self.version)

    def find(self) -> tuple[LoadedModel, ModelCodec]:
        generation = self.entry.registry.generation
        loaded, codec = self._found(), self._codec
        if loaded is None or codec is None or generation != self._generation:
            now = self.loaded()
            if now is not loaded or codec is None:
                codec = self._codec = ModelCodec(tensors_of(now, self.entry.common))
                self._found = ref(now)
            loaded = now
            self._generation = generation  # as it was before `loaded` looked
        return loaded, codec


class HttpCall(InferCall):
    __slots__ = ("decoded",)

    entry: HttpEntry
    client: Exchange
    decoded: DecodedRequest

    def submit(self, decoded: DecodedRequest) -> None:
        self.decoded = decoded
        exchange = self.client
        http_request = exchange.request
        notes: HeadNotes = http_request.head.notes or self.entry.note(http_request.head)
        # A body that was compressed may be large in memory, however small it is.
        size = len(http_request.body) if notes.coding is None else 0
        http_request.body = b""  # the columns hold what is needed
        self.send(decoded, notes.terms, http_request.caller, decoded.id or notes.request_id, size)
        exchange.on_disconnect = self.cancel

    def reply(self, answer: AnswerBody) -> None:
        respond(
            self.client,
            answer.body,
            content_type=answer.content_type,
            headers=answer.headers,
            compress=not answer.is_packed,
        )

    def encode_beside(self, encode: Callable[[], AnswerBody]) -> None:
        """Have a large answer encoded and compressed by another thread, and `reply` with it."""
        accepts = self.client.request.head.headers.get("accept-encoding")

        def work() -> AnswerBody:
            answer = encode()
            if accepts is not None:
                answer.body, headers = packed(answer.body, accepts, MAX_BYTES)
                answer.headers, answer.is_packed = (*answer.headers, *headers), True
            return answer

        self.entry.off_loop(self.client, work, self.reply, reads=False)


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
            if is_small and not usual.headers and not notes.request_id:
                exchange.respond(200, body)
            else:
                self.reply(usual)
            return
        what = response.outputs, decoded.requested_outputs, decoded.id, response.parameters
        if codec.is_large(response.outputs, decoded.requested_outputs, packed=is_packed):
            self.encode_beside(partial(codec.encode, *what, in_slices=True))
            return
        self.reply(codec.encode(*what))
