"""Do type checkers refuse wrong programs, line by line, and accept right ones?

tests/typed has both. mypy reads them in each `make check`, too.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests/typed"


@pytest.mark.full
def test_mypy_accepts_the_right_programs_and_refuses_each_wrong_line() -> None:
    assert said("mypy", *map(str, PROGRAMS.glob("*.py"))) == (0, "")


@pytest.mark.full
def test_pyright_accepts_the_right_programs_and_refuses_each_wrong_line() -> None:
    pytest.importorskip("basedpyright")
    status, text = said("basedpyright", "-p", str(PROGRAMS), "--pythonpath", sys.executable)
    assert (status, text) == (0, "0 errors, 0 warnings, 0 notes\n")


def said(checker: str, *arguments: str) -> tuple[int, str]:
    quiet = ("--no-error-summary",) if checker == "mypy" else ()
    command = [sys.executable, "-m", checker, *quiet, *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout
