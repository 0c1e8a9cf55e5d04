"""`wherry bench` as a process: against servers that serve, stall, die, and are told to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from wherry.testing import ServerProcess

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(300)]

#: A wait for something that must come: longer only if it fails.
TIMEOUT = 240.0

APP = """
import time
import wherry
from collections.abc import Iterator

@wherry.model(max_batch_size=8, examples=[{"text": "a"}, {"text": "b"}])
def echo(text: list[str]) -> list[str]:
    return text

@wherry.model(max_batch_size=8, max_queue_size=1)
def slow(text: list[str]) -> list[str]:
    time.sleep(0.02)
    return text

@wherry.model
def words(text: str) -> Iterator[str]:
    yield from text.split()
"""
TEN = """
import wherry
from pathlib import Path

class Ten(wherry.Model):  # answers ten, and then none before it has met the test at the gate
    def load(self, device):
        self.asked = 0

    def execute(self, text: list[str]) -> list[str]:
        before, self.asked = self.asked, self.asked + len(text)
        if before <= 10 < self.asked:
            Path(__file__).with_name("gate").read_bytes()
        return text
"""
COMMAND = [sys.executable, "-m", "wherry", "bench"]
LONG = ("--duration", "600s", "--warmup", "0")


@pytest.fixture
def app(tmp_path: Path) -> str:
    (tmp_path / "bench_integration_app.py").write_text(APP)
    return str(tmp_path / "bench_integration_app.py")


class Bench:
    """`wherry bench ...` as a child process; its report when it has ended."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.path = folder / "report.json"
        self.path.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [*COMMAND, *words, "--json", str(self.path), "--jsonl", str(folder / "rows.jsonl")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        )  # fmt: skip
        self.out = self.err = ""

    def wait(self) -> int:
        self.out, self.err = self.process.communicate(timeout=TIMEOUT)
        return self.process.returncode

    def report(self) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(self.path.read_text())
        return made


@contextmanager
def bench(folder: Path, *words: str) -> Iterator[Bench]:
    made = Bench(folder, *words)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
            made.process.communicate()


def ran(folder: Path, *words: str, code: int = 0) -> Bench:
    with bench(folder, *words) as made:
        assert made.wait() == code, made.err
        assert "Traceback" not in made.err
        return made


def test_a_server_is_measured_over_http_and_its_own_account_agrees(
    app: str, tmp_path: Path
) -> None:
    with ServerProcess(app) as server:
        made = ran(tmp_path, server.url, "--model", "echo", "--callers", "1,8", "--requests", "400")
    for point in made.report()["points"]:
        assert point["figures"]["ok"] == 400
        assert point["figures"]["failed"] == 0
        assert point["server"]["requests"] == 400
        assert sum(int(s) * n for s, n in point["server"]["batch_sizes"].items()) == 400
        latency = point["figures"]["latency"]
        assert latency["min"] <= latency["p50"] <= latency["p95"] <= latency["max"]
    assert "requests/s" in made.out


@pytest.mark.full
def test_settings_are_tried_on_servers_that_it_starts_itself(app: str, tmp_path: Path) -> None:
    (tmp_path / "wherry.toml").write_text(
        '[server]\nlog_level = "error"\n[models.echo]\nversion = "3"\n'
    )
    made = ran(
        tmp_path, app, "--model", "echo", "--set", "max_batch_size=1,4", "--set",
        "max_queue_delay=auto,20ms", "--callers", "4", "--loops", "10",
    )  # fmt: skip
    points = made.report()["points"]
    assert [point["settings"]["max_batch_size"] for point in points] == [1, 1, 4, 4]
    assert [max(map(int, point["server"]["batch_sizes"])) for point in points][:2] == [1, 1]
    assert max(map(int, points[3]["server"]["batch_sizes"])) <= 4
    assert [point["settings"]["max_queue_delay"] for point in points] == ["auto", 0.02] * 2


