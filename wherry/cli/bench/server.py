"""How does `wherry bench app.py` get its server, with the settings that are to be tried?"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from wherry.cli.settings import read_settings
from wherry.server.options import OPTIONS, PREFIX
from wherry.testing import ServerProcess
from wherry.values.errors import WherryError

#: Seconds for the models to load. Ctrl-C ends the waiting.
LOADING = 3600.0
#: Seconds for a server to end: what it still does is of no use.
STOPPING = 10.0


@contextmanager
def serving(
    target: str,
    flags: Sequence[str],
    model: str | None,
    settings: Mapping[str, Any],
    undisturbed: Callable[[], AbstractContextManager[None]],
) -> Iterator[ServerProcess]:
    """`wherry serve TARGET FLAGS` on a free port with these settings of the model, over those of
    the file that it would read anyhow. WherryError with the server's log if it does not start.

    In a block of `undisturbed` no Ctrl-C raises: it would leave a process that nothing stops."""
    with tempfile.TemporaryDirectory(prefix="wherry-bench-") as folder:
        if model is not None and settings:
            path = Path(folder) / "wherry.toml"
            path.write_text(_merged(flags, model, settings), encoding="utf-8")
            flags = [*_without_config(flags), "--config", str(path)]
        server = ServerProcess(target, *flags, own_group=True, ready_timeout=LOADING)
        with ExitStack() as stack:
            with undisturbed():
                server.start()
                stack.callback(_stop, server)
            try:
                server.wait_ready()
            except RuntimeError as error:
                raise WherryError(str(error)) from None
            yield server


def _stop(server: ServerProcess) -> None:
    with contextlib.suppress(RuntimeError):  # it hung, and has been killed
        server.stop(timeout=STOPPING)


def _merged(flags: Sequence[str], model: str, settings: Mapping[str, Any]) -> str:
    config = next((f.partition("=")[2] for f in flags if f.startswith("--config=")), None)
    known = read_settings({"config": config}, _only_config())
    server = {
        name: known.options.value(name)
        for name in OPTIONS
        if known.file is not None and known.origins.get(name, "").startswith(known.file)
    }
    models = {name: dict(table) for name, table in known.models.items()}
    models[model] = {**models.get(model, {}), **settings}
    # "auto" is the value of a setting that is not given.
    models[model] = {name: value for name, value in models[model].items() if value != "auto"}
    lines = ["[server]", *_keys(server)]
    for name, table in models.items():
        lines += [f"[models.{msgspec.json.encode(name).decode()}]", *_keys(table)]
    return "\n".join(lines) + "\n"


def _only_config() -> dict[str, str]:
    name = f"{PREFIX}CONFIG"
    return {name: os.environ[name]} if name in os.environ else {}


def _without_config(flags: Sequence[str]) -> list[str]:
    return [flag for flag in flags if not flag.startswith("--config=")]


def _keys(table: Mapping[str, Any]) -> Iterator[str]:
    for name, value in table.items():
        yield f"{name} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(_keys(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    return msgspec.json.encode(value).decode()  # text, numbers and booleans look alike in both
