"""docs/reference/annotations.md: what it says of an annotation is what client and code see."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wherry
from tests.http_exchange import served
from wherry.core.models.signature import read_signature
from wherry.core.values.errors import ConfigError

PAGE = (Path(__file__).parents[4] / "docs/reference/annotations.md").read_text(encoding="utf-8")


def rows_of(header: str) -> list[list[str]]:
    """The cells of the table with this header, without the marks of code around them."""
    table = PAGE.partition(f"\n{header}\n")[2].partition("\n\n")[0].splitlines()[1:]
    assert table, f"there is no table {header}"
    cells = ([cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in table)
    return [
        [cell.replace("\\|", "|").removeprefix("`").removesuffix("`") for cell in row]
        for row in cells
    ]


def names() -> dict[str, Any]:
    """What the blocks of the page define."""
    found: dict[str, Any] = {"__name__": "a_page"}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        if "Runtime" not in block:
            exec(compile(block, "annotations.md", "exec", dont_inherit=True), found)
    return found


NAMES = names()
COLUMNS = rows_of(
    "| annotation | datatype | a row's shape | a row in JSON | in `infer`'s `data` | the code has |"
)
SINGLE = rows_of("| annotation | datatype | a row's shape | a row in JSON | the code has |")


def annotated(hint: str, returns: str, seen: list[Any]) -> Callable[..., Any]:
    def echo(x: Any) -> Any:
        seen.append(x)
        return x

    echo.__annotations__ = {"x": eval(hint, NAMES), "return": eval(returns, NAMES)}
    return echo


def is_same(got: Any, expected: Any) -> bool:
    """Whether they are alike, in arrays and in lists of arrays, with their dtypes."""
    if isinstance(expected, np.ndarray):
        return (
            isinstance(got, np.ndarray)
            and got.dtype == expected.dtype
            and got.shape == expected.shape
            and bool((got == expected).all())
        )
    if isinstance(expected, list):
        return len(got) == len(expected) and all(map(is_same, got, expected))
    return bool(got == expected)


@pytest.mark.parametrize(
    ("hint", "datatype", "shape", "row", "data", "has"), COLUMNS, ids=[row[0] for row in COLUMNS]
)
def test_a_column_is_on_the_wire_and_in_the_code_as_the_page_says(
    hint: str, datatype: str, shape: str, row: str, data: str, has: str
) -> None:
    seen: list[Any] = []
    echo = annotated(hint, hint, seen)
    spec = read_signature(echo, "echo").inputs[0]
    assert (str(spec.datatype), spec.shape) == (datatype, eval(shape))
    value = json.loads(row)
    dims = [1, *np.shape(value)] if eval(shape) else [1]
    tensor = {"name": "x", "datatype": datatype, "shape": dims, "data": json.loads(data)}
    with served(wherry.model(max_batch_size=4)(echo)) as client:
        generated = client.post("/v2/models/echo/generate", {"x": value})
        inferred = client.post("/v2/models/echo/infer", {"inputs": [tensor]})
    assert generated.status == 200, generated.body
    assert inferred.status == 200, inferred.body
    assert len(seen) == 2
    assert all(is_same(got, eval(has, NAMES)) for got in seen), seen
    output = inferred.json["outputs"][0]
    assert (output["datatype"], output["shape"]) == (datatype, dims)


@pytest.mark.parametrize(
    ("hint", "datatype", "shape", "row", "has"), SINGLE, ids=[row[0] for row in SINGLE]
)
def test_a_single_value_is_on_the_wire_and_in_the_code_as_the_page_says(
    hint: str, datatype: str, shape: str, row: str, has: str
) -> None:
    seen: list[Any] = []
    echo = annotated(hint, hint, seen)
    signature = read_signature(echo, "echo")
    spec = signature.inputs[0]
    assert signature.row_wise
    assert (str(spec.datatype), spec.shape) == (datatype, eval(shape))
    with served(wherry.model(echo)) as client:
        answer = client.post("/v2/models/echo/generate", {"x": json.loads(row)})
    assert answer.status == 200, answer.body
    assert seen == [eval(has, NAMES)]
    if signature.returns == "single":  # else the fields are outputs
        assert answer.json["output"] == json.loads(row)


@pytest.mark.parametrize(
    ("hint", "media"), [row[:2] for row in rows_of("| annotation | media | the code has |")]
)
def test_media_are_bytes_that_the_signature_names(hint: str, media: str) -> None:
    spec = read_signature(annotated(hint, "list[str]", []), "m").inputs[0]
    assert (str(spec.datatype), spec.shape) == ("BYTES", ())
    assert spec.media is not None
    assert spec.media.kind == media


@pytest.mark.parametrize(
    ("hint", "of", "outputs", "streams"), rows_of("| returns | of | outputs | streams |")
)
def test_what_is_returned_has_the_outputs_that_the_page_says(
    hint: str, of: str, outputs: str, streams: str
) -> None:
    takes = {"columns": "list[str]", "one row": "str"}[of]
    signature = read_signature(annotated(takes, hint, []), "m")
    told = [f"{one.name} {one.datatype} {one.shape}" for one in signature.outputs]
    assert told == outputs.split("`, `")
    assert signature.streams is (streams == "yes")


@pytest.mark.parametrize(("hint", "because"), rows_of("| annotation of `x` | because |"))
def test_what_is_refused_is_refused_for_the_reason_that_the_page_says(
    hint: str, because: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(because)):
        read_signature(annotated(hint, "list[str]", []), "m")


def test_every_form_that_a_signature_can_have_is_on_the_page() -> None:
    """Relatives: what the reader of annotations knows as a container or scalar has a row."""
    told = " ".join(row[0] for row in [*COLUMNS, *SINGLE])
    kinds = ["str", "bytes", "int", "float", "bool", "dict", "Mapping", "Sequence", "NDArray"]
    assert [kind for kind in kinds if not re.search(rf"\b{kind}\b", told)] == []
