"""Which calls stand in a text with a tag around each argument?

The values have no types of their own: the function's JSON schema defines which are texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec

from wherry.llm.formats.calls import (
    MOST_BEFORE,
    PYTHON,
    Functions,
    JsonText,
    ToolCall,
    call_of,
    meant,
)
from wherry.llm.formats.json_calls import end_of_json

#: XML's marks around a text with any characters.
_CDATA, _CDATA_END = "<![CDATA[", "]]>"
#: Leading zeros of a number, which JSON does not allow.
_LEADING_ZEROS: Final = re.compile(r"^(-?)0+(?=\d)")
#: Where a JSON schema has alternatives.
_ALTERNATIVES: Final = ("anyOf", "oneOf", "allOf")
#: How many references are followed, one after another: they may go in a circle.
MOST_REFERENCES: Final = 8
#: How many arguments without a value are left out, one after another.
MOST_ORPHANS: Final = 4
_OBJECT: Final = re.compile(r"\s*\{")


@dataclass(frozen=True)
class Tags:
    """The tags of calls and of their arguments.

    `call` and `argument` are patterns of the tags that begin them, with groups `name` and `key`;
    `call` may have a group `closed` for one without arguments and end, `argument` a group `string`,
    "true" or "string" for a text. `call_end` may be "": the text is one call. `orphan` is a pattern
    of what begins an argument that then has no value, and is left out. In place of arguments in
    tags, a call that has an end may have one JSON object.
    """

    call: str
    call_end: str
    argument: str
    argument_end: str
    orphan: str = ""

    @cached_property
    def begin_call(self) -> re.Pattern[str]:
        # Possessive blanks: else each split of them would be tried.
        return re.compile(rf"\s*+{self.call}")

    @cached_property
    def begin_argument(self) -> re.Pattern[str]:
        return re.compile(self.argument)

    @cached_property
    def inner(self) -> re.Pattern[str]:
        """What may follow a call's begin, or an argument: blanks, then another, or its end."""
        orphans = rf"(?:{self.orphan}\s*){{0,{MOST_ORPHANS}}}" if self.orphan else ""
        end = re.escape(self.call_end) or "$"
        return re.compile(rf"\s*+{orphans}(?:{self.argument}|(?P<end>{end}))")

    @cached_property
    def following(self) -> re.Pattern[str]:
        """What ends an argument whose own end was left out."""
        return re.compile(rf"(?={self.argument})|(?={re.escape(self.call_end) or '$'})")

    def read(self, text: str, functions: Functions) -> list[ToolCall]:
        """The calls in a text that has nothing else: a `CallReader`."""
        calls: list[ToolCall] = []
        at = 0
        while text[at:].strip():
            begun = self.begin_call.match(text, at)
            if begun is None:
                raise ValueError("text between calls")
            name, at = meant(begun["name"], functions), begun.end()
            if self.has_object(text, at):
                arguments, at = self.object(text, at)
            elif is_closed(begun):
                arguments = "{}"
            else:
                members, at = self.arguments(text, at, types_of(functions.get(name, {})))
                arguments = "{" + ", ".join(members) + "}"
            calls.append(call_of(name, arguments, functions))
        return calls

    def has_object(self, text: str, at: int = 0) -> bool:
        begun = _OBJECT.match(text, at, at + MOST_BEFORE)
        return begun is not None and bool(self.call_end)

    def object(self, text: str, at: int) -> tuple[str, int]:
        """The JSON object here, and where the call ends."""
        end = end_of_json(text, len(text) - len(text[at:].lstrip()))
        behind = self.inner.match(text, end)
        if behind is None or behind["end"] is None:
            raise ValueError("text behind arguments")
        return text[at:end], behind.end()

    def arguments(self, text: str, at: int, types: Mapping[str, Any]) -> tuple[list[str], int]:
        """The members of a call's arguments, and where the call ends."""
        members: list[str] = []
        close = 0  # the next end of an argument; -1: no more
        while (found := self.inner.match(text, at)) and found["end"] is None:
            if 0 <= close < found.end():
                close = text.find(self.argument_end, found.end())
            if close >= 0:
                value, at = self.value(text, found.end(), close, types)
            else:
                ended = self.following.search(text, found.end())
                at = ended.start() if ended else len(text)
                value = text[found.end() : at]
            members.append(member(found, value, types))
        if found is None and text[at:].strip():
            raise ValueError("text between arguments")
        return members, found.end() if found else len(text)

    def value(self, text: str, at: int, close: int, types: Mapping[str, Any]) -> tuple[str, int]:
        """An argument's text, and where it ends: at `close`, or, if its own end was left out, where
        another argument of the function begins before that."""
        for found in self.begin_argument.finditer(text, at, max(close, at)):
            if found["key"].strip() in types:
                return text[at : found.start()], found.start()
        return text[at:close], close + len(self.argument_end)


