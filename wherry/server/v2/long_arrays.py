"""How is a large JSON body read in slices, so that no step of it holds up other threads for long?

A JSON parser reads a text in one call, which for 64 MiB takes up to a second. So the long arrays
are first taken out of the body, which leaves a short text for the parser, and each of them is cut
at commas into pieces that are arrays by themselves. Numpy finds strings and brackets, slice by
slice.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from wherry.core.api import Buffer, InvalidRequest, RequestTooLarge, Tag
from wherry.server.calls.offload import LARGE_BYTES, SLICE_BYTES, give_way

MAX_DEPTH: Final = 100
TOO_DEEP: Final = f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})"


Mask = npt.NDArray[np.bool_]

#: Bytes that may be left of a body without its long arrays.
MAX_ENVELOPE_BYTES: Final = 2 * 2**20
#: The longest run of bytes without a quote, a comma or a bracket: no JSON value needs it.
MAX_RUN_BYTES: Final = 2 * SLICE_BYTES

#: A slice may begin and end within values.
SLACK: Final = 4

QUOTE, COMMA, COLON = ord('"'), ord(","), ord(":")
#: A string is read in one go: one of this length takes up to 50 ms.
MAX_ELEMENT_BYTES: Final = 16 * 2**20
#: Bytes up to which an array stays in the body.
KEPT_BYTES: Final = 256
FEW: Final = 512
#: What is not cut is built whole: this many brackets, commas and colons take a parser 30 ms. Each
#: colon counts as MEMBER of them: a member of an object takes as much longer than an element.
MAX_VALUES: Final = 2**18
MEMBER: Final = 3
#: And this many bytes outside of strings.
MAX_BARE_BYTES: Final = 2**23
#: An integer takes time by the square of its digits. The largest FP64 has 309.
MAX_DIGITS: Final = 512
#: "[" and "{" differ in one bit, and so do "]" and "}".
OPENS, CLOSES, ONE_BIT = ord("{"), ord("}"), 0x20
NOTHING: Final = b" \t\r\n"
#: Bytes that are searched at once for letters that are rare, which takes 0.1 ms.
_SEARCHED_BYTES: Final = 2**19


class ArrayPiece(msgspec.Struct, gc=False):
    """A part of an array's text between two commas, and how many arrays are open at either end."""

    start: int
    stop: int
    open_before: int
    open_behind: int


class LongArray:
    """A JSON array as pieces, each of which is the text of an array, too."""

    def __init__(self, body: memoryview, start: int) -> None:
        self._body = body
        #: Behind its opening bracket, until the end of the last piece.
        self.begins = self.cut = start
        self._open = 1
        #: Commas outside of strings: one more than these is at least the number of its elements.
        self.commas = 0
        #: Objects stand in it: then it is cut between its own elements only.
        self.objects = False
        self._pieces: list[ArrayPiece] = []

    def __len__(self) -> int:
        """Bytes of its text."""
        return self.cut - self.begins

    def add(self, stop: int, open_behind: int) -> None:
        self._pieces.append(ArrayPiece(self.cut, stop, self._open, open_behind))
        self.cut, self._open = stop + 1, open_behind

    def text(self) -> bytes:
        """All of it, without its brackets."""
        return bytes(self._body[self.begins : self.cut - 1])

    def texts(self) -> Iterator[bytes]:
        """The pieces. ValueError where one is missing before a comma or a bracket."""
        last = len(self._pieces) - 1
        for number, piece in enumerate(self._pieces):
            if piece.stop - piece.start > MAX_ELEMENT_BYTES:
                raise RequestTooLarge(
                    f"an element of more than {MAX_ELEMENT_BYTES} bytes; send it as binary data"
                )
            text = bytes(self._body[piece.start : piece.stop])
            bare = text.strip(NOTHING)
            if (number > 0 and bare[:1] in b"],") or (number < last and bare[-1:] in b"[,"):
                raise ValueError("expected a value beside a comma of an array")
            yield b"[" * piece.open_before + text + b"]" * piece.open_behind
            give_way()


