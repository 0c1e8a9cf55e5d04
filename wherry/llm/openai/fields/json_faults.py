"""What in a body is no JSON that can be served, and in which of its fields is it?

The parser says at which byte it has stopped, not in which field. A depth that the parser still
takes may be too much for what reads the values later: templates, grammars, other processes.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from wherry.core.api import Buffer, InvalidRequest, RequestTooLarge
from wherry.llm.openai.errors import BadField
from wherry.server.api import LARGE_BYTES, check_values

#: How deeply arrays and objects may be nested; real schemas have a tenth of it.
MAX_DEPTH: Final = 100
#: Of a body whose fault is looked for.
MAX_BYTES: Final = 2**20
_TOO_DEEP: Final = f"is nested more than {MAX_DEPTH} deep"

# Possessive, and up to the end where a quote is missing: nothing is looked at twice.
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:(")|\\?+\Z)'
_PARTS: Final = re.compile(_STRING + rb"(?=\s*+(:?))|[\[\]{}]|-?+(?:NaN|Infinity)\b", re.DOTALL)
_OPENS, _CLOSES = (b"[", b"{"), (b"]", b"}")


def check_depth(body: Buffer) -> None:
    """Raise BadField if the body is nested more than MAX_DEPTH deep. Costs next to nothing for
    bodies of few brackets. Of large ones `check_values` has told."""
    if len(body) > LARGE_BYTES:
        return
    text = bytes(body)  # the same object, as a body most often is
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return
    if (fault := _first_fault(text, of_strings=False)) is not None and fault.is_depth:
        raise BadField(fault.field, fault.problem)


def fault_of(body: Buffer) -> BadField | None:
    """The first text that is no Unicode, number that is none, or nesting that is too deep, with
    its field; None if it is something else, or too long to be looked for."""
    fault = None if len(body) > MAX_BYTES else _first_fault(bytes(body), of_strings=True)
    return None if fault is None else BadField(fault.field, fault.problem)


def json_in(text: str, where: str) -> Any:
    """The JSON value that a text of the request holds, within the same bounds as the request.
    BadField names the text's field; RequestTooLarge."""
    encoded = text.encode()
    if len(encoded) > LARGE_BYTES:
        try:
            check_values(encoded)
        except RequestTooLarge:
            raise
        except InvalidRequest:
            raise BadField(where, _TOO_DEEP) from None
    elif (fault := _first_fault(encoded, of_strings=False)) is not None and fault.is_depth:
        raise BadField(where, fault.problem)
    try:
        return msgspec.json.decode(encoded)
    except msgspec.DecodeError:
        raise BadField(where, "is not JSON") from None


class _Fault(msgspec.Struct):
    #: The name of the outermost object's member; None: it is not inside of one.
    field: str | None
    problem: str
    is_depth: bool = False


def _first_fault(text: bytes, *, of_strings: bool) -> _Fault | None:
    depth, field = 0, None
    for part in _PARTS.finditer(text):
        token = part[0]
        if token in _OPENS:
            depth += 1
            if depth > MAX_DEPTH:
                return _Fault(field, _TOO_DEEP, is_depth=True)
        elif token in _CLOSES:
            depth -= 1
        elif not token.startswith(b'"'):
            return _Fault(field, f"is not JSON: {token.decode()} is not a number")
        elif not part[1]:
            return None  # a string without an end
        elif depth == 1 and part[2]:
            field, problem = _read(token)
            if problem:
                return _Fault(None, f"the name of a field {problem}")
        elif of_strings and (problem := _read(token)[1]):
            return _Fault(field, problem)
    return None


def _read(token: bytes) -> tuple[str, str]:
    """A JSON string as text, and what is wrong with it."""
    try:
        return msgspec.json.decode(token, type=str), ""
    except UnicodeDecodeError:
        return "", "is not UTF-8"
    except msgspec.DecodeError as error:
        if "surrogate" in str(error) or "truncated" in str(error):
            return "", "has half of a surrogate pair, which is no Unicode text"
        return "", f"is not JSON: {error}"
