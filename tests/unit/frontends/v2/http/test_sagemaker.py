"""frontends/v2/http/sagemaker.py: what SageMaker wants of a container."""

import json
from typing import Annotated

import numpy as np
import pytest

import wherry
from tests.http_exchange import MemoryExchange, served
from wherry.frontends.v2.http.sagemaker import BINARY

ROW = Annotated[np.ndarray, wherry.FP32[2]]


@wherry.model(max_batch_size=4)
def double(x: ROW) -> ROW:
    return x * 2


@wherry.model
def quiet(text: str) -> str:
    return text


TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 2]}


def test_the_only_model_is_invoked() -> None:
    with served(double, sagemaker=True) as client:
        assert client.get("/ping").status == 200
        answer = client.post("/invocations", {"inputs": [{**TENSOR, "data": [1, 2]}]})
        assert answer.json["outputs"][0]["data"] == [2, 4]
        refused = client.post("/invocations", {"inputs": []})
        assert refused.status == 400
        assert "missing required input(s) ['x']" in refused.error
        assert client.get("/invocations").status == 405


@pytest.mark.parametrize("layout", ["{}{}", "{}{} ", "X{}{}"])
def test_binary_data_comes_behind_json_of_the_content_types_length(layout: str) -> None:
    head = json.dumps(
        {
            "inputs": [{**TENSOR, "parameters": {"binary_data_size": 8}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    body = head + np.array([1, 2], np.float32).tobytes()
    with served(double, sagemaker=True) as client:
        content_type = layout.format(BINARY, len(head))
        answer = client.post("/invocations", body, {"content-type": content_type})
        if layout.startswith("X"):
            assert answer.status == 400
            return
    assert answer.content_type.startswith(BINARY)
    assert "inference-header-content-length" not in answer.headers
    size = int(answer.content_type.removeprefix(BINARY))
    assert json.loads(answer.body[:size])["model_name"] == "double"
    assert np.frombuffer(answer.body[size:], np.float32).tolist() == [2, 4]


@pytest.mark.parametrize("size", ["", "ten", "-1", "99999"])
def test_a_length_that_is_none_is_refused(size: str) -> None:
    with served(double, sagemaker=True) as client:
        answer = client.post("/invocations", b"{}", {"content-type": BINARY + size})
    assert answer.status == 400


def invoked(sagemaker_model: str | None) -> MemoryExchange:
    with served(double, quiet, sagemaker=True, sagemaker_model=sagemaker_model) as client:
        return client.post("/invocations", {"inputs": [{**TENSOR, "data": [1, 2]}]})


def test_of_several_models_one_must_be_named() -> None:
    answer = invoked(None)
    assert answer.status == 400
    assert "2 models to choose from (double, quiet)" in answer.error
    assert invoked("double").json["model_name"] == "double"
    assert invoked("nobody").status == 404


def test_without_its_flag_there_are_no_invocations() -> None:
    with served(double) as client:
        assert client.post("/invocations", b"{}").status == 404
