"""How does a request name functions, and say which of them may or must be called?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from wherry.llm.openai.errors import BadField
from wherry.llm.openai.fields.decoding import named


class FunctionSpec(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """What is read of a tool here. The model is told of it in the client's own words."""

    type: str
    function: FunctionSpec | None = None


#: The most functions of a request (OpenAI: 128): each is told to the model, and is read again with
#: each answer.
MOST_TOOLS: Final = 1024
Tools = Annotated[list[dict[str, Any]], msgspec.Meta(max_length=MOST_TOOLS)]


def function_of(tool: Mapping[str, Any], where: str) -> FunctionSpec:
    """The function of a tool that stands at `where`. BadField."""
    try:
        read = msgspec.convert(tool, Tool)
    except msgspec.ValidationError as error:
        raise named(str(error), Tool, where) from None
    if read.type != "function" or read.function is None:
        raise BadField(f"{where}.type", "only functions are supported")
    return read.function


def note_not_followed(places: list[str], ignored: list[str] | None) -> None:
    """Append what no grammar can follow to what is ignored; BadField if nothing may be."""
    if places and ignored is None:
        raise BadField(places[0], "calls cannot be made to follow it: leave it out")
    if ignored is not None:
        ignored += places


class NamedFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str


class NamedTool(
    msgspec.Struct, kw_only=True, tag_field="type", tag="function", forbid_unknown_fields=True
):
    """A tool that must be called."""

    function: NamedFunction


class SomeTools(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class AllowedTools(
    msgspec.Struct, kw_only=True, tag_field="type", tag="allowed_tools", forbid_unknown_fields=True
):
    """Tools of which one may, or must, be called."""

    allowed_tools: SomeTools

    def names(self) -> set[str]:
        return {tool.function.name for tool in self.allowed_tools.tools}
