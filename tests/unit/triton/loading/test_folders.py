"""How do the files that a client sends with a load become a model's folder?"""

from contextlib import suppress
from pathlib import Path

import pytest

from tests.costs import assert_linear
from wherry.core.values.errors import AccessDenied, InvalidRequest
from wherry.server.v2.administration import load_options
from wherry.triton.loading.folders import MAX_DEPTH, MAX_FILES, MAX_PATH_CHARS, BadUpload, save


def test_files_are_written_below_the_folder(tmp_path: Path) -> None:
    save({"1/model.py": b"x", "1/data/a b.bin": b"", "labels.txt": b"l"}, str(tmp_path / "m"))
    found = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {"m/1/model.py", "m/1/data/a b.bin", "m/labels.txt"}


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "//x",
        "..",
        "../x",
        "1/../../x",
        "1/..",
        "1/",
        "1//x",
        "./x",
        "1/.x",
        "1/x\0",
        "1/x\n",
        "1/\ud800",
        "1/" + 256 * "x",
        "1/" + 130 * "\u20ac",
        "a/" * MAX_DEPTH + "x",
        "x" * (MAX_PATH_CHARS + 1),
        "a/" * 100_000 + "x",
    ],
    ids=lambda path: ascii(path)[:20],
)
def test_a_name_that_leads_elsewhere_or_nowhere_is_refused_before_anything_is_written(
    path: str, tmp_path: Path
) -> None:
    with pytest.raises(BadUpload) as refused:
        save({"1/fine": b"x", path: b"x"}, str(tmp_path / "m"))
    assert not list(tmp_path.iterdir())
    assert str(tmp_path) not in str(refused.value)
    assert len(str(refused.value)) < 2 * MAX_PATH_CHARS


def test_a_slash_before_the_name_is_the_folders(tmp_path: Path) -> None:
    """Triton's own tests send "file:/1/model.py"."""
    save({"/1/model.py": b"x"}, str(tmp_path / "m"))
    assert (tmp_path / "m/1/model.py").read_bytes() == b"x"


@pytest.mark.parametrize("files", [["/1/x", "1/x"], ["1", "1/x"], ["1/x", "1"], ["1/x/y", "1/x"]])
def test_a_file_that_is_a_folder_too_is_refused(files: list[str], tmp_path: Path) -> None:
    with pytest.raises(BadUpload, match="cannot be written") as refused:
        save(dict.fromkeys(files, b"x"), str(tmp_path / "m"))
    assert str(tmp_path) not in str(refused.value)


def test_the_number_of_files_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(BadUpload, match="1025 files"):
        save({f"1/{n}": b"" for n in range(MAX_FILES + 1)}, str(tmp_path / "m"))
    assert not list(tmp_path.iterdir())


def test_a_server_that_takes_no_files_decodes_none() -> None:
    with pytest.raises(AccessDenied, match="--allow-model-upload"):
        load_options({"config": "{}", "file:1/x": "no base64"}, upload=False)
    assert load_options({"config": "{}"}, upload=False) == {"config": "{}"}


@pytest.mark.parametrize("content", ["eA==", "", "eA==" * 30, "!", "eA=", "\u20ac"])
def test_reading_many_files_costs_in_proportion_to_their_number(content: str) -> None:
    def read(parameters: dict[str, str]) -> None:
        with suppress(InvalidRequest):
            load_options(parameters, upload=True)

    assert_linear(read, lambda n: {f"file:1/{i}": content for i in range(n)}, largest=2**15)


@pytest.mark.parametrize("content", ["A", "=", "!", "A===", "\n"])
def test_reading_one_file_costs_in_proportion_to_its_size(content: str) -> None:
    def read(text: str) -> None:
        with suppress(InvalidRequest):
            load_options({"file:1/x": text}, upload=True)

    assert_linear(read, lambda n: content * n)
