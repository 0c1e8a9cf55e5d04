"""server/cli/call.py: a model that chats, from the shell."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

import pytest

import wherry
from tests.fakes import TIMEOUT
from wherry.core.values.errors import InvalidRequest
from wherry.server.cli import main
from wherry.server.cli.call import write_text
from wherry.server.cli.chat import Chat
from wherry.server.cli.show import print_line
from wherry.testing.servers import local_server


class Piece(TypedDict):
    index: int
    text: str
    finish_reason: str


@wherry.model(max_batch_size=1)
def talker(
    messages: Sequence[dict[str, Any]] = (),
    prompt: str = "",
    parameters: dict[str, Any] = {},  # noqa: B006 - never changed
) -> Iterator[Piece]:
    if unknown := parameters.keys() - {"max_tokens", "n", "stop"}:
        raise InvalidRequest(f"parameters: unknown {unknown.pop()}")
    said = [m["content"] for m in messages] or [prompt]
    words = [f"{m}! " for m in said[-1].split()][: parameters.get("max_tokens", 99)]
    if parameters.get("stop"):
        words.append(str(parameters["stop"]))
    for word in ["user: " if messages else "raw: ", *words]:
        for index in range(parameters.get("n", 1)):
            yield {
                "index": index,
                "text": word if index == 0 else word.upper(),
                "finish_reason": "",
            }
        if word.startswith("break"):
            raise ValueError("broke")
    yield {"index": 0, "text": "", "finish_reason": "stop"}


@wherry.model(max_batch_size=1)
def base(
    messages: Sequence[dict[str, Any]] = (),
    prompt: str = "",
    parameters: dict[str, Any] = {},  # noqa: B006 - never changed
) -> Iterator[Piece]:
    if messages:
        raise InvalidRequest("this model has no chat template: send a prompt instead of messages")
    yield {"index": 0, "text": f"{prompt}, there was", "finish_reason": "stop"}


#: Set when the answer of `endless` is left.
LEFT = threading.Event()


@wherry.model(max_batch_size=1, isolation="thread")
def endless(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    try:
        while True:
            yield "again "
    finally:
        LEFT.set()


@wherry.model
def plain(messages: Sequence[dict[str, Any]]) -> str:
    return f"heard {messages[-1]['content']}"


@wherry.model
def count(messages: Sequence[dict[str, Any]]) -> int:
    return len(messages)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with local_server(talker, base, plain, count, endless) as server:
        yield server.url


def call(url: str, *arguments: str) -> int:
    return main(["call", *arguments, "--url", url])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["talker", "Hello there"], "user: Hello! there! \n"),
        (["talker", "Hello", "Bye"], "user: Hello! \nuser: Bye! \n"),
        (["talker", "a b c", "max_tokens=2"], "user: a! b! \n"),
        (["talker", "max_tokens=2", "a b c"], "user: a! b! \n"),
        (["talker", "a b", "stop=END", 'parameters={"max_tokens": 1}'], "user: a! END\n"),
        (["talker", "a", "n=2"], "user: a! \nUSER: A! \n"),
        (["talker", "5"], "user: 5! \n"),
        (["talker", "x = 5"], "user: x! =! 5! \n"),
        (["talker", "pyproject.toml"], "user: pyproject.toml! \n"),
        (["talker", "prompt=Once upon"], "raw: Once! upon! \n"),
        (["talker", '{"prompt": "Once"}'], "raw: Once! \n"),
        (["base", "Once"], "Once, there was\n"),
        (["plain", "Hello"], "heard Hello\n"),
        (["count", "[{}, {}]"], "2\n"),
    ],
)
def test_it_chats(
    url: str, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(url, *words) == 0
    assert capsys.readouterr().out == told


def test_json_has_each_piece(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(url, "talker", "a", "--json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == '{"index":0,"text":"user: ","finish_reason":""}'
    assert len(lines) == 3


def test_each_line_of_stdin_is_a_chat(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    assert call(url, "talker", "-") == 0
    assert capsys.readouterr().out == "user: one! \nuser: two! \n"


def test_what_is_wrong_is_told_in_a_line_of_its_own(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(url, "talker", "a break") == 1
    told = capsys.readouterr()
    assert told.out == "user: a! break! \n"
    assert "broke" in told.err
    assert call(url, "talker", "a", "max_token=2") == 1
    assert capsys.readouterr().err == "wherry: parameters: unknown max_token\n"
    assert call(url, "talker", "a", "--timeout", "0.000001") == 1
    assert "is a server running there?" not in capsys.readouterr().err
    assert call(url, "talkr", "a") == 1
    assert "did you mean 'talker'?" in capsys.readouterr().err
    assert call(url, "talker", "max_tokens=2") == 2
    assert "nothing to call 'talker' with" in capsys.readouterr().err
    assert call(url, "base", '{"messages": [{"role": "user", "content": "a"}, {}]}') == 1
    assert "no chat template" in capsys.readouterr().err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_a_model_says_controls_no_terminal(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    said = "a\x1b[2J\r\x9b31m\u202eb\xa0é👨\u200d👩\n\tc"
    shown = "a\\x1b[2J\\r\\x9b31m\\u202eb\xa0é👨\u200d👩\n\tc"
    write_text([{"text": said}, {"index": 1, "text": said}])
    print_line(said)
    expected = shown if is_terminal else said
    assert capsys.readouterr().out == f"{expected}\n{expected}\n{expected}\n"


#: Makes its stdin the terminal that controls it, so that Ctrl-C there is for it.
AT_A_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "wherry", *sys.argv[1:]])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no terminal to be opened")
def test_ctrl_c_ends_an_answer_and_its_request(url: str) -> None:
    ours, theirs = os.openpty()
    files: Any = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    command = [sys.executable, "-c", AT_A_TERMINAL, "call", "endless", "Hello", "--url", url]
    with subprocess.Popen(command, start_new_session=True, **files) as process:
        os.close(theirs)
        told = b""
        while b"again" not in told:
            told += os.read(ours, 4096)
        os.write(ours, b"\x03")
        with contextlib.suppress(OSError):  # the terminal's end
            while piece := os.read(ours, 2**16):
                told = (told + piece)[-4096:]
        assert process.wait(TIMEOUT) == 130
    os.close(ours)
    assert {*told} <= {*b"again ^C\r\n"}
    assert LEFT.wait(TIMEOUT)


def chat(
    url: str, monkeypatch: pytest.MonkeyPatch, lines: str, *words: str, status: int = 0
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert main(["chat", *words, "--url", url]) == status


def test_each_line_is_a_message_where_stdin_is_no_terminal(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chat(url, monkeypatch, "one two\n\n/three\n", "talker", "max_tokens=1")
    assert capsys.readouterr().out == "user: one! \nuser: /three! \n"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["talkr"], 1, "did you mean 'talker'?"),
        (["count"], 2, "model 'count' does not chat: wherry call count calls it"),
        ([], 2, "which model? wherry chat base | endless | plain | talker"),
        (["talker", "plain"], 2, "one model, and NAME=VALUE; what is 'plain'?"),
        (["talker", "max_token=2"], 1, "unknown max_token"),
        (["base"], 1, "send a prompt instead of messages; wherry call goes on with a text"),
        (["nowhere.gguf"], 2, "no such file: nowhere.gguf"),
    ],
)
def test_a_chat_that_cannot_begin_says_what_to_do(
    url: str,
    words: list[str],
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chat(url, monkeypatch, "one\n", *words, status=status)
    assert said in capsys.readouterr().err


def test_the_only_model_that_chats_needs_no_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with local_server(talker, count) as server:
        chat(server.url, monkeypatch, "one\n", "max_tokens=1")
    assert capsys.readouterr().out == "user: one! \n"


def test_a_conversation_sends_what_was_said_and_forgets_what_failed() -> None:
    rows: list[dict[str, Any]] = []

    def answer(row: dict[str, Any]) -> Iterator[Any]:
        rows.append(row)
        yield {"text": "a"}
        if row["messages"][-1]["content"] == "bad":
            raise InvalidRequest("bad")
        if row["messages"][-1]["content"] == "long":
            raise KeyboardInterrupt
        yield {"text": "b", "usage": {"completion_tokens": 7}}

    talk = Chat(answer, "be brief", {})
    assert talk.answer_to("one").startswith("7 tokens, ")
    with pytest.raises(InvalidRequest):
        talk.answer_to("bad")
    talk.answer_to("long")
    talk.command("/set temperature=0.5")
    talk.answer_to("two")
    texts = [(one["role"], one["content"]) for one in rows[-1]["messages"]]
    assert texts == [
        ("system", "be brief"), ("user", "one"), ("assistant", "ab"),
        ("user", "long"), ("assistant", "a"), ("user", "two"),
    ]  # fmt: skip
    assert rows[-1]["parameters"] == {"temperature": 0.5}
    talk.command("/clear")
    talk.command("/system")
    talk.answer_to("three")
    assert rows[-1]["messages"] == [{"role": "user", "content": "three"}]
    assert talk.command("/set x").startswith("/clear")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no terminal to be opened")
def test_ctrl_c_ends_an_answer_and_the_chat_goes_on_until_ctrl_d(url: str) -> None:
    LEFT.clear()
    ours, theirs = os.openpty()
    files: Any = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    command = [sys.executable, "-c", AT_A_TERMINAL, "chat", "endless", "--url", url]
    with (
        subprocess.Popen(command, start_new_session=True, **files) as process,
        contextlib.ExitStack() as last,
    ):
        last.callback(process.kill)  # the test may have failed
        os.close(theirs)

        shown = b""

        def shows(text: bytes) -> None:
            nonlocal shown
            while text not in shown:
                shown = shown[-4096:] + os.read(ours, 4096)
            shown = shown.partition(text)[2]

        shows(b"> ")
        os.write(ours, b"Hello\n")
        shows(b"again again")
        os.write(ours, b"\x03")
        shows(b"> ")
        assert LEFT.wait(TIMEOUT)
        os.write(ours, b"/system a\n")
        shows(b"from the next message on")
        shows(b"> ")
        os.write(ours, b"\x04")
        with contextlib.suppress(OSError):
            while os.read(ours, 4096):
                pass
        assert process.wait(TIMEOUT) == 0
    os.close(ours)
