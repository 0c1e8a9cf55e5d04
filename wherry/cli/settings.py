"""Which settings apply, and where does each come from?

A flag wins over its WHERRY_ variable, that over the file, that over the default. The same table
(`ServerSettings`) makes the flags, the variables and the keys of `[server]`. `[models.NAME]` in
the file holds fields of ModelConfig; a flag or variable that is also such a field (isolation,
instances, request_timeout, max_queue_wait) is said by the operator, so it wins over the model's own
code.

The file is --config, or wherry.toml here, or [tool.wherry] in pyproject.toml here.
"""

from __future__ import annotations

import difflib
import re
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from wherry.values.errors import ConfigError

PREFIX = "WHERRY_"

#: Settings of the server that are also settings of every model it serves.
OF_EVERY_MODEL = ("isolation", "instances", "request_timeout", "max_queue_wait")


def option(default: Any, help: str, metavar: str | None = None) -> Any:
    return field(default=default, metadata={"help": help, "metavar": metavar})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What can be said about a server. Times are seconds."""

    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0 for every interface")
    port: int = option(8000, "port to listen on; 0 takes a free one and prints it")
    grpc_port: int | None = option(
        None, "speak gRPC, too, on this port (8001 is usual); 0 takes a free one", "PORT"
    )
    uds: str | None = option(None, "listen on this unix socket instead", "PATH")
    fd: int | None = option(
        None, "serve HTTP on this socket, open already, instead of host and port", "FD"
    )
    grpc_fd: int | None = option(
        None, "speak gRPC on this socket, open already, instead of grpc_port", "FD"
    )
    reuse_port: bool = option(
        False, "let other processes of this user listen on the same ports, as a successor has to"
    )
    allowed_host: tuple[str, ...] = option(
        (), "answer to this host name, too (*.NAME: to all below; *: to any); may be repeated",
        "NAME",
    )  # fmt: skip
    cors_origin: tuple[str, ...] = option(
        (), "let web pages of this origin call, as https://app.example.com; *: of any; may be"
        " repeated",
        "ORIGIN",
    )  # fmt: skip
    api_key: tuple[str, ...] = option(
        (),
        "a bearer key that clients must send, health excepted; may be repeated",
        "[NAME: ]KEY",
    )
    api_key_file: str | None = option(
        None,
        "file with one key a line, as KEY or NAME: KEY (other users can read a process's flags)",
        "PATH",
    )
    ssl_certfile: str | None = option(None, "TLS certificate chain (PEM)", "PATH")
    ssl_keyfile: str | None = option(None, "its private key, if not in the same file", "PATH")
    ssl_client_ca: str | None = option(
        None, "let in only clients with a certificate of this CA", "PATH"
    )
    grpc_use_ssl: bool = option(
        False, "speak gRPC over TLS with grpc_server_cert (else with ssl_certfile, if that is set)"
    )
    grpc_use_ssl_mutual: bool = option(
        False, "so, and let in only clients with a certificate of grpc_root_cert"
    )
    grpc_server_cert: str | None = option(None, "TLS certificate chain for gRPC (PEM)", "PATH")
    grpc_server_key: str | None = option(None, "its private key, if not in the same file", "PATH")
    grpc_root_cert: str | None = option(None, "CA of gRPC's clients", "PATH")
    model_repository: tuple[str, ...] = option(
        (), "serve the models of this folder, as TARGET does; may be repeated", "PATH"
    )
    model_control_mode: Literal["none", "poll", "explicit"] = option(
        "none", "what may change in the repositories: nothing; what their files say; by request"
    )
    load_model: tuple[str, ...] = option(
        (), "in mode explicit, load this model at the start (*: all); may be repeated", "NAME"
    )
    repository_poll_secs: float = option(15.0, "in mode poll, time between two looks", "SECONDS")
    model_load_thread_count: int = option(4, "models to load side by side", "N")
    model_load_retry_count: int = option(0, "retries of a model that fails to load", "N")
    strict_readiness: bool = option(True, "be ready only if every model is")
    exit_on_error: bool = option(True, "end if a model cannot be loaded at the start")
    disable_auto_complete_config: bool = option(
        False, "take config.pbtxt as it is: ask neither the model's file nor its code"
    )
    model_config_name: str | None = option(
        None, "use configs/NAME.pbtxt of each model that has one", "NAME"
    )
    backend_directory: str | None = option(
        None, "folder with Python-based backends: NAME/model.py", "PATH"
    )
    isolation: Literal["auto", "thread", "process"] = option(
        "auto", "where instances run, for every model; auto: in a worker process each"
    )
    inline: bool = option(False, "no worker processes: everything here, for a debugger")
    instances: int | None = option(None, "instances of every model", "N")
    request_timeout: float | None = option(None, "default timeout of a request", "SECONDS")
    max_queue_wait: float = option(
        30.0,
        "refuse (429) requests without a timeout that would have to wait for longer; 0: never",
        "SECONDS",
    )
    max_in_flight: int | None = option(None, "requests at once; one more is refused (429)", "N")
    max_queue_bytes: int = option(
        0,
        "memory of the requests that wait or run; one more is refused (503); 0: a share of what"
        " there is",
        "SIZE",
    )
    max_body_size: int = option(
        64 * 2**20, "largest body, in bytes or as 64MiB; less by default below 16 GiB", "SIZE"
    )
    cache_size: int = option(
        0, "memory for answers of models with `response_cache`; 0: none", "SIZE"
    )
    max_connections: int = option(
        4096, "connections at once; the longest idle makes room; fewer by default below 13 GiB", "N"
    )
    max_unsent_bytes: int | None = option(
        None,
        "memory for answers that clients do not take, of all connections; beyond it the one that"
        " holds its oldest longest is cut off; a share of the machine's if not said",
        "SIZE",
    )
    max_connection_unsent_bytes: int = option(
        64 * 2**20, "of one connection: beyond it no more of its requests are taken", "SIZE"
    )
    max_received_bytes: int | None = option(
        None,
        "memory for requests that have not come in full, of all connections; beyond it the one"
        " with the oldest is cut off; a share of the machine's if not said",
        "SIZE",
    )
    max_connection_received_bytes: int = option(
        256 * 2**20, "of one gRPC connection: beyond it a call is refused", "SIZE"
    )
    idle_timeout: float = option(75.0, "close a connection that is idle for this time", "SECONDS")
    allow_client_shm: bool = option(
        False, "let clients on this machine, which must be trusted, pass tensors in shared memory"
    )
    allow_model_upload: bool = option(
        False, "let clients send a model's files with its load, even without keys and from anywhere"
    )
    http_restricted_api: tuple[str, ...] = option(
        (),
        "ask for a header on these parts of the API; may be repeated",
        "GROUP[,GROUP]:HEADER=VALUE",
    )
    grpc_restricted_protocol: tuple[str, ...] = option(
        (),
        "the same over gRPC, for parts that want something else there; may be repeated",
        "GROUP[,GROUP]:HEADER=VALUE",
    )
    disabled_api: tuple[str, ...] = option(
        (), "switch these parts of the API off; may be repeated", "GROUP[,GROUP]"
    )
    management_port: int | None = option(
        None, "serve model control, settings and metrics on this port only", "PORT"
    )
    metrics_port: int | None = option(None, "serve the metrics on this port as well", "PORT")
    rate_limit: Literal["off", "execution_count"] = option(
        "off", "let batches wait for the `rate_limiter` resources that a config.pbtxt names"
    )
    rate_limit_resource: tuple[str, ...] = option(
        (), "how much of a resource models share (their `resources`); may be repeated",
        "NAME:COUNT",
    )  # fmt: skip
    http_header_forward_pattern: str | None = option(
        None, "give models the headers whose names this regex matches, as parameters", "REGEX"
    )
    trace_config: tuple[str, ...] = option(
        (),
        "trace requests into a file: triton,file=PATH, level=TIMESTAMPS, rate=N, count=N,"
        " log-frequency=N; may be repeated",
        "SETTING",
    )
    allow_sagemaker: bool = option(False, "answer SageMaker's /ping and /invocations, too")
    grpc_compression: Literal["none", "gzip", "deflate"] = option(
        "none", "how to compress what gRPC clients are sent"
    )
    drain_timeout: float = option(
        30.0, "at SIGTERM, time to finish requests and unload models", "SECONDS"
    )
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "least to log")
    log_format: Literal["human", "json"] = option("human", "lines for people or for machines")
    access_log: bool = option(False, "a line for each request, health and metrics excepted")
    ready_fd: int | None = option(
        None, "write the URL to this descriptor when ready, then close it", "FD"
    )


#: Settings that may be repeated, and what stands between them in a variable.
REPEATED = {
    "allowed_host": ",",
    "cors_origin": ",",
    "api_key": ",",
    "model_repository": ":",
    "load_model": ",",
    "rate_limit_resource": ",",
    "http_restricted_api": ";",
    "grpc_restricted_protocol": ";",
    "trace_config": ";",
    "disabled_api": ",",
}

OPTIONS = {field.name: field for field in fields(ServerSettings)}

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_RANGES: dict[str, tuple[float, float]] = {
    "port": (0, 65535),
    "grpc_port": (0, 65535),
    "management_port": (0, 65535),
    "instances": (1, 4096),
    "repository_poll_secs": (0.1, float("inf")),
    "model_load_thread_count": (1, 256),
    "model_load_retry_count": (0, float("inf")),
    "max_in_flight": (1, float("inf")),
    "max_queue_bytes": (0, float("inf")),
    "max_body_size": (1, float("inf")),
    "cache_size": (0, float("inf")),
    "max_connections": (1, float("inf")),
    "max_unsent_bytes": (1, float("inf")),
    "max_connection_unsent_bytes": (1, float("inf")),
    "max_received_bytes": (1, float("inf")),
    "max_connection_received_bytes": (1, float("inf")),
    "request_timeout": (1e-3, float("inf")),
    "max_queue_wait": (0, float("inf")),
    "idle_timeout": (1e-3, float("inf")),
    "drain_timeout": (0, float("inf")),
    "ready_fd": (0, float("inf")),
    "fd": (0, 2**31 - 1),
    "grpc_fd": (0, 2**31 - 1),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The merged settings, and the origin of each that is not a default."""

    server: ServerSettings
    #: "--port", "WHERRY_PORT" or "wherry.toml [server]", by the setting's name.
    origins: Mapping[str, str]
    #: `[models.NAME]`, as in the file.
    models: Mapping[str, Mapping[str, Any]]
    file: str | None = None

    def of_model(self, name: str) -> tuple[dict[str, Any], dict[str, str]]:
        """What the operator says of this model, and the origin of each setting."""
        said: dict[str, Any] = {}
        origins: dict[str, str] = {}
        from_file = [key for key in OF_EVERY_MODEL if self._is_from_file(key)]
        for key in from_file:
            said[key], origins[key] = getattr(self.server, key), self.origins[key]
        for key, value in self.models.get(name, {}).items():
            said[key], origins[key] = value, f"{self.file} [models.{name}]"
        for key in OF_EVERY_MODEL:
            if key in self.origins and key not in from_file:
                said[key], origins[key] = getattr(self.server, key), self.origins[key]
        if self.server.inline:
            said["isolation"], origins["isolation"] = "thread", self.origins["inline"]
        return said, origins

    def _is_from_file(self, key: str) -> bool:
        return self.file is not None and self.origins.get(key, "").startswith(self.file)

    def unused_models(self, served: list[str]) -> dict[str, str]:
        """Names in `[models.NAME]` that are not served, with a guess at what was meant."""
        return {
            name: next(iter(difflib.get_close_matches(name, served, n=1)), "")
            for name in self.models
            if name not in served
        }

    def resources(self) -> dict[str, int]:
        """What there is of each resource, by name."""
        said: dict[str, int] = {}
        for text in self.server.rate_limit_resource:
            name, _, count = text.partition(":")
            count = count.removesuffix(":0")  # tritonserver's may name a device
            if not name or not count.isdecimal() or int(count) < 1:
                where = self.origins["rate_limit_resource"]
                raise ConfigError(f"{where}: {text!r} is not NAME:COUNT, with a count from 1 up")
            said[name] = int(count)
        return said

    def api_keys(self) -> tuple[str, ...]:
        """All keys, each as KEY or NAME: KEY. ConfigError shows none of them."""
        from wherry.cli.key_file import checked, keys_of  # not for --help

        said = self.server.api_key
        checked(said, self.origins.get("api_key", "api_key"))
        path = self.server.api_key_file
        if path is None:
            return said
        return (*said, *keys_of(Path(path)))


