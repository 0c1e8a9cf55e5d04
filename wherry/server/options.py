"""Which options has a server, and how is each called, typed, limited and explained?

An option is a field of one of the groups below, and is declared nowhere else: from its field follow
the keyword of `wherry.Server`, the flag, the variable, the key in the settings file and the row in
docs/reference/configuration.md. A group is what one part of the server reads. Times are seconds.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

from wherry.server.connections.limits import Limits

PREFIX: Final = "WHERRY_"

#: Certificate chain, private key, and the CA of clients. Without the first there is no TLS.
TlsFiles = tuple[str | None, str | None, str | None]

#: Largest port.
PORT: Final = 65535


def option(
    default: Any,
    help: str,
    metavar: str = "",
    *,
    key: str = "",
    separator: str = "",
    least: float = float("-inf"),
    most: float = float("inf"),
) -> Any:
    """Declare an option.

    `metavar`: what its value is; SIZE is a number of bytes, which may be written as 64MiB. `key`:
    its name on the command line, if that is not the field's. `separator`: it may be repeated, and
    this stands between its values in the variable. `least`, `most`: the range of a number.
    """
    about = {"help": help, "metavar": metavar, "key": key, "separator": separator}
    return field(default=default, metadata={**about, "least": least, "most": most})


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Options of the addresses that a server listens on."""

    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0 for every interface")
    port: int = option(8000, "port to listen on; 0 takes a free one and prints it",
        least=0, most=PORT)
    http: bool = option(True,
        "serve HTTP; off: gRPC only, beside the management and metrics ports")
    grpc_port: int | None = option(None,
        "also serve gRPC on this port (8001 is usual); 0 takes a free one",
        "PORT", least=0, most=PORT)
    grpc_host: str | None = option(None, "address to listen on for gRPC (default: --host)", "HOST")
    uds: str | None = option(None, "listen on this unix socket instead", "PATH")
    fd: int | None = option(None,
        "serve HTTP on this inherited socket instead of host and port",
        "FD", least=0, most=2**31 - 1)
    grpc_fd: int | None = option(None,
        "serve gRPC on this inherited socket instead of grpc_port",
        "FD", least=0, most=2**31 - 1)
    reuse_port: bool = option(False,
        "let other processes of this user, such as a successor, listen on the same ports")
    fronts: int = option(0,
        "number of HTTP front-end processes; 0: the process that owns the models",
        "N", least=0, most=256)
    management_port: int | None = option(None,
        "serve model control, settings and metrics on this port only", "PORT", least=0, most=PORT)
    metrics_port: int | None = option(None, "serve the metrics on this port as well",
        "PORT", least=0, most=PORT)
    metrics_host: str | None = option(None,
        "address to listen on for the metrics port (default: --host)", "HOST")
    agent_port: int | None = option(None, "answer HAProxy's agent checks on this port",
        "PORT", least=0, most=PORT)

    @property
    def host_of_grpc(self) -> str:
        return self.grpc_host or self.host

    @property
    def speaks_grpc(self) -> bool:
        return self.grpc_port is not None or self.grpc_fd is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The certificates of HTTP, and those of gRPC if they are others."""

    ssl_certfile: str | None = option(None,
        "TLS certificate chain (PEM); like all these files, read again when it changes", "PATH")
    ssl_keyfile: str | None = option(None, "its private key, if not in the same file", "PATH")
    ssl_client_ca: str | None = option(None, "accept only clients with a certificate of this CA",
        "PATH")
    grpc_use_ssl: bool = option(False,
        "speak gRPC over TLS with grpc_server_cert (else with ssl_certfile, if that is set)")
    grpc_use_ssl_mutual: bool = option(False,
        "the same, accepting only clients with a certificate of grpc_root_cert")
    grpc_ssl_certfile: str | None = option(None, "TLS certificate chain for gRPC (PEM)",
        "PATH", key="grpc_server_cert")
    grpc_ssl_keyfile: str | None = option(None, "its private key, if not in the same file",
        "PATH", key="grpc_server_key")
    grpc_ssl_client_ca: str | None = option(None, "CA of gRPC clients",
        "PATH", key="grpc_root_cert")

    @property
    def of_http(self) -> TlsFiles:
        return self.ssl_certfile, self.ssl_keyfile, self.ssl_client_ca

    @property
    def of_grpc(self) -> TlsFiles:
        """gRPC's own, or else those of HTTP."""
        if self.grpc_ssl_certfile is None:
            return self.of_http
        return self.grpc_ssl_certfile, self.grpc_ssl_keyfile, self.grpc_ssl_client_ca


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Options of which clients may call which parts of the API."""

    allowed_hosts: tuple[str, ...] = option((),
        "accept this host name, too (*.NAME: its subdomains; *: any); may be repeated",
        "NAME", key="allowed_host", separator=",")
    cors_origins: tuple[str, ...] = option((),
        "let web pages of this origin call, such as https://app.example.com; *: any; may be "
        "repeated", "ORIGIN", key="cors_origin", separator=",")
    input_urls: tuple[str, ...] = option((),
        "fetch files that clients pass as URLs: data, http (public addresses), or an origin "
        "such as http://images.internal:9000; may be repeated",
        "WHAT", key="input_url", separator=",")
    api_keys: tuple[str, ...] = option((),
        "a bearer key that clients must send, except for health; may be repeated",
        "[NAME: ]KEY", key="api_key", separator=",")
    api_key_file: str | None = option(None,
        "file with one key per line, KEY or NAME: KEY (other users can see a process's flags); "
        "read again when it changes", "PATH")
    restricted_apis: tuple[str, ...] = option((),
        "require a header on these parts of the API; may be repeated",
        "GROUP[,GROUP]:HEADER=VALUE", key="http_restricted_api", separator=";")
    restricted_protocols: tuple[str, ...] = option((),
        "the same over gRPC, for parts with another header there; may be repeated",
        "GROUP[,GROUP]:HEADER=VALUE", key="grpc_restricted_protocol", separator=";")
    disabled_apis: tuple[str, ...] = option((),
        "switch these parts of the API off; may be repeated",
        "GROUP[,GROUP]", key="disabled_api", separator=",")
    allow_shared_memory: bool = option(False,
        "let clients on this machine pass tensors in shared memory; they must be trusted",
        key="allow_client_shm")
    allow_model_upload: bool = option(False,
        "let clients upload a model's files with its load, even without keys and from anywhere")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Limits of what clients may have a server hold. Those that are None follow from the memory."""

    max_in_flight: int | None = option(None, "maximum concurrent requests; more are refused (429)",
        "N", least=1)
    max_queue_bytes: int = option(0,
        "memory for waiting and running requests; more are refused (503); 0: a share of the "
        "machine's", "SIZE", least=0)
    max_body_size: int | None = option(None,
        "largest body, in bytes or as 64MiB (default: 64MiB, less below 16 GiB of memory)",
        "SIZE", least=1)
    max_connections: int | None = option(None,
        "maximum connections; a new one closes the longest idle one (default: 4096, fewer "
        "below 13 GiB of memory)", "N", least=1)
    max_unsent_bytes: int | None = option(None,
        "memory for answers that clients do not read, over all connections; beyond it the one "
        "with the oldest is cut off (default: a share of the machine's)",
        "SIZE", least=1)
    max_connection_unsent_bytes: int = option(64 * 2**20,
        "the same per connection: beyond it, it is not read", "SIZE", least=1)
    max_received_bytes: int | None = option(None,
        "memory for incomplete requests, over all connections; beyond it the one "
        "with the oldest is cut off (default: a share of the machine's)", "SIZE", least=1)
    max_connection_received_bytes: int | None = option(None,
        "the same per gRPC connection: beyond it calls are refused (default: 256 MiB, or more "
        "if one body may be larger)", "SIZE", least=1)
    max_kept_responses: int = option(64 * 2**20,
        "memory for stored responses of /v1/responses, each kept for an hour; 0: none, as with "
        "several fronts", "SIZE", least=0)
    idle_timeout: float = option(75.0, "close connections that are idle for this long",
        "SECONDS", least=0.001)
    #: Everything that one client may cost, in place of those options above; for programs.
    limits: Limits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocols:
    """Options of HTTP and gRPC beside inference."""

    server_name: str | None = option(None,
        "the server's name for its clients (default: wherry, and triton with a model repository)",
        "NAME", key="id")
    http_header_forward_pattern: str | None = option(None,
        "pass HTTP headers whose names match this regex to models, as parameters", "REGEX")
    grpc_header_forward_pattern: str | None = option(None,
        "pass gRPC metadata whose names match this regex to models, as parameters", "REGEX")
    trace_config: tuple[str, ...] = option((),
        "trace requests into a file: triton,file=PATH, level=TIMESTAMPS, rate=N, count=N, "
        "log-frequency=N, or by OpenTelemetry: mode=opentelemetry; may be repeated",
        "SETTING", separator=";")
    metrics_config: tuple[str, ...] = option((),
        "which of Triton's metrics to expose: counter_latencies=false; may be repeated",
        "SETTING", separator=";")
    metrics_compat: Literal["none", "triton"] = option("none",
        "triton: expose Triton's metrics only, without wherry's own")
    load_report: Literal["none", "json", "text", "bin"] = option("none",
        "report the load in a header of every answer, for Envoy (ORCA); over gRPC in the "
        "trailers; none: only on request")
    grpc_compression: Literal["none", "gzip", "deflate"] = option("none",
        "compression of gRPC answers")
    strict_fields: bool = option(False,
        "refuse unknown fields of OpenAI requests instead of ignoring them")
    triton_errors: bool = option(False,
        "use Triton's status, gRPC code, Content-Type and text for KServe V2 errors")
    recent_requests: bool = option(False,
        "keep the last 50 requests with their ids and times, for the dashboard")
    access_log: bool = option(False, "log a line for each request, except health and metrics")


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Options of how a server reports that it is ready, and how long it may take to end."""

    drain_timeout: float = option(30.0, "at SIGTERM, time to finish requests and unload models",
        "SECONDS", least=0)
    drain_notice: float = option(0.0,
        "at SIGTERM, keep accepting connections for this part of it while reporting not ready: as "
        "long as a load balancer takes to notice", "SECONDS", least=0)
    ready_fd: int | None = option(None,
        "write the URL to this descriptor when ready, then close it", "FD", least=0)
    stop_fd: int | None = option(None,
        "stop, as at SIGTERM, when the other end of this pipe closes", "FD", least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repositories:
    """Options of the model repositories, and of how their models are loaded."""

    model_repositories: tuple[str, ...] = option((),
        "serve the models of this folder, as TARGET does; may be repeated",
        "PATH", key="model_repository", separator=":")
    model_control_mode: Literal["none", "poll", "explicit"] = option("none",
        "which models are loaded later: none; those whose files change; those that clients request")
    load_models: tuple[str, ...] = option((),
        "in mode explicit, load this model at startup (*: all); may be repeated",
        "NAME", key="load_model", separator=",")
    repository_poll_secs: float = option(15.0, "in mode poll, time between checks",
        "SECONDS", least=0.1)
    model_load_thread_count: int = option(4, "models to load in parallel", "N", least=1, most=256)
    model_load_retry_count: int = option(0, "retries of a model that fails to load", "N", least=0)
    strict_readiness: bool = option(True, "be ready only if every model is")
    exit_on_error: bool = option(True, "exit if a model cannot be loaded at startup")
    disable_auto_complete_config: bool = option(False,
        "use config.pbtxt as is, without completing it from the model's file or code")
    model_config_name: str | None = option(None,
        "use configs/NAME.pbtxt of each model that has one", "NAME")
    default_max_batch_size: int | None = option(None,
        "max_batch_size of models whose files take batches and whose config.pbtxt sets none "
        "(default: the backend's, mostly 4)", "N", least=1, most=2**31 - 1)
    backend_directory: str | None = option(None, "folder with Python-based backends: NAME/model.py",
        "PATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Options of how every model runs, and of what the models share."""

    isolation: Literal["auto", "thread", "process", "shared"] = option("auto",
        "where the instances of every model run; auto: in a worker process each; shared: in one "
        "per device")
    inline: bool = option(False, "no worker processes: run everything in this one, for a debugger")
    instances: int | None = option(None, "instances of every model", "N", least=1, most=4096)
    served_model_names: tuple[str, ...] = option((),
        "the only model's name for OpenAI's and Anthropic's clients, such as gpt-4o or "
        "organisation/model; may be repeated", "NAME", key="served_model_name", separator=",")
    request_timeout: float | None = option(None, "default timeout of a request",
        "SECONDS", least=0.001)
    max_queue_wait: float = option(30.0,
        "refuse (429) requests without a timeout that would wait longer; 0: never",
        "SECONDS", least=0)
    cache_size: int = option(0,
        "memory for cached answers of models with `response_cache`; 0: none", "SIZE", least=0)
    cache_config: tuple[str, ...] = option((),
        "cache answers in a store that servers share, from an installed package: "
        "NAME,SETTING=VALUE; may be repeated", "SETTING", separator=";")
    device_memory: tuple[str, ...] = option((),
        "memory budget of a device: you may serve more models than fit, and those not called "
        "sleep (their `resident`, `memory`); may be repeated",
        "DEVICE=SIZE", separator=",")
    rate_limit: Literal["off", "execution_count"] = option("off",
        "make batches wait for the `rate_limiter` resources in config.pbtxt")
    rate_limit_resources: tuple[str, ...] = option((),
        "amount of a resource that models share (their `resources`); may be repeated",
        "NAME:COUNT[:DEVICE]", key="rate_limit_resource", separator=",")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """Options that only the command line reads."""

    engine: Literal["auto", "wherry", "transformers", "llama.cpp", "vllm"] = option("auto",
        "engine for a checkpoint (llm:FOLDER, llm:FILE.gguf); auto: what fits, and why is logged")
    reload: bool = option(False,
        "for development: reload the app and its models when a file is saved")
    reload_paths: tuple[str, ...] = option((),
        "with reload: also watch this file or folder; may be repeated",
        "PATH", key="reload_path", separator=":")
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "lowest level to log")
    log_off: tuple[str, ...] = option((),
        "never log this severity; may be repeated",
        "info|warning|error", separator=",")
    log_format: Literal["human", "iso8601", "json"] = option("human",
        "human-readable lines (iso8601: with dates) or JSON")
    log_file: str | None = option(None, "append the log to this file, instead of stderr", "PATH")
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options of a server, in groups."""

    listen: Listen = Listen()
    tls: Tls = Tls()
    access: Access = Access()
    capacity: Capacity = Capacity()
    protocols: Protocols = Protocols()
    life: Life = Life()
    repositories: Repositories = Repositories()
    models: Models = Models()
    command_line: CommandLine = CommandLine()

    def value(self, key: str) -> Any:
        declared = OPTIONS[key]
        return getattr(getattr(self, declared.group), declared.name)


#: Groups that a server reads itself; the command line makes a Runtime and a ModelControl of others.
OF_A_SERVER: Final = ("listen", "tls", "access", "capacity", "protocols", "life")


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as the command line, the environment and the settings file know it."""

    #: The group's name in Options, and the field's in the group.
    group: str
    name: str
    #: Its key in the file.
    key: str
    type: Any
    default: Any
    help: str
    metavar: str
    separator: str
    least: float
    most: float

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.key.upper()

    @property
    def keyword(self) -> str:
        """The keyword of `wherry.Server`; "" if only the command line has the option."""
        return self.name if self.group in OF_A_SERVER else ""

    @property
    def is_switch(self) -> bool:
        return self.type is bool

    @property
    def is_size(self) -> bool:
        return self.metavar == "SIZE"

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that are allowed, for a Literal."""
        return typing.get_args(self.type) if typing.get_origin(self.type) is Literal else ()


def options_of(values: Mapping[str, Any]) -> Options:
    by_group: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        by_group.setdefault(OPTIONS[key].group, {})[OPTIONS[key].name] = value
    return Options(**{group: _GROUPS[group](**fields) for group, fields in by_group.items()})


def from_keywords(keywords: Mapping[str, Any]) -> Options:
    """Make Options of whole groups (`listen=Listen(port=0)`) and single fields (`port=0`), by name.

    TypeError for a name that a server has no option for.
    """
    # The last is for fronts, which log by the command line.
    groups = {n: keywords.get(n, _GROUPS[n]()) for n in (*OF_A_SERVER, "command_line")}
    for name, value in keywords.items():
        if name in groups:
            continue
        group = _FIELDS.get(name)
        if group is None:
            close = difflib.get_close_matches(name, [*_FIELDS, *groups], n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"a server has no option {name!r}{hint}")
        value = tuple(value) if isinstance(value, list) else value
        groups[group] = replace(groups[group], **{name: value})
    return Options(**groups)


_GROUPS: Final[dict[str, Any]] = {one.name: type(one.default) for one in fields(Options)}
#: The group of each field that `wherry.Server` takes as a keyword.
_FIELDS: Final = {one.name: group for group in OF_A_SERVER for one in fields(_GROUPS[group])}


def _declared() -> dict[str, Option]:
    found: dict[str, Option] = {}
    for group, cls in _GROUPS.items():
        hints = typing.get_type_hints(cls)
        for one in fields(cls):
            if one.metadata:
                about = {**one.metadata, "key": one.metadata["key"] or one.name}
                found[about["key"]] = Option(
                    group=group, name=one.name, type=hints[one.name], default=one.default, **about
                )
    return found


#: Every option by its key.
OPTIONS: Final = _declared()
