"""`wherry serve --reload` as a process: files are saved under it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import wherry
from tests.fakes import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

APP = """
import pathlib
import time
import wherry

@wherry.model
def pid_of(text: str) -> str:
    import os
    return str(os.getpid())

@wherry.model
def slow(text: str) -> str:
    here = pathlib.Path(__file__).parent
    (here / "begun").touch()
    while text == "wait" and not (here / "open").exists():
        time.sleep(0.01)
    return "old " + text
"""


class Serving:
    """The process, and the lines that it logs."""

    def __init__(self, folder: Path) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wherry", "serve", "app.py", "--reload", "--port", "0"],
            cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.lines.append(line)

    def client(self) -> wherry.Client:
        """A client, once the server is ready."""
        self.wait_for(" ready  url=")
        (line,) = [one for one in self.lines if " ready  url=" in one]
        return wherry.Client(line.partition("url=")[2].split()[0])

    def wait_for(self, text: str) -> None:
        until(lambda: any(text in line for line in self.lines))

    def end(self) -> int:
        self.process.terminate()
        code = self.process.wait(60)
        self._reader.join()
        return code


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[[], Serving]]:
    started: list[Serving] = []

    def start() -> Serving:
        started.append(Serving(tmp_path))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.end()


def test_a_saved_model_is_served_and_requests_and_a_mistake_cost_nothing(
    tmp_path: Path, serving: Callable[[], Serving]
) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP)
    server = serving()
    with server.client() as client, ThreadPoolExecutor() as pool:
        running = pool.submit(client.infer, "slow", "wait")
        until((tmp_path / "begun").exists)
        app.write_text(APP.replace("old ", "new "))
        until(lambda: sum("model=slow version" in line for line in server.lines) == 2)
        assert client.infer("slow", "a") == "new a"
        assert not running.done()
        (tmp_path / "open").touch()
        assert running.result() == "old wait"
        process = client.infer("pid_of", "")
        app.write_text(APP + "def broken(:")
        server.wait_for("SyntaxError")
        assert client.infer("slow", "a") == "new a"
        assert client.infer("pid_of", "") == process
    assert server.end() == 0


def test_a_mistake_at_the_start_is_waited_out(
    tmp_path: Path, serving: Callable[[], Serving]
) -> None:
    app = tmp_path / "app.py"
    app.write_text("import wherry\nraise OSError('no weights yet')\n")
    server = serving()
    server.wait_for("no weights yet")
    server.wait_for("waiting for a file to be saved")
    app.write_text(APP)
    with server.client() as client:
        assert client.infer("slow", "a") == "old a"
    assert server.end() == 0
