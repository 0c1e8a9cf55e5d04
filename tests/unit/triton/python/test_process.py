"""Which Python runs a model's file, and what if there is none?"""

import os
import sys
import tarfile
from pathlib import Path

import pytest

from wherry.core.values.errors import ConfigError
from wherry.triton.python.process import interpreter


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def environment(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    return folder


def packed(folder: Path, file: Path) -> Path:
    with tarfile.open(file, "w:gz") as tar:
        tar.add(folder, ".")
    return file


def test_without_one_it_is_the_servers_own_python() -> None:
    it = interpreter("m", "/models/m", "")

    assert it.python == sys.executable
    assert os.path.abspath(sys.path[-1]) in it.environment["PYTHONPATH"].split(os.pathsep)


def test_a_folder_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/of/the/server")
    folder = environment(tmp_path / "m" / "env")
    for path in (str(folder), "$$TRITON_MODEL_DIRECTORY/env", "env"):
        it = interpreter("m", str(tmp_path / "m"), path)
        assert Path(it.python) == folder / "bin" / "python"
        assert it.environment["PATH"].startswith(f"{folder / 'bin'}{os.pathsep}")
        assert it.environment["LD_LIBRARY_PATH"] == f"{folder / 'lib'}{os.pathsep}/of/the/server"
        assert it.environment["VIRTUAL_ENV"] == str(folder)
        assert "PYTHONPATH" not in it.environment


def test_an_archive_is_unpacked_once(tmp_path: Path) -> None:
    file = packed(environment(tmp_path / "env"), tmp_path / "env.tar.gz")
    first = interpreter("m", str(tmp_path), str(file))
    (Path(first.python).parent / "mark").touch()
    again = interpreter("m", str(tmp_path), "env.tar.gz")

    assert again.python == first.python
    assert Path(first.python).is_relative_to(tmp_path / "cache" / "wherry")
    assert (Path(again.python).parent / "mark").exists()
    assert not list((tmp_path / "cache").rglob("unpacking-*"))


def test_another_archive_at_the_same_place_is_another_environment(tmp_path: Path) -> None:
    folder = environment(tmp_path / "env")
    file = packed(folder, tmp_path / "env.tar.gz")
    first = interpreter("m", str(tmp_path), str(file))
    (folder / "more").write_text("x" * 1000)
    packed(folder, file)
    os.utime(file, (1, 1))

    assert interpreter("m", str(tmp_path), str(file)).python != first.python


def archive_of(tmp_path: Path, name: str) -> str:
    (tmp_path / "evil").write_text("x")
    file = tmp_path / "env.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        with (tmp_path / "evil").open("rb") as evil:
            info = tar.gettarinfo(fileobj=evil)
            info.name = name
            tar.addfile(info, evil)
        tar.add(environment(tmp_path / "env"), ".")
    return str(file)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../../outside", r"Path contains '\.\.'"),
        ("bin/../../outside", r"Path contains '\.\.'"),
        ("/tmp/outside", "Path is absolute"),
    ],
)
def test_an_archive_may_not_write_elsewhere(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot be unpacked: {why}"):
        interpreter("m", str(tmp_path), archive_of(tmp_path, name))
    assert not list((tmp_path / "cache").rglob("outside"))
    assert not list((tmp_path / "cache").rglob("python"))


def test_an_archive_may_not_write_through_its_links(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "evil").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "link", "link")
        tar.add(tmp_path / "evil", "link/evil")

    with pytest.raises(ConfigError, match="cannot be unpacked"):
        interpreter("m", str(tmp_path), "env.tar.gz")
    assert not list((tmp_path / "there").iterdir())


def test_unpacking_is_told_each_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = packed(environment(tmp_path / "env"), tmp_path / "env.tar.gz")
    caplog.set_level("INFO")
    for _ in range(2):
        interpreter("m", str(tmp_path), str(file))
    os.utime(file, (1, 1))
    interpreter("m", str(tmp_path), str(file))

    assert caplog.messages == ["Extracting Python execution env"] * 2


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nowhere", "is not there"),
        ("$$TRITON_MODEL_DIRECTORY/env.tar.gz", "is not there"),
        ("$$TRITON_MODEL_DIRECTORY", "must be an environment's folder"),
        ("/dev/null", "must be an environment's folder"),
    ],
)
def test_what_is_no_environment_is_refused(tmp_path: Path, path: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"EXECUTION_ENV_PATH .* {why}"):
        interpreter("m", str(tmp_path), path)


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "env.tar.gz").write_bytes(b"no archive")

    with pytest.raises(ConfigError, match=r"'env\.tar\.gz' cannot be unpacked"):
        interpreter("m", str(tmp_path), "env.tar.gz")
