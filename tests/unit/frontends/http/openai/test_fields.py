"""What may stand in an OpenAI request, and what does it mean to the model?"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from wherry.frontends.http.openai.errors import BadField
from wherry.frontends.http.openai.fields import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    conversation,
    decoded,
)

HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> ChatRequest:
    body = msgspec.json.encode({"model": "m", "messages": HELLO, **fields})
    request: ChatRequest = decoded(body, ChatRequest)
    return request


def completion(**fields: Any) -> CompletionRequest:
    body = msgspec.json.encode({"model": "m", "prompt": "once", **fields})
    request: CompletionRequest = decoded(body, CompletionRequest)
    return request


def test_what_is_not_given_is_left_to_the_model() -> None:
    assert chat().sampling() == {}
    assert chat(temperature=None, stop=None, max_tokens=None).sampling() == {}


def test_fields_become_those_of_the_engine() -> None:
    request = chat(
        max_tokens=5,
        max_completion_tokens=7,
        temperature=0,
        stop="end",
        logprobs=True,
        top_logprobs=3,
        logit_bias={"17": -100},
        top_k=-1,
        include_stop_str_in_output=True,
    )
    assert request.sampling() == {
        "max_tokens": 7,
        "temperature": 0,
        "stop": ["end"],
        "logprobs": 3,
        "logit_bias": {17: -100},
        "include_stop": True,
    }


def test_fields_that_say_nothing_about_the_answer_are_accepted() -> None:
    chat(user="me", metadata={"a": "b"}, store=False, service_tier="auto")


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
        ({"temperature": "warm"}, "temperature", "expected float"),
        ({"stream_options": {"usage": True}}, "stream_options.usage", "not a field"),
        ({"messages": "hi"}, "messages", "expected array"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid enum"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function", "is missing"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "is not a field that is known here$"),
        ({"seed": 2**70}, "seed", "expected int <="),
        ({"stop_token_ids": [2**64]}, "stop_token_ids[0]", "expected int <="),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "expected int <= 20"),
        ({"guided_choice": []}, "guided_choice", "length >= 1"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(BadField, match=problem) as error:
        chat(**fields)
    assert error.value.field == field


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"metadata":' + b"[" * 100_000])
def test_a_body_that_is_no_json_says_so(body: bytes) -> None:
    with pytest.raises(BadField, match="not JSON"):
        decoded(body, ChatRequest)


def test_a_missing_model_is_named() -> None:
    with pytest.raises(BadField, match="model: is missing"):
        decoded(b'{"messages": []}', ChatRequest)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"top_logprobs": 2}, "needs logprobs"),
        ({"logit_bias": {"the": 1}}, "must be token ids"),
        ({"logit_bias": {"-1": 1}}, "must be token ids"),
        ({"logit_bias": {"9" * 5000: 1}}, "must be token ids"),
        ({"logit_bias": {"\u0663": 1}}, "must be token ids"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadField, match=problem):
        chat(**fields).sampling()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"echo": True, "prompt": [1, 2]}, "echo"),
        ({"add_special_tokens": False}, "add_special_tokens"),
    ],
)
def test_what_completions_do_not_do_is_refused_by_name(
    fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(BadField, match=f"^{problem}: "):
        completion(**fields).sampling()


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_a_prompt_is_one_or_several_texts_or_tokens(prompt: Any, prompts: list[Any]) -> None:
    assert completion(prompt=prompt).prompts() == prompts


@pytest.mark.parametrize("prompt", ["", [], [[]], ["a", ""], [[1], []]])
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(BadField, match="prompt: is empty"):
        completion(prompt=prompt).prompts()


@pytest.mark.parametrize("prompt", [["a", 1], [[1], "a"]])
def test_prompts_of_several_kinds_are_refused(prompt: Any) -> None:
    with pytest.raises(BadField, match="prompt: must hold"):
        completion(prompt=prompt).prompts()


@pytest.mark.parametrize("given", [[], [1, 2], ["a", 1]])
def test_only_texts_are_embedded(given: Any) -> None:
    body = msgspec.json.encode({"model": "m", "input": given})
    with pytest.raises(BadField, match="input: must be a text"):
        decoded(body, EmbeddingRequest).texts()


def test_a_conversation_is_what_a_chat_template_takes() -> None:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "add", "arguments": '{"a": 1}'},
    }
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "+"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "2"},
    ]
    made = conversation(messages)
    assert [message["role"] for message in made] == ["system", "user", "assistant", "tool"]
    assert made[1]["content"] == "1+"
    assert made[2]["content"] == ""
    assert made[2]["tool_calls"][0]["function"]["arguments"] == {"a": 1}


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 1}, "messages[0].content"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            "messages[0].content[0]",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": 3}, "messages[0].tool_calls"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
    ],
)
def test_a_message_that_no_template_takes_is_named(message: dict[str, Any], field: str) -> None:
    with pytest.raises(BadField) as error:
        conversation([message])
    assert error.value.field == field


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
TIME = {"type": "function", "function": {"name": "time"}}


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": CITY}}},
            {"json_schema": CITY},
        ),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["yes", "no"]}, {"choice": ["yes", "no"]}),
        ({"tools": [WEATHER], "tool_choice": "auto"}, None),
    ],
)
def test_what_the_answer_must_look_like_is_the_engines_constraint(
    fields: dict[str, Any], constraint: Any
) -> None:
    assert chat(**fields).sampling().get("constraint") == constraint


def test_a_tool_that_must_be_called_leaves_no_other_answer() -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    one = chat(tools=[WEATHER, TIME], tool_choice=named).sampling()["constraint"]["json_schema"]
    assert one["properties"] == {"name": {"const": "weather"}, "arguments": CITY}
    either = chat(tools=[WEATHER, TIME], tool_choice="required").sampling()["constraint"]
    names = [call["properties"]["name"]["const"] for call in either["json_schema"]["anyOf"]]
    assert names == ["weather", "time"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ],
)
def test_constraints_that_cannot_be_met_are_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(BadField) as error:
        chat(**fields).sampling()
    assert error.value.field == field
