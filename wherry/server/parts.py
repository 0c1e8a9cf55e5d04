"""Which parts does a server consist of, by its options?"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wherry.core.api import (
    ConfigError,
    Isolation,
    Machine,
    MetricsConfig,
    Model,
    ModelSettings,
    Runtime,
    tracing_of,
)
from wherry.server.access.api_keys import ApiKeys, Restrictions, keys_of
from wherry.server.agent_check import AgentCheck
from wherry.server.calls.admission import Admission
from wherry.server.calls.offload import Offload
from wherry.server.calls.parameters import Forwarding, HeaderForwarding
from wherry.server.calls.settings import TraceSettings
from wherry.server.connections.limits import Limits, MemoryPlan, memory_plan
from wherry.server.content.urls import InputUrls
from wherry.server.fronts.pass_on import PassOn
from wherry.server.http_app import MANAGEMENT, HttpApp
from wherry.server.options import Capacity, Options
from wherry.server.v2.common import FETCHING_THREADS, Common, OpenAISettings
from wherry.server.v2.shared_memory import SharedMemory
from wherry.server.watched_files import WatchedFiles
from wherry.triton.api import ModelControl

if TYPE_CHECKING:
    from wherry.server.grpc_app import GrpcApp

log = logging.getLogger("wherry")


def runtime_of(
    models: Sequence[Model | type[Model] | Runtime],
    isolation: Isolation,
    overrides: Mapping[str, ModelSettings] | None,
) -> Runtime:
    """The one Runtime among `models`, or a new one of them."""
    if not models:
        raise ConfigError("a server needs at least one model, or a Runtime")
    if any(isinstance(model, Runtime) for model in models):
        (runtime,) = models if len(models) == 1 else (None,)
        if not isinstance(runtime, Runtime):
            raise ConfigError("give a server its models, or one Runtime that has them")
        return runtime
    made = [model() if isinstance(model, type) else model for model in models]
    return Runtime(*made, isolation=isolation, overrides=overrides)  # type: ignore[arg-type]


def plan_for(capacity: Capacity) -> MemoryPlan:
    """The limits that are set, and the others as the memory allows. Warns of limits that need more
    memory than there is. Reads files: not for an event loop."""
    memory = Machine().memory_limit_bytes()
    limits = capacity.limits
    plan = memory_plan(
        memory,
        queue_bytes=capacity.max_queue_bytes,
        connections=limits.max_connections if limits else capacity.max_connections,
        body_bytes=limits.max_body_bytes if limits else capacity.max_body_size,
        received_bytes=limits.max_received_bytes if limits else capacity.max_received_bytes,
        unsent_bytes=limits.max_unsent_bytes if limits else capacity.max_unsent_bytes,
        limits=limits
        or Limits(
            idle_timeout=capacity.idle_timeout,
            max_connection_unsent_bytes=capacity.max_connection_unsent_bytes,
            max_connection_received_bytes=capacity.max_connection_received_bytes or 0,
        ),
    )
    if memory is not None and plan.full_bytes > memory:
        lower = "max_queue_bytes, max_body_size, max_connections"
        fields = {"needed_bytes": plan.full_bytes, "memory_bytes": memory, "lower": lower}
        log.warning("a full server would need more memory than there is", extra=fields)
    return plan


@dataclass(frozen=True, slots=True)
class Applications:
    """The applications of one server, and what they share."""

    http: HttpApp
    #: None: the server speaks no gRPC, and has no fronts elsewhere which may.
    grpc: GrpcApp | None
    common: Common
    #: Keys and certificates.
    watched: WatchedFiles
    agent: AgentCheck


def applications(
    control: ModelControl, options: Options, plan: MemoryPlan, pass_on: PassOn | None = None
) -> Applications:
    """Make the applications; with `pass_on` those of a front. ConfigError for an option that cannot
    be meant."""
    access = options.access
    common = _common(control, options, plan)
    watched = WatchedFiles()
    if (path := access.api_key_file) is not None:
        watched.read([path], lambda: common.keys.use([*access.api_keys, *keys_of(path)]))
    common.tracing = tracing_of(common.version, control.runtime.clock)
    if common.tracing is not None:
        control.runtime.calls.tracing = common.tracing
    restrictions = Restrictions(access.restricted_apis, access.disabled_apis)
    http = HttpApp(
        control.runtime,
        common=common,
        control=control,
        restrictions=restrictions,
        pass_on=pass_on,
        recent_requests=options.protocols.recent_requests,
    )
    agent = AgentCheck(
        control.runtime.registry.load_report, control.not_ready, lambda: http.draining
    )
    if not options.listen.speaks_grpc:
        return Applications(http, None, common, watched, agent)
    # Imported here: it reads the .proto files, which a server without gRPC need not.
    from wherry.server.grpc_app import GrpcApp

    # Groups that HTTP serves on the management port only are closed over gRPC.
    elsewhere = () if options.listen.management_port is None else MANAGEMENT
    closed = (*access.disabled_apis, *elsewhere)
    grpc = GrpcApp(
        control.runtime,
        common=common,
        control=control,
        restrictions=Restrictions(access.restricted_protocols, closed, others=restrictions),
        pass_on=pass_on,
    )
    return Applications(http, grpc, common, watched, agent)


def _common(control: ModelControl, options: Options, plan: MemoryPlan) -> Common:
    access, protocols = options.access, options.protocols
    return Common(
        # Clients of a Triton repository look for its server's name.
        name=protocols.server_name or ("triton" if control.repositories else "wherry"),
        keys=ApiKeys(access.api_keys),
        admission=Admission(options.capacity.max_in_flight, plan.max_queue_bytes),
        max_body_bytes=plan.limits.max_body_bytes,
        forwarding=Forwarding(
            http=_forwarding(protocols.http_header_forward_pattern),
            grpc=_forwarding(protocols.grpc_header_forward_pattern),
        ),
        allow_model_upload=access.allow_model_upload
        or bool(access.api_keys or access.api_key_file),
        triton_errors=protocols.triton_errors,
        openai=OpenAISettings(
            strict_fields=protocols.strict_fields,
            max_kept_responses=options.capacity.max_kept_responses,
        ),
        shared_memory=SharedMemory(allowed=access.allow_shared_memory),
        trace_settings=TraceSettings(protocols.trace_config),
        metrics=MetricsConfig.of(
            protocols.metrics_config,
            only_triton=protocols.metrics_compat == "triton",
            load_report=protocols.load_report.replace("none", ""),
        ),
        input_urls=InputUrls(access.input_urls),
        offload=Offload(plan.max_offloaded_bytes, plan.offload_threads),
        fetching=Offload(
            max(plan.max_offloaded_bytes, 2 * plan.limits.max_body_bytes), FETCHING_THREADS
        ),
    )


def _forwarding(pattern: str | None) -> HeaderForwarding | None:
    return None if pattern is None else HeaderForwarding(pattern)
