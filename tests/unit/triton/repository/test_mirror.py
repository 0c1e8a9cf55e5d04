from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.repositories import CONFIG, make, save
from wherry import Runtime
from wherry.core.values.errors import ConfigError, ModelNotFound, ModelNotReady
from wherry.testing.suite import check_source
from wherry.triton.loading.control import ModelControl
from wherry.triton.loading.folders import RepositoryFolders
from wherry.triton.repository.mirror import Mirror, _as_fsspec, is_remote

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def storage() -> Iterator[Any]:
    """fsspec's file system in this process's memory."""
    memory = fsspec.filesystem("memory")
    yield memory
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


@pytest.fixture
def mirror(storage: Any) -> Iterator[Mirror]:
    put(storage, "a/config.pbtxt", CONFIG)
    put(storage, "a/1/number", "1")
    put(storage, "b/config.pbtxt", CONFIG)
    found = Mirror("memory://bucket/models")
    yield found
    found.close()


def put(storage: Any, name: str, content: str) -> None:
    storage.pipe(f"/bucket/models/{name}", content.encode())


def files(mirror: Mirror) -> set[str]:
    root = Path(mirror.folder)
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("path", "expected"),
    [("s3://b/m", True), ("gs://b", True), ("models", False), ("/a/b", False), ("C:/m", False)],
)
def test_a_url_is_told_from_a_folder(path: str, expected: bool) -> None:
    assert is_remote(path) is expected


@pytest.mark.usefixtures("storage")
def test_it_keeps_what_wherry_counts_on(mirror: Mirror) -> None:
    mirror.list()
    check_source(mirror.url, *os.listdir(mirror.folder))


def test_models_are_listed_before_they_are_copied(mirror: Mirror) -> None:
    mirror.list()
    assert sorted(os.listdir(mirror.folder)) == ["a", "b"]
    assert files(mirror) == set()
    mirror.copy("a")
    assert files(mirror) == {"a/config.pbtxt", "a/1/number"}


def test_only_what_has_changed_is_copied_again(mirror: Mirror, storage: Any) -> None:
    mirror.copy("a")
    before = {name: os.stat(Path(mirror.folder, name)).st_ino for name in files(mirror)}
    put(storage, "a/1/number", "22")
    put(storage, "a/2/number", "3")
    mirror.copy("a")

    after = {name: os.stat(Path(mirror.folder, name)).st_ino for name in files(mirror)}
    assert after.keys() == {"a/config.pbtxt", "a/1/number", "a/2/number"}
    assert after["a/config.pbtxt"] == before["a/config.pbtxt"]
    assert Path(mirror.folder, "a/1/number").read_text() == "22"


def test_what_is_gone_there_is_gone_here(mirror: Mirror, storage: Any) -> None:
    mirror.copy("a")
    storage.rm("/bucket/models/a/1", recursive=True)
    mirror.copy("a")
    assert files(mirror) == {"a/config.pbtxt"}
    assert not Path(mirror.folder, "a/1").exists()
    storage.rm("/bucket/models/a", recursive=True)
    mirror.list()
    assert os.listdir(mirror.folder) == ["b"]


@pytest.mark.parametrize("name", ["../b", "..", ".hidden", "a/1", ""])
def test_a_name_is_no_path(mirror: Mirror, name: str) -> None:
    mirror.copy(name)
    assert files(mirror) == set()


def test_a_path_that_leads_out_of_the_model_is_left_out(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {"/bucket/models/a/../../x": {"size": 1}, "/bucket/models/a/1//x": {"size": 1}}
    monkeypatch.setattr(mirror._fs, "find", lambda *args, **kwargs: listed)
    mirror.copy("a")
    assert files(mirror) == set()


def test_the_folder_goes_with_the_mirror(mirror: Mirror) -> None:
    mirror.copy("a")
    mirror.close()
    assert not os.path.exists(mirror.folder)


@pytest.mark.parametrize(
    ("url", "theirs", "options"),
    [
        ("s3://bucket/m", "s3://bucket/m", {}),
        (
            "s3://localhost:9000/bucket/m",
            "s3://bucket/m",
            {"client_kwargs": {"endpoint_url": "http://localhost:9000"}},
        ),
        (
            "s3://https://store.example:443/bucket/m",
            "s3://bucket/m",
            {"client_kwargs": {"endpoint_url": "https://store.example:443"}},
        ),
        ("as://mine/box/m", "abfs://box/m", {"account_name": "mine"}),
        ("gs://bucket/m", "gs://bucket/m", {}),
    ],
)
def test_a_url_is_written_as_tritons(url: str, theirs: str, options: dict[str, Any]) -> None:
    assert _as_fsspec(url, {}) == (theirs, options)


CREDENTIALS = {
    "s3": {
        "": {"key_id": "k", "secret_key": "s", "region": "eu", "profile": ""},
        "s3://mine": {"key_id": "m", "secret_key": "t"},
    },
    "gs": {"": "/google.json"},
    "as": {"as://box": {"account_str": "a", "account_key": "b"}},
}


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://other", {"key": "k", "secret": "s", "client_kwargs": {"region_name": "eu"}}),
        ("s3://mine/m", {"key": "m", "secret": "t"}),
        ("gs://any", {"token": "/google.json"}),
        ("as://box/c/m", {"account_name": "a", "account_key": "b"}),
        ("as://else/c/m", {"account_name": "else"}),
        ("memory://m", {}),
    ],
)
def test_tritons_file_of_credentials_is_read(
    url: str, options: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps(CREDENTIALS))
    assert _as_fsspec(url, {"TRITON_CLOUD_CREDENTIAL_PATH": str(file)})[1] == options


