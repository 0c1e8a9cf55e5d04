"""frontends/v2/triton_reading.py and its sister of gRPC: which of several faults is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wherry.frontends.v2.grpc.triton_reading import first_fault as first_grpc_fault
from wherry.frontends.v2.model_tensors import ModelTensors
from wherry.frontends.v2.triton_core import CoreView
from wherry.frontends.v2.triton_reading import first_fault
from wherry.frontends.v2.triton_words import ToldError
from wherry.models.config import ModelConfig
from wherry.models.signature import Signature

X = {"name": "X", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]}
NO_STR = "attempt to access JSON non-string as string"
SHAPE = "Unable to parse 'data': Shape does not match true shape of 'data' field"


def told(binary: int = 0, **members: Any) -> tuple[int, str] | None:
    found = first_fault(json.dumps({"inputs": [X], **members}).encode(), bytes(binary), "m")
    return None if found is None else (found.status, found.text)


@pytest.mark.parametrize(
    ("members", "status", "text"),
    [
        ({"id": 5, "inputs": 5}, 500, f"Unable to parse 'id': {NO_STR}"),
        ({"parameters": {"sequence_id": "a" * 129}, "inputs": 5}, 501,
         "string correlation ID cannot be longer than 128 characters"),
        ({"parameters": [], "inputs": 5}, 500,
         "failed to get request params.: attempt to get members for non-object"),
        ({"inputs": [{**X, "data": ["1"]}], "outputs": 5}, 500,
         "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        ({"inputs": [{**X, "data": [[1, 2], 3]}]}, 500, SHAPE),
        ({"inputs": [{**X, "data": [1]}]}, 500, SHAPE),
        ({"inputs": [{"name": "X"}]}, 400, "Input must set only one of the following fields:"
         " 'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. But"
         " no field is set"),
        ({"inputs": [X, X], "outputs": 5}, 400,
         "[request id: <id_unknown>] input 'X' already exists in request"),
        ({"inputs": [{**X, "datatype": "INT33"}]}, 400, "invalid datatype for input X"),
        ({"outputs": [5]}, 500,
         "Unable to parse 'name': attempt to access non-existing object member 'name'"),
        ({"outputs": [{"name": "Y", "parameters": {"classification": -1}}]}, 500,
         "Unable to set 'classification': attempt to access JSON non-unsigned-integer as"
         " unsigned-integer"),
    ],
)  # fmt: skip
def test_the_first_fault_in_tritons_order_is_told(members: Any, status: int, text: str) -> None:
    assert told(**members) == (status, text)


def test_bytes_that_belong_to_no_input_come_before_the_outputs() -> None:
    assert told(3, outputs=5) == (400, "unexpected additional input data for model 'm'")


def test_a_binary_tensor_takes_its_bytes() -> None:
    given = {**X, "parameters": {"binary_data_size": 8}}
    del given["data"]
    assert told(8, inputs=[given]) is None
    missing = "unexpected size for input 'X', expecting 3 additional bytes for model 'm'"
    assert told(5, inputs=[given]) == (400, missing)


@pytest.mark.parametrize(
    "members",
    [
        {},
        {
            "inputs": [
                {
                    "name": "X",
                    "datatype": "INT32",
                    "shape": [1, 2],
                    "parameters": {"shared_memory_region": "r"},
                }
            ],
            "outputs": 5,
        },
        {"outputs": [{"name": "none", "parameters": {"x": [1]}}]},
    ],
)
def test_what_depends_on_the_model_is_left_to_it(members: Any) -> None:
    assert told(**members) is None


def test_nested_data_is_read_in_order_whatever_its_depth() -> None:
    deep = json.dumps({"inputs": [{**X, "data": "?"}]}).replace('"?"', "[" * 900 + "1" + "]" * 900)
    found = first_fault(deep.encode(), b"", "m")
    assert found is not None
    assert found.text == SHAPE


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"parameters": {"priority": {"int64_param": -1}}},
         "invalid value for 'priority', expected value >= 0."),
        ({"parameters": {"timeout": {}}},
         "invalid value type for 'timeout' parameter, expected int64_param."),
        ({"inputs": [{"name": "X", "datatype": "FP16", "contents": {"int_contents": [1]}}]},
         "unexpected explicit tensor data for input tensor 'X' for model 'm' of type 'INT32',"
         " expected datatype 'FP16'"),
        ({"inputs": [{"name": "X", "parameters": {"shared_memory_offset": {"int64_param": 1}}}]},
         "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for"
         " tensor 'X'"),
        ({"outputs": [{"name": "Y", "parameters": {"classification": {"int64_param": 0}}}]},
         "invalid value for 'classification' parameter, expected >= 0"),
        ({"inputs": [{"name": "X"}, {"name": "Y"}], "raw_input_contents": [b"1"]},
         "unable to find data for input tensor 'Y' for model 'm' in request."),
        ({"inputs": [{"name": "X", "datatype": "INT32", "contents": {"int_contents": [1]}}]}, None),
    ],
)  # fmt: skip
def test_the_first_fault_of_a_grpc_request_is_told(request_: Any, text: str | None) -> None:
    assert first_grpc_fault(request_, "m") == text


def test_a_region_that_is_missing_is_told_before_what_the_core_refuses() -> None:
    signature = Signature((), (), False, False, False, "named")
    tensors = ModelTensors(ModelConfig(name="m"), signature)
    view = CoreView(tensors, 0, has_region={"there"}.__contains__)

    def over_http(region: str, **place: Any) -> ToldError | None:
        window = {"shared_memory_region": region, "shared_memory_byte_size": 4}
        tensor = {"name": "no", "datatype": "INT32", "shape": [7], "parameters": window}
        members = {"inputs": [tensor]} if not place else {"inputs": [X], "outputs": [tensor]}
        return first_fault(json.dumps(members).encode(), b"", "m", view)

    missing = ToldError(404, "", "Unable to find shared memory region: 'r'")
    assert over_http("r") == over_http("r", of="an output") == missing
    assert over_http("there") is None

    def over_grpc(region: str) -> str | None:
        window = {
            "shared_memory_region": {"string_param": region},
            "shared_memory_byte_size": {"int64_param": 4},
        }
        tensor = {"name": "no", "datatype": "INT32", "shape": [7], "parameters": window}
        return first_grpc_fault({"inputs": [tensor]}, "m", view)

    assert over_grpc("r") == missing.text
    assert over_grpc("there") is None
