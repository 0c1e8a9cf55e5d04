"""Which rows may a model's code change, without anybody else seeing it?

What a request holds stays as it was sent, as a batch may run again in parts. So the code gets
copies, but for a lone row, which runs once: its arrays are copied only if they are read-only, by
which whoever makes a request says that they are not its own (a body, a caller's array).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from wherry.values.request import Column, Columns, concatenate
from wherry.workers.encoding import UNSENDABLE, copied


def gather(parts: Sequence[Columns]) -> Columns:
    """The rows of several requests as columns that the code may change."""
    if len(parts) > 1:  # arrays and lists of its own
        return {
            name: _own_rows(column) if isinstance(column, list) else column
            for name, column in concatenate(parts).items()
        }
    return {name: _own(column) for name, column in parts[0].items()}


def _own(column: Column) -> Column:
    if isinstance(column, list):
        return _own_rows(column.copy())
    return column if len(column) == 1 and column.flags.behaved else column.copy()


def _own_rows(column: list[Any]) -> list[Any]:
    first = column[0]
    if isinstance(first, str | bytes):
        return column
    if isinstance(first, np.ndarray):
        lone = len(column) == 1 and first.flags.behaved
        return column if lone else [row.copy() for row in column]
    if isinstance(first, list) and first and isinstance(first[0], bytes | str):
        return [copy.copy(row) for row in column]  # elements of strings
    return column if len(column) == 1 else _copied(column)


def _copied(column: list[Any]) -> list[Any]:
    try:
        rows: list[Any] = copied(column)
        return rows
    except UNSENDABLE:  # such as an integer of more than 64 bits
        return copy.deepcopy(column)