def read_settings(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    folder: Path = Path(),
) -> Settings:
    """Merge the four sources. `flags` by setting's name, and `config`. ConfigError says what is
    wrong and where."""
    file, table = _read_file(flags.get("config") or environ.get(f"{PREFIX}CONFIG"), folder)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, value in table.get("server", {}).items():
        where = f"{file} [server]"
        values[key], origins[key] = _checked(key, value, f"{where}: {key}", text=False), where
    for key in OPTIONS:
        variable = f"{PREFIX}{key.upper()}"
        if (value := environ.get(variable)) and not _is_from_kubernetes(key, value):
            if key in REPEATED:
                values[key] = tuple(filter(None, value.split(REPEATED[key])))
                origins[key] = variable
            else:
                values[key], origins[key] = _checked(key, value, variable), variable
    for key, value in flags.items():
        if key in OPTIONS and value is not None:
            flag = flag_of(key)
            values[key], origins[key] = _checked(key, value, flag), flag
    server = ServerSettings(**values)
    if server.ssl_certfile is None and (server.ssl_keyfile or server.ssl_client_ca):
        raise ConfigError("ssl_keyfile and ssl_client_ca need ssl_certfile")
    if server.grpc_use_ssl or server.grpc_use_ssl_mutual:
        if server.grpc_server_cert is None:
            raise ConfigError("grpc_use_ssl needs grpc_server_cert, and mostly grpc_server_key")
        if server.grpc_use_ssl_mutual and server.grpc_root_cert is None:
            raise ConfigError("grpc_use_ssl_mutual needs grpc_root_cert: whose clients to let in")
    return Settings(server, origins, table.get("models", {}), file)


