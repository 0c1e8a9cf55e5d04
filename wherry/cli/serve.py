"""How does `wherry serve` become a Server, and its end an exit code?"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from wherry.cli.folders import check_repositories_exist
from wherry.cli.passed_sockets import with_passed_sockets
from wherry.cli.settings import ServerSettings, Settings, read_settings
from wherry.cli.targets import TargetRaised, is_repository, load_targets, user_traceback
from wherry.frontends.connections.descriptors import for_connections, raise_limit
from wherry.frontends.connections.full_memory import memory_plan
from wherry.frontends.connections.limits import Limits
from wherry.frontends.grpc.rpc import CannotListen
from wherry.models.model import Model
from wherry.observability.logging import configure
from wherry.observability.machine import Machine
from wherry.repository.layout import names as repository_names
from wherry.runtime.control import ModelControl
from wherry.runtime.runtime import Runtime
from wherry.server.server import NOT_DRAINED, Server
from wherry.values.errors import ConfigError, LoadFailed

log = logging.getLogger("wherry")

LOAD_FAILED = 3


def serve(flags: Mapping[str, Any]) -> int:
    settings = with_passed_sockets(read_settings(flags, os.environ), os.environ, os.getpid())
    configure(settings.server.log_level, settings.server.log_format)
    # Until the server listens for it. The first process of a container has no default action:
    # without this, one that is told to stop while it imports its models would go on.
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    try:
        tell_ignored(flags)
        if not raise_limit(settings.server.max_connections):
            log.warning(
                "max_connections does not fit into the limit of open files",
                extra={
                    "max_connections": settings.server.max_connections,
                    "fit": for_connections(),
                },
            )
        targets, settings = split_targets(flags["target"], settings)
        server = make_server(settings, load_targets(targets))
        return server.run()
    except (TargetRaised, LoadFailed) as error:
        return tell_load_failure(error)
    except OSError as error:
        log.error(cannot_listen(settings, error))
        return NOT_DRAINED


def split_targets(targets: Sequence[str], settings: Settings) -> tuple[list[str], Settings]:
    """Targets that are folders become model repositories of the settings."""
    folders = [target for target in targets if is_repository(target)]
    repositories = (*settings.server.model_repository, *folders)
    if not targets and not repositories:
        raise ConfigError("nothing to serve: name a file (app.py), a module, or a folder of models")
    check_repositories_exist(repositories, settings.server.model_control_mode)
    server = replace(settings.server, model_repository=repositories)
    return [t for t in targets if t not in folders], replace(settings, server=server)


def tell_ignored(flags: Mapping[str, Any]) -> None:
    """Options of tritonserver that change nothing here."""
    for name, why in flags.get("ignored") or ():
        log.warning("option has no effect", extra={"option": name, "why": why})


def control_of(settings: Settings, runtime: Runtime) -> ModelControl:
    server = settings.server
    if server.load_model and server.model_control_mode != "explicit":
        raise ConfigError(
            "load_model needs model_control_mode explicit: in the other modes every model is loaded"
        )
    limited = server.rate_limit != "off" or server.rate_limit_resource
    ignored: dict[str, Any] = {} if limited else {"resources": None}
    return ModelControl(
        runtime,
        server.model_repository,
        mode=server.model_control_mode,
        load=server.load_model,
        poll_seconds=server.repository_poll_secs,
        load_threads=server.model_load_thread_count,
        load_retries=server.model_load_retry_count,
        auto_complete=not server.disable_auto_complete_config,
        strict_readiness=server.strict_readiness,
        exit_on_error=server.exit_on_error,
        config_name=server.model_config_name,
        backend_directory=server.backend_directory,
        settings=lambda name: {**ignored, **settings.of_model(name)[0]},
    )


def make_server(settings: Settings, models: Sequence[Model] | Runtime) -> Server:
    """The server that the settings describe; the address is not taken yet."""
    server = settings.server
    runtime = runtime_of(settings, models)
    return Server(
        runtime,
        control=control_of(settings, runtime),
        host=server.host,
        port=server.port,
        grpc_port=server.grpc_port,
        uds=server.uds,
        fd=server.fd,
        grpc_fd=server.grpc_fd,
        reuse_port=server.reuse_port,
        allowed_hosts=server.allowed_host,
        cors_origins=server.cors_origin,
        api_keys=settings.api_keys(),
        ssl_certfile=server.ssl_certfile,
        ssl_keyfile=server.ssl_keyfile,
        ssl_client_ca=server.ssl_client_ca,
        **grpc_tls(server),
        limits=limits_of(settings),
        max_in_flight=server.max_in_flight,
        max_queue_bytes=server.max_queue_bytes,
        allow_shared_memory=server.allow_client_shm,
        allow_model_upload=server.allow_model_upload,
        trace_config=server.trace_config,
        restricted_apis=server.http_restricted_api,
        restricted_protocols=server.grpc_restricted_protocol,
        disabled_apis=server.disabled_api,
        header_forward_pattern=server.http_header_forward_pattern,
        management_port=server.management_port,
        metrics_port=server.metrics_port,
        allow_sagemaker=server.allow_sagemaker,
        sagemaker_model=os.environ.get("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"),
        grpc_compression=server.grpc_compression,
        drain_timeout=server.drain_timeout,
        access_log=server.access_log,
        ready_fd=server.ready_fd,
    )


def limits_of(settings: Settings) -> Limits:
    """What is said in the settings, the rest as the memory of the machine allows."""
    server = settings.server
    given = settings.origins
    plan = memory_plan(
        Machine().memory_limit_bytes(),
        connections=server.max_connections if "max_connections" in given else None,
        body_bytes=server.max_body_size if "max_body_size" in given else None,
        queue_bytes=server.max_queue_bytes,
        received_bytes=server.max_received_bytes,
        unsent_bytes=server.max_unsent_bytes,
        limits=Limits(
            idle_timeout=server.idle_timeout,
            max_connection_unsent_bytes=server.max_connection_unsent_bytes,
            max_connection_received_bytes=server.max_connection_received_bytes,
        ),
    )
    return plan.limits


def grpc_tls(server: ServerSettings) -> dict[str, Any]:
    """As tritonserver's flags say it: the files alone switch nothing on."""
    if not (server.grpc_use_ssl or server.grpc_use_ssl_mutual):
        return {}
    return {
        "grpc_ssl_certfile": server.grpc_server_cert,
        "grpc_ssl_keyfile": server.grpc_server_key,
        "grpc_ssl_client_ca": server.grpc_root_cert if server.grpc_use_ssl_mutual else None,
    }


