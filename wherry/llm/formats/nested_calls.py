"""Which calls stand in a text as MiniMax M3 writes them: a tag for each member, also within values?

<invoke name="f"><place><city>Paris</city></place></invoke>, with SPACE before each tag
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from wherry.llm.formats.calls import Functions, ToolCall, call_of
from wherry.llm.formats.tag_calls import json_of, type_names, types_of

#: What is before each tag, and nowhere else.
SPACE: Final = "]<]minimax[>["
_TAG: Final = re.compile(
    rf'{re.escape(SPACE)}<(?P<end>/?)(?P<tag>[^\s<>]{{1,256}})(?: name="(?P<name>[^"]{{1,256}})")?>'
)
#: How deep values may be nested: the JSON of each is part of that of all around it.
MOST_DEEP: Final = 64


@dataclass(slots=True)
class _Element:
    tag: str
    name: str
    begin: int
    text: str = ""
    members: list[_Element] = field(default_factory=list)


def of_nested(text: str, functions: Functions) -> list[ToolCall]:
    """Calls whose arguments, and whose arguments' members, are elements."""
    calls: list[ToolCall] = []
    for call in _elements(text):
        if call.tag != "invoke":
            raise ValueError("an element that is no call")
        types = types_of(functions.get(call.name, {}))
        arguments = _object(call.members, {"properties": types})
        calls.append(call_of(call.name, arguments, functions))
    return calls


def _elements(text: str) -> list[_Element]:
    """The outermost elements. ValueError if there is a text beside them, or one is not ended."""
    open_ = [_Element("", "", 0)]
    for found in _TAG.finditer(text):
        inmost = open_[-1]
        if not found["end"]:
            if len(open_) > MOST_DEEP:
                raise ValueError(f"values in more than {MOST_DEEP} others")
            open_.append(_Element(found["tag"], found["name"] or "", found.end()))
            continue
        if len(open_) == 1 or found["tag"] != inmost.tag:
            raise ValueError("the end of another element")
        inmost.text = text[inmost.begin : found.start()]
        open_.pop()
        open_[-1].members.append(inmost)
    if len(open_) > 1 or _TAG.split(text, maxsplit=1)[0].strip():
        raise ValueError("an element without an end, or a text before it")
    return open_[0].members


def _value(element: _Element, schema: Any) -> str:
    """The JSON of an element's value."""
    types = type_names(schema)
    members = element.members
    if not members:
        empty = "[]" if "array" in types else "{}" if "object" in types else ""
        return empty if empty and not element.text.strip() else json_of(element.text, schema)
    if "array" in types or ("object" not in types and all(m.tag == "item" for m in members)):
        items = schema.get("items") if isinstance(schema, Mapping) else None
        return f"[{', '.join(_value(member, items) for member in members)}]"
    return _object(members, schema)


def _object(members: list[_Element], schema: Any) -> str:
    """The JSON of an object; of members of one name it has a list."""
    schema = schema if isinstance(schema, Mapping) else {}
    known, other = types_of(schema), schema.get("additionalProperties")
    values: dict[str, list[str]] = {}
    for member in members:
        made = _value(member, known.get(member.tag, other))
        values.setdefault(member.tag, []).append(made)
    written = (
        f"{json.dumps(key, ensure_ascii=False)}: "
        + (made[0] if len(made) == 1 else f"[{', '.join(made)}]")
        for key, made in values.items()
    )
    return "{" + ", ".join(written) + "}"
