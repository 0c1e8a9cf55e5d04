"""Do owners and fronts that find each other over TCP behave as one server?"""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import until
from wherry.cli import main
from wherry.testing import ServerProcess

pytestmark = pytest.mark.slow

APP = """
import os
from collections.abc import Iterator
import wherry

@wherry.model(max_batch_size=8, isolation="thread")
def hello(name: list[str]) -> list[str]:
    return [f"hello {one} from {os.getpid()}" for one in name]

@wherry.model
def count(n: int) -> Iterator[int]:
    yield from range(n)
"""
TOKEN = "a token of the tests, long enough"


def ask(url: str, body: Any = None) -> Any:
    """The JSON that a request is answered with; its status and the JSON if that is no 200."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=30) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def hello(url: str, name: str = "x") -> Any:
    answer = ask(f"{url}/v2/models/hello/generate", {"name": name})
    return answer["output"] if isinstance(answer, dict) else answer


def owner(folder: Path) -> ServerProcess:
    """A process that owns the models, not started yet."""
    (folder / "app.py").write_text(APP)
    return ServerProcess(
        str(folder / "app.py"), "--rows-port", "0", env={"WHERRY_CLUSTER_TOKEN": TOKEN}
    )


def rows_address(running: ServerProcess) -> str:
    found = re.search(r"rows=(\S+)", running.log)
    assert found, running.log
    return found[1]


def front(*owners: ServerProcess, fronts: int = 0) -> ServerProcess:
    addresses = ",".join(map(rows_address, owners))
    return ServerProcess(
        "--replicas", addresses, "--fronts", str(fronts), env={"WHERRY_CLUSTER_TOKEN": TOKEN}
    )


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[tuple[ServerProcess, ServerProcess, ServerProcess]]:
    """Two owners and a front, started side by side."""
    with ExitStack() as stack:
        owners = [stack.enter_context(owner(tmp_path)) for _ in range(2)]
        yield (*owners, stack.enter_context(front(*owners)))  # type: ignore[misc]


def test_top_shows_each_owner_and_what_all_of_them_have_counted(
    pool: tuple[ServerProcess, ServerProcess, ServerProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    *owners, serving = pool
    for _ in range(3):
        hello(serving.url)
    assert main(["top", "--json", serving.url]) == 0
    assert json.loads(capsys.readouterr().out)["server"]["fronts"] == []

    assert main(["top", serving.url]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^hello:1 +[\d.]+ ", printed, re.M)
    assert "idle 100 %" in printed
    for one in owners:
        assert re.search(rf"^{rows_address(one)} +ready .* 0\.1\.0 +cpu$", printed, re.M)


def test_a_front_answers_with_the_models_of_its_owners(
    pool: tuple[ServerProcess, ServerProcess, ServerProcess],
) -> None:
    first, second, serving = pool
    assert hello(serving.url) in {f"hello x from {one.pid}" for one in (first, second)}
    body = json.dumps({"n": 50}).encode()
    url = f"{serving.url}/v2/models/count/generate_stream"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as answer:
        lines = [json.loads(line[6:]) for line in answer if line.startswith(b"data: ")]
    assert [line["output"] for line in lines] == list(range(50))
    assert ask(f"{serving.url}/v2/models/nope/infer", {"inputs": []})[0] == 404


def test_an_owner_that_ends_leaves_the_other_to_answer(
    pool: tuple[ServerProcess, ServerProcess, ServerProcess],
) -> None:
    first, second, serving = pool
    addresses = f"{rows_address(first)},{rows_address(second)}"
    assert first.stop(signal.SIGTERM) == 0
    until(lambda: "an owner has gone" in serving.log)
    assert [hello(serving.url) for _ in range(8)] == [f"hello x from {second.pid}"] * 8
    assert ask(f"{serving.url}/v2/health/ready") is None
    assert second.stop(signal.SIGTERM) == 0
    until(lambda: serving.log.count("an owner has gone") == 2)
    status, told = ask(f"{serving.url}/v2/health/ready")
    assert status == 503
    assert f"no owner at {addresses} answers" in told["error"]
    status, told = hello(serving.url)
    assert (status, told["error"]) == (503, "model 'hello' is not ready: no server has it")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_owner_that_is_killed_or_stopped_loses_no_request(
    pool: tuple[ServerProcess, ServerProcess, ServerProcess], number: signal.Signals
) -> None:
    first, second, serving = pool
    names = [str(n) for n in range(300)]
    with ThreadPoolExecutor(8) as callers:
        answers = [callers.submit(hello, serving.url, name) for name in names]
        until(lambda: any(answer.done() for answer in answers))
        os.kill(first.pid, number)
        told = [answer.result() for answer in answers]
    os.kill(first.pid, signal.SIGKILL)
    assert [one.rpartition(" ")[0] for one in told] == [f"hello {name} from" for name in names]
    assert {int(one.rpartition(" ")[2]) for one in told} <= {first.pid, second.pid}
    assert told[-1].endswith(str(second.pid))


def test_several_fronts_on_one_port_have_links_of_their_own(tmp_path: Path) -> None:
    with owner(tmp_path) as owning, front(owning, fronts=2) as serving:
        until(lambda: owning.log.count("front has connected") == 3)
        until(lambda: ask(f"{serving.url}/v2/health/ready") is None)
        assert {hello(serving.url) for _ in range(16)} == {f"hello x from {owning.pid}"}
        assert serving.stop(signal.SIGTERM) == 0
