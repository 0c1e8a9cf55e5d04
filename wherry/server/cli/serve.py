"""How does `wherry serve` become a Server, and its end an exit code?"""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from wherry.core.api import (
    ConfigError,
    LoadFailed,
    Model,
    ModelSettings,
    Runtime,
    end_descendants,
)
from wherry.llm.api import with_engine
from wherry.server.calls.settings import environment_of
from wherry.server.cli.screen import StartScreen, configure_log
from wherry.server.cli.settings import Settings, read_settings
from wherry.server.connections.limits import for_connections, raise_limit
from wherry.server.grpc.rpc import CannotListen
from wherry.server.options import Tls
from wherry.server.server import NOT_DRAINED, Server
from wherry.server.targets import TargetRaised, is_repository, load_failure, load_targets
from wherry.triton.api import ModelControl, RepositoryModel, backend_for, is_remote
from wherry.triton.api import names as repository_names

#: How much of a file is looked at to see whether it has models.
_LOOK_BYTES = 64 << 10
_MODEL_FILES = (".onnx", ".pt", ".pt2", ".xml", ".ubj", ".tl", ".plan", ".savedmodel")


def check_repositories_exist(
    folders: Sequence[str], mode: str, *, exit_on_error: bool = True
) -> None:
    """ConfigError, with what was looked for and what is likely meant, for one without a model.

    Where models may come later (modes poll and explicit) an empty folder is none. What is wrong is
    logged only, if an error is not to end the server.
    """
    for folder in folders:
        try:
            _check_repository(folder, mode)
        except ConfigError as error:
            if exit_on_error:
                raise
            log.warning("not a model repository", extra={"folder": folder, "why": str(error)})


def _check_repository(folder: str, mode: str) -> None:
    if is_remote(folder):
        return  # it is read when the models are loaded
    path = Path(folder)
    if not path.exists():
        raise ConfigError(f"model repository {folder}: No such file or directory")
    if not path.is_dir():
        raise ConfigError(f"model repository {folder}: it is a file: name a folder of models")
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        raise ConfigError(f"model repository {folder}: {error.strerror}") from None
    entries = [one for one in entries if not one.name.startswith(".")]
    folders_here = [one for one in entries if one.is_dir() and one.name != "__pycache__"]
    if any(_is_model(one) for one in folders_here):
        return
    if not entries and mode != "none":
        log.warning("model repository is empty", extra={"folder": folder, "mode": mode})
        return
    raise ConfigError(_explained(path, entries, folders_here))


def _is_model(folder: Path) -> bool:
    """Whether the folder looks like a model of a repository, also one with mistakes."""
    try:
        return any(
            entry.name in ("configs", "config.pbtxt") or (entry.name.isdigit() and entry.is_dir())
            for entry in folder.iterdir()
        )
    except OSError:
        return True  # what is wrong is reported when it is loaded


def _explained(path: Path, entries: Sequence[Path], folders: Sequence[Path]) -> str:
    found = "it is empty"
    if folders:
        some = ", ".join(one.name for one in folders[:5]) + (" ..." if len(folders) > 5 else "")
        found = f"its folders ({some}) have neither"
    elif entries:
        found = "it has no folders"
    meant = _meant(path, entries)
    return (
        f"{path} is not a model repository: looked for MODEL/config.pbtxt and MODEL/1 in it, but"
        f" {found}" + (f"; {meant}" if meant else "")
    )


def _meant(path: Path, entries: Sequence[Path]) -> str:
    names = {one.name for one in entries}
    if _is_model(path):
        return f"it looks like a model itself: did you mean `wherry serve {path.resolve().parent}`?"
    files = sorted(
        (one for one in entries if one.suffix == ".py"), key=lambda p: p.name != "app.py"
    )
    for file in files:
        if _has_models(file):
            return f"did you mean `wherry serve {file}`?"
    if "config.json" in names and any(n.endswith((".safetensors", ".bin")) for n in names):
        return (
            f"it looks like a language model's checkpoint: did you mean `wherry serve llm:{path}`?"
        )
    for one in entries:
        if one.suffix == ".gguf":
            return f"did you mean `wherry serve llm:{one}`?"
        if one.suffix in _MODEL_FILES:
            place = path / one.stem / "1" / f"model{one.suffix}"
            return f"put {one.name} where a repository has it: {place}"
    if "wherry.toml" in names:
        return f"did you mean `wherry serve --config {path / 'wherry.toml'}`, with a target?"
    if files:
        return f"did you mean `wherry serve {files[0]}`? It does not import wherry"
    return ""


