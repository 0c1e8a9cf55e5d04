"""What is a call of a tool, and how is it sent in pieces while its model still writes it?"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

#: The JSON schemas of the arguments by the names of the functions that may be called.
Functions = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call by the model, as far as it is known, or a further piece of the last call's arguments:
    `name` is "" then. All pieces together are a JSON object, as clients get it; `id` is set where
    the model names its calls itself."""

    name: str
    arguments: str
    id: str = ""


@dataclass(slots=True)
class MessagePart:
    """A further part of an answer: thoughts, text, and calls or pieces of them, in this order."""

    thoughts: str = ""
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)


#: Reads the calls in a text that has nothing else. ValueError if there is anything else, or a call
#: of another function.
CallReader = Callable[[str, Functions], list[ToolCall]]


#: A member that models put all arguments into, though no function has it.
_WRAPPERS: Final = frozenset({"arguments", "parameters", "input"})


def meant(name: str, functions: Functions) -> str:
    """The function that a model means, whose templates may show it as a member of itself."""
    name = name.strip()
    head, _, tail = name.partition(".")
    return head if head == tail and name not in functions and head in functions else name


def call_of(name: str, arguments: str, functions: Functions, call_id: str = "") -> ToolCall:
    """A call as the model wrote it. ValueError if the function is not one of these, or the
    arguments are neither a JSON object nor a JSON string that holds one."""
    name = meant(name, functions)
    if name not in functions:
        raise ValueError(f"there is no function {name[:40]!r}")
    arguments = arguments.strip()
    if arguments.startswith('"'):
        arguments = msgspec.json.decode(arguments, type=str).strip()
    if arguments in ("", "null"):
        arguments = "{}"
    members = msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    if len(members) == 1:
        ((key, value),) = members.items()
        arguments = _unwrapped(key, value, functions[name]) or arguments
    return ToolCall(name, arguments, call_id)


def is_wrapper(key: str, schema: Mapping[str, Any]) -> bool:
    """Whether a call's first member may hold all arguments: the function does not have it."""
    known = schema.get("properties")
    return key in _WRAPPERS and isinstance(known, Mapping) and bool(known) and key not in known


def _unwrapped(key: str, value: msgspec.Raw, schema: Mapping[str, Any]) -> str:
    """The arguments within a member that the function does not have; "" if it has it."""
    if not is_wrapper(key, schema):
        return ""
    text = bytes(value).decode()
    if text.startswith('"'):
        text = msgspec.json.decode(text, type=str)
    try:
        inner = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except ValueError:
        return ""
    return text if inner.keys() <= schema["properties"].keys() else ""


#: How many characters may stand before a call's arguments. A call with more comes whole.
MOST_BEFORE: Final = 1024
#: What Python calls JSON's constants.
PYTHON: Final = {"True": "true", "False": "false", "None": "null"}


class CallPieces(Protocol):
    """Reads the text between two marks as it comes. Calls that it has begun are not taken back.
    What it cannot read in pieces is read when it is complete."""

    #: The length of the text of the calls that it has begun; 0: it has begun none.
    at: int

    def feed(self, text: str) -> list[ToolCall]:
        """Take more text; return what of calls is certain now."""

    def end(self, rest: str, *, cut: bool) -> tuple[list[ToolCall], str]:
        """End the text, whose part behind `at` is `rest`; `cut`: it is not complete. Returns the
        last pieces, and what is behind the calls."""


#: Makes one for each text.
PiecesOf = Callable[[Functions], CallPieces]


@dataclass(frozen=True, slots=True)
class JsonShape:
    """What stands around arguments in JSON: before those of the first call, with groups `name` and
    perhaps `id` and `list`; before those of the next; and behind the last."""

    first: re.Pattern[str]
    following: re.Pattern[str]
    behind: re.Pattern[str]


#: An object's first member, or its end: only then is it known whether it is the arguments.
BEGUN: Final = r'(?=\{\s*(?:\}|"(?P<key>(?:[^"\\]|\\.)*)"))'


