"""server/cli/screen.py: what `wherry serve` shows on a terminal."""

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from tests.fakes import TIMEOUT, until
from tests.unit.server.asking import upper
from wherry.server.cli.screen import LoadingLine, StartScreen, StatusLine, configure_log
from wherry.server.cli.settings import read_settings
from wherry.server.options import Options, from_keywords
from wherry.server.server import Server


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """What stands on it, line by line."""
        lines = self.getvalue().split("\n")
        return [line.rpartition("\r\x1b[K")[2].rstrip() for line in lines]


@wherry.model(examples=[{"image": [[0.5, 1.0]], "scale": 2}])
def shrink(
    image: Annotated[np.ndarray, wherry.FP32[None, 2]], scale: list[int]
) -> Annotated[np.ndarray, wherry.FP32[2]]:
    return np.asarray(image[:, 0])


@pytest.fixture
def log_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def screen_of(
    *models: wherry.Model, options: Options | None = None, colour: bool = False, **listen: Any
) -> str:
    terminal = Terminal()
    server = Server(*models, **(listen or {"port": 0}))
    server.start_log = StartScreen(StatusLine(terminal), options or Options(), colour=colour)
    with server:
        return "\n".join(terminal.lines()).replace(server.url, "URL")


def test_the_screen_names_models_with_signatures_the_pages_and_a_call() -> None:
    shown = screen_of(shrink, upper)
    assert "2 models ready in" in shown
    assert "  shrink  (image: FP32[*, 2], scale: int) -> FP32[2]\n" in shown
    assert "  upper   (text: str) -> str\n" in shown
    assert "  Dashboard   URL/\n" in shown
    assert "  API         URL/docs\n" in shown
    assert "/chat" not in shown
    body = """'{"image":[[0.5,1.0]],"scale":2}'"""
    assert f"  curl URL/v2/models/shrink/generate -d {body}\n" in shown


def test_the_call_of_a_server_with_keys_sends_one_that_is_not_shown() -> None:
    options = from_keywords({"api_keys": ("a-key-of-some-length",)})
    shown = screen_of(upper, options=options)
    assert 'curl -H "Authorization: Bearer $WHERRY_API_KEY" URL/' in shown
    assert "a-key" not in shown


def test_a_socket_has_no_page_and_a_call_through_it(tmp_path: Path) -> None:
    shown = screen_of(upper, uds=str(tmp_path / "w.sock"))
    assert "Dashboard" not in shown
    assert "  Socket      URL\n" in shown
    assert f"  curl --unix-socket {tmp_path}/w.sock http://localhost/v2/models/upper/gen" in shown


def test_without_colour_there_are_no_escapes() -> None:
    assert "\x1b[1m" in screen_of(upper, colour=True)
    assert "\x1b" not in screen_of(upper)


def test_log_lines_go_above_the_status_which_stays_the_last_line() -> None:
    line = StatusLine(terminal := Terminal())
    line.show("loading a")
    line.write("one\n")
    line.show("loading b")
    assert terminal.lines() == ["one", "loading b"]
    line.show("")
    line.write("two\n")
    assert terminal.lines() == ["one", "two", ""]


def test_a_status_is_one_line_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    StatusLine(terminal := Terminal()).show("loading\n\x1b]0;owned\x07" + "x" * 50)
    assert terminal.lines() == [r"loading\n\x1b]0;own"]


@pytest.mark.parametrize(
    "flags", [{"log_format": "json"}, {"log_level": "warning"}, {"log_off": "info"}], ids=str
)
@pytest.mark.usefixtures("log_as_before")
def test_logs_for_machines_and_quiet_ones_have_no_screen(
    flags: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    assert configure_log(read_settings(flags, {}).options) is None


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["file", "terminal"])
@pytest.mark.usefixtures("log_as_before")
def test_what_the_screen_says_is_not_logged_beside_it(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    screen = configure_log(Options())
    for event in ("listening", "model ready", "ready"):
        logging.getLogger("wherry").info(event)
    events = [line.split(maxsplit=2)[2] for line in stream.getvalue().splitlines()]
    expected = ["listening", "model ready", "ready"] if screen is None else ["model ready"]
    assert (screen is None) != stream.isatty()
    assert events == expected


def record_of(message: str, name: str = "wherry", **fields: object) -> logging.LogRecord:
    return logging.makeLogRecord({"name": name, "msg": message, **fields})


def test_a_model_that_loads_shows_its_stage_and_how_far_that_is() -> None:
    screen = LoadingLine(StatusLine(terminal := Terminal()))
    assert screen.takes(record_of("converting the file", model="b"))
    assert screen.takes(record_of("hello", "other", model="a"))
    screen.loading({"a": "loading", "b": "loading"}, 1.25)
    assert terminal.lines() == ["loading for 1.2 s: a, b (converting the file)"]
    assert not screen.takes(record_of("reading", "wherry.progress", model="b", done=5, total=10))
    screen.loading({"b": "loading"}, 2)
    bar = "[##########----------]"
    assert terminal.lines() == [f"loading for 2.0 s: b (reading {bar} 5/10)"]
    assert not screen.takes(record_of("reading", "wherry.progress", done=7))
    screen.loading({"*": "loading"}, 3)
    assert terminal.lines() == ["loading for 3.0 s: models (reading 7)"]
    screen.loaded()
    assert terminal.lines() == [""]


def test_a_load_without_a_server_is_shown_until_it_ends() -> None:
    screen = LoadingLine(StatusLine(terminal := Terminal()))
    with screen.during(lambda: {"a": "loading"}):
        until(lambda: "a" in terminal.lines()[0])
        assert terminal.lines()[0].startswith("loading for ")
    assert terminal.lines() == [""]


@wherry.model
def talker(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "hello"


def test_a_language_model_is_talked_with() -> None:
    shown = screen_of(talker)
    assert "  talker  a language model\n" in shown
    assert "  OpenAI      URL/v1\n" in shown
    assert "  wherry chat talker --url URL\n" in shown
    assert "  Chat        URL/chat\n" in shown


SERVED = """
import wherry

@wherry.model
def served(text: str) -> str:
    return text
"""


@pytest.mark.slow
def test_serve_on_a_terminal_ends_its_start_with_the_screen(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SERVED)
    command = [sys.executable, "-P", "-m", "wherry", "serve", "app.py", "--port", "0"]
    ours, theirs = os.openpty()
    files: Any = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    env = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(command, start_new_session=True, cwd=tmp_path, env=env, **files) as serve:
        os.close(theirs)
        shown = b""
        while b"Ctrl-C stops the server" not in shown:
            shown += os.read(ours, 4096)
        serve.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the terminal's end
            while piece := os.read(ours, 4096):
                shown += piece
        assert serve.wait(TIMEOUT) == 130
    os.close(ours)
    text = shown.decode()
    assert "  served  (text: str) -> str" in text
    assert "INFO  model ready  model=served" in text
    assert "listening" not in text
    assert text.index("Ctrl-C stops") < text.index("INFO  stopped")