def _has_models(file: Path) -> bool:
    try:
        with file.open("rb") as source:
            return b"wherry" in source.read(_LOOK_BYTES)
    except OSError:
        return False


FIRST: Final = 3
#: The setting of each name, in the order in which sockets of other names are taken.
ROLES: Final = {"http": "fd", "grpc": "grpc_fd"}


def with_passed_sockets(
    settings: Settings, environ: MutableMapping[str, str], pid: int
) -> Settings:
    """The settings with the descriptors that `environ` passes to the process `pid`.

    The variables are taken out of `environ`: they are not for our children. ConfigError if they
    are wrong, or if a frontend would get two addresses.
    """
    passed = _passed(environ, pid)
    listen = settings.options.listen
    taken = {role for role, key in ROLES.items() if getattr(listen, key) is not None}
    by_role: dict[str, int] = {}
    for fd, name in passed.items():
        if name in ROLES:
            if name in taken or name in by_role:
                raise ConfigError(f"LISTEN_FDNAMES: {name} has more than one socket")
            by_role[name] = fd
    for fd, name in passed.items():
        if name not in ROLES:
            free = [role for role in ROLES if role not in taken and role not in by_role]
            if not free:
                raise ConfigError(
                    f"LISTEN_FDS: {len(passed)} sockets, more than can be served; one is for HTTP,"
                    " one for gRPC"
                )
            by_role[free[0]] = fd
    listen = replace(
        listen, fd=by_role.get("http", listen.fd), grpc_fd=by_role.get("grpc", listen.grpc_fd)
    )
    if listen.fd is not None and listen.uds is not None:
        raise ConfigError("uds and a passed socket: choose one, both are HTTP's address")
    return replace(settings, options=replace(settings.options, listen=listen))


def _passed(environ: MutableMapping[str, str], pid: int) -> dict[int, str]:
    """The name of each descriptor; empty if none are for this process."""
    count = environ.pop("LISTEN_FDS", "")
    listener = environ.pop("LISTEN_PID", "")
    names = environ.pop("LISTEN_FDNAMES", "")
    if not count and not listener:
        return {}
    if _number(listener, "LISTEN_PID") != pid:
        return {}
    how_many = _number(count, "LISTEN_FDS")
    if how_many > len(ROLES):
        raise ConfigError(
            f"LISTEN_FDS: {how_many} sockets are more than can be served: one HTTP, one gRPC"
        )
    fds = range(FIRST, FIRST + how_many)
    called = names.split(":") if names else [""] * len(fds)
    if len(called) != len(fds):
        raise ConfigError(f"LISTEN_FDNAMES: {len(called)} names for {len(fds)} sockets")
    return dict(zip(fds, called, strict=True))


