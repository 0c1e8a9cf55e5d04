"""What is a call of a tool, and which functions may be called?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

#: The JSON schemas of the arguments by the names of the functions that may be called.
Functions = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model wants made, as far as it is known, or a further piece of the last one's
    arguments: `name` is "" then. All pieces together are a JSON object, as clients get it; `id` is
    set where the model names its calls itself."""

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


#: A member that models put all arguments into, though no function asked for it.
_WRAPPERS: Final = frozenset({"arguments", "parameters", "input"})


def meant(name: str, functions: Functions) -> str:
    """The function that a model means, whose templates may show it as a member of itself."""
    name = name.strip()
    head, _, tail = name.partition(".")
    return head if head == tail and name not in functions and head in functions else name


def call_of(name: str, arguments: str, functions: Functions, call_id: str = "") -> ToolCall:
    """A call as the model wrote it. ValueError if the function is none of these, or the arguments
    are no JSON object, nor a JSON string that holds one."""
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
