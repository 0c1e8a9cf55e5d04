"""Which model does a request name, and how does it enter the runtime?"""

from __future__ import annotations

import asyncio
from typing import Protocol
from weakref import WeakKeyDictionary

from wherry.frontends.admission import SMALL_BODY, Admission, tenant_of, timeout_of
from wherry.frontends.grpc.rpc import Rpc
from wherry.frontends.v2.common import Common
from wherry.frontends.v2.grpc.infer_codec import Decoded, InferCodec
from wherry.frontends.v2.parameters import HeaderForwarding, for_the_model, sequence_of
from wherry.models.model import Pipeline
from wherry.runtime.control import ModelControl
from wherry.runtime.loaded_model import LoadedModel
from wherry.runtime.loop_port import LoopPort
from wherry.runtime.runtime import Runtime
from wherry.values.errors import InvalidRequest
from wherry.values.reply import Reply
from wherry.values.request import InferRequest, InferResponse


class LongCall(Protocol):
    """A call that a client may keep open as long as it likes."""

    def drain(self) -> None:
        """The server is to stop: end, once what was begun is answered."""


class Entry:
    """What the calls of one server share: the runtime and the door to it."""

    def __init__(
        self,
        runtime: Runtime,
        admission: Admission,
        *,
        control: ModelControl,
        common: Common | None = None,
        forwarding: HeaderForwarding | None = None,
    ) -> None:
        self.runtime = runtime
        self.admission = admission
        self.control = control
        self.common = common or Common()
        self.draining = False
        self.streams_end = False
        #: Of health, and of requests: what a client may keep open.
        self.watches: set[LongCall] = set()
        self.streams: set[LongCall] = set()
        self._forwarding = forwarding
        # Models are not kept alive: an unloaded one must give its memory back.
        self._codecs: WeakKeyDictionary[LoadedModel, InferCodec] = WeakKeyDictionary()
        self._port: tuple[asyncio.AbstractEventLoop, LoopPort] | None = None

    def port(self) -> LoopPort:
        """The running loop's way into the runtime, remembered: it is nearly always the same."""
        loop = asyncio.get_running_loop()
        known = self._port
        if known is None or known[0] is not loop:
            known = self._port = (loop, self.runtime.port())
        return known[1]

    def drain(self) -> None:
        """Not ready from now on, as those that watch are told."""
        self.draining = True
        for call in tuple(self.watches):
            call.drain()

    def end_streams(self) -> None:
        """Streams end when what they have begun is answered."""
        self.streams_end = True
        for call in tuple(self.streams):
            call.drain()

    def not_ready(self) -> str:
        """Why the server cannot answer everything now; "" if it can."""
        reasons = [f"model '{name}': {why}" for name, why in self.control.not_ready().items()]
        if self.draining:
            reasons.insert(0, "the server is draining")
        return "; ".join(reasons)

    def model(self, name: str, version: str) -> LoadedModel:
        """ModelNotFound if it is not loaded; "" is the highest version."""
        return self.runtime.model(name, checked_version(version))

    def find(self, name: str, version: str) -> tuple[LoadedModel, InferCodec]:
        """`model`, with its codec."""
        loaded = self.model(name, version)
        codec = self._codecs.get(loaded)
        if codec is None:
            codec = self._codecs[loaded] = InferCodec(
                loaded.config,
                loaded.signature,
                labels=getattr(loaded.model, "labels", None),
                shared_memory=self.common.shared_memory,
                views=not isinstance(loaded.model, Pipeline),
            )
        return loaded, codec

    def submit(
        self, rpc: Rpc, loaded: LoadedModel, decoded: Decoded, reply: Reply[InferResponse]
    ) -> InferRequest:
        """Send a decoded request on its way; when it is settled, `admission.leave()` must follow.

        Refusals that are known at once are raised.
        """
        parameters = decoded.parameters
        of_the_model = for_the_model(parameters) if parameters else None
        if self._forwarding is not None:
            of_the_model = self._forwarding.added(rpc.metadata, of_the_model)
        request = loaded.request(
            decoded.columns,
            decoded.rows,
            reply,
            id=decoded.id,
            timeout=_timeout(rpc, parameters),
            priority=parameters.get("priority", 0),
            parameters=of_the_model,
            sequence=sequence_of(parameters) if parameters else None,
            wanted=decoded.output_names,
            tenant=tenant_of(rpc.metadata, rpc.caller),
        )
        if self.common.traces.on:
            self.common.traces.follow(loaded, request, self.runtime.clock)
        size = len(rpc.message) or SMALL_BODY + 1
        self.admission.enter(request, size, decoded.held_bytes)
        self.port().submit(loaded, request)
        return request


def checked_version(version: str) -> str | None:
    """A request's model version; None for the highest."""
    if not version:
        return None
    if not (version.isascii() and version.isdigit()):
        raise InvalidRequest(
            f"failed to get model version from specified version string '{version}' (details:"
            " stol), version should be an integral value > 0"
        )
    return version


def _timeout(rpc: Rpc, parameters: dict[str, object]) -> float | None:
    """The shorter of the request's own and what is left of the call's deadline."""
    timeout = timeout_of(rpc.metadata, parameters)
    if rpc.timeout is None:
        return timeout
    left = max(rpc.timeout, 0.0)
    return left if timeout is None else min(timeout, left)