class TagPieces:
    """Gives a call's arguments one by one."""

    def __init__(self, tags: Tags, functions: Functions) -> None:
        self.at = 0
        self._tags = tags
        self._functions = functions
        self._held = ""
        #: The name of the call that goes on, its arguments' schemas, and whether it has none yet.
        self._name = ""
        self._types: Mapping[str, Any] = {}
        self._first = True
        #: Of a call whose arguments are one JSON object: that, and whether it has ended.
        self._object: JsonText | None = None
        self._whole = False
        #: An argument that has begun, the text since then, and its last characters.
        self._argument: re.Match[str] | None = None
        self._value: list[str] = []
        self._last = ""
        #: It stops reading.
        self._over = False

    def feed(self, text: str) -> list[ToolCall]:
        made: list[ToolCall] = []
        if self._over:
            return made
        if self._argument is not None:
            self._value.append(text)
            near = self._last + text
            self._last = near[max(0, len(near) - len(self._tags.argument_end) + 1) :]
            if self._tags.argument_end not in near:
                return made
            text, self._value = "".join(self._value), []
        self._held += text
        while (further := self._further()) is not None:
            made.append(further)
        return made

    def end(self, rest: str, *, cut: bool) -> tuple[list[ToolCall], str]:
        if not self._name:
            return [], rest
        if cut or self._object is not None:
            return [], ""
        try:
            members, at = self._tags.arguments(rest, 0, self._types)
        except ValueError:
            members, at = [], 0
        made = [self._member(one) for one in members]
        return [*made, self._closed()], rest[at:]

    def _further(self) -> ToolCall | None:
        if not self._name:
            return self._begin()
        if self._object is not None:
            return self._more(self._object)
        begun = self._argument
        if begun is None and self._first and not self._whole and self._tags.has_object(self._held):
            self._take(len(self._held) - len(self._held.lstrip()))
            self._object = JsonText()
            return self._more(self._object)
        if begun is None:
            begun = self._tags.inner.match(self._held, 0, MOST_BEFORE)
            if begun is None or begun["end"] == "":
                self._over = len(self._held) >= MOST_BEFORE
                return None
            if begun["end"]:
                self._take(begun.end())
                return self._closed()
        close = self._held.find(self._tags.argument_end, begun.end())
        if close < 0:
            self._argument = begun
            self._last = self._held[begun.end() :][1 - len(self._tags.argument_end) :]
            return None
        value, at = self._tags.value(self._held, begun.end(), close, self._types)
        self._argument = None
        self._take(at)
        return self._member(member(begun, value, self._types))

    def _more(self, object_: JsonText) -> ToolCall | None:
        arguments, used = object_.feed(self._held)
        self._take(used)
        self._over = object_.state == "broken"
        if object_.state == "ended":
            self._object, self._whole = None, True
        return ToolCall("", arguments) if arguments else None

    def _begin(self) -> ToolCall | None:
        found = self._tags.begin_call.match(self._held, 0, MOST_BEFORE)
        if found is None or found.end() == len(self._held):
            self._over = len(self._held) >= MOST_BEFORE
            return None
        name = meant(found["name"], self._functions)
        if name not in self._functions:
            self._over = True
            return None
        self._name, self._first, self._whole = name, True, False
        self._types = types_of(self._functions[name])
        self._take(found.end())
        if is_closed(found):
            self._name = ""
            return ToolCall(name, "{}")
        return ToolCall(name, "")

    def _member(self, text: str) -> ToolCall:
        if not self._first:
            return ToolCall("", f", {text}")
        whole = call_of(self._name, f"{{{text}}}", self._functions).arguments
        begun = whole.rstrip().removesuffix("}")
        self._first = begun.strip() == "{"
        return ToolCall("", "" if self._first else begun)

    def _closed(self) -> ToolCall:
        self._name = ""
        if self._whole:
            return ToolCall("", "")
        return ToolCall("", "{}" if self._first else "}")

    def _take(self, length: int) -> None:
        self._held = self._held[length:]
        self.at += length


