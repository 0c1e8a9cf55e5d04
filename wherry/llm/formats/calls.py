"""What is a call of a tool, and which functions may be called?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

#: The JSON schemas of the arguments by the names of the functions that may be called.
Functions = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model wants made. `arguments` is a JSON object, as clients get it."""

    name: str
    arguments: str


#: Reads the calls in a text that has nothing else. ValueError if there is anything else, or a call
#: of another function.
CallReader = Callable[[str, Functions], list[ToolCall]]


def call_of(name: str, arguments: str, functions: Functions) -> ToolCall:
    """A call as the model wrote it. ValueError if the function is none of these, or the arguments
    are no JSON object, nor a JSON string that holds one."""
    name = name.strip()
    if name not in functions:
        raise ValueError(f"there is no function {name[:40]!r}")
    arguments = arguments.strip()
    if arguments.startswith('"'):
        arguments = msgspec.json.decode(arguments, type=str).strip()
    if arguments in ("", "null"):
        arguments = "{}"
    msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    return ToolCall(name, arguments)
