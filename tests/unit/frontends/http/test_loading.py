"""What are clients told of a model that is not there yet?"""

import threading
from typing import Any

import pytest

import wherry
from tests.fakes import Gate
from tests.http_exchange import served
from wherry.runtime import Runtime

HELLO = [{"role": "user", "content": "hello"}]


@wherry.model(max_batch_size=4)
def echo(text: list[str]) -> list[str]:
    return text


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
    gate = Gate()

    class SlowLoad(wherry.Model):
        name = "slow_load"

        def load(self, device: wherry.Device) -> None:
            gate.hold(["load"])

        def execute(self, text: list[str]) -> list[str]:
            return text

    with served(echo) as client:
        loading = threading.Thread(target=client.runtime.load, args=(SlowLoad(),))
        loading.start()
        try:
            gate.started()
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
        finally:
            gate.open()
            loading.join()


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
