"""server/cli/needs.py: the packages of a target, without an import of it."""

from pathlib import Path

import pytest

from wherry.core.values.errors import ConfigError
from wherry.server.cli import main
from wherry.server.cli.needs import is_installed, modules_of

APP = """
import os, wherry
import cv2, numpy as np
from helper import load
from typing import TYPE_CHECKING
from . import nothing
try:
    import apex
except ImportError:
    apex = None
if TYPE_CHECKING:
    import stubs

class Net(wherry.Model):
    def load(self, device):
        import xgboost.core
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_modules_of_a_file_and_of_those_beside_it_are_found() -> None:
    Path("app.py").write_text(APP)
    Path("helper.py").write_text("import app\nfrom PIL import Image\nimport parts.net\n")
    Path("parts").mkdir()
    Path("parts/__init__.py").write_text("import torch")
    expected = {
        "cv2": "app.py:3",
        "numpy": "app.py:3",
        "xgboost": "app.py:16",
        "PIL": "helper.py:2",
        "torch": "parts/__init__.py:1",
    }
    assert modules_of("app.py") == modules_of("app") == modules_of("app.py:Net") == expected


def test_those_of_a_repository_are_what_its_files_need() -> None:
    for name, text in (
        ("a/1/model.py", "import triton_python_backend_utils, scipy"),
        ("b/2/model.onnx", ""),
        ("b/config.pbtxt", ""),
    ):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    assert modules_of(".") == {"scipy": "a/1/model.py:1", "onnxruntime": "b/2/model.onnx"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [(None, "No such file"), ("\ndef f(:", "app.py:2: invalid syntax"), ("a\0", "null byte")],
)
def test_what_cannot_be_read_is_named(text: str | None, problem: str) -> None:
    if text is not None:
        Path("app.py").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        modules_of("app.py")


def test_a_module_is_looked_for_and_not_imported() -> None:
    assert is_installed("numpy")
    assert not is_installed("nowhere_at_all")
    Path("app.py").write_text("raise SystemExit")
    assert modules_of("app.py") == {}


@pytest.mark.slow
def test_the_doctor_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    Path("app.py").write_text("import numpy, nowhere_at_all")
    assert main(["doctor", "app.py", "--port", "0", "--grpc-port", "0"]) == 1
    out = capsys.readouterr().out
    assert "\nok     import numpy " in out
    assert "\nWRONG  import nowhere_at_all  not installed; app.py:1 needs it\n" in out
    assert " -m pip install nowhere_at_all\n" in out
    assert main(["doctor", "llm:/nowhere", "--port", "0", "--grpc-port", "0"]) == 1
    assert "no such folder: /nowhere" in capsys.readouterr().out
