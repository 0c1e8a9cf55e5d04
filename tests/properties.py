"""How many examples does a property try?"""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def examples(times: float) -> settings:
    """Settings of a property that needs `times` as many examples as the profile has.

    The profiles are in `tests/conftest.py`: `make check` tries 8, `make test` 25,
    `make test-full` 100.
    """
    return settings(max_examples=max(1, round(times * settings().max_examples)))


def crossed(rows: Iterable[Any], columns: Iterable[Any]) -> list[Any]:
    """Parameters: each of `rows` with each of `columns`. `make test` has each row with a quarter
    of the columns, and each column with a quarter of the rows."""
    return [
        pytest.param(row, column, marks=[pytest.mark.full] if (x + y) % 4 else [])
        for x, row in enumerate(rows)
        for y, column in enumerate(columns)
    ]


def seeds(count: int) -> list[Any]:
    """Parameters 0 to `count` - 1 of a test with dice of its own: `make test` has a quarter."""
    tried = -(-count // 4)
    return [
        pytest.param(seed, marks=[] if seed < tried else [pytest.mark.full])
        for seed in range(count)
    ]
