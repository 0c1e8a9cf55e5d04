"""Which model does a path name, and how does an HTTP request enter the runtime?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar
from weakref import ref

from wherry.frontends.admission import SMALL_BODY
from wherry.frontends.compression import decompressed
from wherry.frontends.http.answers import fail, given_request_id
from wherry.frontends.http.exchange import Exchange
from wherry.frontends.offload import LARGE_BYTES
from wherry.frontends.v2.common import Common
from wherry.frontends.v2.decoded import DecodedRequest
from wherry.frontends.v2.entry import Beside, Entry
from wherry.frontends.v2.http.infer_codec import ModelCodec
from wherry.frontends.v2.json_elements import parse_object
from wherry.runtime.loaded_model import LoadedModel
from wherry.runtime.runtime import Runtime
from wherry.values.buffer import Buffer
from wherry.values.errors import RequestTooLarge
from wherry.values.reply import Reply
from wherry.values.request import InferRequest, InferResponse

#: Bytes of an operator's command, inflated.
COMMAND_BYTES: Final = 2**20

T = TypeVar("T")


class HttpEntry(Entry):
    """Reads bodies and submits requests. Shared by all V2 and OpenAI routes of one server."""

    def __init__(self, runtime: Runtime, common: Common) -> None:
        super().__init__(runtime, common)
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

    def small_body(self, exchange: Exchange) -> Buffer | None:
        """Return `body` if it costs little; None if it is work for another thread."""
        request = exchange.request
        if len(request.body) > LARGE_BYTES:
            return None
        if "content-encoding" not in request.headers:
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
            except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
                fail(exchange, error)

        # Also a small body may be much, once it is inflated.
        nbytes = max(len(exchange.request.body), LARGE_BYTES) if reads else 0
        exchange.on_disconnect = Beside(self, work, ended, nbytes).cancel

    def members(self, exchange: Exchange) -> dict[str, Any]:
        """Return the members of the JSON object in the body; {} for an empty body."""
        body = self.command(exchange)
        return parse_object(body) if len(body) else {}

    def command(self, exchange: Exchange) -> Buffer:
        """Return the body of a request that is read in the loop, however large: compressed, it may
        not be much larger than small."""
        return self.body(exchange, COMMAND_BYTES)

    def submit(
        self,
        exchange: Exchange,
        loaded: LoadedModel,
        decoded: DecodedRequest,
        reply: Reply[InferResponse],
    ) -> InferRequest:
        """`send` the request of an exchange, and free its body."""
        http_request = exchange.request
        headers = http_request.headers
        request_id = decoded.id
        if not request_id and "x-request-id" in headers:
            request_id = given_request_id(headers)
        packed = "content-encoding" in headers
        size = SMALL_BODY + 1 if packed else len(http_request.body)
        http_request.body = b""  # the columns hold what is needed
        return self.send(
            loaded,
            decoded,
            reply,
            headers,
            caller=http_request.caller,
            id=request_id,
            body_bytes=size,
        )


class ModelPath:
    """The model that a path names, looked up at each request: it may be loaded again."""

    def __init__(self, entry: HttpEntry, name: str, version: str | None) -> None:
        self.entry = entry
        self.name = name
        self.version = version
        # Not kept alive: paths are remembered, and an unloaded model must give its memory back.
        self._coded: ref[LoadedModel] | None = None
        self._codec: ModelCodec | None = None

    def loaded(self) -> LoadedModel:
        """The model as it is loaded now. ModelNotFound if it is not."""
        return self.entry.runtime.model(self.name, self.version)

    def find(self) -> tuple[LoadedModel, ModelCodec]:
        """`loaded`, with its codec."""
        loaded = self.entry.runtime.model(self.name, self.version)
        codec = self._codec
        if codec is None or self._coded is None or self._coded() is not loaded:
            codec = self._codec = ModelCodec(self.entry.tensors(loaded))
            self._coded = ref(loaded)
        return loaded, codec
