"""server/cli/serve.py: what the settings make of a server."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import pytest

import wherry
from tests.repositories import CONFIG, make, save, save_ensemble
from wherry import Runtime
from wherry.core.values.errors import ConfigError
from wherry.server.cli.serve import (
    cannot_listen,
    check_repositories_exist,
    control_of,
    runtime_of,
    split_targets,
    with_passed_sockets,
)
from wherry.server.cli.settings import read_settings
from wherry.server.grpc.rpc import CannotListen

MODELS = "import wherry\n@wherry.model\ndef echo(x: int) -> int:\n    return x\n"


def put(folder: Path, *files: str) -> Path:
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(MODELS if name.endswith(".py") else "")
    return folder


@pytest.mark.parametrize(("delay", "count"), [(50, 1), (1, 1), (0.05, 0), (0, 0), (None, 0)])
def test_a_delay_in_milliseconds_is_pointed_at(
    delay: float | None, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    @wherry.model(max_batch_size=8, max_queue_delay=delay)
    def echo(text: list[str]) -> list[str]:
        return text

    runtime_of(read_settings({}, {}, folder=Path("/nowhere")), [echo])
    assert caplog.text.count("max_queue_delay is in seconds") == count


def refusal(folder: Path, mode: str = "none") -> str:
    with pytest.raises(ConfigError) as refused:
        check_repositories_exist([str(folder)], mode)
    return str(refused.value)


@pytest.mark.parametrize(
    ("files", "meant"),
    [
        (["app.py"], "`wherry serve {folder}/app.py`"),
        (["app.py", "a.py", "data/x.txt", "__pycache__/app.pyc"], "`wherry serve {folder}/app.py`"),
        (["models.py", "wherry.toml"], "`wherry serve {folder}/models.py`"),
        (["wherry.toml"], "--config {folder}/wherry.toml"),
        (["config.json", "model.safetensors"], "`wherry serve llm:{folder}`"),
        (["tiny.gguf"], "`wherry serve llm:{folder}/tiny.gguf`"),
        (["bert.onnx"], "{folder}/bert/1/model.onnx"),
        (["bert.pt"], "{folder}/bert/1/model.pt"),
        (["config.pbtxt", "1/model.onnx"], "`wherry serve {parent}`"),
        (["1/model.onnx"], "`wherry serve {parent}`"),
        (["README.md"], "has no folders"),
        (["a/weights.bin", "b/model.py"], "its folders (a, b) have neither"),
    ],
    ids=str,
)
def test_what_was_probably_meant_is_named(tmp_path: Path, files: list[str], meant: str) -> None:
    folder = put(tmp_path / "folder", *files)
    said = refusal(folder)
    assert "looked for MODEL/config.pbtxt and MODEL/1" in said
    assert meant.format(folder=folder, parent=tmp_path) in said
    assert refusal(folder, "explicit") == said


def test_an_empty_folder_is_a_repository_only_where_models_may_come_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert "it is empty" in refusal(tmp_path)
    for mode in ("poll", "explicit"):
        check_repositories_exist([str(tmp_path)], mode)
    assert caplog.text.count("model repository is empty") == 2


@pytest.mark.parametrize("files", [[], ["app.py"], ["a/weights.bin"]], ids=str)
def test_what_is_wrong_is_logged_only_if_an_error_is_not_to_end_the_server(
    tmp_path: Path, files: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    folders = [str(tmp_path / "nowhere"), str(put(tmp_path, *files))]
    check_repositories_exist(folders, "none", exit_on_error=False)
    assert caplog.text.count("not a model repository") == 2


def test_what_is_no_folder_is_named(tmp_path: Path) -> None:
    put(tmp_path, "app.py")
    assert "it is a file" in refusal(tmp_path / "app.py")
    assert "No such file or directory" in refusal(tmp_path / "nowhere")


@pytest.mark.parametrize("files", [["m/1/model.py"], ["m/config.pbtxt"], ["x/y.txt", "m/1/a.onnx"]])
def test_a_repository_is_one_whatever_is_wrong_with_its_models(
    tmp_path: Path, files: list[str]
) -> None:
    check_repositories_exist([str(put(tmp_path, *files))], "none")


def taken(environ: dict[str, str], **flags: object) -> tuple[int | None, int | None]:
    listen = with_passed_sockets(read_settings(flags, {}), environ, 7).options.listen
    return listen.fd, listen.grpc_fd


@pytest.mark.parametrize(
    ("count", "names", "expected"),
    [
        ("1", None, (3, None)),
        ("2", None, (3, 4)),
        ("2", "grpc:http", (4, 3)),
        ("1", "grpc", (None, 3)),
        ("1", "wherry.socket", (3, None)),
        ("2", "wherry.socket:http", (4, 3)),
        ("0", None, (None, None)),
    ],
)
def test_sockets_go_by_their_names_and_else_in_order(
    count: str, names: str | None, expected: tuple[int | None, int | None]
) -> None:
    environ = {"LISTEN_FDS": count, "LISTEN_PID": "7", "OTHER": "x"}
    if names is not None:
        environ["LISTEN_FDNAMES"] = names
    assert taken(environ) == expected
    assert environ == {"OTHER": "x"}  # children must not take them for theirs


def test_sockets_of_another_process_are_not_ours() -> None:
    environ = {"LISTEN_FDS": "1", "LISTEN_PID": "8"}
    assert taken(environ) == (None, None)
    assert environ == {}


def test_a_flag_takes_its_frontend_first() -> None:
    assert taken({"LISTEN_FDS": "1", "LISTEN_PID": "7"}, fd=9) == (9, 3)


@pytest.mark.parametrize(
    ("environ", "flags", "said"),
    [
        ({"LISTEN_FDS": "two", "LISTEN_PID": "7"}, {}, "LISTEN_FDS: 'two'"),
        ({"LISTEN_FDS": "-1", "LISTEN_PID": "7"}, {}, "LISTEN_FDS: '-1'"),
        ({"LISTEN_PID": "7"}, {}, "LISTEN_FDS: ''"),
        ({"LISTEN_FDS": "1", "LISTEN_PID": "me"}, {}, "LISTEN_PID: 'me'"),
        ({"LISTEN_FDS": "1"}, {}, "LISTEN_PID: ''"),
        ({"LISTEN_FDS": "3", "LISTEN_PID": "7"}, {}, "3 sockets"),
        ({"LISTEN_FDS": "999999999", "LISTEN_PID": "7"}, {}, "999999999 sockets"),
        ({"LISTEN_FDS": "2", "LISTEN_PID": "7", "LISTEN_FDNAMES": "http"}, {}, "1 names for 2"),
        (
            {"LISTEN_FDS": "2", "LISTEN_PID": "7", "LISTEN_FDNAMES": "http:http"},
            {},
            "http has more than one socket",
        ),
        ({"LISTEN_FDS": "1", "LISTEN_PID": "7"}, {"uds": "/s"}, "choose one"),
    ],
)
def test_what_is_wrong_is_said(
    environ: dict[str, str], flags: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        taken(environ, **flags)
    assert environ == {}


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
