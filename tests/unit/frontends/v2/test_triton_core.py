"""frontends/v2/triton_core.py: which fault is told, as a tritonserver 2.51 was asked."""

from __future__ import annotations

import pytest

from wherry.frontends.v2.model_tensors import ModelTensors
from wherry.frontends.v2.triton_core import NOTE, CoreView, TakenInput, binary_input, core_fault
from wherry.models.config import ModelConfig
from wherry.models.signature import Signature
from wherry.values.datatypes import BYTES, FP32, Form, TensorSpec


def view(rows: int, *optional: str) -> CoreView:
    specs = tuple(
        TensorSpec(name, FP32, (4,), Form.ARRAY, optional=name in optional)
        for name in ("INPUT0", "INPUT1")
    )
    signature = Signature(specs, specs, False, False, False, "named")
    config = ModelConfig(name="m", max_batch_size=rows)
    return CoreView(ModelTensors(config, signature), rows)


def given(name: str, *shape: int, datatype: str = "FP32", nbytes: int | None = 16) -> TakenInput:
    return TakenInput(name, datatype, shape, nbytes)


INPUT0, INPUT1 = given("INPUT0", 1, 4), given("INPUT1", 1, 4)
ID = "[request id: i] "


@pytest.mark.parametrize(
    ("inputs", "outputs", "text"),
    [
        ([INPUT0], ["NO", "A"], "unexpected inference output 'A' for model 'm'"),
        (
            [INPUT0, INPUT1, given("INPUT2", 1)],
            [],
            ID + "expected 2 inputs but got 3 inputs for model 'm'. Got input(s)"
            " ['INPUT2','INPUT1','INPUT0'], but missing required input(s) ]. Please provide all"
            " required input(s).",
        ),
        ([INPUT0, INPUT0], [], ID + "input 'INPUT0' already exists in request"),
        ([INPUT0, given("X", 1, 4)], [], "unexpected inference input 'X' for model 'm'"),
        (
            [INPUT0, given("INPUT1")],
            [],
            ID + "input 'INPUT1' has no shape but model requires batch dimension for 'm'",
        ),
        (
            [INPUT0, given("INPUT1", 2, 4)],
            [],
            ID + "input 'INPUT0' batch size does not match other inputs for 'm'",
        ),
        (
            [given("INPUT0", 9, 4), given("INPUT1", 9, 4)],
            [],
            ID + "inference request batch-size must be <= 8 for 'm'",
        ),
        (
            [INPUT0, given("INPUT1", 1, 4, datatype="INT33")],
            [],
            ID + "inference input 'INPUT1' data-type is '<invalid>', but model 'm' expects 'FP32'",
        ),
        (
            [INPUT0, given("INPUT1", 1, -1)],
            [],
            ID + "All input dimensions should be specified for input 'INPUT1' for model 'm', got"
            " [1,-1]",
        ),
        (
            [INPUT0, given("INPUT1", 1, 5)],
            [],
            f"{ID}unexpected shape for input 'INPUT1' for model 'm'. Expected [-1,4], got [1,5]."
            f" {NOTE}",
        ),
        (  # as its batch size has 32 bits
            [INPUT0, given("INPUT1", 2**62, 4, nbytes=0)],
            [],
            ID + "input byte size mismatch for input 'INPUT1' for model 'm'. Expected 16, got 0",
        ),
        ([INPUT0, INPUT1], ["INPUT0"], None),
    ],
)
def test_the_core_looks_in_its_own_order(
    inputs: list[TakenInput], outputs: list[str], text: str | None
) -> None:
    assert core_fault(view(8), inputs, outputs, "i") == text


def test_an_input_may_be_missing_where_others_are_optional() -> None:
    assert core_fault(view(8, "INPUT1"), [INPUT1], [], "") is None
    told = core_fault(view(8, "INPUT1"), [], [], "")
    assert told is not None
    assert told.startswith("[request id: <id_unknown>] expected number of inputs between 1 and 2")


def test_a_model_without_batches_has_its_own_shapes() -> None:
    told = core_fault(view(0), [given("INPUT0", 1, 4), given("INPUT1", 4)], [], "")
    assert told is not None
    assert told.endswith("Expected [4], got [1,4]. ")
    assert core_fault(view(0), [given("INPUT0", 4), given("INPUT1", 4)], [], "") is None


@pytest.mark.parametrize(
    ("texts", "rows", "text"),
    [
        (b"\1\0\0\0a", 1, None),
        (b"\1\0\0\0", 1, None),  # the model's backend misses the rest
        (b"\1\0\0\0", 2, "expected 2 string elements for inference input 'T' for model 'm', got 1"),
        (b"", 1, "expected 1 string elements for inference input 'T' for model 'm', got 0"),
        (b"\0\0\0\0" * 5, 1, "unexpected number of string elements 2 for inference input 'T' for"
         " model 'm', expecting 1"),
        (b"\1\0\0\0a\1", 1, "incomplete string length indicator for inference input 'T' for model"
         " 'm', expecting 4 bytes but only 1 bytes available. Please make sure the string length"
         " indicator is in one buffer."),
        (b"\1\0\0\0a\1\0\0\0b\1", 1, "unexpected number of string elements 2 for inference input"
         " 'T' for model 'm', expecting 1"),
    ],
)  # fmt: skip
def test_texts_are_counted_by_their_lengths(texts: bytes, rows: int, text: str | None) -> None:
    specs = (TensorSpec("T", BYTES, (1,), Form.ARRAY),)
    signature = Signature(specs, specs, False, False, False, "named")
    view = CoreView(ModelTensors(ModelConfig(name="m", max_batch_size=8), signature), 8)
    told = core_fault(view, [binary_input("T", "BYTES", [rows, 1], texts)], [], "i")
    assert told == (None if text is None else ID + text)
