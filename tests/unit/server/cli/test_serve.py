"""server/cli/serve.py: what the settings make of a server."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.repositories import CONFIG, make, save, save_ensemble
from wherry import Runtime
from wherry.core.values.errors import ConfigError
from wherry.server.cli.serve import cannot_listen, control_of, split_targets
from wherry.server.cli.settings import read_settings
from wherry.server.grpc.rpc import CannotListen

LIMITED = f'{CONFIG} instance_group {{ rate_limiter {{ resources {{ name: "r" count: 2 }} }} }}'


@pytest.mark.parametrize(
    ("flags", "resources"),
    [
        ({}, None),
        ({"rate_limit": "execution_count"}, {"r": 2}),
        ({"rate_limit_resource": ["r:2"]}, {"r": 2}),
        ({"rate_limit_resource": ["r:2:0"]}, {"r": 2}),
    ],
)
def test_models_wait_for_the_resources_of_their_files_if_the_operator_wants_that(
    tmp_path: Path, flags: dict[str, Any], resources: dict[str, int] | None
) -> None:
    save(tmp_path / "models", "a", config=LIMITED)
    save_ensemble(tmp_path / "models", "e", "a")
    given = {"model_repository": [str(tmp_path / "models")], **flags}
    settings = read_settings(given, {}, folder=tmp_path)
    with Runtime(resources=settings.resources()) as runtime:
        control = control_of(settings, runtime, make)
        control.start()
        assert runtime.model("a").config.resources == resources
        control.close()


def test_a_target_may_be_a_repository_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    save(folder, "a")
    given = ["s3://bucket/models", str(folder), "llm:some/model"]
    targets, settings = split_targets(given, read_settings({}, {}, folder=tmp_path))
    assert targets == ["llm:some/model"]
    assert settings.options.repositories.model_repositories == ("s3://bucket/models", str(folder))


def test_a_star_stands_alone(tmp_path: Path) -> None:
    flags = {
        "model_repository": [str(tmp_path)],
        "model_control_mode": "explicit",
        "load_model": ["*", "a"],
    }
    with Runtime() as runtime, pytest.raises(ConfigError, match="name no other beside it"):
        control_of(read_settings(flags, {}, folder=tmp_path), runtime, make)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EACCES, ""), "cannot listen on 0.0.0.0:80: Permission denied"),
        (OSError(errno.EADDRINUSE, ""), "cannot listen on 0.0.0.0:80: Address already in use"),
        (CannotListen(errno.EADDRNOTAVAIL, "taken, or not there", "[::]:81"),
         "cannot listen for gRPC on [::]:81: taken, or not there"),
    ],
)  # fmt: skip
def test_an_address_that_is_taken_is_named(tmp_path: Path, error: OSError, text: str) -> None:
    settings = read_settings({"host": "0.0.0.0", "port": 80}, {}, folder=tmp_path)
    assert cannot_listen(settings, error).partition("; choose")[0] == text


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.EADDRINUSE, ""), "choose another --port, or 0 for a free one"),
        (OSError(errno.EMFILE, ""), "raise the limit of open files (ulimit -n)"),
        (OSError(errno.EADDRNOTAVAIL, ""), "choose another --host: an address of this machine,"),
        (socket.gaierror(socket.EAI_NONAME, "unknown"), "choose another --host: an address of"),
    ],
)
def test_an_address_that_cannot_be_had_is_told_with_what_to_change(
    tmp_path: Path, error: OSError, remedy: str
) -> None:
    settings = read_settings({"host": "h", "port": 80}, {}, folder=tmp_path)
    assert cannot_listen(settings, error).partition("; ")[2].startswith(remedy)
