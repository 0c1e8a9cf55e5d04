"""frontends/v2/http/triton_forgiving.py: requests as a tritonserver 2.51 took them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wherry.frontends.v2.http.triton_forgiving import (
    as_triton_takes_it,
    generate_as_triton_takes_it,
)

WIDE = "input 'X' of model 'm': data[0]: expected int <= 255"
PRIORITY = "model 'm': priority 9 is not between 1 (first) and 3, or 0 (default)"


def taken(told: str, *, same_length: bool = False, **members: Any) -> Any:
    given = json.dumps({"inputs": [], **members}).encode()
    made = as_triton_takes_it(given, told, length=len(given) if same_length else None)
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


def test_other_faults_stay() -> None:
    assert taken("input 'X' already exists in request") is None
    assert as_triton_takes_it(b"[]", WIDE) is None


NO_ROWS = "input 'X' of model 'm': shape has 0 rows; a request needs at least one"
NO_JSON = "failed to parse the request JSON buffer: Invalid value. at 0"


def test_no_rows_of_other_data_than_json_are_one() -> None:
    inputs = [
        {"shape": [0, 2], "parameters": {"binary_data_size": 8}},
        {"shape": [0], "parameters": {"shared_memory_region": "r"}},
        {"shape": [0, 2], "data": [1, 2]},
        {"shape": [3]},
    ]
    made = taken(NO_ROWS, inputs=inputs)["inputs"]
    assert [given["shape"] for given in made] == [[1, 2], [1], [0, 2], [3]]


def test_json_that_is_refused_for_what_stands_around_it_is_written_anew() -> None:
    assert taken(NO_JSON, id="a") == {"inputs": [], "id": "a"}
    assert as_triton_takes_it(b'{"inputs":[]}', NO_JSON, length=20) == b'{"inputs":[]}       '
    assert as_triton_takes_it(b'{"inputs":', NO_JSON) is None


def test_numbers_of_generate_wrap_around_by_their_inputs_datatypes() -> None:
    text = json.dumps({"X": 2**31, "L": [256, 1], "p": 2**40, "s": "a"}).encode()
    datatypes = {"X": "INT32", "L": "UINT8", "s": "BYTES", "none": "INT8"}
    made = generate_as_triton_takes_it(text, WIDE, datatypes)
    assert made is not None
    assert json.loads(made) == {"X": [-(2**31)], "L": [0, 1], "p": 2**40, "s": ["a"]}
    assert generate_as_triton_takes_it(text, "id: expected str", datatypes) is None
