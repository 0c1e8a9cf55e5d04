"""wherry in Ray Serve: does what works over HTTP alone work behind its proxy, too?"""

import fcntl
import http.client
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.examples.pages import blocks_of
from tests.fakes import until

pytest.importorskip("ray.serve", reason="needs ray[serve], which is not here")
pytestmark = [pytest.mark.full, pytest.mark.slow]

HERE = Path(__file__).parent


class Program:
    """ray_serve_program.py, and how its application is called."""

    def __init__(self, folder: Path) -> None:
        self.gate = folder / "gate"
        self.notes = folder / "notes"
        self.gate.touch()
        self.notes.touch()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        for block in blocks_of(HERE.parents[1] / "docs/how-to/scale.md"):
            if named := re.match(r"# (\w+\.py)\n", block.text):
                (folder / named[1]).write_text(block.text)
        self._log = (folder / "log").open("wb")
        quiet = {"RAY_worker_niceness": "0", "RAY_AUTH_MODE": "disabled"}
        quiet |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
        path = os.pathsep.join(str(p) for p in (HERE.parents[1], os.environ.get("PYTHONPATH", "")))
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "ray_serve_program.py"), str(self.port)],
            cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, **quiet, "PYTHONPATH": path, "GATE": str(self.gate),
                 "NOTES": str(self.notes)},
        )  # fmt: skip
        self.handles = self.told()

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def told(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # Ray prints the lines of its workers, too
                told: dict[str, Any] = json.loads(line)
                return told
        raise AssertionError(Path(self._log.name).read_text())

    def close(self) -> None:
        self._process.communicate(timeout=60)
        self._log.close()
        assert self._process.returncode == 0

    def send(
        self, method: str, path: str, body: Any = None, prefix: str = "/models", **headers: str
    ) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        text = None if body is None else json.dumps(body)
        connection.request(method, prefix + path, text, headers)
        return connection

    def ask(self, *request: Any, **more: str) -> tuple[int, str]:
        connection = self.send(*request, **more)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def gauge(self, name: str, model: str) -> float:
        metrics = self.ask("GET", "/metrics")[1]
        found = re.search(rf'^{name}{{[^}}]*model="{model}"[^}}]*}} ([0-9.]+)', metrics, re.M)
        assert found is not None, metrics
        return float(found[1])

    def held(self, text: str) -> tuple[int, int]:
        """The status, and the size of the batch in which this row was."""
        status, answer = self.ask("POST", "/v2/models/held/generate", {"text": text})
        return status, json.loads(answer)["output"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    program = Program(tmp_path_factory.mktemp("ray"))
    try:
        yield program
    finally:
        program.close()


def test_a_handle_gets_answers_errors_and_each_piece_of_a_stream(program: Program) -> None:
    assert program.handles["answer"] == "GOOD"
    assert program.handles["failure"][0] == "ModelFailed"
    assert "a bad row" in program.handles["failure"][1]
    assert program.handles["pieces"] == ["one ", "two "]


def test_v2_and_openai_answer_below_the_route_prefix(program: Program) -> None:
    assert program.ask("GET", "/v2/health/ready")[0] == 200
    row = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["x"]}
    status, answer = program.ask("POST", "/v2/models/upper/infer", {"inputs": [row]})
    assert status == 200
    assert json.loads(answer)["outputs"][0]["data"] == ["X"]
    assert program.ask("POST", "/v2/models/nope/infer", {"inputs": [row]})[0] == 404
    chat = {"model": "parrot", "messages": [{"role": "user", "content": "one two"}]}
    status, answer = program.ask("POST", "/v1/chat/completions", chat)
    assert json.loads(answer)["choices"][0]["message"]["content"] == "one two "
    status, answer = program.ask("POST", "/v1/chat/completions", {**chat, "stream": True})
    assert re.findall(r'"content":"(\w+ )"', answer) == ["one ", "two "]
    assert answer.endswith("data: [DONE]\n\n")


def test_a_stream_ends_when_its_reader_leaves(program: Program) -> None:
    connection = program.send("POST", "/v2/models/endless/generate_stream", {"text": "on"})
    response = connection.getresponse()
    assert b'"on"' in response.readline()
    assert "endless has ended" not in program.notes.read_text()
    response.close()
    connection.close()
    until(lambda: "endless has ended" in program.notes.read_text())


def test_a_replica_is_sent_enough_to_fill_its_next_batch(program: Program) -> None:
    with program.gate.open() as gate, ThreadPoolExecutor(40) as pool:
        fcntl.flock(gate, fcntl.LOCK_EX)
        first = pool.submit(program.held, "first")
        running = partial(program.gauge, "wherry_batches_running", "held")
        until(lambda: running() == 1)
        rest = [pool.submit(program.held, f"{n}") for n in range(39)]
        waiting = partial(program.gauge, "nv_inference_pending_request_count", "held")
        until(lambda: waiting() == 39)
        fcntl.flock(gate, fcntl.LOCK_UN)
        answers = [one.result() for one in [first, *rest]]
    assert sorted(answers) == [(200, 1), *[(200, 7)] * 7, *[(200, 32)] * 32]


def test_what_the_page_shows_runs(program: Program) -> None:
    program.tell("page")
    assert program.told() == {"language": "de"}


def test_busy_instances_make_a_replica_and_idle_ones_end_it(program: Program) -> None:
    with program.gate.open() as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        program.tell("scale")
        assert program.told() == {"up": 2}  # 8 requests are not a full batch, but one that runs on
        fcntl.flock(gate, fcntl.LOCK_UN)
        assert len(program.told()["answers"]) == 8
        assert program.told() == {"down": 1}


def test_a_replica_loads_the_model_that_a_request_names(program: Program) -> None:
    program.tell("one at once")
    assert program.told() == {"one": "is there"}
    there = []
    before = program.notes.read_text().count("held is unloaded")
    for name in ("upper", "held", "upper"):
        named = {"prefix": "/one", "serve_multiplexed_model_id": name}
        path = f"/v2/models/{name}/generate"
        assert program.ask("POST", path, {"text": "x"}, **named)[0] == 200
        there.append(json.loads(program.ask("POST", "/v2/repository/index", prefix="/one")[1]))
    ready = [[one["name"] for one in models if one["state"] == "READY"] for models in there]
    assert ready == [["upper"], ["held"], ["upper"]]
    assert program.notes.read_text().count("held is unloaded") == before + 1


def test_an_application_that_cannot_be_loaded_says_why(program: Program) -> None:
    program.tell("broken")
    assert "no weights" in program.told()["broken"]


def test_an_application_that_is_deleted_answers_what_it_has_and_unloads(program: Program) -> None:
    with program.gate.open() as gate, ThreadPoolExecutor(1) as pool:
        fcntl.flock(gate, fcntl.LOCK_EX)
        last = pool.submit(program.held, "last")
        running = partial(program.gauge, "wherry_batches_running", "held")
        until(lambda: running() == 1)
        program.tell("delete")
        until(lambda: program.ask("GET", "/v2/health/ready")[0] != 200)
        fcntl.flock(gate, fcntl.LOCK_UN)
        assert last.result() == (200, 1)
    assert program.told() == {"deleted": True}
    assert "held is unloaded" in program.notes.read_text()
