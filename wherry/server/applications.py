"""What answers a server's requests, over HTTP and over gRPC?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wherry.frontends.access.restricted import Restrictions
from wherry.frontends.admission import Admission
from wherry.frontends.connections.full_memory import MemoryPlan
from wherry.frontends.http_app import MANAGEMENT, HttpApp
from wherry.frontends.offload import Offload
from wherry.frontends.v2.common import Common
from wherry.frontends.v2.parameters import HeaderForwarding
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
    admission: Admission


def applications(control: ModelControl, options: Options, plan: MemoryPlan) -> Applications:
    """Applications with these options. ConfigError for one that cannot be meant."""
    access, protocols = options.access, options.protocols
    admission = Admission(options.capacity.max_in_flight, plan.max_queue_bytes)
    common = Common(
        allow_shared_memory=access.allow_shared_memory,
        allow_model_upload=access.allow_model_upload or bool(access.api_keys),
        trace_config=protocols.trace_config,
        offload=Offload(plan.max_offloaded_bytes, plan.offload_threads),
    )
    pattern = protocols.header_forward_pattern
    forwarding = None if pattern is None else HeaderForwarding(pattern)
    restrictions = Restrictions(access.restricted_apis, access.disabled_apis)
    # Clients of a Triton repository ask for its server by name.
    name = "triton" if control.repositories else "wherry"
    http = HttpApp(
        control.runtime,
        api_keys=access.api_keys,
        admission=admission,
        max_body_bytes=plan.limits.max_body_bytes,
        control=control,
        common=common,
        restrictions=restrictions,
        forwarding=forwarding,
        sagemaker=protocols.allow_sagemaker,
        sagemaker_model=protocols.sagemaker_model,
        name=name,
    )
    if options.listen.grpc_port is None and options.listen.grpc_fd is None:
        return Applications(http, None, common, admission)
    # Here: a server without gRPC does not pay for reading the messages' description.
    from wherry.frontends.grpc_app import GrpcApp

    # What has a port of its own over HTTP is not left open here.
    elsewhere = () if options.listen.management_port is None else MANAGEMENT
    grpc = GrpcApp(
        control.runtime,
        admission=admission,
        api_keys=access.api_keys,
        control=control,
        common=common,
        restrictions=Restrictions(
            access.restricted_protocols, (*access.disabled_apis, *elsewhere), others=restrictions
        ),
        forwarding=forwarding,
        name=name,
    )
    return Applications(http, grpc, common, admission)
