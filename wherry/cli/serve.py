"""How does `wherry serve` become a Server, and its end an exit code?"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from wherry.cli.settings import Settings, read_settings
from wherry.cli.targets import TargetRaised, load_targets, user_traceback
from wherry.errors import ConfigError, LoadFailed
from wherry.frontends.http.exchange import Limits
from wherry.model import Model
from wherry.observability.logging import configure
from wherry.runtime import Runtime
from wherry.server import NOT_DRAINED, Server

log = logging.getLogger("wherry")

LOAD_FAILED = 3


def serve(flags: Mapping[str, Any]) -> int:
    settings = read_settings(flags, os.environ)
    configure(settings.server.log_level, settings.server.log_format)
    # Until the server listens for it. The first process of a container has no default action:
    # without this, one that is told to stop while it imports its models would go on.
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    try:
        server = make_server(settings, load_targets(flags["target"]))
        return server.run()
    except (TargetRaised, LoadFailed) as error:
        return tell_load_failure(error)
    except OSError as error:
        log.error(cannot_listen(settings, error))
        return NOT_DRAINED


def make_server(settings: Settings, models: Sequence[Model] | Runtime) -> Server:
    """The server that the settings describe; the address is not taken yet."""
    server = settings.server
    return Server(
        runtime_of(settings, models),
        host=server.host,
        port=server.port,
        uds=server.uds,
        api_keys=settings.api_keys(),
        ssl_certfile=server.ssl_certfile,
        ssl_keyfile=server.ssl_keyfile,
        ssl_client_ca=server.ssl_client_ca,
        limits=Limits(
            max_body_bytes=server.max_body_size,
            max_connections=server.max_connections,
            idle_timeout=server.idle_timeout,
        ),
        max_in_flight=server.max_in_flight,
        drain_timeout=server.drain_timeout,
        access_log=server.access_log,
        ready_fd=server.ready_fd,
    )


def runtime_of(settings: Settings, models: Sequence[Model] | Runtime) -> Runtime:
    """The models with what the operator says of each; "auto" isolation is a process here."""
    if isinstance(models, Runtime):
        return models  # its program has said how it is to run
    names = [model.name for model in models]
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
    return Runtime(*models, isolation="process", overrides=overrides)


def tell_load_failure(error: TargetRaised | LoadFailed) -> int:
    """Say which model or file, and where in the user's code."""
    cause = error.__cause__
    text = "" if cause is None else user_traceback(cause)
    log.error(str(error), extra={"traceback": text} if text else {})
    return LOAD_FAILED


def cannot_listen(settings: Settings, error: OSError) -> str:
    server = settings.server
    where = server.uds or f"{server.host}:{server.port}"
    why = str(error)
    if isinstance(error, socket.gaierror):
        why = f"{server.host!r}: {error.strerror}"
    elif error.errno:
        why = os.strerror(error.errno)  # asyncio's own text names the address again
    hint = "; choose another --port, or 0 for a free one" if not server.uds else ""
    return f"cannot listen on {where}: {why}{hint}"
