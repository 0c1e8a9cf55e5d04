"""Do an app's files stand behind the standard library, and before what is installed?"""

import subprocess
import sys
from pathlib import Path

import pytest

from wherry.core.workers.python_path import import_from, standard_first

APP = """
import wherry
import utils

@wherry.model
def f(x: list[int]) -> list[int]:
    return [row + utils.one for row in x]
"""


def test_a_folder_is_behind_the_standard_library_and_before_what_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = str(Path(subprocess.__file__).parent)
    installed = f"{library}/site-packages"
    monkeypatch.setattr(sys, "path", ["/first", library, f"{library}/lib-dynload", installed])
    import_from("/app")
    assert sys.path == ["/first", library, f"{library}/lib-dynload", "/app", installed]
    assert standard_first(sys.path) == [
        *(library, f"{library}/lib-dynload"),
        *("/first", "/app", installed),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("command", [["-m", "wherry"], ["-P", "-m", "wherry"]])
def test_files_named_as_modules_of_the_standard_library_are_not_imported_for_them(
    tmp_path: Path, command: list[str]
) -> None:
    names = "json logging queue random select token typing"
    # The interpreter itself imports `types` after `-m` has put this folder before all.
    for name in [*names.split(), *(["types"] if "-P" in command else [])]:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py was imported')")
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "utils.py").write_text("one = 1")
    done = subprocess.run(
        [sys.executable, *command, "check", "app.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
