"""`wherry top` on a terminal, and where there is none."""

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

import wherry
from tests.fakes import until
from wherry.server.cli import main
from wherry.testing import running_server

pytestmark = pytest.mark.slow

HOSTILE = "\x1b]0;owned\x07\x9b2J[bold red]m\u202e"


def numbers(*names: str, **told: Any) -> dict[str, Any]:
    models = [
        {
            "name": name, "version": "1", "state": "READY", "requests_per_second": float(place),
            "errors": [{"at": 1.0, "kind": "ModelFailed", "message": HOSTILE, "count": 2}],
        }
        for place, name in enumerate(names)
    ]  # fmt: skip
    server = {"name": "wherry", "version": "0.1.0", "started_at": 1.0}
    return {"at": 5.0, "server": server, "models": models, **told}


class ResponsePart(ThreadingHTTPServer):
    """A server that tells these numbers, or answers with another status."""

    def __init__(self, told: Any, status: int = 200, port: int = 0) -> None:
        self.told, self.status = told, status
        self.asked: list[tuple[str, str | None]] = []
        super().__init__(("127.0.0.1", port), _Page)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, ResponsePart)
        self.server.asked.append((self.path, self.headers["authorization"]))
        told = self.server.told
        body = told if isinstance(told, bytes) else json.dumps(told).encode()
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def telling(told: Any, status: int = 200, port: int = 0) -> Iterator[ResponsePart]:
    with ResponsePart(told, status, port) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WHERRY_")}
    kept = {name: value for name, value in kept.items() if name not in ("COLUMNS", "LINES")}
    return {**kept, "TERM": "xterm-256color", **more}


COMMAND = [sys.executable, "-m", "wherry", "top"]


