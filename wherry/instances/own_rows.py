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
from wherry.values.tensors import is_tensor, own
from wherry.workers.encoding import UNSENDABLE, copied


def gather(parts: Sequence[Columns], *, once: bool = True) -> Columns:
    """The rows of several requests as columns that the code may change. Not `once`: even a lone row
    runs again."""
    lone = len(parts) == 1
    return {
        name: column.copy()
        if isinstance(column, list) and isinstance(column[0], str | bytes)
        else _own(column, once, is_new=not lone)
        for name, column in (parts[0] if lone else concatenate(parts)).items()
    }


def _own(column: Column, once: bool, is_new: bool) -> Column:
    """`is_new`: the column was made of those of several requests."""
    lends = once and not is_new and len(column) == 1
    if isinstance(column, np.ndarray):
        return column if is_new or (lends and column.flags.behaved) else column.copy()
    if not isinstance(column, list):  # a tensor
        return column if is_new else own(column, lent=lends)
    first = column[0]
    if is_tensor(first):
        return [own(row, lent=lends) for row in column]
    if isinstance(first, np.ndarray):
        return [row if lends and row.flags.behaved else row.copy() for row in column]
    if isinstance(first, list) and first and isinstance(first[0], bytes):
        return [copy.copy(row) for row in column]  # a tensor of strings
    return column.copy() if lends else _copied(column)


def _copied(column: list[Any]) -> list[Any]:
    try:
        rows: list[Any] = copied(column)
        return rows
    except UNSENDABLE:  # such as an integer of more than 64 bits
        return copy.deepcopy(column)