class Folded:
    """A body without its long arrays, which stand in it as names that only this object knows."""

    def __init__(self) -> None:
        self._nonce = os.urandom(12).hex()
        self._arrays: list[LongArray] = []
        self.envelope = b""

    def name_of(self, array: LongArray) -> bytes:
        self._arrays.append(array)
        return b'["%b",%d]' % (self._nonce.encode(), len(self._arrays) - 1)

    def find(self, data: msgspec.Raw) -> LongArray | None:
        """The array that this text stands for, if it is not a text of the client's own."""
        text = bytes(memoryview(data)[:64])
        begin = b'["%b",' % self._nonce.encode()
        return self._arrays[int(text[len(begin) : -1])] if text.startswith(begin) else None


def fold(body: Buffer, where: str) -> Folded:
    """Take the long arrays out that open inside of `where`, for instance "{[{".

    InvalidRequest for text that cannot be JSON, RequestTooLarge if too much is left.
    """
    return _Folder(memoryview(body), where).fold()


def check_values(body: Buffer, most: int = MAX_VALUES) -> None:
    """InvalidRequest for JSON that is nested too deep, RequestTooLarge if it has more than `most`
    values, names and brackets: a parser would take too long to build it whole."""
    if len(body) <= MAX_DEPTH:
        return
    if len(body) <= LARGE_BYTES:
        text = bytes(body)
        if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
            return
    elif _is_long_strings(memoryview(body)):
        return
    values = depth = bare = 0
    for part in _parts(memoryview(body)):
        if len(part.brackets):
            depths = depth + np.cumsum(part.steps())
            depth = int(depths[-1])
            if depths.max() > MAX_DEPTH:
                raise InvalidRequest(TOO_DEEP, tag=Tag.JSON)
        values += part.values()
        bare += part.bare_bytes
        if bare > MAX_BARE_BYTES:
            raise RequestTooLarge(
                f"the body has more than {MAX_BARE_BYTES} bytes outside of texts; send less at a"
                " time, or tensors to /v2/models/NAME/infer"
            )
        if values > most:
            raise RequestTooLarge(
                f"the body holds more than {most} values, names and brackets (a name counts as"
                f" {MEMBER}); send less at a time, or tensors to /v2/models/NAME/infer"
            )


def _is_long_strings(body: memoryview) -> bool:
    """Whether it is nearly all within a few strings, which hold few commas and brackets: texts, and
    files in base64. Nothing in these need be looked at."""
    left, nested, outside, in_string = FEW, MAX_DEPTH, 0, False
    for start in range(0, len(body), _SEARCHED_BYTES):
        text = bytes(body[start : start + _SEARCHED_BYTES])
        if b"\\" in text:  # what ends a string is not to be seen at once
            return False
        # Finding a letter that is rare is many times faster than counting it.
        for letter in (b",", b"[", b"{"):
            position = text.find(letter)
            while position >= 0 and left and nested:
                left -= 1
                nested -= letter != b","
                position = text.find(letter, position + 1)
        begin = 0
        while (quote := text.find(b'"', begin)) >= 0 and left:
            left -= 1
            outside += 0 if in_string else quote - begin
            in_string, begin = not in_string, quote + 1
        outside += 0 if in_string else len(text) - begin
        if not left or not nested or outside > SLICE_BYTES:
            return False
        give_way()
    return True


class _Part(msgspec.Struct, gc=False):
    """A slice of a body, and where in it the punctuation outside of strings is."""

    start: int
    text: bytes
    letters: npt.NDArray[np.uint8]
    brackets: npt.NDArray[np.intp]
    commas: npt.NDArray[np.intp]
    colons: npt.NDArray[np.intp]
    bare_bytes: int
    _places: list[int] | None = None

    def places(self) -> list[int]:
        """Positions of the brackets, as a list: faster to read one by one than an array."""
        if self._places is None:
            self._places = self.brackets.tolist()
        return self._places

    def values(self, done: int = 0) -> int:
        """How long a parser takes for what is behind `done`, in values."""
        marks = self.brackets, self.commas, *[self.colons] * MEMBER
        return sum(len(places) - int(places.searchsorted(done)) for places in marks)

    def steps(self) -> npt.NDArray[np.intp]:
        """What each bracket adds to the number of those that are open: 1 or -1."""
        return np.where(self.letters[self.brackets] | ONE_BIT == OPENS, 1, -1)


