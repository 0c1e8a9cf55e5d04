"""What do the values of a request take in memory?"""

import threading
from sys import getsizeof

import numpy as np
import pytest

from wherry.core.values.request import OBJECT_BYTES, Budget, Columns, bytes_of


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


def test_a_budget_is_taken_up_to_its_limit_and_given_back() -> None:
    budget = Budget(100)
    assert budget.take(60)
    assert not budget.take(41)
    assert budget.take(40)
    assert repr(budget) == "<Budget: 100 of 100 bytes held, 1 refused>"
    budget.give_back(60)
    assert budget.take(1)
    assert budget.held == 41


def test_what_a_part_takes_counts_in_the_whole() -> None:
    whole = Budget(100)
    part = Budget(50, within=whole)
    assert whole.take(70)
    assert not part.take(40)
    assert (part.held, whole.held) == (0, 70)
    assert part.take(30)
    assert not whole.take(1)
    part.give_back(30)
    assert (part.held, whole.held) == (0, 70)
    assert not part.take(51)
    assert whole.held == 70


def test_other_threads_return_what_the_next_one_takes() -> None:
    whole = Budget(100)
    part = Budget(100, within=whole)
    assert part.take(100)
    threads = [threading.Thread(target=part.return_later, args=(10,)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert part.take(100)
    assert (part.held, whole.held) == (100, 100)
