"""What must be copied of an answer, so that the model and its callers share nothing of it?

A worker's answers are encoded at once. One of a model in this process goes to its caller as it is,
or is encoded later: its JSON rows become what a worker would have sent, and an array is copied if
anything else still refers to it, or to the memory that it is a view of.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from wherry.models.signature import Signature
from wherry.values.datatypes import Form
from wherry.values.errors import BadModelOutput
from wherry.values.media_codec import is_converted
from wherry.values.request import Columns
from wherry.values.tensors import is_tensor, own
from wherry.workers.encoding import UNSENDABLE, copied, why_not_sent


class OwnAnswers:
    """Makes the outputs of one model its callers' own."""

    def __init__(self, signature: Signature, model: str) -> None:
        self._model = model
        specs = [spec for spec in signature.outputs if not is_converted(spec.media)]
        self._json = [spec.name for spec in specs if spec.form is Form.JSON]
        strings = [s for s in specs if s.form in (Form.TEXT, Form.BYTES)]
        #: Of these a row is a list.
        self._lists = [spec.name for spec in strings if spec.shape]
        of_others = {*self._json, *(spec.name for spec in strings)}
        self._arrays = [spec.name for spec in specs if spec.name not in of_others]

    def of(self, outputs: Columns) -> Columns:
        """These outputs, changed in place. The caller must hold nothing else of them.
        BadModelOutput."""
        if self._arrays and not _are_new(outputs, self._arrays):
            _own_arrays(outputs, self._arrays)
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


def _own_arrays(outputs: Columns, names: Sequence[str]) -> None:
    """Copy the arrays that something else refers to as well."""
    for holder, key in list(_tensors(outputs, names)):
        only_here = sys.getrefcount(holder[key]) <= _NEW
        holder[key] = own(holder[key], lent=only_here)
    places = list(_places(outputs, names))
    views = Counter([id(holder[key].base) for holder, key in places])
    ends: dict[int, int] = {}
    shared = [
        (holder, key)
        for holder, key in places
        if not _is_plain(holder[key])
        or _references(holder, key, views[id(holder[key].base)])
        > (_FRESH if holder[key].base is None else _FRESH_VIEW)
        or (views[id(holder[key].base)] > 1 and _overlaps(holder[key], ends))
    ]
    for holder, key in shared:
        holder[key] = holder[key].copy()


def _overlaps(array: Any, ends: dict[int, int]) -> bool:
    """May it have memory in common with one that was looked at before, of the same base? `ends`:
    where these end, by the base."""
    if array.base is None:
        return False
    if array.nbytes <= _COPIED_BYTES:
        return True
    start, base = array.__array_interface__["data"][0], id(array.base)
    if start < ends.get(base, 0) or not array.flags.c_contiguous:
        return True
    ends[base] = start + array.nbytes
    return False


def _are_new(outputs: Columns, names: Sequence[str]) -> bool:
    """Is each of them, as nearly always, an array that is no view, and that nothing else has?"""
    for name in names:
        if name not in outputs or sys.getrefcount(outputs[name]) > _NEW:
            return False
        column = outputs[name]
        if type(column) is not np.ndarray or column.base is not None:
            return False
        if not column.flags.behaved:
            return False
    return True


def _places(outputs: Columns, names: Sequence[str]) -> Iterator[tuple[Any, Any]]:
    for name in names:
        column = outputs.get(name)
        if isinstance(column, np.ndarray):
            yield outputs, name
        elif isinstance(column, list):
            yield from [(column, n) for n, one in enumerate(column) if isinstance(one, np.ndarray)]


def _tensors(outputs: Columns, names: Sequence[str]) -> Iterator[tuple[Any, Any]]:
    for name in names:
        column = outputs.get(name)
        if is_tensor(column):
            yield outputs, name
        elif isinstance(column, list):
            yield from [(column, row) for row, one in enumerate(column) if is_tensor(one)]


def _is_plain(array: Any) -> bool:
    """Is its memory its own, or that of another array?"""
    base = array.base
    is_arrays = base is None or (type(base) is np.ndarray and base.base is None)
    return is_arrays and bool(array.flags.behaved)


def _references(holder: Any, key: Any, views: int) -> int:
    """How many references there are to an array and to what it is a view of, beside those of so
    many views."""
    base = holder[key].base
    return sys.getrefcount(holder[key]) + (0 if base is None else sys.getrefcount(base) - views)


#: So much is copied in less time than it takes to look where it lies.
_COPIED_BYTES = 64 << 10

#: The references to an array that only a dict has, counted where Python counts its own.
_ONE: Columns = {"": np.empty(1)}
_NEW = sys.getrefcount(_ONE[""])
#: That of one that nothing refers to but its holder; of a view, by which nothing else refers to its
#: base.
_FRESH = _references([np.empty(1)], 0, 0)
_FRESH_VIEW = _references([np.empty(1)[:]], 0, 1)
