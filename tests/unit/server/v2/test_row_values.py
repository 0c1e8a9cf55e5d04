"""How do the values of rows become a column: what holds for all rows, most of all?"""

from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from tests.http_exchange import served
from wherry.core.models.model import Model
from wherry.core.values.errors import RequestTooLarge
from wherry.core.values.request import bytes_of
from wherry.server.v2.row_values import MAX_REPEATED_BYTES, RowValues


@wherry.model(max_batch_size=8)
def files(file: list[bytes], name: list[str]) -> list[str]:
    return name


@wherry.model(max_batch_size=8)
def arrays(x: Annotated[np.ndarray, wherry.FP32[-1]], name: list[str]) -> list[str]:
    return name


@wherry.model(max_batch_size=8)
def counts(seen: list[dict[str, Any]], words: list[list[str]], name: list[str]) -> list[int]:
    for row, word in zip(seen, words, strict=True):
        row["n"] = row["n"] + 1
        word.append("more")
    return [row["n"] + len(word) for row, word in zip(seen, words, strict=True)]


def rows_of(model: Model) -> RowValues:
    return RowValues(model.signature("m").inputs[0], "m")


def test_bytes_and_arrays_that_hold_for_all_rows_take_their_memory_once() -> None:
    column = rows_of(files).repeated(memoryview(b"abc"), 500)
    assert isinstance(column, list)
    assert len(column) == 500
    assert {id(row) for row in column} == {id(column[0])}
    array = rows_of(arrays).repeated([1.0] * 1000, 500)
    assert isinstance(array, np.ndarray)
    assert (array.shape, array.strides[0]) == ((500, 1000), 0)
    assert bytes_of({"x": array}) == 500 * 4000  # but a queue holds them as rows of a batch


def test_lists_and_objects_that_hold_for_all_rows_are_each_rows_own() -> None:
    parts = [("seen", '{"n": 1}'), ("words", '["a", "b"]'), ("name", "x"), ("name", "y")]
    body = "".join(
        f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'
        for name, text in parts
    )
    with served(counts) as client:
        answer = client.post(
            "/v2/models/counts/generate",
            f"{body}--B--\r\n".encode(),
            {"content-type": "multipart/form-data; boundary=B"},
        )
    assert answer.json["output"] == [5, 5]


def test_a_list_that_would_be_too_many_is_refused_before_it_is_copied() -> None:
    rows = RowValues(counts.signature("m").inputs[1], "m")
    row = ["a"] * 10_000
    enough = MAX_REPEATED_BYTES // bytes_of({"": [row]})
    assert len(rows.repeated(row, enough)) == enough
    with pytest.raises(RequestTooLarge, match="input 'words' of model 'm': is sent once for"):
        rows.repeated(row, 10**9)
