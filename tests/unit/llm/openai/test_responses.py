"""What may stand in a request to /v1/responses, and which chat is it?"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.http_exchange import plain
from wherry.llm.engine.chat_form import text_of
from wherry.llm.openai.chat_request import AllowedCalls
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.reading import decoded
from wherry.llm.openai.response_request import ResponsesRequest

ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}}
CITY = {"enum": ["Rome", "Oslo"]}
CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}


def request(**fields: Any) -> ResponsesRequest:
    body = msgspec.json.encode({"model": "m", "input": "hello", **fields})
    return decoded(body, ResponsesRequest)


def messages(given: Any, **fields: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = request(input=given, **fields).chat().call().inputs["messages"]
    return found


def read(fields: dict[str, Any]) -> None:
    """Read it as a server does that keeps no responses."""
    wanted = request(**fields)
    wanted.check_kept(keeps=False)
    wanted.chat().call()


def test_a_text_is_what_the_user_says_and_instructions_come_before_it() -> None:
    assert messages("hello") == [{"role": "user", "content": "hello"}]
    assert messages("hello", instructions="be brief") == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
    ]


def test_items_are_a_conversation_and_calls_belong_to_what_the_model_said() -> None:
    found = messages(
        [
            {"role": "developer", "content": "be brief"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "1+?"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "let me see"}]},
            CALL,
            {**CALL, "call_id": "c2"},
            {"type": "function_call_output", "call_id": "c1", "output": "2"},
        ]
    )
    assert [message["role"] for message in found] == ["system", "user", "assistant", "tool"]
    assert [text_of(message["content"]) for message in found] == [
        "be brief",
        "1+?",
        "let me see",
        "2",
    ]
    assert [call["id"] for call in found[2]["tool_calls"]] == ["c1", "c2"]
    assert found[2]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert found[3]["tool_call_id"] == "c1"
    assert [message["role"] for message in messages([CALL])] == ["assistant"]


def test_thoughts_belong_to_what_the_model_said_next() -> None:
    thoughts = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "briefly"}]}
    whole = {**thoughts, "content": [{"type": "reasoning_text", "text": "at length"}]}
    found = messages([{"role": "user", "content": "?"}, whole, CALL, CALL])
    assert [message["role"] for message in found] == ["user", "assistant"]
    assert found[1]["reasoning_content"] == "at length"
    assert len(found[1]["tool_calls"]) == 2
    said, user = messages(
        [
            thoughts,
            {"role": "assistant", "content": "x"},
            thoughts,
            {"role": "user", "content": "?"},
        ]
    )
    assert said["reasoning_content"] == "briefly"
    assert "reasoning_content" not in user


def test_a_turn_of_thoughts_alone_is_a_message_so_that_roles_alternate() -> None:
    thoughts = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
    silent = {"role": "assistant", "content": "", "reasoning_content": "hm"}
    found = messages([{"role": "user", "content": "?"}, thoughts, {"role": "user", "content": "?"}])
    assert [found[0]["role"], found[1], found[2]["role"]] == ["user", silent, "user"]
    assert messages([{"role": "user", "content": "?"}, thoughts])[-1] == silent
    ended = messages(
        [{"role": "assistant", "content": "x"}, thoughts, {"role": "user", "content": ""}]
    )
    assert [message["role"] for message in ended] == ["assistant", "user"]


def test_arguments_that_were_cut_off_are_the_text_that_they_are() -> None:
    (said,) = messages([{**CALL, "arguments": '{"a": "Ber', "status": "incomplete"}])
    assert said["tool_calls"][0]["function"]["arguments"] == '{"a": "Ber'


def test_some_of_the_tools_may_be_allowed() -> None:
    chosen = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "add"}],
    }
    chat = request(tools=[ADD, {**ADD, "name": "sub"}], tool_choice=chosen).chat()
    assert [tool["function"]["name"] for tool in chat.call().inputs["tools"]] == ["add"]


def test_wishes_are_those_of_the_chat() -> None:
    chat = request(
        max_output_tokens=5,
        temperature=0,
        top_p=0.5,
        reasoning={"effort": "low"},
        tools=[ADD],
        tool_choice={"type": "function", "name": "add"},
        parallel_tool_calls=False,
    ).chat()
    sampling = chat.call().inputs["parameters"]
    assert (sampling["max_tokens"], sampling["temperature"], sampling["top_p"]) == (5, 0, 0.5)
    assert sampling["constraint"]["json_schema"]["properties"]["name"] == {"const": "add"}
    assert chat.call().inputs["tools"][0]["function"]["name"] == "add"
    assert chat.call().inputs["template"] == {"reasoning_effort": "low"}
    assert chat.call().calls == AllowedCalls({"add": {"type": "object"}}, 1, forced=True)


@pytest.mark.parametrize(
    ("given", "constraint"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"json_object": True}),
        ({"type": "json_schema", "name": "x", "schema": CITY}, {"json_schema": CITY}),
    ],
)  # fmt: skip
def test_the_form_of_the_text_is_the_chats(given: dict[str, Any], constraint: Any) -> None:
    asked = request(text={"format": given})
    assert asked.chat().call().inputs["parameters"].get("constraint") == constraint
    if constraint:
        assert asked.named("constraint") == "text.format"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"truncation": "middle"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"include": ["message.output_text.logprobs"]}, "include[0]"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"input": [{"type": "reasoning", "summary": [{"type": "summary_text"}]}]},
         "input[0].summary[0].text"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
         "tool_choice.tools[0].type"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [ADD, {"type": "custom"}]}]},
         "tools[0].tools[1].type"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
         "input[0].content[0].text"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": {}, "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": []}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "add"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    ],
)  # fmt: skip
def test_what_is_not_done_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(BadField) as error:
        read(fields)
    assert error.value.field == field


def test_what_asks_for_nothing_is_accepted() -> None:
    request(
        store=False, background=False, previous_response_id=None, conversation=None, user="me",
        metadata={"a": "b"}, service_tier="auto", truncation="disabled", include=[],
        stream_options={"include_obfuscation": False}, max_tool_calls=None,
    ).chat().call()  # fmt: skip
    request(include=["reasoning.encrypted_content"]).chat()
    request(reasoning={"summary": "auto"}, text={"verbosity": "medium"}).chat()


def test_a_conversation_may_lose_its_beginning() -> None:
    assert request(truncation="auto").chat().truncate_prompt_tokens == -1
    assert request(truncation="disabled").chat().truncate_prompt_tokens is None
    assert request(truncation="auto").repeated()["truncation"] == "auto"
    assert request(truncation="auto").named("truncate_prompt") == "truncation"


def test_what_the_model_blames_has_the_requests_own_name() -> None:
    assert request(max_output_tokens=0).named("max_tokens") == "max_output_tokens"
    assert request().named("prompt") == "input"
    assert request().named("temperature") == "temperature"
    assert request(tools=[ADD], tool_choice="required").named("constraint") == "tool_choice"


def test_a_response_repeats_what_was_asked() -> None:
    tools = [ADD, {**ADD, "strict": False, "description": ""}, {"type": "web_search"}]
    repeated = plain(request(tools=tools, metadata={"a": "b"}, temperature=0.5).repeated())
    assert repeated["tools"] == [
        {**ADD, "strict": None, "description": None},
        {**ADD, "strict": False, "description": ""},
    ]
    assert (repeated["metadata"], repeated["temperature"]) == ({"a": "b"}, 0.5)
    assert (repeated["tool_choice"], repeated["parallel_tool_calls"]) == ("auto", True)
    assert repeated["text"]["format"]["type"] == "text"
