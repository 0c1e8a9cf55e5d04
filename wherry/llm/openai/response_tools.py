"""Which functions do the tools of a response's request offer, and how is a call named to its
client?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec

from wherry.llm.openai.errors import BadField
from wherry.llm.openai.fields.tools import MOST_TOOLS

Json = dict[str, Any]
#: Between a namespace and a function in the name that a model is told, as vLLM has it.
SEPARATOR: Final = "__"
#: Tools that OpenAI's server runs. None is here, so the model is not told of one.
HOSTED: Final = frozenset(
    (
        "web_search", "web_search_2025_08_26", "web_search_preview",
        "web_search_preview_2025_03_11", "file_search", "code_interpreter", "image_generation",
        "mcp", "tool_search",
    )
)  # fmt: skip


class ResponseTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function, a namespace of some, or what is not offered to the model."""

    type: str
    name: str = ""
    # Null and absent are two things to a chat template.
    description: str | msgspec.UnsetType | None = msgspec.UNSET
    parameters: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    strict: bool | msgspec.UnsetType | None = msgspec.UNSET
    #: Those of a namespace.
    tools: (
        Annotated[list[ResponseTool], msgspec.Meta(max_length=MOST_TOOLS)] | msgspec.UnsetType
    ) = msgspec.UNSET


def functions_of(tools: Sequence[ResponseTool]) -> list[Json]:
    """The functions that the model is told of, those of namespaces by both names. BadField."""
    made = [
        {"type": "function", "function": _function(tool, namespace)}
        for namespace, tool in _functions(tools)
    ]
    if len(made) > MOST_TOOLS:
        raise BadField("tools", f"must be at most {MOST_TOOLS} functions")
    return made


def hosted(tools: Sequence[ResponseTool]) -> list[str]:
    """The places of tools that would be run by the server."""
    return [f"tools[{place}]" for place, tool in enumerate(tools) if tool.type in HOSTED]


def repeated(tools: Sequence[ResponseTool]) -> list[Json]:
    """Those that are offered, as a response repeats them."""
    offered = [tool for tool in tools if tool.type not in HOSTED]
    return [{"description": None, "strict": None, **msgspec.to_builtins(tool)} for tool in offered]


def flat_name(namespace: str, name: str) -> str:
    """What a model calls a function."""
    return f"{namespace}{SEPARATOR}{name}" if namespace else name


def call_names(tools: Sequence[ResponseTool]) -> dict[str, Json]:
    """How a call of a function of a namespace is named in items, by the name that it has to a
    model."""
    return {
        flat_name(namespace, tool.name): {"name": tool.name, "namespace": namespace}
        for namespace, tool in _functions(tools)
        if namespace
    }


def _functions(tools: Sequence[ResponseTool]) -> Iterator[tuple[str, ResponseTool]]:
    """Each function with its namespace, or ""."""
    for place, tool in enumerate(tools):
        if tool.type == "namespace":
            inner = [] if tool.tools is msgspec.UNSET else tool.tools
            for i, one in enumerate(inner):
                _check(one, f"tools[{place}].tools[{i}]")
                yield tool.name, one
        elif tool.type not in HOSTED:
            _check(tool, f"tools[{place}]")
            yield "", tool


def _check(tool: ResponseTool, where: str) -> None:
    if tool.type != "function":
        raise BadField(f"{where}.type", "only functions are supported, and namespaces of them")


def _function(tool: ResponseTool, namespace: str) -> Json:
    sent: Json = msgspec.to_builtins(tool)
    names = ("name", "description", "parameters", "strict")
    return {n: sent[n] for n in names if n in sent} | {"name": flat_name(namespace, tool.name)}
