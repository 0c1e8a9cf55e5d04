"""Which model does a path name, and how does its request enter the runtime?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import ref

from wherry.frontends.admission import SMALL_BODY, Admission, tenant_of, timeout_of
from wherry.frontends.compression import decompressed
from wherry.frontends.http.answers import fail, given_request_id
from wherry.frontends.http.exchange import Exchange
from wherry.frontends.offload import LARGE_BYTES
from wherry.frontends.v2.common import Common
from wherry.frontends.v2.http.infer_codec import InferBody, ModelCodec, parse_object
from wherry.frontends.v2.parameters import HeaderForwarding, for_the_model, sequence_of
from wherry.runtime.loaded_model import LoadedModel
from wherry.runtime.loop_port import LoopPort
from wherry.runtime.runtime import Runtime
from wherry.values.buffer import Buffer
from wherry.values.errors import RequestTooLarge
from wherry.values.reply import Reply
from wherry.values.request import InferRequest, InferResponse

#: Bytes of an operator's command, inflated.
COMMAND_BYTES = 2**20

T = TypeVar("T")


class Entry:
    """What the handlers of one server share: the runtime and the door to it."""

    def __init__(
        self,
        runtime: Runtime,
        admission: Admission,
        max_body_bytes: int,
        *,
        common: Common | None = None,
        forwarding: HeaderForwarding | None = None,
    ) -> None:
        self.runtime = runtime
        self.admission = admission
        self.max_body_bytes = max_body_bytes
        self.common = common or Common()
        self._forwarding = forwarding
        self._port: tuple[asyncio.AbstractEventLoop, LoopPort] | None = None

    def port(self) -> LoopPort:
        """The running loop's way into the runtime, remembered: it is nearly always the same."""
        loop = asyncio.get_running_loop()
        known = self._port
        if known is None or known[0] is not loop:
            known = self._port = (loop, self.runtime.port())
        return known[1]

    def body(self, exchange: Exchange) -> Buffer:
        """The request's body without its Content-Encoding."""
        request = exchange.request
        coding = request.headers.get("content-encoding")
        if coding is None:
            return request.body
        return decompressed(request.body, coding, self.max_body_bytes)

    def small_body(self, exchange: Exchange) -> Buffer | None:
        """`body` if it costs little; None if it is work for another thread."""
        request = exchange.request
        body = request.body
        if len(body) > LARGE_BYTES:
            return None
        coding = request.headers.get("content-encoding")
        if coding is None:
            return body
        try:
            return decompressed(body, coding, min(LARGE_BYTES, self.max_body_bytes))
        except RequestTooLarge:
            if self.max_body_bytes <= LARGE_BYTES:
                raise
            return None

    def read_off_loop(
        self,
        exchange: Exchange,
        work: Callable[[], T],
        done: Callable[[T], None],
        fail: Callable[[Exchange, Exception], None] = fail,
    ) -> None:
        """Have `work()`, which reads the request, done by another thread, and then `done` called
        here with what it returns. An error of either is the answer. A client that leaves takes its
        work along. ServerBusy if too much is being read at once."""
        # Also a small body may be much, once it is inflated.
        self._off_loop(exchange, work, done, max(len(exchange.request.body), LARGE_BYTES), fail)

    def write_off_loop(
        self,
        exchange: Exchange,
        work: Callable[[], T],
        done: Callable[[T], None],
        fail: Callable[[Exchange, Exception], None] = fail,
    ) -> None:
        """The same for work that writes the answer, which is never refused."""
        self._off_loop(exchange, work, done, 0, fail)

    def _off_loop(
        self,
        exchange: Exchange,
        work: Callable[[], T],
        done: Callable[[T], None],
        nbytes: int,
        fail: Callable[[Exchange, Exception], None],
    ) -> None:
        def ended(outcome: Any) -> None:
            self.admission.leave()
            exchange.on_disconnect = None
            if isinstance(outcome, Exception):
                fail(exchange, outcome)
                return
            try:
                done(outcome)
            except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
                fail(exchange, error)

        job = self.common.offload.submit(work, nbytes, self.port(), ended)
        self.admission.enter_body()

        def left() -> None:
            self.admission.leave()
            job.cancel()

        exchange.on_disconnect = left

    def members(self, exchange: Exchange) -> dict[str, Any]:
        """What stands in the JSON object of the request's body; an empty body has no members."""
        body = self.command(exchange)
        return parse_object(body) if len(body) else {}

    def command(self, exchange: Exchange) -> Buffer:
        """The body of a request that is read in the loop, however large: compressed, it may not be
        much larger than small."""
        request = exchange.request
        coding = request.headers.get("content-encoding")
        if coding is None:
            return request.body
        return decompressed(request.body, coding, min(COMMAND_BYTES, self.max_body_bytes))

    def submit(
        self,
        exchange: Exchange,
        loaded: LoadedModel,
        decoded: InferBody,
        reply: Reply[InferResponse],
        port: LoopPort,
    ) -> InferRequest:
        """Send a decoded request on its way; when it is settled, `admission.leave()` must follow.

        Refusals that are known at once are raised.
        """
        headers = exchange.request.headers
        parameters = decoded.parameters
        request_id = decoded.id
        if not request_id and "x-request-id" in headers:
            request_id = given_request_id(headers)
        plain = self._forwarding is None and "x-request-timeout" not in headers
        if plain and not parameters:
            request = loaded.request(
                decoded.columns,
                decoded.rows,
                reply,
                id=request_id,
                wanted=decoded.output_names,
                tenant=tenant_of(headers, exchange.request.caller),
            )
        else:
            of_the_model = for_the_model(parameters)
            if self._forwarding is not None:
                of_the_model = self._forwarding.added(headers, of_the_model)
            request = loaded.request(
                decoded.columns,
                decoded.rows,
                reply,
                id=request_id,
                timeout=timeout_of(headers, parameters),
                priority=parameters.get("priority", 0),
                parameters=of_the_model,
                sequence=sequence_of(parameters),
                wanted=decoded.output_names,
                tenant=tenant_of(headers, exchange.request.caller),
            )
        if self.common.traces.on:
            self.common.traces.follow(loaded, request, self.runtime.clock)
        packed = "content-encoding" in headers
        size = SMALL_BODY + 1 if packed else len(exchange.request.body)
        self.admission.enter(request, size, decoded.held_bytes)
        exchange.request.body = b""  # free it: the columns hold what is needed
        port.submit(loaded, request)
        return request


class ModelPath:
    """The model that one path names; looked up for each request, as it may be loaded again."""

    def __init__(self, entry: Entry, name: str, version: str | None) -> None:
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
            codec = self._codec = ModelCodec(
                loaded.config,
                loaded.signature,
                labels=getattr(loaded.model, "labels", None),
                shared_memory=self.entry.common.shared_memory,
            )
            self._coded = ref(loaded)
        return loaded, codec