def test_a_stream_and_a_full_queue_are_measured(app: str, tmp_path: Path) -> None:
    with ServerProcess(app) as server:
        stream = ran(
            tmp_path, server.url, "--model", "words", "--length", "9w", "--callers", "2", "--loops",
            "10",
        ).report()["points"][0]["figures"]  # fmt: skip
        assert stream["inter_token"]["count"] == 8 * 20
        assert stream["first_token"]["p50"] <= stream["latency"]["p50"]
        refused = ran(
            tmp_path, server.url, "--model", "slow", "--callers", "40", "--requests", "200"
        ).report()["points"][0]
    assert refused["figures"]["errors"].keys() == {"HTTP 429"}
    assert refused["figures"]["ok"] + refused["figures"]["failed"] == 200
    assert "retry later" in refused["samples"]["HTTP 429"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "timeout", "kinds"),
    [
        (
            signal.SIGKILL,
            "60s",
            {
                "cannot connect: refused",
                "cannot connect: Connection reset by peer",  # killed with it in the backlog
                "connection closed before the answer",
            },
        ),
        (signal.SIGSTOP, "4s", {"timeout"}),
    ],
)
def test_a_server_that_dies_or_stalls_gives_errors_by_kind_and_an_end(
    tmp_path: Path, number: int, timeout: str, kinds: set[str]
) -> None:
    app, gate = tmp_path / "bench_ten_app.py", tmp_path / "gate"
    app.write_text(TEN)
    os.mkfifo(gate)
    with ServerProcess(str(app)) as server:
        words = [server.url, "--callers", "4", "--requests", "20"]
        with bench(tmp_path, *words, "--timeout", timeout) as made:
            with gate.open("w"):  # it has answered ten
                server.send(number)
                assert made.wait() == 2, made.err
            server.send(signal.SIGCONT) if number == signal.SIGSTOP else None
    (point,) = made.report()["points"]
    assert point["figures"]["ok"] > 0
    assert set(point["figures"]["errors"]) <= kinds
    assert point["figures"]["failed"] > 0
    assert "Traceback" not in made.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_with_the_report_so_far(app: str, tmp_path: Path, number: int) -> None:
    """Also where it has a server of its own, which must be gone then."""
    with bench(tmp_path, app, "--model", "echo", "--callers", "2", *LONG) as made:
        until_it_answers(made)
        made.process.send_signal(number)
        assert made.wait() == 130
    report = made.report()
    assert report["interrupted"]
    assert report["points"][0]["figures"]["ok"] > 0
    assert report["points"][0]["figures"]["failed"] == 0
    assert "interrupted" in made.out
    assert "Traceback" not in made.err


def test_ctrl_c_before_anything_is_measured_ends_it_quietly(app: str, tmp_path: Path) -> None:
    with bench(tmp_path, app, "--model", "echo") as made:
        assert made.process.stderr is not None
        assert made.process.stderr.readline().startswith("starting wherry serve")
        made.process.send_signal(signal.SIGINT)
        assert made.wait() == 130
    assert "Traceback" not in made.err
    assert processes_with(app) == []


def test_ctrl_c_while_the_model_loads_leaves_no_server_behind(tmp_path: Path) -> None:
    loading = tmp_path / "loading"
    app = tmp_path / "bench_never_ready.py"
    os.mkfifo(loading)
    app.write_text(
        "import threading, wherry\n"
        "class Never(wherry.Model):\n"
        "    def load(self, device):\n"
        f"        open({str(loading)!r}, 'w').close()\n"
        "        threading.Event().wait()\n"
        "    def execute(self, text: list[str]) -> list[str]:\n"
        "        return text\n"
    )
    with bench(tmp_path, str(app)) as made:
        loading.read_text()  # until it loads
        made.process.send_signal(signal.SIGINT)
        assert made.wait() == 130
    assert "Traceback" not in made.err
    assert processes_with(str(app)) == []


def processes_with(word: str) -> list[Path]:
    found = Path("/proc").glob("[0-9]*/cmdline")
    return [cmdline for cmdline in found if word.encode() in _read(cmdline)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.full
def test_the_highest_load_is_searched(app: str, tmp_path: Path) -> None:
    with ServerProcess(app) as server:
        made = ran(
            tmp_path, server.url, "--model", "slow", "--find-max", "--p95", "10ms", "--duration",
            "2s", "--warmup", "0", code=1,
        )  # fmt: skip
    assert made.report()["searches"] == [
        {
            "by": "callers",
            "objective": "p95 <= 10 ms, errors <= 1 %",
            "found": None,  # one request alone takes 20 ms
            "settings": {},
        }
    ]
    assert "no load that was tried" in made.out


def test_a_unix_socket_will_do(app: str, tmp_path: Path) -> None:
    with ServerProcess(app, "--uds", str(tmp_path / "w.sock")) as server:
        assert server.url.startswith("http+unix://")
        made = ran(tmp_path, server.url, "--model", "echo", "--callers", "2", "--loops", "5")
    assert made.report()["points"][0]["figures"]["ok"] == 10


def until_it_answers(made: Bench, url: str = "") -> None:
    """Wait until the server has answered some requests; a server of its own is named on stderr."""
    assert made.process.stderr is not None
    while not url:
        line = made.process.stderr.readline()
        assert line, made.process.communicate()
        url = line.partition("ready at ")[2].strip()
    while made.process.poll() is None:
        with urllib.request.urlopen(f"{url}/v2/models/echo/stats") as answer:
            if json.load(answer)["model_stats"][0]["inference_count"] > 10:
                return
    raise AssertionError(made.process.communicate())
