"""Which keywords does `wherry.Server` take, and of which types?

Type checkers and editors read this; server/options.py has what they mean, and a test holds both
equal. A Server has `host`, `port` and `grpc_port` as parameters of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict

from wherry.core.api import Isolation, ModelSettings
from wherry.server.connections.limits import Limits
from wherry.server.options import (
    Access,
    Capacity,
    CommandLine,
    Life,
    Listen,
    Protocols,
    Tls,
)


class ServerOptions(TypedDict, total=False):
    """Single options, or whole groups of them."""

    http: bool
    grpc_host: str | None
    uds: str | Path | None
    fd: int | None
    grpc_fd: int | None
    reuse_port: bool
    fronts: int
    management_port: int | None
    metrics_port: int | None
    metrics_host: str | None
    agent_port: int | None
    ssl_certfile: str | Path | None
    ssl_keyfile: str | Path | None
    ssl_client_ca: str | Path | None
    grpc_use_ssl: bool
    grpc_use_ssl_mutual: bool
    grpc_ssl_certfile: str | Path | None
    grpc_ssl_keyfile: str | Path | None
    grpc_ssl_client_ca: str | Path | None
    allowed_hosts: Sequence[str]
    cors_origins: Sequence[str]
    input_urls: Sequence[str]
    api_keys: Sequence[str]
    api_key_file: str | Path | None
    restricted_apis: Sequence[str]
    restricted_protocols: Sequence[str]
    disabled_apis: Sequence[str]
    allow_shared_memory: bool
    allow_model_upload: bool
    max_in_flight: int | None
    max_queue_bytes: int
    max_body_size: int | None
    max_connections: int | None
    max_unsent_bytes: int | None
    max_connection_unsent_bytes: int
    max_received_bytes: int | None
    max_connection_received_bytes: int | None
    max_kept_responses: int
    idle_timeout: float
    limits: Limits | None
    server_name: str | None
    http_header_forward_pattern: str | None
    grpc_header_forward_pattern: str | None
    trace_config: Sequence[str]
    metrics_config: Sequence[str]
    metrics_compat: Literal["none", "triton"]
    load_report: Literal["none", "json", "text", "bin"]
    grpc_compression: Literal["none", "gzip", "deflate"]
    strict_fields: bool
    triton_errors: bool
    recent_requests: bool
    access_log: bool
    drain_timeout: float
    drain_notice: float
    ready_fd: int | None
    stop_fd: int | None

    listen: Listen
    tls: Tls
    access: Access
    capacity: Capacity
    protocols: Protocols
    life: Life
    command_line: CommandLine


class ServerKeywords(ServerOptions, total=False):
    """All keywords of a Server that has nothing else to control its models."""

    host: str | None
    port: int | None
    grpc_port: int | None
    isolation: Isolation
    overrides: Mapping[str, ModelSettings] | None
