"""How is a client told what is wrong with its JSON, or with an input?

In Triton's words, which its users know and search for, with the place and what was found behind
them: "Unable to parse 'shape': attempt to access JSON non-array as array (inputs[0].shape:
expected array, got int)". Triton numbers no place.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from wherry.core.api import BYTES, Datatype, InvalidRequest, Tag
from wherry.server.v2.wire_shape import dims_text

MAX_DEPTH: Final = 100
TOO_DEEP: Final = f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})"

_MISMATCHES: Final = {
    "str": "non-string as string",
    "bool": "non-boolean as boolean",
    "int": "non-signed-integer as signed-integer",
    "unsigned": "non-unsigned-integer as unsigned-integer",
    "float": "non-number as double",
    "array": "non-array as array",
    "object": "non-object as object",
}
#: Members that hold whole numbers from 0 up.
_UNSIGNED: Final = ("shape",)

#: What the parser says of text that is no JSON, and what Triton's does.
_MALFORMED: Final = (
    ("invalid character", "Invalid value."),
    ("trailing characters", "The document root must not be followed by other values."),
    ("keys must be strings", "Missing a name for object member."),
    ("expected ':'", "Missing a colon after a name of object member."),
    ("expected ',' or '}'", "Missing a comma or '}' after an object member."),
    ("expected ',' or ']'", "Missing a comma or ']' after an array element."),
)
#: More than any tensor's elements or bytes: what a size of 64 signed bits can say.
_MOST_BYTES: Final = 2**63 - 1

_BYTE: Final = re.compile(r" \(byte (\d+)\)$")
_EXPECTED: Final = re.compile(r"expected (\w+)")


def malformed(error: Exception) -> InvalidRequest:
    """The error for a text that is not JSON, or JSON that has the wrong form."""
    if isinstance(error, RecursionError):
        return InvalidRequest(TOO_DEEP, tag=Tag.JSON)
    reason = explain(error)
    if isinstance(error, msgspec.ValidationError) and "number out of range" not in reason:
        return InvalidRequest(_wrong_member(reason), tag=Tag.JSON, more=f" ({reason})")
    found = _BYTE.search(reason)
    for ours, theirs in _MALFORMED:
        if ours in reason and found:
            reason = f"{theirs} at {found[1]}"
    return InvalidRequest(f"failed to parse the request JSON buffer: {reason}", tag=Tag.JSON)


def mismatch(kind: str) -> str:
    """Return Triton's words for a value that is not of this kind (a key of the table above)."""
    return f"attempt to access JSON {_MISMATCHES[kind]}"


def explain(error: Exception, root: str = "") -> str:
    """Return the parser's message, the place first: "inputs[0].name: expected str, got int"."""
    if isinstance(error, RecursionError):
        return TOO_DEEP
    text = str(error)
    if isinstance(error, UnicodeDecodeError):
        return f"JSON is not UTF-8 text ({error.reason} at byte {error.start})"
    if not isinstance(error, msgspec.ValidationError):
        return text[:1].upper() + text[1:]
    problem, _, place = text.replace("`", "").partition(" - at ")
    place = root + place.removeprefix("$")
    problem = problem[:1].lower() + problem[1:]
    return f"{place.removeprefix('.')}: {problem}" if place else problem


def expected_kind(reason: str) -> str | None:
    """The kind of value that an explained error misses, if it is about kinds at all."""
    found = _EXPECTED.search(reason)
    return found[1] if found and found[1] in _MISMATCHES else None


def _wrong_member(reason: str) -> str:
    place, _, problem = reason.rpartition(": ")
    missing = re.fullmatch(r"object missing required field (\w+)", problem)
    if missing:
        name = missing[1]
        return f"Unable to parse '{name}': attempt to access non-existing object member '{name}'"
    kind = expected_kind(problem)
    name = re.sub(r"\[(?:\d+|\.\.\.)\]", "", place).rpartition(".")[2]
    if kind is None or not name:
        return "attempt to get members for non-object"
    if kind == "int" and name in _UNSIGNED:
        kind = "unsigned"
    return f"Unable to parse '{name}': {mismatch(kind)}"


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

    def wrong_kind(self, reason: str) -> InvalidRequest:
        """An element that is none of its datatype, or one that is out of its range."""
        kind = expected_kind(reason)
        if self._datatype.dtype.kind == "u" and (kind == "int" or ">= 0" in reason):
            kind = "unsigned"
        elif kind is None or "got" not in reason:
            return self.invalid(reason, Tag.JSON)
        what = "Unable to parse 'data'" if kind != "str" else "Unable to parse JSON bytes array"
        return InvalidRequest(
            f"{what}: {mismatch(kind)}",
            tag=Tag.JSON,
            more=f" (input '{self._name}' of model '{self._model}': {reason})",
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
        if self._datatype is BYTES:
            where = f"for inference input '{self._name}' for model '{self._model}'"
            if got < count:
                return InvalidRequest(f"expected {count} string elements {where}, got {got}")
            return InvalidRequest(
                f"unexpected number of string elements {got} {where}, expecting {count}"
            )
        return InvalidRequest(
            "Unable to parse 'data': Shape does not match true shape of 'data' field",
            tag=Tag.JSON,
            more=f" (input '{self._name}' of model '{self._model}': shape {dims_text(shape)} needs"
            f" {count} elements, data has {got})",
        )

    def invalid(self, problem: str, tag: Tag | None = None) -> InvalidRequest:
        return InvalidRequest(f"input '{self._name}' of model '{self._model}': {problem}", tag=tag)
