"""Which rows is a model's code called with, that it may change without anybody else seeing it?

What a request holds stays as it was sent, as a batch may run again in parts. So the code gets
copies, but for a lone row, which runs once: its arrays are copied only if they are read-only, by
which whoever makes a request says that they are not its own (a body, a caller's array).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from wherry.core.values.request import Column, Columns, concatenate
from wherry.core.values.tensors import is_tensor, own
from wherry.core.workers.encoding import UNSENDABLE, copied

#: The types of rows that nobody can change, and that most columns have.
_STRINGS = {str, bytes}


def gather_rows(parts: Sequence[Columns], *, once: bool = True, device: str = "") -> Columns:
    """The rows of several requests as columns that the code may change; tensors on several devices,
    on this one. Not `once`: even a lone row runs again."""
    lone = len(parts) == 1
    columns = dict(parts[0]) if lone else concatenate(parts, device)
    for name, column in columns.items():
        lends = once and lone and len(column) == 1
        if not isinstance(column, np.ndarray):
            columns[name] = _own(column, lends, is_new=not lone)
        elif lone and not (lends and column.flags.behaved):
            columns[name] = column.copy()
    return columns


def _own(column: Column, lends: bool, is_new: bool) -> Column:
    """`is_new`: the column was made of those of several requests."""
    if not isinstance(column, list):  # a tensor
        return column if is_new else own(column, lent=lends)
    kinds = set(map(type, column))
    if kinds <= _STRINGS:
        return column if is_new else column.copy()
    if not any(issubclass(kind, list | dict) for kind in kinds):
        return [_own_row(row, lends) for row in column]
    if all(isinstance(row, list) and _holds_bytes(row) for row in column):
        return [copy.copy(row) for row in column]  # a tensor of strings
    return column.copy() if lends else _copied(column)


def _own_row(row: Any, lends: bool) -> Any:
    if isinstance(row, np.ndarray):
        return row if lends and row.flags.behaved else row.copy()
    return own(row, lent=lends) if is_tensor(row) else row


def _holds_bytes(row: list[Any]) -> bool:
    return all(issubclass(kind, bytes) for kind in set(map(type, row)))


def _copied(column: list[Any]) -> list[Any]:
    try:
        rows: list[Any] = copied(column)
        return rows
    except UNSENDABLE:  # such as an integer of more than 64 bits
        return copy.deepcopy(column)
