"""What are clients told of a model that is not there yet?"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wherry
from tests.fakes import Gate
from tests.grpc_calls import served as served_over_grpc
from tests.http_exchange import Client, app_loop, served
from tests.repositories import make, save
from wherry.core.runtime.runtime import Runtime
from wherry.server.http_app import HttpApp
from wherry.triton.backends.repository_model import RepositoryModel
from wherry.triton.loading.control import ModelControl

HELLO = [{"role": "user", "content": "hello"}]


@wherry.model(max_batch_size=4)
def echo(text: list[str]) -> list[str]:
    return text


class SlowLoad(wherry.Model):
    """Loads as long as the gate is shut."""

    name = "slow_load"

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def load(self, device: wherry.Device) -> None:
        self.gate.hold(["load"])

    def execute(self, text: list[str]) -> list[str]:
        return text


@contextlib.contextmanager
def loading(runtime: Runtime) -> Iterator[None]:
    """While a model loads there."""
    gate = Gate()
    thread = threading.Thread(target=runtime.load, args=(SlowLoad(gate),))
    thread.start()
    try:
        gate.started()
        yield
    finally:
        gate.open()
        thread.join()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/models/slow_load/infer", {"inputs": []}),
        ("/v2/models/slow_load/versions/1/infer", {"inputs": []}),
        ("/v2/models/slow_load/generate", {"text": "a"}),
        ("/v2/models/slow_load/generate_stream", {"text": "a"}),
        ("/v1/embeddings", {"model": "slow_load", "input": "a"}),
        ("/v1/chat/completions", {"model": "slow_load", "messages": HELLO}),
        ("/v1/completions", {"model": "slow_load", "prompt": "a"}),
        ("/v2/models/slow_load", None),
        ("/v2/models/slow_load/ready", None),
        ("/v2/models/slow_load/config", None),
    ],
)
def test_a_model_that_loads_is_503_with_its_state_and_when_to_come_back(
    path: str, body: dict[str, Any] | None
) -> None:
    with served(echo) as client, loading(client.runtime):
        answer = client.get(path) if body is None else client.post(path, body)
        assert answer.status == 503, answer.body
        assert answer.headers["retry-after"] == "1"
        assert b"not ready: loading" in answer.body
        unknown = path.replace("slow_load", "nobody")
        if body is None or "model" not in body:
            answer = client.get(unknown) if body is None else client.post(unknown, body)
        else:
            answer = client.post(path, {**body, "model": "nobody"})
        assert answer.status == 404


@pytest.mark.parametrize("method", ["ModelInfer", "ModelMetadata", "ModelConfig"])
def test_over_grpc_a_model_that_loads_is_unavailable_and_says_when_to_come_back(
    method: str,
) -> None:
    field = "model_name" if method == "ModelInfer" else "name"
    with served_over_grpc(echo) as client, loading(client.runtime):
        rpc = client.ask(method, {field: "slow_load"})
        assert rpc.error == ("UNAVAILABLE", "model 'slow_load' is not ready: loading")
        assert rpc.trailers == (("grpc-retry-pushback-ms", "1000"),)
        assert client.ask(method, {field: "nobody"}).code == "NOT_FOUND"
        assert client.ask("ModelReady", {"name": "slow_load"}).answer == {}


@pytest.mark.parametrize("ends", [True, False])
def test_a_grpc_stream_is_told_of_a_model_that_loads(ends: bool) -> None:
    with served_over_grpc(echo) as client, loading(client.runtime):
        metadata = {"triton_grpc_error": "true"} if ends else {}
        rpc = client.begin("ModelStreamInfer", metadata=metadata)
        client.say(rpc, {"model_name": "slow_load", "id": "7"})
        why = "model 'slow_load' is not ready: loading"
        if ends:
            assert rpc.wait().error == ("UNAVAILABLE", why)
            assert rpc.trailers == (("grpc-retry-pushback-ms", "1000"),)
            return
        (said,) = rpc.wait_for(1)
        assert (said["error_message"], said["infer_response"]["id"]) == (why, "7")
        client.half_close(rpc)
        rpc.wait()


def test_a_load_that_failed_and_is_tried_again_is_503_until_the_last_try_has_failed(
    tmp_path: Path,
) -> None:
    """And then the index says why."""
    gate = Gate()
    save(tmp_path, "fails", "broken")

    def make_slowly(*args: Any, **options: Any) -> RepositoryModel:
        gate.hold(["load"])
        return make(*args, **options)

    with Runtime(echo) as runtime, app_loop() as loop:
        control = ModelControl(
            runtime, [tmp_path], load_retries=1, exit_on_error=False, make_model=make_slowly
        )
        client = Client(HttpApp(runtime, control=control), runtime, loop)
        starting = threading.Thread(target=control.start)
        starting.start()
        try:
            for _ in range(2):
                gate.started()
                answer = client.post("/v2/models/fails/infer", {"inputs": []})
                assert (answer.status, answer.headers["retry-after"]) == (503, "1")
                assert "is not ready: loading" in answer.error
                gate.open()
            starting.join()
            answer = client.post("/v2/models/fails/infer", {"inputs": []})
            assert (answer.status, "retry-after" in answer.headers) == (404, False)
            index = {m["name"]: m for m in client.post("/v2/repository/index", {}).json}
            assert index["fails"]["state"] == "UNAVAILABLE"
            assert "broken" in index["fails"]["reason"]
        finally:
            gate.open(2)
            starting.join()
            control.close()


def test_what_is_to_be_loaded_is_503_before_its_turn_comes() -> None:
    runtime = Runtime(echo)  # not started yet
    with pytest.raises(wherry.ModelNotReady, match="loading") as error:
        runtime.model("echo")
    assert error.value.retry_after == 1.0
    with pytest.raises(wherry.ModelNotFound):
        runtime.model("nobody")
    runtime.expect("*")  # it is not known yet which models there are
    with pytest.raises(wherry.ModelNotReady):
        runtime.model("nobody")
    with runtime:
        runtime.expect_no_more("*")
        assert runtime.infer("echo", "a") == "a"
        with pytest.raises(wherry.ModelNotFound):
            runtime.model("nobody")


def test_a_version_that_loads_beside_another_one_is_503() -> None:
    gate = Gate()

    class Second(wherry.Model):
        name, version = "echo", "2"

        def load(self, device: wherry.Device) -> None:
            gate.hold(["load"])

        def execute(self, text: list[str]) -> list[str]:
            return text

    with Runtime(echo) as runtime:
        loading = threading.Thread(target=runtime.load, args=(Second(),))
        loading.start()
        gate.started()
        assert runtime.model("echo").version == "1"
        with pytest.raises(wherry.ModelNotReady, match="loading"):
            runtime.model("echo", "2")
        with pytest.raises(wherry.ModelNotFound):
            runtime.model("echo", "3")
        gate.open()
        loading.join()
        assert runtime.model("echo", "2").version == "2"
