"""What is a client told of an input that is wrong?"""

from __future__ import annotations

from typing import Final

from wherry.frontends.v2.json_errors import expected_kind, mismatch
from wherry.frontends.v2.wire_shape import dims_text
from wherry.values.datatypes import Datatype
from wherry.values.errors import InvalidRequest

#: More than any tensor's elements or bytes: what a size of 64 signed bits can say.
_MOST_BYTES: Final = 2**63 - 1


class InputErrors:
    """The errors of one input of a model, in Triton's words where it has any."""

    __slots__ = ("_datatype", "_model", "_name")

    def __init__(self, name: str, model: str, datatype: Datatype) -> None:
        self._name = name
        self._model = model
        self._datatype = datatype

    def size_mismatch(self, expected: int, got: int) -> InvalidRequest:
        return InvalidRequest(
            f"input byte size mismatch for input '{self._name}' for model '{self._model}'."
            f" Expected {expected}, got {got}"
        )

    def wrong_kind(self, said: str) -> InvalidRequest:
        """An element that is none of its datatype, or one that is out of its range."""
        kind = expected_kind(said)
        if self._datatype.dtype.kind == "u" and (kind == "int" or ">= 0" in said):
            kind = "unsigned"
        elif kind is None or "got" not in said:
            return self.invalid(said)
        what = "Unable to parse 'data'" if kind != "str" else "Unable to parse JSON bytes array"
        return InvalidRequest(
            f"{what}: {mismatch(kind)} (input '{self._name}' of model '{self._model}': {said})"
        )

    def wrong_count(self, shape: list[int], count: int, got: int) -> InvalidRequest:
        if count > _MOST_BYTES:
            return self.invalid(
                f"shape {dims_text(shape)} causes total element count to exceed maximum size of"
                f" {_MOST_BYTES}"
            )
        if count * self._datatype.itemsize > _MOST_BYTES:
            return InvalidRequest(
                f"byte size overflow for input '{self._name}' for model '{self._model}': shape"
                f" {dims_text(shape)}"
            )
        return InvalidRequest(
            "Unable to parse 'data': Shape does not match true shape of 'data' field (input"
            f" '{self._name}' of model '{self._model}': shape {dims_text(shape)} needs {count}"
            f" elements, data has {got})"
        )

    def invalid(self, problem: str) -> InvalidRequest:
        return InvalidRequest(f"input '{self._name}' of model '{self._model}': {problem}")
