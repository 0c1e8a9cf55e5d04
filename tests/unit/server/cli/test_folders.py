"""What is said of a folder that is no model repository?"""

from pathlib import Path

import pytest

from wherry.core.values.errors import ConfigError
from wherry.server.cli.folders import check_repositories_exist

MODELS = "import wherry\n@wherry.model\ndef echo(x: int) -> int:\n    return x\n"


def put(folder: Path, *files: str) -> Path:
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(MODELS if name.endswith(".py") else "")
    return folder


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
