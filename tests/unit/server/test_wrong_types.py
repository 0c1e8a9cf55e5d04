"""A wrong type in any field of a language model's routes is the client's fault, and is named."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest

import wherry
from tests.http_exchange import Client, served

Place = tuple[str | int, ...]


class Said(TypedDict):
    text: str
    token_ids: Sequence[int]


@wherry.model
def able(
    messages: Sequence[dict[str, Any]] | None = None,
    parameters: Mapping[str, Any] | None = None,
    tools: Sequence[dict[str, Any]] | None = None,
    template: Mapping[str, Any] | None = None,
    task: str = "",
) -> Said:
    return Said(text="so", token_ids=[1, 2])


@wherry.model
def vector(text: list[str]) -> Annotated[np.ndarray, wherry.FP32[2]]:
    return np.ones((len(text), 2), np.float32)


@wherry.model
def cross(query: list[str], document: list[str]) -> list[float]:
    return [1.0] * len(query)


SCHEMA = {"type": "object"}
MARK = {"cache_control": {"type": "ephemeral"}}
SPOKEN = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a", **MARK}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "d"},
                {"type": "tool_use", "id": "t", "name": "add", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": [{"type": "text", "text": "b"}],
                    "is_error": False,
                }
            ],
        },
    ],
    "system": [{"type": "text", "text": "c"}],
    "tools": [
        {"name": "add", "description": "d", "input_schema": SCHEMA, "type": "custom", **MARK}
    ],
    "tool_choice": {"type": "tool", "name": "add", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    **MARK,
}
RESPONSE = {
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "name": "add", "arguments": "{}", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ],
    "instructions": "be brief",
    "max_output_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.5,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}},
    "tools": [
        {
            "type": "function",
            "name": "add",
            "description": "d",
            "parameters": SCHEMA,
            "strict": True,
        }
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "add"}],
    },
    "parallel_tool_calls": True,
    "reasoning": {"effort": "low", "summary": "auto"},
    "stream": False,
    "stream_options": {"include_obfuscation": False},
    "metadata": {"a": "b"},
    "include": ["reasoning.encrypted_content"],
    "store": False,
    "background": False,
    **dict.fromkeys(("user", "service_tier", "safety_identifier", "prompt_cache_key"), "x"),
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {
        **SPOKEN,
        "model": "able",
        "max_tokens": 5,
        "stop_sequences": ["x"],
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 3,
        "stream": False,
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
    },
    "/v1/messages/count_tokens": {
        **SPOKEN,
        "model": "able",
        "tool_choice": {"type": "auto"},
        "output_config": {
            "effort": "low",
            "format": {"type": "json_schema", "schema": SCHEMA},
        },
    },
    "/v1/responses": {"model": "able", **RESPONSE},
    "/v1/embeddings": {
        "model": "vector",
        "input": ["a", "b"],
        "encoding_format": "float",
        "dimensions": 1,
        "user": "u",
        "priority": 0,
    },
    "/v1/rerank": {
        "model": "cross",
        "query": "a",
        "documents": ["b", {"text": "c"}],
        "top_n": 1,
        "return_documents": True,
    },
    "/v1/score": {"model": "cross", "text_1": "a", "text_2": ["b"]},
}
#: Fields that may be of several types; their members are looked at for themselves.
SEVERAL = ("system", "content", "input", "output", "tool_choice", "documents", "text_1", "text_2")
#: Members of these are the caller's own.
FREE = ("cache_control", "metadata", "input_schema", "parameters", "schema")
WRONG: tuple[Any, ...] = (None, True, 7, 2**70, 1.5, "\0?", [], [[7]], {}, {"?": [7]})


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(able, vector, cross) as client:
        yield client


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    if at:
        yield at
    if not isinstance(value, dict | list) or (at and at[-1] in FREE):
        return
    for name, member in value.items() if isinstance(value, dict) else enumerate(value):
        yield from places(member, (*at, name))


def changed(body: dict[str, Any], place: Place, wrong: Any) -> tuple[dict[str, Any], Any]:
    """The body with another value there, and what stood there before."""
    made = inside = copy.deepcopy(body)
    for name in place[:-1]:
        inside = inside[name]  # type: ignore[index] # a path of this body
    before, inside[place[-1]] = inside[place[-1]], wrong  # type: ignore[index]
    return made, before


def kind_of(value: Any) -> type:
    return float if type(value) is int else type(value)


@pytest.mark.parametrize("path", BODIES)
def test_a_full_request_is_answered(client: Client, path: str) -> None:
    answer = client.post(path, BODIES[path])
    assert answer.status == 200, answer.body


@pytest.mark.parametrize("path", BODIES)
def test_a_wrong_type_is_refused_and_named(client: Client, path: str) -> None:
    body = BODIES[path]
    for place in places(body):
        for wrong in WRONG:
            sent, before = changed(body, place, wrong)
            answer = client.post(path, sent)
            where = (place, wrong, answer.body[:300])
            assert answer.status < 500, where
            if answer.status == 200:
                several = place[-1] in SEVERAL or place[-2:-1] in [(name,) for name in SEVERAL]
                assert wrong is None or several or kind_of(wrong) is kind_of(before), where
                continue
            error = answer.json["error"]
            if path.startswith("/v1/messages"):
                assert answer.json["type"] == "error", where
            else:
                # Without tools the choice of one is to blame.
                blamed = ("tools", "tool_choice") if place[0] == "tools" else str(place[0])
                assert (error["param"] or "").startswith(blamed), where
            named = "the model" if place == ("model",) else str(place[0])
            assert named in error["message"] or str(place[0]) in error["message"], where
