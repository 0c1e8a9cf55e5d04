"""What is not known within the objects of a request is left out and named, or refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from wherry.llm.anthropic.request import MessagesRequest
from wherry.llm.openai.chat_request import ChatRequest
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.reading import decoded
from wherry.llm.openai.response_request import ResponsesRequest

NAMED = {"type": "function", "function": {"name": "f"}}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
MESSAGE: dict[str, Any] = {"max_tokens": 5, **CHAT}
TEXT = {"type": "text", "text": "Hi"}
USE = {"type": "tool_use", "id": "t", "name": "f", "input": {"x": None, "foo": 1}}
TOOL = {"name": "f", "input_schema": {"foo": None}}


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": blocks}]}


@pytest.mark.parametrize(
    ("kind", "fields", "places"),
    [
        (ChatRequest, CHAT | {"response_format": {"type": "text", "foo": 1}},
         ["response_format.foo"]),
        (ChatRequest,
         CHAT | {"response_format": {"type": "json_schema", "json_schema": {"foo": 1}}},
         ["response_format.json_schema.foo"]),
        (ChatRequest, CHAT | {"stream_options": {"foo": 1}}, ["stream_options.foo"]),
        (ChatRequest, CHAT | {"tool_choice": NAMED | {"foo": 1}}, ["tool_choice.foo"]),
        (ChatRequest,
         CHAT | {"tool_choice": {"type": "function", "function": {"name": "f", "x": 1}}},
         ["tool_choice.function.x"]),
        (ChatRequest, CHAT | {"tool_choice": {"type": "allowed_tools", "allowed_tools": {
            "mode": "auto", "tools": [NAMED, NAMED | {"foo": 1}], "bar": 1}}},
         ["tool_choice.allowed_tools.tools[1].foo", "tool_choice.allowed_tools.bar"]),
        (ResponsesRequest, {"input": "Hi", "text": {"format": {"type": "text", "foo": 1}}},
         ["text.format.foo"]),
        (ResponsesRequest, {"input": "Hi", "tool_choice": {
            "type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f",
                                                               "foo": 1}]}},
         ["tool_choice.tools[0].foo"]),
        (ResponsesRequest, {"input": "Hi", "tools": [{"type": "namespace", "name": "n", "tools": [
            {"type": "function", "name": "f", "foo": 1, "description": None}]}]},
         ["tools[0].tools[0].foo"]),
        (MessagesRequest, MESSAGE | {"thinking": {"type": "adaptive", "foo": 1}}, ["thinking.foo"]),
        (MessagesRequest, MESSAGE | {"tool_choice": {"type": "auto", "foo": 1}},
         ["tool_choice.foo"]),
        (MessagesRequest, MESSAGE | {"tools": [TOOL, TOOL | {"defer_loading": True}]},
         ["tools[1].defer_loading"]),
        (MessagesRequest, MESSAGE | {"system": [TEXT | {"foo": 1}]}, ["system[0].foo"]),
        (MessagesRequest, MESSAGE | user(TEXT | {"foo": 1}), ["messages[0].content[0].foo"]),
        (MessagesRequest, MESSAGE | user(USE | {"foo": 1}), ["messages[0].content[0].foo"]),
        (MessagesRequest, MESSAGE | user({"type": "tool_result", "tool_use_id": "t",
                                          "content": [TEXT, TEXT | {"foo": 1}]}),
         ["messages[0].content[0].content[1].foo"]),
        (MessagesRequest, MESSAGE | {"messages": [{"role": "user", "content": "Hi", "foo": 1}]},
         ["messages[0].foo"]),
        (MessagesRequest, MESSAGE | {"output_config": {"format": {
            "type": "json_schema", "schema": {"foo": None}, "foo": 1}}},
         ["output_config.format.foo"]),
    ],
)  # fmt: skip
def test_it_is_named_by_its_place(kind: Any, fields: Any, places: list[str]) -> None:
    ignored: list[str] = []
    read = decoded(msgspec.json.encode(fields), kind, ignored)
    assert ignored == places
    assert read == decoded(msgspec.json.encode(_without(fields)), kind)
    with pytest.raises(BadField) as refused:
        decoded(msgspec.json.encode(fields), kind)
    assert refused.value.field in places


def _without(value: Any) -> Any:
    """The same without what is not known."""
    if isinstance(value, dict):
        free = value.keys() & {"input", "schema", "input_schema"}
        return {
            n: v if n in free else _without(v)
            for n, v in value.items()
            if n not in ("foo", "bar", "x", "defer_loading")
        }
    return [_without(one) for one in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [TOOL | {"cache_control": {"type": "ephemeral", "ttl": "1h"}, "foo": None}]},
        {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        user(TEXT | {"citations": None, "parsed_output": None, "cache_control": None}),
        user(TEXT | {"citations": [{"type": "char_location", "cited_text": "Hi"}]}),
    ],
)
def test_what_is_known_or_null_is_not_named(fields: Any) -> None:
    decoded(msgspec.json.encode(MESSAGE | fields), MessagesRequest)  # in which all is known


@pytest.mark.parametrize(
    ("item", "places"),
    [
        ({"role": "user", "content": "Hi", "foo": 1}, ["input[0].foo"]),
        ({"role": "user", "content": [{"type": "input_text", "text": "Hi", "foo": 1}]},
         ["input[0].content[0].foo"]),
        ({"type": "message", "id": "m", "role": "assistant", "status": "completed", "phase": None,
          "content": [{"type": "output_text", "text": "", "annotations": [], "logprobs": None}]},
         []),
        ({"type": "function_call", "id": "f", "status": "completed", "name": "f", "call_id": "c",
          "arguments": "{}", "caller": {}}, ["input[0].caller"]),
        ({"type": "function_call_output", "call_id": "c", "output": [
            {"type": "input_text", "text": "Hi", "foo": 0}]}, ["input[0].output[0].foo"]),
        ({"type": "reasoning", "id": "r", "summary": [], "content": None, "foo": None}, []),
    ],
)  # fmt: skip
def test_items_of_responses_are_looked_through(item: Any, places: list[str]) -> None:
    assert ResponsesRequest(input=[item]).unknown() == places