class JsonPieces:
    """Gives arguments that are JSON, as their model writes it."""

    def __init__(self, shapes: Sequence[JsonShape], functions: Functions) -> None:
        self.at = 0
        self._functions = functions
        self._shapes = shapes
        self._shape: JsonShape | None = None
        self._listed = False
        self._held = ""
        self._value: JsonText | None = None
        #: It stops reading.
        self._over = False

    def feed(self, text: str) -> list[ToolCall]:
        made: list[ToolCall] = []
        if self._over:
            return made
        self._held += text
        while not self._over and self._held:
            if self._value is None:
                if (begun := self._begin()) is None:
                    break
                made.append(begun)
            arguments, used = self._value.feed(self._held) if self._value else ("", 0)
            self._take(used)
            if arguments:
                made.append(ToolCall("", arguments))
            if self._value is not None and self._value.state == "open":
                break
            self._over = self._value is not None and self._value.state == "broken"
            self._value = None
        return made

    def end(self, rest: str, *, cut: bool) -> tuple[list[ToolCall], str]:
        if self._value is not None or self._over or self._shape is None:
            return [], rest
        behind = self._shape.behind.match(rest)
        rest = rest[behind.end() :] if behind else rest
        return [], rest.rstrip().removesuffix("]") if self._listed and rest.strip() else rest

    def _begin(self) -> ToolCall | None:
        shapes = self._shapes if self._shape is None else (self._shape,)
        head = not self._held[
            :MOST_BEFORE
        ].isspace()  # blanks alone are not matched again and again
        for shape in shapes:
            pattern = shape.first if self._shape is None else shape.following
            found = pattern.match(self._held, 0, MOST_BEFORE) if head else None
            if found is not None:
                break
        else:
            self._over = len(self._held) >= MOST_BEFORE
            return None
        name = meant(found["name"], self._functions)
        if name not in self._functions or is_wrapper(found["key"] or "", self._functions[name]):
            self._over = True
            return None
        groups = found.groupdict()
        if self._shape is None:
            self._shape, self._listed = shape, groups.get("list") is not None
        self._take(found.end())
        self._value = JsonText()
        return ToolCall(name, "", groups.get("id") or "")

    def _take(self, length: int) -> None:
        self._held = self._held[length:]
        self.at += length


_OUTSIDE: Final = re.compile(
    r"(?P<plain>[\s\d.,:+-]+)|(?P<word>[A-Za-z_]{1,16})|(?P<open>[{\[])|(?P<close>[}\]])"
    r'|(?P<quote>")'
)
_INSIDE: Final = re.compile(
    r'(?P<plain>[^"\\\x00-\x1f]+)|(?P<escape>\\.?)|(?P<control>[\x00-\x1f])|(?P<quote>")', re.DOTALL
)
_LONGEST_WORD: Final = 16


class JsonText:
    """Finds the end of a JSON object or list as it comes. Line breaks within a string are escaped,
    and Python's constants become JSON's."""

    def __init__(self) -> None:
        #: "open", "ended", or "broken": a character that JSON does not have outside of strings.
        self.state = "open"
        self._depth = 0
        self._in_string = False

    def feed(self, text: str) -> tuple[str, int]:
        """Take the text after what was used before. Return the JSON that it adds, and how much of
        it is used."""
        parts: list[str] = []
        at = 0
        while at < len(text) and self.state == "open":
            found = (_INSIDE if self._in_string else _OUTSIDE).match(text, at)
            if found is None:
                self.state = "broken"
                break
            kind, part, last = found.lastgroup, found[0], found.end() == len(text)
            if last and (part == "\\" or (kind == "word" and len(part) < _LONGEST_WORD)):
                break
            if kind == "quote":
                self._in_string = not self._in_string
            elif kind == "control":
                part = json.dumps(part)[1:-1]
            elif kind == "word":
                part = PYTHON.get(part, part)
            elif kind == "open":
                self._depth += 1
            elif kind == "close":
                self._depth -= 1
                self.state = "open" if self._depth else "ended"
            parts.append(part)
            at = found.end()
        return "".join(parts), at
