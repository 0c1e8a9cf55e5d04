"""How does a decoded request enter the runtime, and how does its outcome come back to the loop?

The same over every protocol: what each has of its own is decoding and encoding. Everything happens
in the event loop's thread unless stated otherwise.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self

import msgspec

from wherry.core.api import (
    Columns,
    InferRequest,
    InferResponse,
    LoadedModel,
    LoopPort,
    Reply,
    Runtime,
    StreamReply,
    trace_request,
)
from wherry.server.calls.admission import SMALL_BODY, SMALL_BYTES, Admission
from wherry.server.calls.offload import Offload, held_bytes
from wherry.server.calls.parameters import (
    HeaderForwarding,
    Parameters,
    for_the_model,
    sequence_of,
)
from wherry.server.calls.terms import Terms, shorter_timeout, terms_of
from wherry.server.calls.traces import Traces


class RequestValues(msgspec.Struct):
    columns: Columns
    rows: int
    id: str = ""
    parameters: Parameters = {}
    #: The outputs that the client named; None: all.
    output_names: list[str] | None = None
    #: Bytes that the columns hold in memory, if they were counted already.
    held_bytes: int | None = None
    #: Seconds of the request's timeout, if some of them have passed.
    seconds_left: float | None = None

    def counted(self) -> Self:
        """Set `held_bytes`: counting takes long, so that the thread does it that has decoded."""
        self.held_bytes = held_bytes(self.columns)
        return self


class Entry:
    """What the calls of one server and protocol share."""

    over_grpc = False

    def __init__(
        self,
        runtime: Runtime,
        admission: Admission,
        offload: Offload,
        traces: Traces,
        tenant_key: bytes,
        forwarding: HeaderForwarding | None,
    ) -> None:
        """`forwarding`: which headers of this protocol become parameters."""
        self.runtime = runtime
        self.registry = runtime.registry
        self.admission = admission
        self.offload = offload
        self.traces = traces
        self.trace_settings = traces.settings
        self._tenant_key = tenant_key
        self._forwarding = forwarding
        #: The thread of the loop that ran last, and its port.
        self.last_port: tuple[int, LoopPort | None] = (0, None)

    def port(self) -> LoopPort:
        # asyncio.get_running_loop() is a system call: it gets the process's id.
        thread, port = self.last_port
        if port is None or thread != threading.get_ident() or not port.loop.is_running():
            port = self.runtime.port()
            self.last_port = threading.get_ident(), port
        return port

    def terms(self, headers: Mapping[str, str], trace: Any = None) -> Terms:
        """Read the headers of a request; those that an operator has named go to the model."""
        forwarding = self._forwarding
        forwarded = None if forwarding is None else forwarding.of(headers)
        return terms_of(headers, self._tenant_key, forwarded, trace)


class InferCall(Reply[InferResponse], ABC):
    """One request and its reply: one object on the hot path.

    A protocol makes it, submits what it has decoded, and encodes: `write` gets the outcome, and
    `respond` each response before it, if the model streams and the protocol allows
    it. It is settled in any thread; everything else happens in the loop.
    """

    __slots__ = ("client", "codec", "entry", "loaded", "request", "stream")

    takes_streams = False
    loop: LoopPort
    request: InferRequest | None
    #: The reply of a model that streams; None: this object is.
    stream: StreamReply[InferResponse] | None

    def __init__(self, entry: Entry, loaded: LoadedModel, codec: Any, client: Any) -> None:
        """`client`: what the answer goes to; `codec`: what encodes it."""
        # Not by calls of Reply.__init__ and Entry.port: the hot path.
        thread, port = entry.last_port
        if port is None or thread != threading.get_ident() or not port.loop.is_running():
            port = entry.port()
        self.on_done = answer  # type: ignore[assignment]  # it gets this very object
        self.loop = port
        self.settled = False
        self.unclaimed = True
        self.entry = entry
        self.loaded = loaded
        self.codec = codec
        self.client = client
        self.request = None
        self.stream = None
        if self.takes_streams and loaded.signature.streams:
            self.stream = StreamReply(
                lambda _, response: port.call(self.respond, response),
                lambda reply: port.call(self._stream_ended, reply.outcome),
            )

    def send(
        self,
        decoded: RequestValues,
        terms: Terms,
        caller: str = "",
        id: str = "",
        body_bytes: int = 0,
    ) -> None:
        """Make the request, count it as in flight until it is settled, and submit it.

        `caller` is the name of the key that it came with, `body_bytes` its size on the wire; 0 if
        its size in memory does not depend on that. Does not block. Raises refusals that are known
        at once: those of `LoadedModel.request`, and TooManyBytes.
        """
        entry, loaded, parameters = self.entry, self.loaded, decoded.parameters
        port = self.loop  # what follows a request may take it away: see Reply.first
        timeout = terms.timeout
        priority, sequence, of_the_model = 0, None, None
        if parameters:
            priority = parameters.get("priority", 0)
            sequence = sequence_of(parameters)
            of_the_model = for_the_model(parameters)
            timeout = shorter_timeout(timeout, parameters)
        if decoded.seconds_left is not None:
            left = decoded.seconds_left
            timeout = left if timeout is None else min(timeout, left)
        if terms.parameters:
            of_the_model = {**terms.parameters, **(of_the_model or {})}
        request = loaded.request(
            decoded.columns,
            decoded.rows,
            self.stream or self,
            id or decoded.id,
            timeout,
            priority,
            of_the_model,
            sequence,
            decoded.output_names,
            caller if caller and not terms.names_tenant else terms.tenant,
        )
        if terms.trace is not None:
            trace_request(request, loaded, entry.runtime.clock, terms.trace, has_own_span=False)
        if entry.trace_settings.on:
            entry.traces.follow(
                loaded, request, entry.runtime.clock, port, over_grpc=entry.over_grpc
            )
        request.nbytes = decoded.held_bytes
        if decoded.held_bytes is not None or not body_bytes:
            body_bytes = SMALL_BODY + 1
        admission = entry.admission
        if (
            body_bytes <= SMALL_BODY
            and admission.large.taken + (admission.in_flight + 1) * SMALL_BYTES
            <= admission.large.limit
        ):
            admission.in_flight += 1  # beyond doubt, as most are
        else:
            admission.enter(request, body_bytes)
        self.request = request
        port.submit(loaded, request)

    def cancel(self) -> None:
        if self.request is not None:
            self.loaded.cancel(self.request)

    def consumed(self) -> None:
        """Note that the client has taken a response: the model may go on."""
        if self.stream is not None:
            self.stream.consumed()

    def respond(self, response: InferResponse) -> None:
        """Take a response before the outcome."""

    @abstractmethod
    def write(self, response: InferResponse) -> None:
        """Encode and send the answer: of a model that streams, its end, which may be empty. What it
        raises goes to `fail`."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Answer with an error, of the model or ours."""

    def _stream_ended(self, outcome: InferResponse | Exception) -> None:
        self.outcome, self.stream = outcome, None
        answer(self)


def answer(call: InferCall) -> None:
    outcome = call.outcome
    call.entry.admission.in_flight -= 1
    # The reference cycle would keep the request alive until the garbage collector runs.
    call.request = None
    try:
        if isinstance(outcome, Exception):
            call.fail(outcome)
        else:
            call.write(outcome)
    except Exception as error:  # noqa: BLE001 - of the model or ours: the client gets it either way
        call.fail(error)


class Beside:
    """Work of one request in another thread. `done` gets its result or error, in the loop.

    Counts as a request in flight meanwhile. ServerBusy if too much is being read already; work
    without bytes of its own, which writes an answer, is never refused.
    """

    __slots__ = ("_admission", "_done", "_job")

    def __init__(
        self,
        entry: Entry,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        nbytes: int = 0,
        offload: Offload | None = None,
    ) -> None:
        self._admission = entry.admission
        self._done = done
        self._job = (offload or entry.offload).submit(work, nbytes, entry.port(), self._ended)
        self._admission.enter_body()

    def _ended(self, outcome: Any) -> None:
        self._admission.leave()
        self._done(outcome)

    def cancel(self) -> None:
        self._job.cancel()
        self._admission.leave()
