"""How does a request name functions, and say which of them may or must be called?"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec


class FunctionSpec(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    type: str
    function: FunctionSpec | None = None


#: The most functions of a request (OpenAI: 128): each is told to the model, and is read again with
#: each answer.
MOST_TOOLS: Final = 1024
Tools = Annotated[list[Tool], msgspec.Meta(max_length=MOST_TOOLS)]


class NamedFunction(msgspec.Struct, kw_only=True):
    name: str


class NamedTool(msgspec.Struct, kw_only=True, tag_field="type", tag="function"):
    """A tool that must be called."""

    function: NamedFunction


class SomeTools(msgspec.Struct, kw_only=True):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class AllowedTools(msgspec.Struct, kw_only=True, tag_field="type", tag="allowed_tools"):
    """Tools of which one may, or must, be called."""

    allowed_tools: SomeTools

    def names(self) -> set[str]:
        return {tool.function.name for tool in self.allowed_tools.tools}
