"""What do the values of a request take in memory?"""

from sys import getsizeof

import numpy as np
import pytest

from wherry.core.values.request import OBJECT_BYTES, Columns, bytes_of


@pytest.mark.parametrize(
    ("columns", "least"),
    [
        ({}, 0),
        ({"x": np.zeros((4, 8), np.float32)}, 128),
        ({"x": ["a" * 1000, "é" * 1000]}, 2000),
        ({"x": [[b"ab"] * 1000]}, 1000 * getsizeof(b"ab")),
        ({"x": [{"k": [1.5, {"n": "v" * 500}]}]}, 500),
        ({"x": [np.zeros(100), None]}, 800 + OBJECT_BYTES),
        ({"x": np.zeros(10, np.uint8), "y": ["b" * 90]}, 100),
    ],
)
def test_bytes_are_those_of_arrays_and_of_every_object(columns: Columns, least: int) -> None:
    assert least <= bytes_of(columns) <= 1.5 * least + 1000