def _parts(body: memoryview) -> Iterator[_Part]:
    position = seen = 0
    in_string = False
    while position < len(body):
        text = bytes(body[position : position + SLICE_BYTES])
        if (len(text) - len(text.rstrip(b"\\"))) % 2 and position + len(text) < len(body):
            text = text[:-1]  # what is escaped stands in the same slice
        clean = text
        if b"\\" in text:
            clean = text.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
        letters = np.frombuffer(clean, np.uint8)
        quotes = letters == QUOTE
        outside = np.logical_xor.accumulate(quotes)
        if not in_string:
            outside = ~outside
        low = letters | ONE_BIT
        brackets = np.flatnonzero(((low == OPENS) | (low == CLOSES)) & outside)
        commas = np.flatnonzero((letters == COMMA) & outside)
        colons = np.flatnonzero((letters == COLON) & outside)
        end = position + len(text)
        if not _may_be_json(text, letters, quotes, outside, len(brackets) + len(commas)):
            raise InvalidRequest(
                "failed to parse the request JSON buffer: values without a comma between them, or"
                f" a backslash outside of a string, between {position} and {end}",
                tag=Tag.JSON,
            )
        if _has_long_number(letters, outside):
            raise InvalidRequest(
                f"failed to parse the request JSON buffer: a number of more than {MAX_DIGITS}"
                f" digits between {position} and {end}",
                tag=Tag.JSON,
            )
        if len(brackets) or len(commas) or in_string or quotes.any():
            seen = end
        elif end - seen > MAX_RUN_BYTES:
            raise InvalidRequest(
                "failed to parse the request JSON buffer: more than"
                f" {MAX_RUN_BYTES} bytes of white space, or of one number, at {seen}",
                tag=Tag.JSON,
            )
        in_string = not outside[-1]
        bare_bytes = int(np.count_nonzero(outside))
        yield _Part(position, text, letters, brackets, commas, colons, bare_bytes)
        position = end
        give_way()


def _may_be_json(
    text: bytes, letters: npt.NDArray[np.uint8], quotes: Mask, outside: Mask, separators: int
) -> bool:
    """Whether a slice holds no more values than its brackets and commas separate.

    What reads the text afterwards does so in one go, and takes long for values in a row.
    """
    most = separators + SLACK
    if np.count_nonzero(quotes) > 4 * most:  # a member's name and its string
        return False
    signs = (letters == ord("N")) | (letters == ord("I")) | (letters == ord("-"))
    if np.count_nonzero(signs & outside) > 2 * most:  # NaN, -Infinity, -1e-5
        return False
    if b"\\" not in text:
        return True
    return not ((np.frombuffer(text, np.uint8) == ord("\\")) & outside).any()


def _has_long_number(letters: npt.NDArray[np.uint8], outside: Mask) -> bool:
    digits = (letters - np.uint8(ord("0")) < 10) & outside  # what is below "0" wraps
    if np.count_nonzero(digits) <= MAX_DIGITS:
        return False
    others = np.flatnonzero(~digits)
    return bool(np.diff(others, prepend=-1, append=len(letters)).max() > MAX_DIGITS + 1)


