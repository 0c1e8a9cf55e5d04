"""How does a decoded request enter the runtime, whatever protocol it came over?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from wherry.frontends.admission import tenant_of, timeout_of
from wherry.frontends.v2.common import Common
from wherry.frontends.v2.decoded import DecodedRequest
from wherry.frontends.v2.parameters import for_the_model, sequence_of
from wherry.runtime.loaded_model import LoadedModel
from wherry.runtime.loop_port import LoopPort
from wherry.runtime.runtime import Runtime
from wherry.values.reply import Reply
from wherry.values.request import InferRequest, InferResponse


class Entry:
    """What the handlers of one server and protocol share: the runtime and the way into it."""

    def __init__(self, runtime: Runtime, common: Common) -> None:
        self.runtime = runtime
        self.common = common
        self.admission = common.admission
        self._forwarding = common.forwarding
        self._port: tuple[asyncio.AbstractEventLoop, LoopPort] | None = None

    def port(self) -> LoopPort:
        """The running loop's way into the runtime, remembered: it is nearly always the same."""
        loop = asyncio.get_running_loop()
        known = self._port
        if known is None or known[0] is not loop:
            known = self._port = (loop, self.runtime.port())
        return known[1]

    def send(
        self,
        loaded: LoadedModel,
        decoded: DecodedRequest,
        reply: Reply[InferResponse],
        headers: Mapping[str, str],
        *,
        caller: str,
        id: str,
        body_bytes: int,
        seconds_left: float | None = None,
    ) -> InferRequest:
        """Submit a decoded request; when it is settled, `admission.leave()` must follow.

        `headers` may set a timeout and the tenant, and are given to the model where an operator
        has said so. `caller` is the name of the key that it came with, `body_bytes` its size on
        the wire. It is answered within `seconds_left`, if its call has a deadline. Does not block.
        Refusals that are known at once are raised: those of `LoadedModel.request` and TooManyBytes.
        """
        parameters = decoded.parameters
        timeout: float | None = None
        priority, sequence, of_the_model = 0, None, None
        if parameters:
            priority = parameters.get("priority", 0)
            sequence = sequence_of(parameters)
            of_the_model = for_the_model(parameters)
        if parameters or "x-request-timeout" in headers:
            timeout = timeout_of(headers, parameters)
        if seconds_left is not None:
            timeout = seconds_left if timeout is None else min(timeout, seconds_left)
        if self._forwarding is not None:
            of_the_model = self._forwarding.added(headers, of_the_model)
        request = loaded.request(
            decoded.columns,
            decoded.rows,
            reply,
            id=id,
            timeout=timeout,
            priority=priority,
            parameters=of_the_model,
            sequence=sequence,
            wanted=decoded.output_names,
            tenant=tenant_of(headers, caller),
        )
        traces = self.common.traces
        if traces.settings.on:
            traces.follow(loaded, request, self.runtime.clock)
        self.admission.enter(request, body_bytes, decoded.held_bytes)
        self.port().submit(loaded, request)
        return request
