"""What answers a server's requests, over HTTP and over gRPC?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wherry.frontends.access.api_keys import ApiKeys
from wherry.frontends.access.restricted import Restrictions
from wherry.frontends.admission import Admission
from wherry.frontends.connections.full_memory import MemoryPlan
from wherry.frontends.http_app import MANAGEMENT, HttpApp
from wherry.frontends.offload import Offload
from wherry.frontends.v2.common import Common
from wherry.frontends.v2.parameters import HeaderForwarding
from wherry.frontends.v2.settings import TraceSettings
from wherry.frontends.v2.shared_memory import SharedMemory
from wherry.runtime.control import ModelControl
from wherry.server.options import Options

if TYPE_CHECKING:
    from wherry.frontends.grpc_app import GrpcApp


@dataclass(frozen=True, slots=True)
class Applications:
    """The applications of one server, and what they share."""

    http: HttpApp
    #: None: the server speaks no gRPC.
    grpc: GrpcApp | None
    common: Common


def applications(control: ModelControl, options: Options, plan: MemoryPlan) -> Applications:
    """Make the applications. ConfigError for an option that cannot be meant."""
    access = options.access
    common = _common(control, options, plan)
    restrictions = Restrictions(access.restricted_apis, access.disabled_apis)
    http = HttpApp(control.runtime, common=common, control=control, restrictions=restrictions)
    if options.listen.grpc_port is None and options.listen.grpc_fd is None:
        return Applications(http, None, common)
    # Imported here: it reads the .proto files, which a server without gRPC need not.
    from wherry.frontends.grpc_app import GrpcApp

    # Groups that HTTP serves on the management port only are closed over gRPC.
    elsewhere = () if options.listen.management_port is None else MANAGEMENT
    closed = (*access.disabled_apis, *elsewhere)
    grpc = GrpcApp(
        control.runtime,
        common=common,
        control=control,
        restrictions=Restrictions(access.restricted_protocols, closed, others=restrictions),
    )
    return Applications(http, grpc, common)


def _common(control: ModelControl, options: Options, plan: MemoryPlan) -> Common:
    access, pattern = options.access, options.protocols.header_forward_pattern
    return Common(
        # Clients of a Triton repository ask for its server by name.
        name="triton" if control.repositories else "wherry",
        keys=ApiKeys(access.api_keys),
        admission=Admission(options.capacity.max_in_flight, plan.max_queue_bytes),
        max_body_bytes=plan.limits.max_body_bytes,
        forwarding=None if pattern is None else HeaderForwarding(pattern),
        allow_model_upload=access.allow_model_upload or bool(access.api_keys),
        shared_memory=SharedMemory(allowed=access.allow_shared_memory),
        trace_settings=TraceSettings(options.protocols.trace_config),
        offload=Offload(plan.max_offloaded_bytes, plan.offload_threads),
    )
