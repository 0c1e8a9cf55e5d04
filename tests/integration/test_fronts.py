"""Does a server whose clients are served by several front processes behave as one process?"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from wherry.testing import ServerProcess

pytestmark = pytest.mark.slow

APP = """
import os
from collections.abc import Iterator
import wherry

@wherry.model(max_batch_size=8, isolation="thread")
def hello(name: list[str]) -> list[str]:
    if "bad" in name:
        raise ValueError("no")
    return [f"hello {one}" for one in name]

@wherry.model
def count(n: int) -> Iterator[int]:
    yield from range(n)
"""


def post(url: str, body: dict[str, Any]) -> Any:
    """The JSON that a POST is answered with, whatever its status."""
    request = urllib.request.Request(url, json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return bytes(answer.read())


def children(pid: int) -> list[int]:
    """The front processes of a server."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == pid and b"wherry.server.front" in command:
            found.append(int(folder.name))
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    app = tmp_path_factory.mktemp("fronts") / "app.py"
    app.write_text(APP)
    with ServerProcess(str(app), "--fronts", "2") as running:
        yield running


def hello(url: str, name: str) -> Any:
    answer = post(f"{url}/v2/models/hello/generate", {"name": name})
    return answer["output"] if isinstance(answer, dict) else answer


def test_requests_on_many_connections_get_their_own_answers(server: ServerProcess) -> None:
    names = [f"n{number}" for number in range(200)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda name: hello(server.url, name), names))
    assert answers == [f"hello {name}" for name in names]


def test_a_stream_comes_in_parts_and_ends(server: ServerProcess) -> None:
    body = json.dumps({"n": 100}).encode()
    url = f"{server.url}/v2/models/count/generate_stream"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as answer:
        lines = [json.loads(line[6:]) for line in answer if line.startswith(b"data: ")]
    assert [line["output"] for line in lines] == list(range(100))


def test_statistics_and_metrics_are_those_of_all_fronts(server: ServerProcess) -> None:
    def counted() -> int:
        told = json.loads(get(f"{server.url}/v2/models/hello/stats"))
        return int(told["model_stats"][0]["inference_stats"]["success"]["count"])

    before = counted()
    for number in range(20):  # each on a connection of its own, so that both fronts get some
        hello(server.url, str(number))
    assert {counted() for _ in range(4)} == {before + 20}
    metric = f'wherry_requests_total{{model="hello",outcome="success",version="1"}} {before + 20}.0'
    assert metric in get(f"{server.url}/metrics").decode()


def test_a_failing_row_fails_alone_with_its_status(server: ServerProcess) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda name: hello(server.url, name), ["bad", *"abcdefg"]))
    status, told = answers[0]
    assert status == 500
    assert "no" in told["error"]
    assert answers[1:] == [f"hello {name}" for name in "abcdefg"]


def test_an_unknown_model_is_refused_as_by_one_process(server: ServerProcess) -> None:
    status, told = post(f"{server.url}/v2/models/nope/infer", {"inputs": []})
    assert (status, told) == (404, {"error": "Request for unknown model: 'nope' is not found"})


def test_a_killed_front_is_replaced_and_the_server_goes_on(server: ServerProcess) -> None:
    before = children(server.pid)
    os.kill(before[0], signal.SIGKILL)
    # A new connection may wait in the socket of the killed one until its successor accepts it.
    assert [hello(server.url, str(number)) for number in range(16)] == [
        f"hello {number}" for number in range(16)
    ]
    ends_at = time.monotonic() + 20
    while len(after := children(server.pid)) < 2 or before[0] in after:
        assert time.monotonic() < ends_at, "no other front has come"
        time.sleep(0.05)  # the kernel tells no event of another process's child


def test_sigterm_ends_all_processes(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with ServerProcess(str(tmp_path / "app.py"), "--fronts", "2") as running:
        fronts = children(running.pid)
        assert len(fronts) == 2
        assert running.stop(signal.SIGTERM) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in fronts)