def flag_of(key: str) -> str:
    return "--" + key.replace("_", "-")


def bytes_of(text: str) -> int:
    """64MiB, 64M or 67108864: the number of bytes (K, M, G are powers of 1024 as in MiB, unless
    it says MB). ValueError if it is neither."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    number, unit, binary = match.groups()
    step = 1000 if unit and not binary and text.strip().lower().endswith("b") else 1024
    return int(float(number) * step ** " kmgt".index(unit.lower() or " "))


def _checked(key: str, value: Any, where: str, *, text: bool = True) -> Any:
    """`value` as the setting's type; from a flag or a variable it is text."""
    import msgspec  # not for --help

    hint = typing.get_type_hints(ServerSettings)[key]
    if OPTIONS[key].metadata["metavar"] == "SIZE" and isinstance(value, str):
        try:
            value = bytes_of(value)
        except ValueError:
            raise ConfigError(
                f"{where}: {value!r} is no size; write bytes, or for example 64MiB"
            ) from None
    if key in REPEATED and isinstance(value, str):
        value = [value]
    try:
        # "8000" is a number where only text can be written, but a mistake in a file.
        converted = msgspec.convert(value, hint, strict=not text)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {value!r}: {_plainly(str(error), hint)}") from None
    low, high = _RANGES.get(key, (float("-inf"), float("inf")))
    if isinstance(converted, int | float) and not low <= converted <= high:
        most = "" if high == float("inf") else f" and at most {high:g}"
        raise ConfigError(f"{where}: {value!r} must be at least {low:g}{most}")
    return converted


