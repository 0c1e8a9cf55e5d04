"""Which calls stand in a text as JSON: name and arguments, or arguments after a name?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, NoReturn

import msgspec

from wherry.llm.formats.calls import (
    BEGUN,
    CallReader,
    Functions,
    JsonPieces,
    JsonShape,
    PiecesOf,
    ToolCall,
    call_of,
)

#: Where objects have the name, and the arguments.
_NAMES: Final = ("name", "tool_name")
_ARGUMENTS: Final = ("arguments", "parameters", "args")
_Members = dict[str, msgspec.Raw]
_decode: Final = msgspec.json.Decoder(_Members | list[_Members]).decode
_members: Final = msgspec.json.Decoder(_Members).decode
#: What stands between several objects: the mark again, of families whose mark has no end.
_SEPARATORS: Final = r"(?:[\s,;]|<function_call>|<\|python_tag\|>|\[TOOL_CALLS\])*"
BETWEEN: Final = re.compile(_SEPARATORS)
_FENCE: Final = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.DOTALL)


def of_objects(text: str, functions: Functions) -> list[ToolCall]:
    """Objects with a name and arguments: one, a list, or several one after another, in a fence of
    Markdown or not."""
    text = text.strip()
    if fenced := _FENCE.fullmatch(text):
        text = fenced[1]
    calls: list[ToolCall] = []
    for value in _values(text):
        found = _decode(value)
        calls += [_call(m, functions) for m in (found if isinstance(found, list) else [found])]
    return calls


def _call(members: _Members, functions: Functions) -> ToolCall:
    if "name" not in members and "function" in members:  # as OpenAI writes it
        members = _members(members["function"])
    name = next((members[n] for n in _NAMES if n in members), None)
    if name is None:
        if len(members) != 1:
            raise ValueError("an object without a name")
        ((key, value),) = members.items()  # Apertus: {"name": {...}}
        return call_of(key, _text(value), functions)
    raw_arguments = next((members[n] for n in _ARGUMENTS if n in members), None)
    return call_of(
        msgspec.json.decode(name, type=str),
        "" if raw_arguments is None else _text(raw_arguments),
        functions,
    )


#: An object up to its arguments, and behind them. Members that only number or type the call may
#: stand before.
_NUMBERS: Final = r'(?:"(?:id|type|index|tool_call_id)"\s*:\s*(?:"[^"\\]*"|\d+)\s*,\s*)*'
_HEAD: Final = (
    rf'\{{\s*{_NUMBERS}"(?:name|tool_name)"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*'
    rf'{_NUMBERS}"(?:arguments|parameters|args)"\s*:\s*'
)
_TAIL: Final = r'\s*(?:,\s*"[^"\\]*"\s*:\s*(?:"[^"\\]*"|[\w.+-]+)\s*)*\}'


def _shape(before: str, head: str, between: str, behind: str) -> JsonShape:
    first, following = (re.compile(f"{text}{head}{BEGUN}") for text in (before, between))
    return JsonShape(first, following, re.compile(behind))


_FENCED: Final = r"\s*+(?:```(?:json)?\s*+)?(?P<list>\[)?\s*+"
#: Objects with a name and arguments.
OBJECTS: Final = _shape(
    _FENCED, _HEAD, rf"(?:{_TAIL})?{_SEPARATORS}", rf"(?:{_TAIL})?{_SEPARATORS}\]?\s*(?:```)?\s*"
)
#: Objects whose only member is called as the function.
NAMED_OBJECTS: Final = _shape(
    _FENCED, r'\{\s*"(?P<name>[^"\\]+)"\s*:\s*', r"\s*\}[\s,]*", r"\s*\}\s*\]?\s*"
)


def named_shape(head: str, tail: str = "") -> JsonShape:
    behind = rf"(?:\s*(?:{tail}))?\s*" if tail else r"\s*"
    return _shape(r"\s*+", rf"{head}\s*+", behind, behind)


def pieces_of(*shapes: JsonShape) -> PiecesOf:
    return lambda functions: JsonPieces(shapes, functions)


def after_names(head: str, tail: str = "", *, noise: bool = False) -> CallReader:
    """A reader of calls that are written as a name and the JSON of its arguments.

    `head` is a pattern of what stands before the JSON, with a group `name` and perhaps `id`;
    `tail` of what may stand behind it. `noise`: what stands beside calls is left out.
    """
    blanks = "" if noise else r"\s*+"  # a search would match them again from each blank
    before, behind = re.compile(rf"{blanks}{head}\s*+"), re.compile(rf"\s*+(?:{tail})?\s*+")

    def read(text: str, functions: Functions) -> list[ToolCall]:
        calls: list[ToolCall] = []
        at = 0
        while at < len(text):
            begun = before.search(text, at) if noise else before.match(text, at)
            if begun is None:
                if calls and noise:
                    break
                raise ValueError("text between calls")
            end = end_of_json(text, begun.end())
            own_id = begun.groupdict().get("id") or ""
            name, arguments = begun["name"], text[begun.end() : end]
            calls.append(call_of(name, arguments, functions, own_id))
            match = behind.match(text, end)
            at = match.end() if match else end
        return calls

    return read


def end_of_objects(text: str) -> int:
    at = end = len(text) - len(text.lstrip())
    while text.startswith(("{", "["), at):
        try:
            end = end_of_json(text, at)
        except (ValueError, RecursionError):
            break
        between = BETWEEN.match(text, end)
        at = between.end() if between else end
    return end


def first_of(one: CallReader, other: CallReader) -> CallReader:
    """A reader of one form, or of another where that cannot be read."""

    def read(text: str, functions: Functions) -> list[ToolCall]:
        try:
            return one(text, functions)
        except (ValueError, RecursionError):
            return other(text, functions)

    return read


def objects_or(other: CallReader, begins: tuple[str, ...]) -> CallReader:
    """A reader of objects where a text begins like this, and of another form elsewhere."""

    def read(text: str, functions: Functions) -> list[ToolCall]:
        chosen = of_objects if text.lstrip().startswith(begins) else other
        return chosen(text, functions)

    return read


def _values(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        end = end_of_json(text, at)
        yield text[at:end]
        between = BETWEEN.match(text, end)
        at = between.end() if between else end


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_scan: Final = json.JSONDecoder(parse_constant=_no_number, parse_int=float).raw_decode


def end_of_json(text: str, begin: int) -> int:
    """Where the JSON value that begins here ends. ValueError, or RecursionError."""
    return _scan(text, begin)[1]


def _text(raw: msgspec.Raw) -> str:
    return bytes(raw).decode()


_BEGIN: Final = re.compile(r"\s*(?:call)?:\s*(?P<name>[\w.-]+)\s*(?=\{)")
_KEY: Final = re.compile(r"([{,]\s*)([\w.-]+)(\s*:)")


def with_quotes(quote: str) -> CallReader:
    """A reader of calls as Gemma writes them, `call:name{key:<escape>text<escape>}`, with texts
    between two of `quote`."""

    def read(text: str, functions: Functions) -> list[ToolCall]:
        begun = _BEGIN.match(text)
        if begun is None:
            raise ValueError("no call")
        parts = text[begun.end() :].strip().split(quote)
        if not len(parts) % 2:
            raise ValueError("a text has no end")
        outside = [_KEY.sub(r'\1"\2"\3', part) for part in parts[::2]]
        inside = [json.dumps(part, ensure_ascii=False) for part in parts[1::2]]
        joined = [outside[0]]
        for text_, rest in zip(inside, outside[1:], strict=True):
            joined += [text_, rest]
        return [call_of(begun["name"], "".join(joined), functions)]

    return read