def is_closed(begun: re.Match[str]) -> bool:
    return bool(begun.groupdict().get("closed"))


def member(begun: re.Match[str], value: str, types: Mapping[str, Any]) -> str:
    key = begun["key"].strip()
    schema = types.get(key)
    if begun.groupdict().get("string") in ("true", "string") and not type_names(schema):
        schema = {"type": "string"}
    return f"{json.dumps(key, ensure_ascii=False)}: {json_of(value, schema)}"


def types_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schemas of a function's arguments by their names, with those they refer to."""
    types = schema.get("properties")
    if not isinstance(types, dict):
        return {}
    if "$defs" not in schema and "definitions" not in schema:
        return types
    return {name: _resolved(one, schema) for name, one in types.items()}


def _referred(part: Any, schema: Mapping[str, Any]) -> Any:
    """What a part of a schema refers to, or itself."""
    for _ in range(MOST_REFERENCES):
        if not isinstance(part, Mapping) or not isinstance(part.get("$ref"), str):
            break
        where, _, name = part["$ref"].rpartition("/")
        known = schema.get(where.removeprefix("#/"))
        part = known.get(name) if isinstance(known, Mapping) else None
    return part


def _resolved(part: Any, schema: Mapping[str, Any]) -> Any:
    """As `_referred`, in the part's alternatives, too."""
    part = _referred(part, schema)
    if not isinstance(part, Mapping):
        return part
    several = {
        key: [_referred(one, schema) for one in part[key]]
        for key in _ALTERNATIVES
        if isinstance(part.get(key), list)
    }
    return {**part, **several} if several else part


def values_in_tags(argument: str, *ends: str) -> re.Pattern[str]:
    """The values within which a text's end does not count, as `CallFormat.values`."""
    return re.compile(f"(?P<open>{argument})|(?P<close>{'|'.join(map(re.escape, ends))})")


def json_of(value: str, schema: Any) -> str:
    bare = value.strip()
    bare = PYTHON.get(bare, bare)
    types = type_names(schema)
    if types & {"integer", "number"}:
        bare = _LEADING_ZEROS.sub(r"\1", bare)
    if "string" not in types or (bare == "null" and "null" in types):
        # A list or an object by the schema may be written as within a string.
        escaped = '\\"' in bare and types and types <= {"array", "object", "null"}
        for written in (bare, bare.replace('\\"', '"')) if escaped else (bare,):
            try:
                msgspec.json.decode(written)
                return written
            except (ValueError, RecursionError):
                pass
    if value.startswith("\n"):  # tags on lines of their own: both line breaks are theirs
        value = value[1:].removesuffix("\n")
    if value.startswith(_CDATA) and value.endswith(_CDATA_END):
        value = value[len(_CDATA) : -len(_CDATA_END)]
    return json.dumps(value, ensure_ascii=False)


def type_names(schema: Any) -> set[str]:
    """The types that a JSON schema names: itself, in one of its alternatives, or by its values."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    found = {one for one in (named if isinstance(named, list) else [named]) if isinstance(one, str)}
    for several in _ALTERNATIVES:
        parts = schema.get(several)
        for part in parts if isinstance(parts, list) else ():
            found |= type_names(part)
    values = schema.get("enum")
    if isinstance(values, list) and values and all(isinstance(one, str) for one in values):
        found.add("string")
    return found