def runtime_of(settings: Settings, models: Sequence[Model] | Runtime) -> Runtime:
    """The models with what the operator says of each; "auto" isolation is a process here."""
    if isinstance(models, Runtime):
        return models  # its program has said how it is to run
    names = [model.name for model in models]
    with contextlib.suppress(OSError):  # a folder that is not there is found out later
        names += repository_names(settings.server.model_repository)
    for name, meant in settings.unused_models(names).items():
        log.warning(
            "settings for a model that is not served",
            extra={"model": name, "file": settings.file}
            | ({"did_you_mean": meant} if meant else {}),
        )
    overrides = {}
    for model in models:
        said, origins = settings.of_model(model.name)
        overrides[model.name] = said
        try:
            model.config(**said)
        except ConfigError as error:
            if not said:
                raise
            where = ", ".join(sorted(set(origins.values())))
            raise ConfigError(f"{error} (settings from {where})") from None
    resources = settings.resources()
    return Runtime(
        *models,
        isolation="process",
        overrides=overrides,
        resources=resources,
        cache_bytes=settings.server.cache_size,
    )


def tell_load_failure(error: TargetRaised | LoadFailed) -> int:
    """Say which model or file, and where in the user's code."""
    cause = error.__cause__
    text = "" if cause is None else user_traceback(cause)
    log.error(str(error), extra={"traceback": text} if text else {})
    return LOAD_FAILED


def cannot_listen(settings: Settings, error: OSError) -> str:
    server = settings.server
    if isinstance(error, CannotListen):
        return (
            f"cannot listen for gRPC on {error.filename}: {error.strerror}; choose another"
            " --grpc-port, or 0 for a free one"
        )
    where = server.uds or f"{server.host}:{server.port}"
    why = str(error)
    if isinstance(error, socket.gaierror):
        why = f"{server.host!r}: {error.strerror}"
    elif error.errno:
        why = os.strerror(error.errno)  # asyncio's own text names the address again
    hint = "; choose another --port, or 0 for a free one" if not server.uds else ""
    return f"cannot listen on {where}: {why}{hint}"
