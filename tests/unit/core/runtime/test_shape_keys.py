"""Do requests have equal keys just when their inputs can be concatenated?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wherry.core.models.signature import Signature
from wherry.core.runtime.row_sizes import ShapeKeys
from wherry.core.values.datatypes import BYTES, FP32, Form, TensorSpec
from wherry.core.values.request import ShapedRow


def keys(*inputs: TensorSpec, strings: tuple[str, ...] = (), batched: bool = True) -> ShapeKeys:
    signature = Signature(
        inputs=inputs, outputs=(), row_wise=False, streams=False, is_async=False, returns="named"
    )
    return ShapeKeys(signature, strings, batched=batched)


def array(*shape: int, optional: bool = False) -> TensorSpec:
    return TensorSpec("x", FP32, shape, Form.ARRAY, optional)


def zeros(*shape: int) -> dict[str, Any]:
    return {"x": np.zeros(shape, np.float32)}


def test_arrays_of_one_shape_go_together_without_a_key() -> None:
    assert not keys(array(3)).differ
    assert keys(array(-1)).differ


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [((1, 3), (2, 3), True), ((1, 3), (1, 4), False), ((1, 3), (1, 3), True)],
)
def test_arrays_of_open_shapes_go_together_if_their_rows_have_one(
    first: tuple[int, ...], second: tuple[int, ...], together: bool
) -> None:
    given = keys(array(-1))
    assert (given.of(zeros(*first)) == given.of(zeros(*second))) is together


def test_without_a_batch_dimension_every_array_counts() -> None:
    given = keys(array(3), batched=False)
    assert given.of(zeros(1, 3)) is not None


def test_requests_with_and_without_an_optional_input_do_not_go_together() -> None:
    given = keys(array(3, optional=True))
    assert given.of(zeros(1, 3)) == given.of(zeros(2, 3)) != given.of({})


def test_strings_go_together_if_their_rows_have_one_shape() -> None:
    given = keys(TensorSpec("s", BYTES, (-1,), Form.BYTES), strings=("s",))
    flat, shaped = [b"a", b"b"], ShapedRow([b"a", b"b"], (1, 2))
    assert given.of({"s": [flat]}) == given.of({"s": [[b"c", b"d"]]})
    assert given.of({"s": [flat]}) != given.of({"s": [[b"c"]]})
    assert given.of({"s": [flat]}) != given.of({"s": [shaped]})
