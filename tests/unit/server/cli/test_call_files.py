"""server/cli/call.py and client/: files in and out of a running server."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import wherry
from wherry.core.values.errors import InvalidRequest
from wherry.server.cli import main
from wherry.testing.servers import local_server


@wherry.model(max_batch_size=8)
def reverse(data: list[bytes]) -> list[bytes]:
    return [one[::-1] for one in data]


@wherry.model(max_batch_size=8)
def times(image: list[bytes], k: list[int]) -> list[int]:
    return [len(one) * n for one, n in zip(image, k, strict=True)]


@wherry.model
def halves(data: bytes) -> Iterator[int]:
    yield len(data) // 2
    yield len(data) - len(data) // 2


@wherry.model
def echo(text: str) -> str:
    return text


@wherry.model
def width(picture: wherry.Image) -> int:
    return picture.width


@wherry.model
def mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


@wherry.model
def label(row: dict[str, Any]) -> str:
    return str(row["label"])


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with local_server(reverse, times, halves, echo, width, mean, label) as server:
        yield server.url


@pytest.fixture
def cat(tmp_path: Path) -> Path:
    path = tmp_path / "cat.jpg"
    path.write_bytes(b"\xff\xd8abc")
    return path


def call(url: str, *arguments: str) -> int:
    return main(["call", *arguments, "--url", url])


def test_a_file_goes_in_and_bytes_come_out(
    url: str, cat: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert call(url, "reverse", f"@{cat}") == 0
    assert capfdbinary.readouterr().out == b"cba\xd8\xff"
    assert call(url, "reverse", f"@{cat}", "--json") == 0
    assert call(url, "reverse", "@@me") == 0
    assert capfdbinary.readouterr().out == b'{"b64":"Y2Jh2P8="}\nem@'


def test_a_file_may_be_named_beside_other_inputs(
    url: str, cat: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert call(url, "times", f"image=@{cat}", "k=4") == 0
    assert call(url, "times", "k=2", f"@{cat}") == 0
    assert call(url, "halves", f"@{cat}") == 0
    assert capfdbinary.readouterr().out == b"20\n10\n2\n3\n"


def test_a_row_of_several_inputs_may_be_a_json_object(
    url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"image":"ab","k":5}\n{"k":1,"image":"abc"}\n'))
    assert call(url, "times", '{"image":"abc","k":2}') == 0
    assert call(url, "times", "-") == 0
    assert call(url, "reverse", '{"data":"ab"}') == 0
    assert capfd.readouterr().out == '6\n10\n3\n}"ba":"atad"{'


@pytest.mark.parametrize("value", ['{"image":"abc","n":2}', '{"image":"abc"', "[1]", "{}"])
def test_no_object_of_inputs_is_one_value(
    url: str, value: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(url, "times", value) != 0
    assert "'k'" in capfd.readouterr().err


def test_the_text_of_an_only_input_may_look_like_a_name(
    url: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert call(url, "reverse", "data=ab") == 0
    assert capfdbinary.readouterr().out == b"ba=atad"


def test_a_file_that_is_not_there_and_a_value_without_a_name_are_said(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(url, "reverse", f"@{tmp_path}/none") == 2
    assert call(url, "times", "a", "b") == 2
    told = capfd.readouterr().err
    assert "No such file" in told
    assert "which of image, k is 'a'? Write NAME=VALUE" in told


def test_a_client_takes_paths_and_open_files(url: str, cat: Path) -> None:
    with wherry.Client(url) as client:
        assert client.infer("reverse", data=cat) == b"cba\xd8\xff"
        with cat.open("rb") as opened:
            assert client.infer("reverse", data=opened) == b"cba\xd8\xff"
        assert client.infer("reverse", data=io.BytesIO(b"ab")) == b"ba"
        assert list(client.stream("halves", data=cat)) == [2, 3]
        with cat.open() as opened, pytest.raises(InvalidRequest, match="mode 'rb'"):
            client.infer("reverse", data=opened)


def test_words_that_the_locale_has_no_letters_for_are_what_was_typed(
    url: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def read(typed: bytes) -> str:
        return typed.decode("ascii", "surrogateescape")  # as Python does in the C locale

    assert call(url, "echo", read("\xfc \u2713".encode())) == 0
    assert call(url, "reverse", read(b"a\xffb")) == 0
    assert capfdbinary.readouterr().out.decode("latin-1") == "\xc3\xbc \xe2\x9c\x93\nb\xffa"
    assert call(url, "echo", read(b"a\xffb")) == 2
    assert call(url, read(b"ec\xffho"), "a") == 2
    assert capfdbinary.readouterr().err.splitlines() == [
        rb"wherry: 'a\udcffb' is not text in UTF-8, as the input must be",
        rb"wherry: 'ec\udcffho' is not text in UTF-8",
    ]


def test_a_model_that_is_not_there_has_a_guess_or_all_that_there_are(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(url, "revers", "x") == 1
    assert capsys.readouterr().err.endswith("; did you mean 'reverse'?\n")
    assert call(url, "zzz", "x") == 1
    assert capsys.readouterr().err.endswith(
        "; it has: echo, halves, label, mean, reverse, times, width\n"
    )


@pytest.mark.parametrize("words", [["reverse"], ["width"], ["mean"], ["label"]])
@pytest.mark.parametrize("before", ["", "./"])
def test_the_name_of_a_file_is_no_file_and_no_text_for_bytes(
    url: str, words: list[str], before: str, cat: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(cat.parent)
    assert call(url, *words, f"{before}cat.jpg") == 2
    assert f"did you mean @{before}cat.jpg?" in capsys.readouterr().err
    assert call(url, "echo", f"{before}cat.jpg") == 0
    assert capsys.readouterr().out == f"{before}cat.jpg\n"


def test_a_file_may_hold_the_json_of_an_input(
    url: str, cat: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(cat.parent)
    Path("numbers.json").write_text("[1, 2,\n 6]")
    Path("row.json").write_text('{"label": "@cat"}')
    assert call(url, "mean", "@numbers.json") == 0
    assert call(url, "mean", "numbers=@numbers.json") == 0
    assert call(url, "label", "@row.json") == 0
    assert capsys.readouterr().out == "3.0\n3.0\n@cat\n"
    assert call(url, "mean", "@cat.jpg") == 2
    assert "'@cat.jpg' is not JSON" in capsys.readouterr().err
    assert call(url, "mean", "one") == 2
    assert capsys.readouterr().err == "wherry: 'one' is not JSON; input 'numbers' is not text\n"
    assert call(url, "width", "dog.jpg") == 1
    assert capsys.readouterr().err.endswith("(a file is passed as @NAME)\n")


def test_a_row_without_an_input_says_how_inputs_are_given(
    url: str, cat: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(url, "times", f"image=@{cat}") == 1
    assert capsys.readouterr().err.endswith("(wherry call times image=... k=...)\n")


def test_a_server_that_is_not_there_is_named_without_a_number_of_the_system(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call("http://127.0.0.1:9", "echo", "a") == 1
    assert capsys.readouterr().err.startswith(
        "wherry: http://127.0.0.1:9: Connection refused; is a server running there?"
    )
