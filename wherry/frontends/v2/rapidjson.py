"""Where, and in which words, does Triton's JSON library refuse a text? For `--triton-strict`.

RapidJSON's grammar (reader.h) with NaN and Infinity, and its messages (error/en.h).
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from typing import Final

_BLANKS: Final = re.compile(rb"[ \t\r\n]*")
_PLAIN: Final = re.compile(rb'[^"\\\x00-\x1f]*')
_HEX: Final = re.compile(rb"[0-9a-fA-F]{4}")
_DIGITS: Final = re.compile(rb"[0-9]*")
#: Literals by their first byte; what has matched so far tells where the fault is.
_WORDS: Final = {
    b"n": b"null",
    b"t": b"true",
    b"f": b"false",
    b"N": b"NaN",
    b"I": b"Inf",
}
#: The halves of a pair, and where the second ones begin.
_SURROGATES: Final = range(0xD800, 0xE000)
_SECOND: Final = 0xDC00
INVALID: Final = "Invalid value."
#: What RapidJSON multiplies by ten when a digit follows, at most.
_MOST: Final = 1.7976931348623157e307


class _NoJson(Exception):
    """What RapidJSON says, and the byte at which it stands."""


def refusal(text: bytes) -> str:
    """RapidJSON's message, as Triton quotes it; "" where it takes the text. Linear in its size."""
    try:
        _document(text)
    except _NoJson as error:
        message, at = error.args
        return f"{message} at {at}"
    return ""


def _document(text: bytes) -> None:
    at = _skip(text, len(BOM_UTF8) if text.startswith(BOM_UTF8) else 0)
    if at == len(text):
        raise _NoJson("The document is empty.", at)
    open_: list[bytes] = []  # the ends of what is not closed
    while True:
        at, opened = _value(text, at)
        if opened:
            open_.append(opened)
            at = _skip(text, at)
            if text[at : at + 1] == opened:
                at, open_ = at + 1, open_[:-1]
            else:
                at = _name(text, at) if opened == b"}" else at
                continue
        while open_:
            at = _skip(text, at)
            if text[at : at + 1] != open_[-1]:
                break
            at += 1
            open_.pop()
        if not open_:
            break
        if text[at : at + 1] != b",":
            member = (
                "'}' after an object member" if open_[-1] == b"}" else "']' after an array element"
            )
            raise _NoJson(f"Missing a comma or {member}.", at)
        at = _skip(text, at + 1)
        at = _name(text, at) if open_[-1] == b"}" else at
    at = _skip(text, at)
    if at != len(text):
        raise _NoJson("The document root must not be followed by other values.", at)


def _skip(text: bytes, at: int) -> int:
    found = _BLANKS.match(text, at)
    return at if found is None else found.end()


def _name(text: bytes, at: int) -> int:
    """The name of a member and its colon."""
    if text[at : at + 1] != b'"':
        raise _NoJson("Missing a name for object member.", at)
    at = _skip(text, _string(text, at))
    if text[at : at + 1] != b":":
        raise _NoJson("Missing a colon after a name of object member.", at)
    return _skip(text, at + 1)


def _value(text: bytes, at: int) -> tuple[int, bytes]:
    """Where a value ends; an array or an object only begins: with the byte that ends it."""
    first = text[at : at + 1]
    if first == b"{":
        return at + 1, b"}"
    if first == b"[":
        return at + 1, b"]"
    if first == b'"':
        return _string(text, at), b""
    if first in (b"n", b"t", b"f"):
        return _word(text, at, _WORDS[first]), b""
    return _number(text, at), b""


def _word(text: bytes, at: int, word: bytes) -> int:
    for wanted in word:
        if text[at : at + 1] != bytes((wanted,)):
            raise _NoJson(INVALID, at)
        at += 1
    return at


def _number(text: bytes, at: int) -> int:
    begun = at
    at += text[at : at + 1] == b"-"
    first = text[at : at + 1]
    if first in (b"N", b"I"):
        at = _word(text, at, _WORDS[first])
        return at + 5 if text[at : at + 5] == b"inity" else at
    if not first.isdigit():
        raise _NoJson(INVALID, at)
    whole, at = at, at + 1 if first == b"0" else _digits(text, at, "")
    if (at - whole > 308 and float(text[whole : whole + 308]) >= _MOST) or at - whole > 309:
        raise _NoJson("Number too big to be stored in double.", begun)
    if text[at : at + 1] == b".":
        at = _digits(text, at + 1, "Miss fraction part in number.")
    if text[at : at + 1] in (b"e", b"E"):
        at += 2 if text[at + 1 : at + 2] in (b"+", b"-") else 1
        at = _digits(text, at, "Miss exponent in number.")
        if len(text[begun:at]) < 400 and float(text[begun:at]) in (float("inf"), float("-inf")):
            raise _NoJson("Number too big to be stored in double.", begun)
    return at


def _digits(text: bytes, at: int, missing: str) -> int:
    found = _DIGITS.match(text, at)
    end = at if found is None else found.end()
    if end == at and missing:
        raise _NoJson(missing, at)
    return end


def _escaped(text: bytes, at: int) -> int:
    """A character by its number; those beyond 16 bits are two, which belong together."""
    if _HEX.match(text, at + 2) is None:
        raise _NoJson("Incorrect hex digit after \\u escape in string.", at)
    number = int(text[at + 2 : at + 6], 16)
    if number not in _SURROGATES:
        return at + 6
    second = _HEX.match(text, at + 8) if text[at + 6 : at + 8] == b"\\u" else None
    if number < _SECOND and second is not None and _SECOND <= int(second[0], 16) < 0xE000:
        return at + 12
    raise _NoJson("The surrogate pair in string is invalid.", at)


def _string(text: bytes, at: int) -> int:
    at += 1
    while True:
        found = _PLAIN.match(text, at)
        at = at if found is None else found.end()
        byte = text[at : at + 1]
        if byte == b'"':
            return at + 1
        if byte != b"\\":
            ended = byte in (b"", b"\0")
            quote = "Missing a closing quotation mark in string."
            raise _NoJson(quote if ended else "Invalid escape character in string.", at)
        escape = text[at + 1 : at + 2]
        if escape == b"u":
            at = _escaped(text, at)
        elif escape and escape in b'"\\/bfnrt':
            at += 2
        else:
            raise _NoJson("Invalid escape character in string.", at)