@pytest.mark.parametrize("content", [None, "", "[]", '{"s3": {"": {"secret": 1}}}', '{"s3": 1}'])
def test_a_file_of_credentials_that_is_none_is_refused(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=r"TRITON_CLOUD_CREDENTIAL_PATH .*: "):
        _as_fsspec("s3://b/m", {"TRITON_CLOUD_CREDENTIAL_PATH": str(file)})


@pytest.mark.parametrize(
    ("url", "package", "command"),
    [
        ("s3://bucket/m", "s3", "aws s3 sync s3://bucket/m FOLDER"),
        ("gs://bucket/m", "gcs", "gcloud storage rsync -r gs://bucket/m FOLDER"),
        ("as://account/box/m", "azure", "azcopy sync as://account/box/m FOLDER"),
    ],
)
def test_a_url_that_nothing_reads_says_what_to_install_or_to_copy(
    url: str, package: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("s3fs", "gcsfs", "adlfs"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError) as caught:
        Mirror(url)
    assert f"pip install 'wherry[{package}]', or copy the folder: {command}" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "told"), [("nothing://b/m", "Protocol not known"), ("memory://", "names no bucket")]
)
def test_a_url_that_names_nothing_is_refused(url: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"model repository {url}: .*{told}"):
        Mirror(url)


def test_a_model_elsewhere_is_loaded_and_loaded_again(storage: Any, tmp_path: Path) -> None:
    put(storage, "a/config.pbtxt", CONFIG)
    put(storage, "a/1/number", "1")
    save(tmp_path, "b", 5)
    with Runtime() as runtime:
        control = ModelControl(
            runtime,
            ["memory://bucket/models", str(tmp_path)],
            mode="explicit",
            load=["*"],
            make_model=make,
        )
        control.start()
        assert runtime.infer("a", X=[1])["Y"].tolist() == [2]
        assert runtime.infer("b", X=[1])["Y"].tolist() == [6]
        put(storage, "a/1/number", "30")
        put(storage, "c/config.pbtxt", CONFIG)
        put(storage, "c/1/number", "2")
        assert [one.name for one in control.index()] == ["a", "b", "c"]
        control.load("a")
        control.load("c")
        assert runtime.infer("a", X=[1])["Y"].tolist() == [31]
        with pytest.raises(ModelNotFound):
            control.load("d")
        control.close()
    assert not os.path.exists(control.repositories[0])


def test_a_model_elsewhere_is_polled(storage: Any) -> None:
    put(storage, "a/config.pbtxt", CONFIG)
    put(storage, "a/1/number", "1")
    with Runtime() as runtime:
        control = ModelControl(
            runtime,
            ["memory://bucket/models"],
            mode="poll",
            poll_seconds=1e6,
            settle_seconds=0,
            make_model=make,
        )
        control.start()
        put(storage, "a/1/number", "30")
        while runtime.infer("a", X=[1])["Y"].tolist() != [31]:
            control.poll()
        storage.rm("/bucket/models/a", recursive=True)
        control.poll()
        with pytest.raises(ModelNotFound):
            runtime.infer("a", X=[1])
        control.close()


def test_a_storage_that_fails_is_told_without_its_place(
    storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(storage, "a/config.pbtxt", CONFIG)
    folders = RepositoryFolders(["memory://bucket/models"])

    def failing(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError("no access to memory://bucket")

    (mirror,) = folders._mirrors
    assert isinstance(mirror, Mirror)
    monkeypatch.setattr(mirror._fs, "ls", failing)
    monkeypatch.setattr(mirror._fs, "find", failing)
    for ask in (folders.names, lambda: folders.look("a")):
        with pytest.raises(ModelNotReady, match="cannot be read: its storage gives an error"):
            ask()
    with pytest.raises(ConfigError, match="memory://bucket/models: no access to memory://bucket"):
        folders.check()
    folders.close()


def test_a_bucket_that_is_not_there_is_told_at_the_start(storage: Any) -> None:
    folders = RepositoryFolders(["memory://nowhere/models"])
    with pytest.raises(ConfigError, match=r"model repository memory://nowhere/models: .*no such"):
        folders.check()
    folders.close()
