"""How does a decoded V2 request enter the runtime, and how does its answer come back to the loop?

The same over every protocol. Everything happens in the event loop's thread unless said otherwise.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from wherry.core.api import (
    FollowedRequest,
    InferRequest,
    InferResponse,
    LoadedModel,
    LoopPort,
    Reply,
    Runtime,
    StreamReply,
)
from wherry.server.calls.offload import Offload
from wherry.server.calls.terms import Terms, shorter_timeout, terms_of
from wherry.server.v2.common import Common
from wherry.server.v2.model_tensors import DecodedRequest, ModelTensors
from wherry.server.v2.parameters import HeaderForwarding, for_the_model, sequence_of


class Entry:
    """Submits requests to the runtime. Shared by all handlers of one server and protocol."""

    over_grpc = False

    def __init__(
        self, runtime: Runtime, common: Common, forwarding: HeaderForwarding | None
    ) -> None:
        """`forwarding`: which headers of this protocol become parameters."""
        self.runtime = runtime
        self.registry = runtime.registry
        self.common = common
        self.admission = common.admission
        self._forwarding = forwarding
        self._trace_settings = common.trace_settings
        #: Of the loop that ran last, and its thread.
        self._port: tuple[int, LoopPort | None] = (0, None)

    def port(self) -> LoopPort:
        """Return the running loop's port to the runtime, kept as most servers have one loop."""
        # asyncio.get_running_loop() is a system call: it asks for the process's id.
        thread, port = self._port
        if port is None or thread != threading.get_ident() or not port.loop.is_running():
            port = self.runtime.port()
            self._port = threading.get_ident(), port
        return port

    def tensors(self, loaded: LoadedModel) -> ModelTensors:
        """Return what the codecs of a model begin with."""
        labels, common = loaded.model.output_labels, self.common
        return ModelTensors(
            loaded.config,
            loaded.signature,
            labels,
            common.shared_memory,
            common.input_urls,
            common.max_body_bytes,
        )

    def reply(
        self,
        loaded: LoadedModel,
        responded: Callable[[Reply[InferResponse], InferResponse], None],
        settled: Callable[[Reply[InferResponse]], None],
    ) -> Reply[InferResponse]:
        """Return the reply of a request that may have many responses, if the model streams.

        Both functions are called in the running loop: `responded` for each response before the
        outcome, and `settled` once.
        """
        port = self.port()

        if not loaded.signature.streams:
            return Reply(settled, port)

        def on_done(reply: Reply[InferResponse]) -> None:
            port.call(settled, reply)

        def on_response(reply: Reply[InferResponse], response: InferResponse) -> None:
            port.call(partial(responded, reply), response)

        return StreamReply(on_response, on_done)

    def terms(self, headers: Mapping[str, str], trace: Any = None) -> Terms:
        """Read the headers of a request; those that an operator has named go to the model."""
        forwarding, key = self._forwarding, self.common.tenant_key
        forwarded = None if forwarding is None else forwarding.of(headers)
        return terms_of(headers, key, forwarded, trace)

    def admitted(
        self,
        loaded: LoadedModel,
        decoded: DecodedRequest,
        reply: Reply[InferResponse],
        terms: Terms,
        caller: str,
        id: str,
        body_bytes: int,
        seconds_left: float | None = None,
    ) -> InferRequest:
        """Make the request that was decoded, and count it as in flight: when it is settled,
        `admission.leave()` must follow. The caller submits it.

        `caller` is the name of the key that it came with, `body_bytes` its size on the wire. It is
        answered within `seconds_left`, if its call has a deadline. Does not block. Refusals that
        are known at once are raised: those of `LoadedModel.request` and TooManyBytes.
        """
        parameters = decoded.parameters
        timeout = terms.timeout
        priority, sequence, of_the_model = 0, None, None
        if parameters:
            priority = parameters.get("priority", 0)
            sequence = sequence_of(parameters)
            of_the_model = for_the_model(parameters)
            timeout = shorter_timeout(timeout, parameters)
        if seconds_left is not None:
            timeout = seconds_left if timeout is None else min(timeout, seconds_left)
        if terms.parameters:
            of_the_model = {**terms.parameters, **(of_the_model or {})}
        request = loaded.request(
            decoded.columns,
            decoded.rows,
            reply,
            id,
            timeout,
            priority,
            of_the_model,
            sequence,
            decoded.output_names,
            caller if caller and not terms.names_tenant else terms.tenant,
        )
        if self._trace_settings.on:
            self.common.traces.follow(
                loaded, request, self.runtime.clock, self.port(), over_grpc=self.over_grpc
            )
        if terms.trace is not None:
            FollowedRequest(terms.trace, loaded.name, loaded.version).follow(request)
        request.nbytes = decoded.held_bytes
        self.admission.enter(request, body_bytes)
        return request


class InferCall(Reply[InferResponse], ABC):
    """The reply of one request, with all that its answer needs: one object on the hot path.

    It is settled in any thread; everything else happens in the loop.
    """

    __slots__ = ("entry", "loaded", "request")

    entry: Entry
    loaded: LoadedModel
    request: InferRequest | None

    def cancel(self) -> None:
        """Cancel the request: the client has left."""
        if self.request is not None:
            self.loaded.cancel(self.request)

    @abstractmethod
    def write(self, response: InferResponse) -> None:
        """Encode and send the answer. What it raises goes to `fail`."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Answer with an error, of the model or ours."""


def answer(call: InferCall) -> None:
    """Send the outcome of a call."""
    outcome = call.outcome
    call.entry.admission.in_flight -= 1
    # The reference cycle would keep the request alive until the garbage collector runs.
    call.request = None
    try:
        if isinstance(outcome, Exception):
            call.fail(outcome)
        else:
            call.write(outcome)
    except Exception as error:  # noqa: BLE001 - of the model or ours: the client is told either way
        call.fail(error)


class Beside:
    """Work of one request in another thread. `done` is told, in the loop, its result or error.

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
        offload = offload or entry.common.offload
        self._job = offload.submit(work, nbytes, entry.port(), self._ended)
        self._admission.enter_body()

    def _ended(self, outcome: Any) -> None:
        self._admission.leave()
        self._done(outcome)

    def cancel(self) -> None:
        """Cancel the work: the client has left."""
        self._job.cancel()
        self._admission.leave()
