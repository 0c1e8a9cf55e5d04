"""tools.dist: what is published has what it should have, and is tried as promised."""

from __future__ import annotations

import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from tools.dist.build import ROOT, BuildFailed, build
from tools.dist.contents import problems, read_sdist, read_wheel
from tools.dist.trial import DOWNLOAD_MB, Trial, pythons
from wherry import __version__

ABOUT = f"wherry-{__version__}.dist-info"
METADATA = f"""\
Metadata-Version: 2.4
Name: wherry
Version: {__version__}
Summary: x
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.11
Requires-Dist: numpy>=1.26
Description-Content-Type: text/markdown

# wherry
"""
GOOD = {
    "wherry/py.typed": "",
    f"{ABOUT}/METADATA": METADATA,
    f"{ABOUT}/entry_points.txt": "",
    f"{ABOUT}/licenses/LICENSE": "",
}


def found(folder: Path, wheel: dict[str, str], sdist: tuple[str, ...] = ("PKG-INFO",)) -> list[str]:
    """What is wrong with files of this content, in a folder that is not a checkout."""
    with zipfile.ZipFile(folder / "w.whl", "w") as made:
        for name, text in wheel.items():
            made.writestr(name, text)
    with tarfile.open(folder / "s.tar.gz", "w:gz") as archive:
        for name in sdist:
            archive.addfile(tarfile.TarInfo(f"wherry-{__version__}/{name}"), BytesIO())
    return list(problems(folder, folder / "s.tar.gz", folder / "w.whl", __version__))


def test_nothing_is_wrong_with_a_wheel_that_has_all_and_no_more(tmp_path: Path) -> None:
    assert found(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"tests/conftest.py": ""}, "the wheel has tests/conftest.py"),
        ({"benchmarks/results/files.json": ""}, "the wheel has benchmarks/results/files.json"),
        ({"wherry/__pycache__/a.pyc": ""}, "which running the code has left"),
        ({f"{ABOUT}/METADATA": METADATA.replace("wherry", "wherry2")}, "Name: wherry2"),
        ({f"{ABOUT}/METADATA": METADATA.replace("Summary: x\n", "")}, "has no Summary"),
        (
            {f"{ABOUT}/METADATA": METADATA.replace("numpy>=1.26", "numpy @ file:///numpy")},
            "takes no package that needs one from an address",
        ),
    ],
    ids=["tests", "results", "bytecode", "name", "summary", "address"],
)
def test_what_does_not_belong_into_a_wheel_is_said(
    tmp_path: Path, more: dict[str, str], said: str
) -> None:
    (only,) = found(tmp_path, {**GOOD, **more})
    assert said in only


@pytest.mark.parametrize("name", sorted(set(GOOD) - {f"{ABOUT}/METADATA"}))
def test_what_a_wheel_lacks_is_said(tmp_path: Path, name: str) -> None:
    lacking = {kept: text for kept, text in GOOD.items() if kept != name}
    assert found(tmp_path, lacking) == [f"the wheel lacks {name}"]


def test_what_running_the_code_leaves_does_not_belong_into_an_sdist(tmp_path: Path) -> None:
    (only,) = found(tmp_path, GOOD, ("PKG-INFO", "tests/__pycache__/a.cpython-311.pyc"))
    assert only.endswith("a.cpython-311.pyc: name it in .gitignore")


def test_a_trial_beyond_a_limit_is_a_problem_and_a_failed_one_is_one_problem() -> None:
    assert list(Trial("3.11.0").problems()) == []
    (only,) = Trial("3.11.0", download_mb=DOWNLOAD_MB + 1).problems()
    assert only == "Python 3.11.0: 31.00 MB are downloaded, and 30 are promised"
    assert list(Trial("3.11.0", download_mb=99.0, failed="boom").problems()) == [
        "Python 3.11.0: boom"
    ]


def test_the_newest_python_of_each_version_is_found_but_no_shim_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def executable(path: Path, exit_code: int) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\nexit {exit_code}\n")
        path.chmod(0o755)
        return path

    executable(tmp_path / "shims/python3.11", 1)
    of_path = executable(tmp_path / "shims/python3.12", 0)
    executable(tmp_path / "versions/3.11.3/bin/python3.11", 0)
    newest = executable(tmp_path / "versions/3.11.7/bin/python3.11", 0)
    executable(tmp_path / "versions/3.12.1/bin/python3.12", 0)
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert list(pythons()) == [newest, of_path]


@pytest.mark.slow
def test_what_is_built_of_this_tree_may_be_published_and_is_the_same_each_time(
    tmp_path: Path,
) -> None:
    pytest.importorskip("hatchling")
    made = build(ROOT, tmp_path / "one")
    wrong = problems(ROOT, *made, __version__)
    # A file that is not committed yet is not a defect of the tree.
    assert [problem for problem in wrong if "which git has not" not in problem] == []
    names, metadata = read_wheel(made.wheel)
    assert "wherry/__init__.py" in names
    assert metadata["Requires-Python"] == ">=3.11"
    assert {"tests/unit/tools/test_dist.py", "Makefile", "LICENSE"} <= read_sdist(made.sdist)
    again = build(ROOT, tmp_path / "two")
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in made]


@pytest.mark.slow
def test_a_tree_that_cannot_be_built_says_why(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    with pytest.raises(BuildFailed, match="version"):
        build(tmp_path, tmp_path / "dist")
