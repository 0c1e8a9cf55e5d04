"""frontends/v2/http/triton_generate.py: which fault of a generate request Triton tells."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wherry.frontends.v2.http.triton_generate import generate_fault
from wherry.frontends.v2.model_tensors import ModelTensors
from wherry.frontends.v2.triton_core import CoreView
from wherry.models.config import ModelConfig
from wherry.models.signature import Signature
from wherry.values.datatypes import BYTES, INT32, Form, TensorSpec

NO_INT = "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"
SHAPE = "Unable to parse 'data': Shape does not match true shape of 'data' field"
FILLS = "The schema can not convert input 'X' to tensor with proper shape"
TYPE = "parameter 'p' has invalid type. It should be either 'int', 'bool', or 'string'."


def view(*shape: int, rows: int = 4) -> CoreView:
    specs = (
        TensorSpec("X", INT32, shape, Form.ARRAY),
        TensorSpec("T", BYTES, (1,), Form.ARRAY, optional=True),
    )
    signature = Signature(specs, specs, False, False, False, "named")
    config = ModelConfig(name="m", max_batch_size=rows)
    return CoreView(ModelTensors(config, signature), rows)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"X": [1, 2]}, None, None),
        ({"X": [1, 2], "p": 1, "parameters": {"q": "a"}}, None, None),
        ({"X": [1, None]}, 500, NO_INT),
        ({"X": None}, 400, FILLS),
        ({"X": [[1, 2], [3, 4]]}, 500, SHAPE),
        ({"X": [1, 2, 3]}, 400, FILLS),
        ({"X": "a", "p": []}, 400, FILLS),
        ({"p": [], "X": "a"}, 400, TYPE),
        ({"X": [1, 2], "parameters": 5}, 500, "Expected JSON object for keyword: 'parameters':"
         " attempt to access JSON non-object as object"),
        ({"parameters": {"p": {}}, "X": "a"}, 400, f"Converting keyword: 'parameters': {TYPE}"),
        ({"parameters": {"X": [1, 2]}, "X": [1, 2]}, 400,
         "[request id: <id_unknown>] input 'X' already exists in request"),
        ({"X": [1, 2], "T": 5}, 500,
         "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        ({"id": 5, "X": "a"}, 500,
         "Unable to parse 'id': attempt to access JSON non-string as string"),
        ({"id": "me"}, 400,
         "[request id: me] expected number of inputs between 1 and 2 but got 0 inputs for model"
         " 'm'. Got input(s) [], but missing required input(s) ['X']. Please provide all"
         " required input(s)."),
        ({"X": [1] * 10}, 400,
         "[request id: <id_unknown>] inference request batch-size must be <= 4 for 'm'"),
        ({"X": [], "p": []}, 400, TYPE),
        ({"X": []}, 400, "[request id: <id_unknown>] input byte size mismatch for input 'X' for"
         " model 'm'. Expected 8, got 0"),
        ([], None, None),
    ],
)  # fmt: skip
def test_members_are_read_one_by_one(body: Any, status: int | None, text: str | None) -> None:
    told = generate_fault(json.dumps(body).encode(), view(2))
    assert (told and told.status, told and told.text) == (status, text)


@pytest.mark.parametrize(
    ("shape", "count", "fits"),
    [
        ((2, -1), 6, True), ((-1, 2), 3, False), ((2, 2), 4, True), ((2, 2), 8, True),
        ((), 3, True),
        ((-1, -1), 5, True),
    ],
)  # fmt: skip
def test_the_last_open_size_takes_what_the_others_leave(
    shape: tuple[int, ...], count: int, fits: bool
) -> None:
    told = generate_fault(json.dumps({"X": [1] * count}).encode(), view(*shape, rows=8))
    assert (told is None or told.text != FILLS) is fits