class _Folder:
    def __init__(self, body: memoryview, where: str) -> None:
        self._body = body
        self._where = where.encode()
        self._stack = bytearray()
        self._folded = Folded()
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        #: The array that is cut into pieces just now.
        self._array: LongArray | None = None
        #: How many of its arrays and objects are open here, itself included.
        self._open = 0
        #: Brackets, commas and colons since it was last cut, at least.
        self._values = 0

    def fold(self) -> Folded:
        for part in _parts(self._body):
            done = 0
            while done < len(part.text):
                if self._array is None:
                    done = self._walk(part, done)
                else:
                    done = self._cut(self._array, part, done)
        if self._array is not None:  # it does not end: the parser raises the error
            self._keep(b"[")
        self._folded.envelope = b"".join(self._kept)
        return self._folded

    def _keep(self, text: bytes) -> None:
        self._kept.append(text)
        self._kept_bytes += len(text)
        if self._kept_bytes > MAX_ENVELOPE_BYTES:
            raise RequestTooLarge(
                f"the request has more than {MAX_ENVELOPE_BYTES} bytes beside the data of its"
                " inputs; send less"
            )

    def _walk(self, part: _Part, done: int) -> int:
        """Outside of the long arrays: bracket by bracket. Stops at the begin of an array that may
        be long."""
        text, places = part.text, part.places()
        stack = self._stack
        for number in range(bisect_left(places, done), len(places)):
            place = places[number]
            bracket = text[place]
            if bracket | ONE_BIT == CLOSES:
                if stack:
                    stack.pop()
                continue
            if bracket == ord("[") and stack == self._where:
                follows = places[number + 1] if number + 1 < len(places) else len(text)
                if follows - place > KEPT_BYTES or text[follows : follows + 1] != b"]":
                    self._keep(text[done:place])
                    self._array = LongArray(self._body, part.start + place + 1)
                    self._open, self._values = 1, 0
                    return place + 1
            if len(stack) >= MAX_DEPTH:
                raise InvalidRequest(TOO_DEEP, tag=Tag.JSON)
            stack.append(bracket)
        self._keep(text[done:])
        return len(text)

    def _cut(self, array: LongArray, part: _Part, done: int) -> int:
        """Inside of a long array: to its end, or to the slice's."""
        start, letters, brackets, commas = part.start, part.letters, part.brackets, part.commas
        brackets = brackets[np.searchsorted(brackets, done) :]
        # Many arrays may end in one slice: look at a few brackets before all that follow.
        for looked_at in (brackets[:FEW], brackets):
            steps = np.where(letters[looked_at] | ONE_BIT == OPENS, 1, -1)
            depths = self._open + np.cumsum(steps)
            ends = np.flatnonzero(depths == 0)
            if len(ends):
                break
        end = len(letters)
        if len(ends):
            end = int(brackets[ends[0]])
            brackets, depths = brackets[: ends[0]], depths[: ends[0]]
        if len(depths) and depths.max() > MAX_DEPTH:
            raise InvalidRequest(TOO_DEEP, tag=Tag.JSON)
        commas = commas[np.searchsorted(commas, done) : np.searchsorted(commas, end)]
        array.commas += len(commas)
        array.objects = array.objects or bool((letters[brackets] == ord("{")).any())
        if len(ends):
            if letters[end] != ord("]"):
                raise InvalidRequest(
                    "failed to parse the request JSON buffer: an array ends with '}' at"
                    f" {start + end}",
                    tag=Tag.JSON,
                )
            array.add(start + end, 1)
            self._array = None
            short = len(array) <= KEPT_BYTES  # a shape, most often
            self._keep(b"[%b]" % array.text() if short else self._folded.name_of(array))
            return end + 1
        known = np.concatenate(([self._open], depths))
        open_there = known[np.searchsorted(brackets, commas)]
        self._open = int(known[-1])
        self._values += part.values(done)
        if array.objects:
            commas = commas[open_there == 1]
            open_there = open_there[open_there == 1]
            if not len(commas) and self._values > MAX_VALUES:
                raise RequestTooLarge(
                    f"one element of an array holds more than {MAX_VALUES} values; send less"
                )
        if len(commas):
            array.add(start + int(commas[-1]), int(open_there[-1]))
            self._values = 0
        return end
