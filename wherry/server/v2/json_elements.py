"""How is JSON read: a whole body, and the `data` of an input as elements of its datatype?"""

from __future__ import annotations

import codecs
import math
import re
import secrets
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, TypeVar

import msgspec
import numpy as np

from wherry.core.api import (
    BOOL,
    BYTES,
    FP32,
    UINT64,
    Buffer,
    Datatype,
    Form,
    InvalidRequest,
    Tag,
    TensorSpec,
)
from wherry.server.v2.element_bytes import dims_text
from wherry.server.v2.long_arrays import MAX_DEPTH, TOO_DEEP, LongArray, check_values

_MISMATCHES: Final = {
    "str": "non-string as string",
    "bool": "non-boolean as boolean",
    "int": "non-signed-integer as signed-integer",
    "unsigned": "non-unsigned-integer as unsigned-integer",
    "float": "non-number as double",
    "array": "non-array as array",
    "object": "non-object as object",
}
_UNSIGNED: Final = ("shape",)

#: The parser's words for text that is not JSON, and those of Triton's.
_MALFORMED: Final = (
    ("invalid character", "Invalid value."),
    ("trailing characters", "The document root must not be followed by other values."),
    ("keys must be strings", "Missing a name for object member."),
    ("expected ':'", "Missing a colon after a name of object member."),
    ("expected ',' or '}'", "Missing a comma or '}' after an object member."),
    ("expected ',' or ']'", "Missing a comma or ']' after an array element."),
)
#: More than any tensor's elements or bytes: what a size of 64 signed bits can hold.
_MOST_BYTES: Final = 2**63 - 1

_BYTE: Final = re.compile(r" \(byte (\d+)\)$")
_EXPECTED: Final = re.compile(r"expected (\w+)")


def malformed(error: Exception) -> InvalidRequest:
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
    """The kind of value that an explained error expects, if it is about kinds at all."""
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
        """The error of an element that is not of its datatype, or out of its range."""
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
            return self.wrong_string_count(count, got)
        return InvalidRequest(
            "Unable to parse 'data': Shape does not match true shape of 'data' field",
            tag=Tag.JSON,
            more=f" (input '{self._name}' of model '{self._model}': shape {dims_text(shape)} needs"
            f" {count} elements, data has {got})",
        )

    def wrong_string_count(self, count: int, got: int) -> InvalidRequest:
        where = f"for inference input '{self._name}' for model '{self._model}'"
        if got < count:
            return InvalidRequest(f"expected {count} string elements {where}, got {got}")
        return InvalidRequest(
            f"unexpected number of string elements {got} {where}, expecting {count}"
        )

    def invalid(self, problem: str, tag: Tag | None = None) -> InvalidRequest:
        return InvalidRequest(f"input '{self._name}' of model '{self._model}': {problem}", tag=tag)


#: Floats that JSON has no number for. Triton's clients send and expect the bare literals, others
#: send them as strings where a number is expected, as in protobuf's JSON.
NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

#: What stands for the literals while the parser, which knows none, reads the text: numbers, so that
#: they are not texts, with digits that no client can know.
_DIGITS: Final = f"1.{10**15 + secrets.randbelow(9 * 10**15)}"
_STAND_INS: Final = {
    b"NaN": f"{_DIGITS}e301",
    b"Infinity": f"{_DIGITS}e302",
    b"-Infinity": f"-{_DIGITS}e302",
}
_OF_STAND_IN: Final = {
    float(number): NON_FINITE[literal.decode()] for literal, number in _STAND_INS.items()
}
#: No float that a client may send is as large; FP64's rare ones that are take the long way.
_MOST_USUAL: Final = 1e300

#: A literal, or the end, behind all that is not a literal: strings are taken whole, also one that
#: does not end. It matches wherever it is tried, so that no byte is looked at twice.
_TO_THE_NEXT_NON_FINITE: Final = re.compile(
    rb"""((?:[^"NI-]++|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|(?!NaN|-?Infinity).)*+)(NaN|-?Infinity|\Z)""",
    re.DOTALL,
)

_FIRST_INDEX: Final = re.compile(r"\[([0-9]+)\]")
_UNTYPED: Final = msgspec.json.Decoder()
_decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode

