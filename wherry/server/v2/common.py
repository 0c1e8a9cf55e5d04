"""What do all frontends of one server share, whatever protocol they speak?"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

import wherry
from wherry.core.api import LoopStall, MetricsConfig, Tracing
from wherry.server.access.api_keys import ApiKeys
from wherry.server.calls.admission import Admission
from wherry.server.calls.offload import Offload
from wherry.server.calls.parameters import Forwarding
from wherry.server.calls.settings import LogSettings, TraceSettings
from wherry.server.calls.traces import Traces
from wherry.server.connections.limits import Limits
from wherry.server.content.urls import InputUrls
from wherry.server.v2.shared_memory import SharedMemory

#: Requests that wait for URLs at a time; more of them wait for these, within their time.
FETCHING_THREADS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAISettings:
    """What an operator decides about OpenAI's routes."""

    #: Whether a field that is not known is refused, not ignored.
    strict_fields: bool = False
    #: Bytes of responses that clients may refer to; 0: none are kept.
    max_kept_responses: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Common:
    """The parts that every frontend of a server uses: a setting changed over one protocol holds for
    the others."""

    #: The server's name and version, as in its metadata.
    name: str = "wherry"
    version: str = wherry.__version__
    #: Without keys every client may call.
    keys: ApiKeys = field(default_factory=ApiKeys)
    admission: Admission = field(default_factory=Admission)
    max_body_bytes: int = Limits().max_body_bytes
    forwarding: Forwarding = field(default_factory=Forwarding)
    #: Whether a load request may bring the model's files; a server decides when it listens.
    allow_model_upload: bool = True
    #: Whether errors have Triton's status, code, type and sentence.
    triton_errors: bool = False
    openai: OpenAISettings = field(default_factory=OpenAISettings)
    shared_memory: SharedMemory = field(default_factory=SharedMemory)
    trace_settings: TraceSettings = field(default_factory=TraceSettings)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    log_settings: LogSettings = field(default_factory=LogSettings)
    offload: Offload = field(default_factory=Offload)
    #: Which URLs may stand for files, and the threads that fetch them.
    input_urls: InputUrls = field(default_factory=InputUrls)
    fetching: Offload = field(default_factory=lambda: Offload(threads=FETCHING_THREADS))
    #: A server starts it with its loop.
    loop_stall: LoopStall = field(default_factory=LoopStall)
    #: See `terms_of`. All fronts of an owner have the owner's.
    tenant_key: bytes = field(default_factory=lambda: os.urandom(16))
    #: OpenTelemetry's; None: it is off. A server starts it, and wraps its applications.
    tracing: Tracing | None = None
    traces: Traces = field(init=False)

    def __post_init__(self) -> None:
        self.traces = Traces(self.trace_settings)

    @property
    def of_calls(self) -> tuple[Admission, Offload, Traces, bytes]:
        return self.admission, self.offload, self.traces, self.tenant_key