def _plainly(problem: str, hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "expected one of " + ", ".join(typing.get_args(hint))
    return problem[0].lower() + problem[1:].replace("`", "")


def _is_from_kubernetes(key: str, value: str) -> bool:
    """A Service called `wherry` gives every pod WHERRY_PORT=tcp://10.0.0.1:80: not meant for us."""
    return key in ("port", "grpc_port") and value.startswith(("tcp://", "udp://"))


def _read_file(named: str | None, folder: Path) -> tuple[str | None, dict[str, Any]]:
    path = Path(named) if named else folder / "wherry.toml"
    if not named and not path.exists():
        path = folder / "pyproject.toml"
        if not path.exists():
            return None, {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    shown = str(path)
    if path.name == "pyproject.toml":
        if "wherry" not in table.get("tool", {}):
            return None, {}
        table, shown = table["tool"]["wherry"], f"{path} [tool.wherry]"
    _check_keys(table, ["server", "models"], shown)
    _check_keys(_table(table, "server", shown), list(OPTIONS), f"{shown} [server]")
    models = _table(table, "models", shown)
    if models:
        from wherry.models.config import FIELDS

        for name in models:
            where = f"{shown} [models.{name}]"
            _check_keys(_table(models, name, f"{shown} [models]"), [*FIELDS, "device"], where)
    return shown, table


def _table(table: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: {key} must be a table, not {found!r}")
    return found


def _check_keys(table: Mapping[str, Any], known: list[str], where: str) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(known)}"
            raise ConfigError(f"{where}: unknown key {key!r}; {hint}")
