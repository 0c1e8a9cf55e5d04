from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

import wherry
from wherry.backends.load import backend_for
from wherry.repository.triton_config import (
    TritonConfig,
    TritonInput,
    TritonOutput,
    TritonParameter,
    TritonTensorReshape,
    TritonTransactionPolicy,
)
from wherry.values.errors import ConfigError, InvalidRequest


def made(**fields: Any) -> Any:
    return backend_for("", "1", TritonConfig(name="m", **fields))


def tensors(kind: Any, name: str, *types: Any, **fields: Any) -> list[Any]:
    return [
        kind(name=f"{name}{number}", data_type=data_type, dims=[-1], **fields)
        for number, data_type in enumerate(types)
    ]


def identity(*types: Any, **fields: Any) -> Any:
    given: dict[str, Any] = {
        "input": tensors(TritonInput, "INPUT", *types),
        "output": tensors(TritonOutput, "OUTPUT", *types),
    }
    return made(backend="identity", **{**given, **fields})


@pytest.mark.parametrize("max_batch_size", [0, 8])
def test_identity_gives_numbers_and_strings_back(max_batch_size: int) -> None:
    model = identity("TYPE_FP32", "TYPE_STRING", max_batch_size=max_batch_size)
    numbers, strings = np.array([1.5, 2], np.float32), [b"a", b"bc"]
    with wherry.Runtime(model) as runtime:
        found = runtime.infer("m", INPUT0=numbers, INPUT1=strings)

    assert np.asarray(found["OUTPUT0"]).tolist() == [1.5, 2]
    assert list(found["OUTPUT1"]) == strings


def test_identity_gives_zeros_for_what_is_optional_and_not_there() -> None:
    inputs = tensors(TritonInput, "INPUT", "TYPE_INT32", "TYPE_INT8", optional=True)
    model = identity("TYPE_INT32", "TYPE_INT8", input=inputs, max_batch_size=4)
    with wherry.Runtime(model) as runtime:
        found = runtime.infer_batch("m", INPUT0=np.ones((2, 3), np.int32))

    assert np.asarray(found["OUTPUT1"]).tolist() == [[0], [0]]


def test_identity_gives_a_batch_of_different_shapes_back() -> None:
    inputs = tensors(TritonInput, "INPUT", "TYPE_FP32", "TYPE_STRING")
    inputs[0] = msgspec.structs.replace(inputs[0], allow_ragged_batch=True)
    model = identity("TYPE_FP32", "TYPE_STRING", input=inputs, max_batch_size=4)
    given = [np.arange(2, dtype=np.float32), np.arange(3, dtype=np.float32)]

    with wherry.Runtime(model) as runtime:
        answered = [runtime.infer("m", INPUT0=row, INPUT1=b"a")["OUTPUT0"] for row in given]
        together = runtime.infer_batch("m", INPUT0=given, INPUT1=[b"a", b"b"])

    assert [row.tolist() for row in answered] == [[0, 1], [0, 1, 2]]
    assert [row.tolist() for row in together["OUTPUT0"]] == [[0, 1], [0, 1, 2]]
    assert list(together["OUTPUT1"]) == [b"a", b"b"]


def test_identity_reshapes_as_the_configuration_says() -> None:
    given = TritonInput(
        name="INPUT0", data_type="TYPE_INT32", dims=[4], reshape=TritonTensorReshape(shape=[2, 2])
    )
    sent = TritonOutput(name="OUTPUT0", data_type="TYPE_INT32", dims=[2, 2])
    with wherry.Runtime(identity(input=[given], output=[sent], max_batch_size=2)) as runtime:
        found = runtime.infer("m", INPUT0=np.arange(4, dtype=np.int32))
    assert np.asarray(found["OUTPUT0"]).tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        (["TYPE_FP32"], "'INPUT0' is TYPE_INT32, 'OUTPUT0' is TYPE_FP32"),
        (["TYPE_INT32", "TYPE_INT32"], "identity has INPUT0 and OUTPUT0"),
    ],
)
def test_identity_wants_pairs(outputs: list[Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        identity("TYPE_INT32", output=tensors(TritonOutput, "OUTPUT", *outputs))


def test_a_delay_that_is_none_is_refused() -> None:
    delays = {"execute_delay_ms": TritonParameter(string_value="long")}
    with (
        pytest.raises(wherry.LoadFailed, match="'execute_delay_ms' must be a number"),
        wherry.Runtime(identity("TYPE_INT32", parameters=delays)),
    ):
        pass


def values(responses: Any, name: str) -> list[int]:
    return [int(np.ravel(response[name])[0]) for response in responses]


def test_repeat_sends_each_element_with_its_number() -> None:
    model = made(backend="repeat")
    assert [one.name for one in model.triton.input] == ["IN", "DELAY", "WAIT"]
    zeros = np.zeros(3, np.uint32)
    with wherry.Runtime(model) as runtime:
        found = list(
            runtime.stream("m", IN=np.array([4, 2, 0], np.int32), DELAY=zeros, WAIT=zeros[:1])
        )
        assert values(found, "OUT") == [4, 2, 0]
        assert values(found, "IDX") == [0, 1, 2]
        none = np.zeros(0, np.int32)
        assert not list(runtime.stream("m", IN=none, DELAY=zeros[:0], WAIT=zeros[:1]))
        with pytest.raises(InvalidRequest, match="IN has 1 elements, DELAY 3"):
            list(runtime.stream("m", IN=np.ones(1, np.int32), DELAY=zeros, WAIT=zeros[:1]))


@pytest.mark.parametrize("max_batch_size", [0, 1])
def test_square_sends_as_often_as_it_is_told(max_batch_size: int) -> None:
    policy = TritonTransactionPolicy(decoupled=True)
    model = made(backend="square", max_batch_size=max_batch_size, model_transaction_policy=policy)
    with wherry.Runtime(model) as runtime:
        assert values(runtime.stream("m", IN=np.array([3], np.int32)), "OUT") == [3, 3, 3]
        assert not list(runtime.stream("m", IN=np.array([0], np.int32)))


def test_other_names_than_the_backends_are_refused() -> None:
    with pytest.raises(ConfigError, match="the inputs of repeat are IN, DELAY, WAIT"):
        made(backend="repeat", input=tensors(TritonInput, "INPUT", "TYPE_INT32"))
