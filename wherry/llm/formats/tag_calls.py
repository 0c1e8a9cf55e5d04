"""Which calls stand in a text with a tag around each argument?

The values have no types of their own: the function's JSON schema says which are texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from wherry.llm.formats.calls import CallReader, Functions, ToolCall, call_of

#: What models write that have seen much Python.
_PYTHON: Final = {"True": "true", "False": "false", "None": "null"}
#: XML's marks around a text with any characters.
_CDATA, _CDATA_END = "<![CDATA[", "]]>"


def in_tags(call: str, call_end: str, argument: str, argument_end: str) -> CallReader:
    """A reader of calls in tags.

    `call` and `argument` are patterns of the tags that begin them, with groups `name` and `key`;
    `argument` may have a group `string`, "true" for a text and "false" for JSON. `call_end` may be
    "": the text is one call.
    """
    begin_call = re.compile(rf"\s*{call}")
    begin_argument = re.compile(argument)
    #: What may follow a call's begin, or an argument: blanks, then another, or the call's end.
    inner = re.compile(rf"\s*(?:{argument}|(?P<end>{re.escape(call_end) or '$'}))")
    #: What ends an argument whose own end was left out.
    following = re.compile(rf"(?={argument})|(?={re.escape(call_end) or '$'})")

    def read(text: str, functions: Functions) -> list[ToolCall]:
        calls: list[ToolCall] = []
        at = 0
        while text[at:].strip():
            begun = begin_call.match(text, at)
            if begun is None:
                raise ValueError("text between calls")
            name = begun["name"].strip()
            types = functions.get(name, {}).get("properties")
            arguments, at = _arguments(text, begun.end(), types if isinstance(types, dict) else {})
            calls.append(call_of(name, "{" + ", ".join(arguments) + "}", functions))
        return calls

    def _arguments(text: str, at: int, types: Mapping[str, Any]) -> tuple[list[str], int]:
        """The members of a call's arguments, and where the call ends."""
        members: list[str] = []
        close = 0  # the next end of an argument; -1: there is none
        while (found := inner.match(text, at)) and found["end"] is None:
            if 0 <= close < found.end():
                close = text.find(argument_end, found.end())
            if (begun := _next_argument(text, found.end(), close, types)) is not None:
                value, at = text[found.end() : begun], begun
            elif close >= 0:
                value, at = text[found.end() : close], close + len(argument_end)
            else:
                ended = following.search(text, found.end())
                at = ended.start() if ended else len(text)
                value = text[found.end() : at]
            key, schema = found["key"].strip(), types.get(found["key"].strip())
            if found.groupdict().get("string") == "true" and not _types(schema):
                schema = {"type": "string"}
            members.append(f"{json.dumps(key, ensure_ascii=False)}: {_typed(value, schema)}")
        if found is None and text[at:].strip():
            raise ValueError("text between arguments")
        return members, found.end() if found else len(text)

    def _next_argument(text: str, at: int, close: int, types: Mapping[str, Any]) -> int | None:
        """Where another argument of the function begins before this one has its end: its own end
        was left out."""
        for found in begin_argument.finditer(text, at, max(close, at)):
            if found["key"].strip() in types:
                return found.start()
        return None

    return read


def values_in_tags(argument: str, *ends: str) -> re.Pattern[str]:
    """Within what a text's end is none, as `CallFormat.values` has it."""
    return re.compile(f"(?P<open>{argument})|(?P<close>{'|'.join(map(re.escape, ends))})")


def _typed(value: str, schema: Any) -> str:
    """The JSON of a value that was written without quotes."""
    bare = value.strip()
    bare = _PYTHON.get(bare, bare)
    types = _types(schema)
    if "string" not in types or (bare == "null" and "null" in types):
        try:
            msgspec.json.decode(bare)
            return bare
        except (ValueError, RecursionError):
            pass
    if value.startswith("\n"):  # tags on lines of their own: both line breaks are theirs
        value = value[1:].removesuffix("\n")
    if value.startswith(_CDATA) and value.endswith(_CDATA_END):
        value = value[len(_CDATA) : -len(_CDATA_END)]
    return json.dumps(value, ensure_ascii=False)


def _types(schema: Any) -> set[str]:
    """The types that a JSON schema names: itself, in one of its alternatives, or by its values."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    found = {one for one in (named if isinstance(named, list) else [named]) if isinstance(one, str)}
    for several in ("anyOf", "oneOf"):
        parts = schema.get(several)
        for part in parts if isinstance(parts, list) else ():
            found |= _types(part)
    values = schema.get("enum")
    if isinstance(values, list) and values and all(isinstance(one, str) for one in values):
        found.add("string")
    return found