T = TypeVar("T")


def parse_object(body: Buffer) -> dict[str, Any]:
    try:
        return _decode_object(body)
    except (ValueError, RecursionError) as error:
        return decoded_again(_decode_object, body, error)


def decoded_again(decode: Callable[[Buffer], T], body: Buffer, error: Exception) -> T:
    """Decode a body that `decode` has refused with `error`, without the mark of UTF-8 before it and
    with the literals NaN and Infinity, which are floats in what it returns but for text that is not
    decoded yet. InvalidRequest if it has neither, or is wrong otherwise."""
    loose = None
    begins = bytes(body[:2])
    if 0 in begins or begins in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise InvalidRequest(
            "failed to parse the request JSON buffer: it begins as UTF-16 or UTF-32 does; send JSON"
            " as UTF-8",
            tag=Tag.JSON,
        )
    if not isinstance(error, msgspec.ValidationError):
        text = bytes(body).removeprefix(codecs.BOM_UTF8)
        loose = _with_stand_ins(text)
        if loose is None and len(text) < len(body):
            loose = text
    if loose is not None:
        try:
            found: T = literal_floats(decode(loose))
            return found
        except (ValueError, RecursionError) as other:
            error = other
    if isinstance(error, UnicodeDecodeError) or str(error).startswith("Invalid UTF-8"):
        try:  # for the place in the whole: msgspec's is one within a text, or (0.23) none
            bytes(body).decode()
        except UnicodeDecodeError as whole:
            error = whole
    raise malformed(error) from None


def _with_stand_ins(text: bytes) -> bytes | None:
    if b"NaN" not in text and b"Infinity" not in text:
        return None
    return _TO_THE_NEXT_NON_FINITE.sub(
        # Between blanks: what stands directly beside a literal makes no number of it.
        lambda found: (
            b"%b %b " % (found[1], _STAND_INS[found[2]].encode()) if found[2] else found[1]
        ),
        text,
    )


def literal_floats(value: Any) -> Any:
    """The value with nan and inf for what stands for them: lists and objects are changed, and the
    parameters of requests."""
    kind = type(value)
    if kind is float:
        return _OF_STAND_IN.get(value, value)
    if kind is list:
        value[:] = map(literal_floats, value)
    elif kind is dict:
        value.update({name: literal_floats(one) for name, one in value.items()})
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            setattr(value, name, literal_floats(getattr(value, name)))
    return value


def _restored(value: Any, text: Buffer | msgspec.Raw) -> Any:
    """`literal_floats` of what was decoded from a part of a body that `decoded_again` has read."""
    return literal_floats(value) if _DIGITS.encode() in bytes(memoryview(text)) else value


def _untyped(text: Buffer | msgspec.Raw | str) -> Any:
    """Any JSON value, with the literals. ValueError, RecursionError."""
    try:
        return _UNTYPED.decode(text)
    except msgspec.DecodeError:
        loose = _with_stand_ins(text.encode() if isinstance(text, str) else bytes(memoryview(text)))
        if loose is None:
            raise
        return literal_floats(_UNTYPED.decode(loose))


def element_type(datatype: Datatype) -> Any:
    """Return the type of one element of `data`; the range of an integer is part of it."""
    if datatype is BYTES:
        return str
    if datatype is BOOL:
        return bool
    if datatype.dtype.kind == "f":
        return float
    limits = np.iinfo(datatype.dtype.name)
    # msgspec's bounds have 64 signed bits: numpy refuses what is too large for a UINT64.
    most = None if datatype is UINT64 else int(limits.max)
    return Annotated[int, msgspec.Meta(ge=int(limits.min), le=most)]


def _fast_element_type(datatype: Datatype) -> Any:
    """Return a narrower type that is fast to check: floats that it refuses are checked again."""
    if datatype.dtype.kind == "f":
        limit = float(np.finfo(np.float32).max) if datatype is FP32 else _MOST_USUAL
        return Annotated[float, msgspec.Meta(ge=-limit, le=limit)]
    return element_type(datatype)


