"""server/v2/triton_errors.py: errors as a client of tritonserver expects them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

import wherry
from tests.unit.server.asking import upper
from wherry.core.values.errors import Cancelled, InvalidRequest, Tag
from wherry.server.server import Server
from wherry.server.v2.triton_errors import code_and_sentence
from wherry.testing import local_server


@wherry.model
def broken(text: str) -> str:
    raise ValueError(f"no {text}")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with local_server(
        upper, broken, triton_errors=True, grpc_port=0, allow_shared_memory=True
    ) as one:
        yield one


def post(server: Server, path: str, body: str) -> tuple[int, str | None, str]:
    """Status, Content-Type and the error."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    try:
        connection.request("POST" if body else "GET", path, body or None)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], json.load(answer)["error"]
    finally:
        connection.close()


def inputs(**changed: Any) -> str:
    tensor = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": ["a"], **changed}
    return json.dumps({"inputs": [tensor]})


JSON, TEXT = "application/json", "text/plain"


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "error"),
    [
        ("upper/infer", "{", 500, JSON, "failed to parse the request JSON buffer: Input data was"
         " truncated"),
        ("upper/infer", "[]", 500, JSON, "attempt to get members for non-object"),
        ("upper/infer", inputs(shape="a"), 500, JSON, "Unable to parse 'shape': attempt to access"
         " JSON non-array as array"),
        ("upper/infer", inputs(data=["a", "b"], shape=[1, 1]), 400, JSON, "unexpected number of"
         " string elements 2 for inference input 'text' for model 'upper', expecting 1"),
        ("upper/infer", inputs(name="x"), 400, JSON,
         "unexpected inference input 'x' for model 'upper'"),
        ("none/infer", inputs(), 404, TEXT, "Request for unknown model: 'none' is not found"),
        ("none/ready", "", 400, TEXT, "Request for unknown model: 'none' is not found"),
        ("none/config", "", 404, JSON, "Request for unknown model: 'none' is not found"),
        ("broken/generate", '{"text": "a"}', 400, JSON, "model 'broken' failed: ValueError: no a"),
        ("upper/generate", '{"text": 5}', 500, JSON,
         "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
    ],
)  # fmt: skip
def test_an_error_has_tritons_status_type_and_sentence(
    server: Server, path: str, body: str, status: int, kind: str, error: str
) -> None:
    assert post(server, f"/v2/models/{path}", body) == (status, kind, error)


def test_over_grpc_the_code_and_the_sentence_are_tritons(server: Server) -> None:
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.register_system_shared_memory("r", "/wherry_none", 8)
        told = caught.value
    assert told.status() == "StatusCode.INTERNAL"
    assert told.message() == "Unable to open shared memory region: 'r'"


def test_an_error_without_a_tag_keeps_its_code() -> None:
    assert code_and_sentence(Cancelled("left")) == ("CANCELLED", "left")
    wrong = InvalidRequest("x is wrong", tag=Tag.JSON, more="; send y")
    assert str(wrong) == "x is wrong; send y"
    assert code_and_sentence(wrong) == ("INVALID_ARGUMENT", "x is wrong")
    wrong.args = (f"in ensemble 'e', {wrong}",)  # as an ensemble names itself
    assert code_and_sentence(wrong) == ("INVALID_ARGUMENT", "in ensemble 'e', x is wrong")
