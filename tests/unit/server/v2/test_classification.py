"""server/v2/output_codec.py: the best classes of each row as texts."""

from typing import Any

import numpy as np
import pytest

from wherry.core.values.datatypes import BOOL, BYTES, FP32, Datatype, Form, TensorSpec
from wherry.core.values.errors import InvalidRequest
from wherry.server.v2.output_codec import MAX_CLASSES, best_classes, check_classifiable


@pytest.mark.parametrize(
    ("scores", "most", "texts"),
    [
        (np.array([[0.1, 0.7], [3, 1]], np.float32), 1, [["0.700000:1"], ["3.000000:0"]]),
        (np.array([[5, -7]], np.int64), 9, [["5:0", "-7:1"]]),
        (np.array([[1, 1, 2]], np.int8), 3, [["2:2", "1:0", "1:1"]]),
        (np.array([[0.5, 0.5]], np.float64), 2, [["0.500000:0", "0.500000:1"]]),
        (np.array([[1, np.nan, np.inf, -np.inf]], np.float32), 4,
         [["inf:2", "1.000000:0", "-inf:3", "nan:1"]]),
        (np.array([[-(2**63), 2**63 - 1]], np.int64), 1, [["9223372036854775807:1"]]),
        # They differ by less than a float can say.
        (np.array([[2**64 - 2, 2**64 - 1]], np.uint64), 1, [["18446744073709551615:1"]]),
        (np.array([[[1, 2], [4, 3]]], np.uint8), 2, [["4:2", "3:3"]]),
        (np.array([2.5], np.float16), 1, [["2.500000:0"]]),
        (np.zeros((2, 0), np.float32), 3, [[], []]),
    ],
)  # fmt: skip
def test_the_best_of_each_row_come_first(scores: Any, most: int, texts: list[list[str]]) -> None:
    assert best_classes(scores, most) == texts


def test_a_class_with_a_label_tells_it() -> None:
    scores = np.array([[1, 2, 3, 4]], np.int32)
    assert best_classes(scores, 4, ["cat", "", "a:b"]) == [["4:3", "3:2:a:b", "2:1", "1:0:cat"]]


@pytest.mark.parametrize("datatype", [BYTES, BOOL])
def test_what_has_no_scores_cannot_be_classified(datatype: Datatype) -> None:
    with pytest.raises(InvalidRequest, match=f"unsupported type '{datatype}' .output 'x' of"):
        check_classifiable(TensorSpec("x", datatype, (), Form.BYTES), "m")


def test_numbers_can() -> None:
    check_classifiable(TensorSpec("x", FP32, (3,), Form.ARRAY), "m")


def test_a_row_of_more_classes_than_can_be_put_in_order_is_refused() -> None:
    scores = np.zeros((1, MAX_CLASSES + 1), np.uint8)
    with pytest.raises(InvalidRequest, match="classification output tensor too large"):
        best_classes(scores, 1)
