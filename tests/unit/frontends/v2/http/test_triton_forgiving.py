"""frontends/v2/http/triton_forgiving.py: requests as a tritonserver 2.51 took them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wherry.frontends.v2.http.triton_forgiving import as_triton_takes_it

WIDE = "input 'X' of model 'm': data[0]: expected int <= 255"
PRIORITY = "model 'm': priority 9 is not between 1 (first) and 3, or 0 (default)"
TEXT_ID = "model 'm': sequence id 'a' is text, but the model takes it as UINT64 ('C'); use a number"


def taken(told: str, *, same_length: bool = False, **members: Any) -> Any:
    given = json.dumps({"inputs": [], **members}).encode()
    made = as_triton_takes_it(given, told, same_length=same_length)
    if made is not None and same_length:
        assert len(made) == len(given)
    return None if made is None else json.loads(made)


@pytest.mark.parametrize(
    ("datatype", "data", "wrapped"),
    [
        ("UINT8", [256, 1], [0, 1]),
        ("INT8", [[-129]], [127]),
        ("INT32", [2**31], [-(2**31)]),
        ("UINT16", [65535], [65535]),
        ("FP32", [1e39], [float("inf")]),
        ("INT64", [2**63], [2**63]),
        ("INT8", ["a"], ["a"]),
    ],
)
def test_numbers_wrap_around(datatype: str, data: list[Any], wrapped: list[Any]) -> None:
    given = {"name": "X", "datatype": datatype, "data": data}
    assert taken(WIDE, inputs=[given])["inputs"] == [{**given, "data": wrapped}]


def test_a_priority_that_is_not_there_is_none() -> None:
    assert taken(PRIORITY, same_length=True, parameters={"priority": 9, "x": 1})["parameters"] == {
        "x": 1
    }


def test_a_text_is_the_same_sequence_each_time() -> None:
    first, again, other = (
        taken(TEXT_ID, parameters={"sequence_id": name})["parameters"]["sequence_id"]
        for name in ("a", "a", "b")
    )
    assert first == again != other
    assert taken(TEXT_ID, same_length=True, parameters={"sequence_id": "a"}) is None  # it is longer


def test_other_faults_stay() -> None:
    assert taken("input 'X' already exists in request") is None
    assert as_triton_takes_it(b"[]", WIDE, same_length=False) is None
