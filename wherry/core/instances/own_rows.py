"""Which rows can a model's code, and which answers can its callers, change without effect on
others?

What a request holds stays as it was sent, as a batch may run again in parts. So the code gets
copies, but for a lone row, which runs once: its arrays are copied only if they are read-only, which
marks arrays that the request does not own (a body, a caller's array).

A worker's answers are encoded at once. One of a model in this process goes to its caller as it is,
or is encoded later: its JSON rows become what a worker would have sent, and an array is copied if
anything else still refers to it, or to the memory that it is a view of.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wherry.core.models.signature import Signature
from wherry.core.values.datatypes import Form
from wherry.core.values.errors import BadModelOutput
from wherry.core.values.media_codec import is_converted
from wherry.core.values.request import Column, Columns, concatenate
from wherry.core.values.tensors import is_tensor, own
from wherry.core.workers.encoding import UNSENDABLE, copied, why_not_sent

#: Types of rows that cannot be changed, and that most columns have.
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


class OwnAnswers:
    """Makes the outputs of one model its callers' own."""

    def __init__(self, signature: Signature, model: str) -> None:
        self._model = model
        specs = [spec for spec in signature.outputs if not is_converted(spec.media)]
        self._json = [spec.name for spec in specs if spec.form is Form.JSON]
        strings = [s for s in specs if s.form in (Form.TEXT, Form.BYTES)]
        #: Outputs whose rows are lists.
        self._lists = [spec.name for spec in strings if spec.shape]
        of_others = {*self._json, *(spec.name for spec in strings)}
        self._arrays = [spec.name for spec in specs if spec.name not in of_others]
        self._tensors = [spec.name for spec in specs if spec.library]

    def of(self, outputs: Columns) -> Columns:
        """These outputs, changed in place. The caller must hold nothing else of them.
        BadModelOutput."""
        if self._tensors:
            for holder, key in _places(outputs, self._tensors, is_tensor):
                only_here = sys.getrefcount(holder[key]) <= _NEW
                holder[key] = own(holder[key], lent=only_here)
        for name in self._arrays:  # nearly always none is a view, and nothing else has it
            if (
                name not in outputs
                or sys.getrefcount(outputs[name]) > _NEW
                or not _is_whole(outputs[name])
            ):
                _own_arrays(outputs, self._arrays)
                break
        for name in self._lists:
            if name in outputs:
                outputs[name] = [copy.copy(row) for row in outputs[name]]
        return self.json_of(outputs) if self._json else outputs

    def json_of(self, outputs: Columns) -> Columns:
        """These outputs with their rows of JSON as a worker would send them. BadModelOutput."""
        for name in self._json:
            if name in outputs:
                outputs[name] = self._rows(name, outputs[name])
        return outputs

    def _rows(self, name: str, column: Any) -> list[Any]:
        try:
            rows: list[Any] = copied(column)
            return rows
        except UNSENDABLE as error:
            raise unsendable(self._model, name, why_not_sent(column) or str(error)) from error


def unsendable(model: str, output: str, reason: str) -> BadModelOutput:
    if "keys must be hashable" in reason:  # msgpack's decoder
        reason = "a dict has a key that is neither text nor a number"
    return BadModelOutput(
        f"model {model!r} returned what cannot be sent: output {output!r}: {reason}"
    )


def _is_whole(array: Any) -> bool:
    """Is it an array, and not a view of another one?"""
    return type(array) is np.ndarray and array.base is None


def _own_arrays(outputs: Columns, names: Sequence[str]) -> None:
    """Copy the arrays that something else refers to as well."""
    large: list[tuple[Any, Any]] = []
    for holder, key in _places(outputs, names, lambda value: isinstance(value, np.ndarray)):
        if holder[key].nbytes > _COPIED_BYTES:
            large.append((holder, key))
        elif sys.getrefcount(holder[key]) > _NEW or not _is_whole(holder[key]):
            holder[key] = holder[key].copy()
    views = Counter([id(holder[key].base) for holder, key in large])
    ends: dict[int, int] = {}
    shared = [
        (holder, key)
        for holder, key in large
        if not _is_plain(holder[key])
        or _references(holder, key, views[id(holder[key].base)])
        > (_FRESH if holder[key].base is None else _FRESH_VIEW)
        or (views[id(holder[key].base)] > 1 and _overlaps(holder[key], ends))
    ]
    for holder, key in shared:
        holder[key] = holder[key].copy()


def _overlaps(array: Any, ends: dict[int, int]) -> bool:
    """Can it share memory with one that was looked at before, of the same base? `ends`: where these
    end, by the base."""
    if array.base is None:
        return False
    start, base = array.__array_interface__["data"][0], id(array.base)
    if start < ends.get(base, 0) or not array.flags.c_contiguous:
        return True
    ends[base] = start + array.nbytes
    return False


def _places(
    outputs: Columns, names: Sequence[str], is_one: Callable[[Any], bool]
) -> list[tuple[Any, Any]]:
    """Where in these columns such arrays are."""
    places: list[tuple[Any, Any]] = []
    for name in names:
        column = outputs.get(name)
        if is_one(column):
            places.append((outputs, name))
        elif isinstance(column, list):
            places += [(column, row) for row, one in enumerate(column) if is_one(one)]
    return places


def _is_plain(array: Any) -> bool:
    """Is its memory its own, or that of another array?"""
    base = array.base
    is_arrays = base is None or (type(base) is np.ndarray and base.base is None)
    return is_arrays and bool(array.flags.behaved)


def _references(holder: Any, key: Any, views: int) -> int:
    """How many references there are to an array and to what it is a view of, besides those of
    `views` views."""
    base = holder[key].base
    return sys.getrefcount(holder[key]) + (0 if base is None else sys.getrefcount(base) - views)


#: Bytes that are copied in less time than it takes to look where they lie.
_COPIED_BYTES = 64 << 10

#: The references to an array that only a dict holds, as counted in this way by Python.
_ONE: Columns = {"": np.empty(1)}
_NEW = sys.getrefcount(_ONE[""])
#: The count for an array to which only its holder refers, and for a view if nothing else refers to
#: its base.
_FRESH = _references([np.empty(1)], 0, 0)
_FRESH_VIEW = _references([np.empty(1)[:]], 0, 1)