def _number(text: str, variable: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise ConfigError(f"{variable}: {text!r} is not a number")
    return int(text)


log = logging.getLogger("wherry")

LOAD_FAILED = 3
#: Seconds of max_queue_delay from which milliseconds were probably meant.
LONG_DELAY = 1.0


def serve(args: argparse.Namespace) -> int:
    """Serve until a signal. Returns the process's exit code."""
    flags = vars(args)
    settings = with_passed_sockets(read_settings(flags, os.environ), os.environ, os.getpid())
    options = settings.options
    screen = configure_log(options)
    # Until the server listens for it. The first process of a container has no default action:
    # without this, a SIGTERM while it imports its models would have no effect.
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    try:
        log_ignored(flags)
        os.environ.update(environment_of(options.protocols.trace_config))
        targets, settings = split_targets(flags["target"], settings)
        if screen is not None and targets:
            screen.importing(targets)
        if options.command_line.reload:
            return serve_reloading(settings, targets, screen)
        return run(make_server(settings, load_targets(targets)), screen)
    except (TargetRaised, LoadFailed) as error:
        return log_load_failure(error)
    except OSError as error:
        log.error(cannot_listen(settings, error))
        return NOT_DRAINED
    finally:
        end_descendants()


def run(server: Server, screen: StartScreen | None) -> int:
    connections = server.limits.max_connections
    if not raise_limit(connections):
        log.warning(
            "max_connections does not fit into the limit of open files",
            extra={"max_connections": connections, "fit": for_connections()},
        )
    if screen is not None:
        server.start_log = screen
    return server.run()


def serve_reloading(settings: Settings, targets: Sequence[str], screen: StartScreen | None) -> int:
    """Serve until a signal; when a file is saved, its models are loaded. What cannot be loaded at
    the start is tried again when a file is saved."""
    from wherry.server.cli.reload import Reloader, start_again

    paths = settings.options.command_line.reload_paths
    reloader = Reloader(targets, paths, lambda name: settings.of_model(name)[0])
    reloader.watch()
    try:
        server = make_server(polling(settings), reloader.first())
        reloader.start(server.runtime)
        return run(server, screen)
    except (ConfigError, LoadFailed) as error:
        if not reloader.has_files:
            raise
        log_load_failure(error)
        log.info("waiting for a file to be saved")
        reloader.wait_for_a_change()
        start_again()
        raise
    finally:
        reloader.close()


def polling(settings: Settings) -> Settings:
    """The settings with repositories that are looked at often, unless clients control them."""
    before = settings.options.repositories
    if before.model_control_mode != "none":
        return settings
    poll = replace(before, model_control_mode="poll", repository_poll_secs=0.5, exit_on_error=False)
    return replace(settings, options=replace(settings.options, repositories=poll))


def split_targets(targets: Sequence[str], settings: Settings) -> tuple[list[str], Settings]:
    """Targets that are folders become model repositories of the settings; checkpoints are run by
    the engine that these name."""
    folders = [target for target in targets if is_repository(target)]
    before = settings.options.repositories
    repositories = (*before.model_repositories, *folders)
    if not targets and not repositories:
        here: list[Path] = []
        with contextlib.suppress(OSError):  # the folder may have been removed
            here = sorted(one for one in Path().iterdir() if not one.name.startswith("."))
        meant = _meant(Path(), here) or "name a file (app.py), a module, or a folder of models"
        raise ConfigError(f"nothing to serve: {meant}")
    check_repositories_exist(
        repositories, before.model_control_mode, exit_on_error=before.exit_on_error
    )
    options = replace(
        settings.options, repositories=replace(before, model_repositories=repositories)
    )
    engine = options.command_line.engine
    kept = [with_engine(target, engine) for target in targets if target not in folders]
    return kept, replace(settings, options=options)


def log_ignored(flags: Mapping[str, Any]) -> None:
    """Warn of options of tritonserver that change nothing here."""
    for name, why in flags.get("ignored") or ():
        log.warning("option has no effect", extra={"option": name, "why": why})


def control_of(
    settings: Settings, runtime: Runtime, make_model: Callable[..., RepositoryModel] = backend_for
) -> ModelControl:
    options, models = settings.options.repositories, settings.options.models
    if options.load_models and options.model_control_mode != "explicit":
        raise ConfigError(
            "load_model needs model_control_mode explicit: in the other modes every model is loaded"
        )
    if "*" in options.load_models and len(set(options.load_models)) > 1:
        raise ConfigError("load_model '*' means every model: name no other beside it")
    limited = models.rate_limit != "off" or models.rate_limit_resources
    ignored: dict[str, Any] = {} if limited else {"resources": None}
    return ModelControl(
        runtime,
        options.model_repositories,
        mode=options.model_control_mode,
        load=options.load_models,
        poll_seconds=options.repository_poll_secs,
        load_threads=options.model_load_thread_count,
        load_retries=options.model_load_retry_count,
        auto_complete=not options.disable_auto_complete_config,
        strict_readiness=options.strict_readiness,
        exit_on_error=options.exit_on_error,
        config_name=options.model_config_name,
        backend_directory=options.backend_directory,
        default_max_batch_size=options.default_max_batch_size,
        settings=lambda name: {**ignored, **settings.of_model(name)[0]},
        make_model=make_model,
        **({"settle_seconds": 0.3} if settings.options.command_line.reload else {}),
    )


def make_server(settings: Settings, models: Sequence[Model] | Runtime) -> Server:
    options = settings.options
    runtime = runtime_of(settings, models)
    return Server(
        runtime,
        control=control_of(settings, runtime),
        listen=options.listen,
        tls=grpc_tls(options.tls),
        access=settings.access(),
        capacity=options.capacity,
        protocols=options.protocols,
        life=options.life,
        command_line=options.command_line,
    )


def grpc_tls(tls: Tls) -> Tls:
    """As tritonserver's flags have it: gRPC's files alone switch nothing on."""
    if not (tls.grpc_use_ssl or tls.grpc_use_ssl_mutual):
        return replace(tls, grpc_ssl_certfile=None)
    return tls if tls.grpc_use_ssl_mutual else replace(tls, grpc_ssl_client_ca=None)


def runtime_of(settings: Settings, models: Sequence[Model] | Runtime) -> Runtime:
    """The models with the operator's settings of each; "auto" isolation is a process here."""
    if isinstance(models, Runtime):
        return models  # its program has set how it is to run
    names = [model.name for model in models]
    repositories = settings.options.repositories.model_repositories
    with contextlib.suppress(OSError):  # a folder that is not there is found out later
        names += repository_names([one for one in repositories if not is_remote(one)])
    known = not any(map(is_remote, repositories))
    for name, meant in settings.unused_models(names).items() if known else ():
        log.warning(
            "settings for a model that is not served",
            extra={"model": name, "file": settings.file}
            | ({"did_you_mean": meant} if meant else {}),
        )
    overrides = {}
    for model in models:
        values, origins = settings.of_model(model.name)
        overrides[model.name] = values
        try:
            delay = model.config(**values).max_queue_delay
        except ConfigError as error:
            if not values:
                raise
            where = ", ".join(sorted(set(origins.values())))
            raise ConfigError(f"{error} (settings from {where})") from None
        if (delay or 0) >= LONG_DELAY:
            log.warning(
                "each request may wait this long for others: max_queue_delay is in seconds",
                extra={"model": model.name, "max_queue_delay": delay},
            )
    resources = settings.resources()
    return Runtime(
        *models,
        isolation="process",
        overrides=cast("Mapping[str, ModelSettings]", overrides),
        resources=resources,
        device_memory=settings.device_memory(),
        cache_bytes=settings.options.models.cache_size,
        cache_config=settings.options.models.cache_config,
    )


def log_load_failure(error: ConfigError | LoadFailed) -> int:
    """Log which model or file, and where in the user's code. Returns the exit code."""
    line, text = load_failure(error)
    log.error(line, extra={"traceback": text} if text else {})
    return LOAD_FAILED


def cannot_listen(settings: Settings, error: OSError) -> str:
    listen = settings.options.listen
    if isinstance(error, CannotListen):
        return (
            f"cannot listen for gRPC on {error.filename}: {error.strerror}; choose another"
            " --grpc-port, or 0 for a free one"
        )
    where = listen.uds or f"{listen.host}:{listen.port}"
    why = str(error)
    if isinstance(error, socket.gaierror):
        why = f"{listen.host!r}: {error.strerror}"
    elif error.errno:
        why = os.strerror(error.errno)  # asyncio's own text names the address again
    return f"cannot listen on {where}: {why}{_remedy(settings, error)}"


def _remedy(settings: Settings, error: OSError) -> str:
    """What to do about an address that cannot be bound, as the end of a sentence."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "; raise the limit of open files (ulimit -n)"
    if settings.options.listen.uds:
        return ""
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "; choose another --host: an address of this machine, or 0.0.0.0 for all"
    return "; choose another --port, or 0 for a free one"