def ran(*words: str, status: int = 0) -> str:
    """What the command prints where there is no terminal; of a failure, what it says of it."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert main(["top", *words]) == status, err.getvalue()
    return err.getvalue() if status else out.getvalue()


class Terminal:
    """A terminal of 100 columns and 30 lines in which the command runs."""

    def __init__(self, *words: str, env: dict[str, str] | None = None) -> None:
        self._words, self._env = words, env or environment()
        self.written = b""

    def __enter__(self) -> "Terminal":
        self._master, slave = pty.openpty()
        self.resize(100, 30)
        self._before = termios.tcgetattr(self._master)
        self.process = subprocess.Popen(
            [*COMMAND, *self._words], stdin=slave, stdout=slave, stderr=slave, env=self._env,
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        os.set_blocking(self._master, False)
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def resize(self, columns: int, lines: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def shows(self, *texts: str) -> None:
        """Wait until all of these are on the screen at once."""
        until(lambda: all(text in self.screen() for text in texts))

    def ends(self, status: int) -> None:
        """Wait for the end of the program, which leaves the terminal as it was."""
        until(lambda: self.screen() is not None and self.process.poll() is not None)
        assert self.process.returncode == status
        self._read()
        assert self.written.rindex(b"\x1b[?1049l") > self.written.rindex(b"\x1b[?1049h")
        assert self.written.rindex(b"\x1b[?25h") > self.written.rindex(b"\x1b[?25l")
        assert termios.tcgetattr(self._master)[3] == self._before[3]

    def screen(self) -> str:
        """What was drawn last."""
        self._read()
        frame = self.written.decode(errors="replace").rpartition("\x1b[H")[2]
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frame)

    def _read(self) -> None:
        try:
            while piece := os.read(self._master, 65536):
                self.written += piece
        except (BlockingIOError, OSError):
            return  # nothing more now, or no program any more


def test_a_terminal_shows_the_models_sorts_them_by_a_key_and_is_left_as_it_was() -> None:
    with telling(numbers("a", "b")) as server, Terminal(server.url, "--interval", "0.1") as term:
        term.shows("a:1", "b:1", "requests/s", "q quit", "now by name")
        term.type(b"r")
        term.shows("now by requests")
        assert term.screen().index("b:1") < term.screen().index("a:1")
        term.type(b"\x1b[Bx\n")  # no key of ours
        server.told = numbers("a", "b", "c")
        term.shows("c:1")
        term.type(b"q")
        term.ends(0)


def test_a_server_that_goes_and_comes_back_is_shown_again() -> None:
    with ExitStack() as first:
        server = first.enter_context(telling(numbers("early")))
        with Terminal(server.url, "--interval", "0.1") as term:
            term.shows("early:1")
            first.close()
            term.shows("early:1", "no answer for", "trying again")
            with telling(numbers("late"), port=server.server_port) as server:
                term.shows("late:1")
                assert "no answer" not in term.screen()
                server.status = 503
                term.shows("late:1", "no answer for")
                server.told, server.status = {"at": "noon"}, 200
                term.shows("late:1", "does not know")
                server.told = numbers("again")
                term.shows("again:1")
                term.type(b"q")
                term.ends(0)


def test_hostile_names_and_errors_are_shown_and_not_obeyed() -> None:
    told = numbers(HOSTILE)
    with telling(told) as server, Terminal(server.url) as term:
        term.shows("\\x1b]0;owned\\x07\\x9b2J[bold red]m\\u202e:1")
        for raw in (b"\x1b]", b"\x07", "\x9b".encode(), "\u202e".encode()):
            assert raw not in term.written
        term.type(b"q")
        term.ends(0)
    assert "\x1b" not in ran_with(told)
    assert "\x1b" not in ran_with(told, "--json")
    assert ran_with(told, "--json").isascii()


def ran_with(told: Any, *words: str) -> str:
    with telling(told) as server:
        return ran(server.url, *words)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_it_and_leaves_the_terminal_as_it_was(number: int, status: int) -> None:
    with telling(numbers("a")) as server, Terminal(server.url, "--interval", "60") as term:
        term.shows("a:1")
        term.process.send_signal(number)
        term.ends(status)


def test_another_size_of_the_terminal_is_drawn_at_once() -> None:
    with telling(numbers("a")) as server, Terminal(server.url, "--interval", "60") as term:
        term.shows("a:1", "wait p95 ms")
        term.resize(30, 10)
        term.process.send_signal(signal.SIGWINCH)  # a session leader's terminal would send it
        until(lambda: "a:1" in term.screen() and "wait p95 ms" not in term.screen())
        term.type(b"q")
        term.ends(0)


def test_no_colour_is_none() -> None:
    with (
        telling(numbers("a")) as server,
        Terminal(server.url, env=environment(NO_COLOR="1")) as term,
    ):
        term.shows("a:1")
        assert not re.search(rb"\x1b\[[0-9;]*3[0-9]", term.written)
        term.type(b"q")
        term.ends(0)


def test_without_a_terminal_the_numbers_are_printed_once() -> None:
    with telling(numbers("a", "b")) as server:
        assert "a:1" in ran(server.url)
        assert json.loads(ran("--url", server.url, "--json", "--api-key", "secret-key")) == (
            numbers("a", "b")
        )
        assert server.asked == [
            ("/dashboard/numbers", None), ("/dashboard/numbers", "Bearer secret-key"),
        ]  # fmt: skip


def test_what_goes_wrong_is_said_on_stderr() -> None:
    with telling({"error": "\x1b[31mno such path"}, 404) as server:
        assert "has no /dashboard/numbers" in ran(server.url, status=1)
    with telling({"error": "a key is needed \x1b[31m"}, 401) as server:
        assert "a key is needed \\x1b[31m" in ran(server.url, status=1)
    with telling({"at": "noon"}) as server:
        assert "does not know" in ran(server.url, status=1)
    with telling([1, 2]) as server:
        assert "does not know" in ran(server.url, status=1)
    for body in (b"<html>", b"[" * 100_000, b'{"models": "\xff"}'):
        with telling(body) as server:
            assert "not an answer of a V2 server" in ran(server.url, status=1)
    assert "is a server running there?" in ran(server.url, status=1)  # it is gone
    assert "--interval" in ran(server.url, "--interval", "0", status=2)
    assert "nan" in ran(server.url, "--interval", "nan", status=2)


def test_a_real_server_tells_what_is_shown() -> None:
    with running_server(str(Path(__file__).with_name("board_models.py"))) as url:
        assert hello(url, "shout") == 200
        printed = ran(url)
        assert printed.startswith(f"wherry {wherry.__version__} at {url}")
        (row,) = re.findall(r"^shout:1 +(.*)$", printed, re.M)
        assert "1/1" in row
        with Terminal(url) as term:
            term.shows("shout:1", "fragile:1", "rates of the last")
            term.type(b"q")
            term.ends(0)


def hello(url: str, model: str) -> int:
    """The status of one request."""
    body = json.dumps({"text": "you"}).encode()
    with urlopen(Request(f"{url}/v2/models/{model}/generate", body), timeout=30) as answer:
        answer.read()
        status: int = answer.status
    return status