class JsonElements:
    """Reads the elements of one input from JSON: flat or nested in any way, strings for the floats
    that JSON lacks."""

    __slots__ = ("_errors", "_list_type", "_spec", "are_rows", "decode", "usual_type")

    def __init__(self, spec: TensorSpec, errors: InputErrors) -> None:
        self._spec = spec
        self._errors = errors
        #: Whether each element is a row: any JSON value.
        self.are_rows = spec.form is Form.JSON and spec.shape == ()
        self._list_type: Any = list[element_type(spec.datatype)]  # type: ignore[misc]
        fast: Any = list[_fast_element_type(spec.datatype)]  # type: ignore[misc]
        #: The type of the usual `data`: a flat list.
        self.usual_type: Any = list[Any] if self.are_rows else fast
        #: Reads the usual `data`. What it refuses may be right (see `parse`).
        decode = msgspec.json.Decoder(self.usual_type).decode
        self.decode = _checked(decode) if self.are_rows else decode

    def parse(self, data: Buffer | msgspec.Raw) -> list[Any]:
        """The elements, slowly and with care. InvalidRequest names the wrong one."""
        try:
            value = _restored(_untyped(data), data)
        except (ValueError, RecursionError) as error:
            raise self.malformed(error) from None
        return self.checked(value)

    def malformed(self, error: Exception) -> InvalidRequest:
        return self._errors.invalid(f"data: {explain(error)}", Tag.JSON)

    def pieces(self, data: LongArray) -> Iterator[list[Any]]:
        first = 0
        try:
            for text in data.texts():
                piece = self._piece(text, first)
                first += len(piece)
                yield piece
        except InvalidRequest:
            raise
        except (ValueError, RecursionError) as error:
            reason = explain(error).partition(" (byte ")[0]  # of the piece, not of the body
            raise self._errors.invalid(f"data: {reason}", Tag.JSON) from None

    def _piece(self, text: bytes, first: int) -> list[Any]:
        try:
            values: list[Any] = self.decode(text)
            return values
        except msgspec.DecodeError:
            pass  # it is nested, or has literals that JSON lacks, or is wrong
        return self.checked(_untyped(text), first)

    def checked(self, values: Any, first: int = 0) -> list[Any]:
        """Flat elements of the right type, from anything that JSON may be; there are `first`
        before them."""
        if not isinstance(values, list):
            raise self._errors.invalid(f"data: expected array, got {_json_kind(values)}", Tag.JSON)
        if self.are_rows:
            return values
        flat = _flat(values)
        if self._spec.datatype.dtype.kind == "f":
            flat = [NON_FINITE.get(v, v) if type(v) is str else v for v in flat]
        try:
            checked: list[Any] = msgspec.convert(flat, self._list_type)
            return checked
        except msgspec.ValidationError as error:
            reason = explain(error, "data")
            if first:
                reason = _FIRST_INDEX.sub(
                    lambda found: f"[{int(found[1]) + first}]", reason, count=1
                )
            raise self._errors.wrong_kind(reason) from None

    def of(self, value: Any) -> list[Any]:
        """The elements of a value without a shape: one, or a list of them."""
        if not self.are_rows:
            return _flat(value)
        if not isinstance(value, list):
            return [value]
        if self._spec.holds_lists:  # then it is one row, if its elements are not
            return value if value and all(isinstance(row, list) for row in value) else [value]
        return value


def parse_element(text: str | bytes) -> Any:
    """The JSON value of one element. ValueError, RecursionError; what `check_values` raises."""
    check_values(text.encode() if isinstance(text, str) else text)
    return _untyped(text)


def _checked(decode: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
    """Limit the depth of elements that may be any JSON to that of a whole body."""

    def checked(data: Buffer | msgspec.Raw) -> list[Any]:
        check_values(memoryview(data))
        values: list[Any] = _restored(decode(data), data)
        return values

    return checked


def _flat(value: Any, depth: int = 1) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    if depth > MAX_DEPTH:
        raise InvalidRequest(TOO_DEEP, tag=Tag.JSON)
    if not any(isinstance(element, list) for element in value):
        return value
    flat: list[Any] = []
    for element in value:
        flat.extend(_flat(element, depth + 1))
    return flat


def _json_kind(value: Any) -> str:
    names = {dict: "object", str: "string", bool: "bool", type(None): "null"}
    return names.get(type(value), "number")
