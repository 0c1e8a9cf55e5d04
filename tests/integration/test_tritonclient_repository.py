"""Triton's own client changes what a real server serves: `wherry serve REPO_DIR`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from wherry.testing import running_server
from wherry.testing.servers import ServerProcess

MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", {number} * x)]))
        return answers
"""
TENSOR = {"data_type": "TYPE_FP32", "dims": [2]}
CONFIG: dict[str, Any] = {
    "backend": "python",
    "max_batch_size": 8,
    "input": [{"name": "X", **TENSOR}],
    "output": [{"name": "Y", **TENSOR}],
}


@pytest.fixture(autouse=True, scope="module")
def _gevent_has_its_hub() -> None:
    gevent.sleep(0)


def save(repository: Path, name: str, number: int, version: int = 1) -> None:
    folder = repository / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "model.py", MODEL.format(number=number))
    write(
        repository / name / "config.pbtxt",
        """backend: "python" max_batch_size: 8
        input { name: "X" data_type: TYPE_FP32 dims: 2 }
        output { name: "Y" data_type: TYPE_FP32 dims: 2 }""",
    )


def write(file: Path, text: str) -> None:
    """Whole at every moment: a server that polls may look at any."""
    unseen = file.with_name(f".{file.name}")
    unseen.write_text(text)
    unseen.replace(file)


@contextmanager
def client_of(repository: Path, *options: str) -> Iterator[triton.InferenceServerClient]:
    with running_server(str(repository), *options) as url:
        client = triton.InferenceServerClient(url.removeprefix("http://"))
        try:
            yield client
        finally:
            client.close()


def product(client: triton.InferenceServerClient, name: str) -> float:
    x = triton.InferInput("X", [1, 2], "FP32")
    x.set_data_from_numpy(np.array([[1, 2]], np.float32))
    return float(client.infer(name, [x]).as_numpy("Y")[0, 1]) / 2


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_models_come_change_and_go_by_request(tmp_path: Path) -> None:
    save(tmp_path, "a", 3)
    save(tmp_path, "b", 5)

    with client_of(tmp_path, "--model-control-mode=explicit", "--load-model=b") as client:
        assert client.is_server_ready()
        assert client.get_model_repository_index() == [
            {"name": "a"},
            {"name": "b", "version": "1", "state": "READY"},
        ]
        assert not client.is_model_ready("a")
        client.load_model("a")
        assert client.is_model_ready("a")
        assert product(client, "a") == 3

        client.load_model("a", config=json.dumps(CONFIG | {"max_batch_size": "2"}))
        assert client.get_model_config("a")["max_batch_size"] == 2
        assert client.get_model_metadata("a")["platform"] == "python"
        client.load_model(
            "a",
            config=json.dumps(CONFIG),
            files={"file:4/model.py": MODEL.format(number=11).encode()},
        )
        assert product(client, "a") == 11
        assert client.get_model_metadata("a")["versions"] == ["4"]

        client.unload_model("a")
        assert not client.is_model_ready("a")
        with pytest.raises(InferenceServerException, match="has no available versions"):
            product(client, "a")
        with pytest.raises(InferenceServerException, match="failed to load 'missing'") as caught:
            client.load_model("missing")
        assert caught.value.status() == "404"
        with pytest.raises(InferenceServerException, match="did you mean 'max_batch_size'"):
            client.load_model("b", config='{"max_batch_sise": 3}')
        assert product(client, "b") == 5


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_server_that_polls_serves_what_its_files_say(tmp_path: Path) -> None:
    save(tmp_path, "a", 3)
    options = ("--model-control-mode=poll", "--repository-poll-secs=0.2")

    with client_of(tmp_path, *options) as client:
        assert product(client, "a") == 3
        save(tmp_path, "a", 4)
        while product(client, "a") == 3:  # no answer fails meanwhile
            pass
        assert product(client, "a") == 4
        with pytest.raises(InferenceServerException, match="not allowed if polling is enabled"):
            client.load_model("a")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_change_within_a_second_to_files_of_the_same_size_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own cache of bytecode would miss it, in model.py as in what that imports."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)

    def save_both(number: int) -> None:
        save(tmp_path, "a", number)
        folder = tmp_path / "a" / "1"
        write(folder / "model.py", f"import factor\n{MODEL}".format(number=f"{number} * factor.IS"))
        write(folder / "factor.py", f"IS = {number}\n")
        for file in folder.glob("*.py"):
            os.utime(file, (1e9, 1e9))

    save_both(3)
    with client_of(tmp_path, "--model-control-mode=explicit", "--load-model=a") as client:
        assert product(client, "a") == 9
        save_both(4)
        client.load_model("a")
        assert product(client, "a") == 16


def held(pid: int) -> dict[str, int]:
    """What a process holds beyond its memory."""
    threads = children = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it ended while we were looking
            children += len((task / "children").read_text().split())
            threads += 1
    files = len(os.listdir(f"/proc/{pid}/fd"))
    return {"threads": threads, "children": children, "files": files}


@pytest.mark.full
@pytest.mark.timeout(180)
def test_models_that_came_and_went_leave_nothing_in_the_server(tmp_path: Path) -> None:
    """benchmarks/load_cycles.py does it a thousand times, and looks at the memory, too."""
    save(tmp_path, "a", 3)

    with ServerProcess(str(tmp_path), "--model-control-mode=explicit") as server:
        client = triton.InferenceServerClient(server.url.removeprefix("http://"))
        with contextlib.closing(client):
            for cycle in range(13):
                client.load_model("a")
                assert product(client, "a") == 3
                if cycle == 2:
                    before = held(server.pid)
                client.unload_model("a")
            client.load_model("a")
            # A thread may be just about to end.
            while any(count > before[name] for name, count in held(server.pid).items()):
                pass
