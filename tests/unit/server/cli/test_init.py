"""`wherry init`: what it writes runs, and nothing is written over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from wherry import __version__
from wherry.server.cli import main
from wherry.server.cli.packaged import FILES


def test_the_files_are_there_and_name_this_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "one"
    assert main(["init", str(folder)]) == 0
    assert {path.name for path in folder.iterdir()} == FILES.keys()
    assert f"wherry=={__version__}" in (folder / "requirements.txt").read_text()
    assert f"cd {folder}" in capsys.readouterr().out


def test_what_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "Dockerfile").write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    assert "Dockerfile is there already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["Dockerfile"]
    assert main(["init", str(tmp_path / "Dockerfile")]) == 2


@pytest.mark.slow
def test_what_it_writes_passes_its_own_tests_and_checks(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path)]) == 0
    for command in (["pytest", "-q", "-p", "no:cacheprovider"], ["wherry", "check", "app.py"]):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "2 passed" in done.stdout or "sentiment" in done.stdout
