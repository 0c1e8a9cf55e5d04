"""llm/anthropic/: requests as Anthropic's clients send them, over any model that chats."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

import wherry
from tests.http_exchange import Client, MemoryExchange, served
from wherry.core.values.errors import PromptTooLong
from wherry.llm.anthropic.request import CountRequest, MessagesRequest
from wherry.llm.openai.chat_request import AllowedCalls
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.reading import decoded
from wherry.server.access.api_keys import ApiKeys
from wherry.server.v2.common import Common

HELLO = {"model": "parrot", "max_tokens": 9, "messages": [{"role": "user", "content": "a b"}]}
TOOL: dict[str, Any] = {"name": "add", "input_schema": {"type": "object"}}


@wherry.model
def parrot(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    for word in messages[-1]["content"].split():
        if word == "long":
            raise PromptTooLong("300 tokens: the maximum context length is 256", field="prompt")
        if word == "break":
            raise ValueError("broke")
        yield word + " "


@wherry.model
def deep(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Calls `add` with lists in lists, so many as it was told."""
    depth = int(messages[-1]["content"])
    lists = "[" * depth + "]" * depth
    yield f'<tool_call>{{"name": "add", "arguments": {{"a": {lists}}}}}</tool_call>'


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(parrot, deep) as client:
        yield client


def asked(kind: Any = MessagesRequest, **fields: Any) -> Any:
    return decoded(json.dumps({**HELLO, **fields}).encode(), kind, [])


def messages(*said: tuple[str, Any], **fields: Any) -> list[dict[str, Any]]:
    given = [{"role": role, "content": content} for role, content in said]
    found: list[dict[str, Any]] = asked(messages=given, **fields).chat().messages
    return found


def events(exchange: MemoryExchange) -> list[tuple[str, dict[str, Any]]]:
    made = []
    for event in exchange.body.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        made.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return made


# Requests


def test_the_system_may_speak_between_two_turns() -> None:
    texts = [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
    found = messages(("user", "a"), ("system", texts), ("user", "d"))
    assert [(one["role"], one["content"]) for one in found] == [
        ("user", "a"), ("system", "bc"), ("user", "d"),
    ]  # fmt: skip


def test_documents_and_findings_that_are_texts_are_read_as_texts() -> None:
    document = {"type": "document", "title": "T", "source": {"type": "text", "data": "a"}}
    whole = {"type": "document", "context": "C", "source": {"type": "content", "content": "b"}}
    text = {"type": "text", "text": "c"}
    found = {"type": "search_result", "source": "S", "title": "T", "content": [text, text]}
    calls = [{"type": "tool_use", "id": "t", "name": "add", "input": {}}]
    result = {"type": "tool_result", "tool_use_id": "t", "content": [document, found]}
    talk = messages(("user", [document, whole, text]), ("assistant", calls), ("user", [result]))
    assert talk[0]["content"] == "T\na\nC\nb\nc"
    assert talk[2]["content"] == "T\na\nT\nS\nc\nc"
    cites = {**document, "citations": {"enabled": True}}
    with pytest.raises(BadField, match=r"messages\[0\].content\[0\].citations"):
        messages(("user", [cites]))
    assert messages(("user", [{**document, "citations": {"enabled": False}}]))
    for source in ({"type": "base64", "data": "a"}, {"type": "text", "data": 1}, {}):
        with pytest.raises(BadField, match="text only"):
            messages(("user", [{"type": "document", "source": source}]))


def test_whom_to_bill_is_not_said_to_the_model() -> None:
    bill = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1f;"}
    (first, _) = messages(("user", "a"), system=[bill, {"type": "text", "text": "Be brief."}])
    assert first["content"] == "Be brief."
    assert [one["role"] for one in messages(("user", "a"), system=[bill])] == ["user"]


def test_a_conversation_that_is_to_be_read_whole_is() -> None:
    keeps = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    assert messages(("user", "a"), context_management=keeps)
    keeps["edits"][0]["keep"] = "none"
    with pytest.raises(BadField, match="context_management"):
        messages(("user", "a"), context_management=keeps)


def test_blocks_become_the_messages_of_a_chat() -> None:
    found = messages(
        ("user", [{"type": "text", "text": "one", "cache_control": {"type": "ephemeral"}}]),
        (
            "assistant",
            [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "redacted_thinking", "data": "?"},
                {"type": "text", "text": "Wait."},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
            ],
        ),
        (
            "user",
            [
                {"type": "tool_result", "tool_use_id": "t1", "content": "3"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [{"type": "text", "text": "4"}],
                    "is_error": True,
                },
                {"type": "tool_result", "tool_use_id": "t3"},
                {"type": "text", "text": "and"},
                {"type": "text", "text": " now?"},
            ],
        ),
        system=[{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
    )
    call = {"id": "t1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    assert found == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {
            "role": "assistant",
            "content": "Wait.",
            "reasoning_content": "hm",
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "3"},
        {"role": "tool", "tool_call_id": "t2", "content": "4"},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
        {"role": "user", "content": "and\n now?"},
    ]


def test_fields_reach_the_engine_by_its_names() -> None:
    wanted = asked(
        stop_sequences=["END"], temperature=0.5, top_p=0.9, top_k=3, tools=[TOOL],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "low"}, metadata={"user_id": "u"}, service_tier="auto",
    )  # fmt: skip
    call = wanted.call()
    inputs = call.inputs
    parameters = inputs["parameters"]
    constraint = parameters.pop("constraint")
    assert parameters == {
        "max_tokens": 9, "stop": ["END"], "temperature": 0.5, "top_p": 0.9, "top_k": 3,
        "clip_max_tokens": True,
    }  # fmt: skip
    assert constraint["json_schema"]["properties"]["name"] == {"const": "add"}
    assert call.calls == AllowedCalls({"add": TOOL["input_schema"]}, 1, forced=True)
    assert inputs["template"] == {
        "enable_thinking": True, "thinking": True, "reasoning_effort": "low",
    }  # fmt: skip
    assert wanted.named("stop") == "stop_sequences"
    assert wanted.named("constraint") == "tool_choice"


def test_the_assistant_s_last_message_goes_on() -> None:
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "The answer is ("}]
    assert asked(messages=said).chat().continue_final_message
    assert asked(CountRequest, messages=said).call().inputs["template"]["continue_final_message"]


def test_a_form_may_be_asked_for_by_both_names() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    for fields in ({"output_config": {"format": form}}, {"output_format": form}):
        wanted = asked(**fields)
        assert wanted.chat().call().inputs["parameters"]["constraint"] == {
            "json_schema": form["schema"]
        }
        assert wanted.named("constraint") == "output_config.format"


def test_a_mark_for_the_cache_is_found_wherever_it_stands() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    text = {"type": "text", "text": "a"}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{**text, **mark}]}
    assert not asked().marks_cache()
    assert not asked(messages=[{"role": "user", "content": [text]}]).marks_cache()
    for fields in (
        mark, {"system": [{**text, **mark}]}, {"tools": [{**TOOL, **mark}]},
        {"messages": [{"role": "user", "content": [result]}]},
    ):  # fmt: skip
        assert asked(**fields).marks_cache(), fields


PICTURE = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"messages": []}, "messages: must hold at least one message"),
        (
            {"messages": [{"role": "user", "content": [PICTURE]}]},
            r"messages\[0\].content\[0\]: this model takes text only, and no block of type 'image'",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "t", "content": [PICTURE]}
                        ],
                    }
                ]
            },
            r"messages\[0\].content\[0\].content\[0\]: this model takes text only",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_result",
             "tool_use_id": "t"}]}]},
            "a message of the assistant has no block of type 'tool_result'",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\].role: .*'tool'"),
        (
            {"messages": [{"role": "system", "content": [{"type": "thinking", "thinking": ""}]}]},
            "a message of the system has no block of type 'thinking'",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, r"tools\[0\].type"),
        ({"tools": [{"name": "add"}]}, r"tools\[0\].input_schema: is missing"),
        ({"tools": [{**TOOL, "name": ""}]}, r"tools\[0\].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: asks for a tool"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers: is not supported"),
        ({"max_tokens": 0}, "max_tokens: expected `?int`? >= 1"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(BadField, match=says):
        asked(**fields).chat().call()


def test_max_tokens_is_required() -> None:
    with pytest.raises(BadField, match="max_tokens: is missing"):
        decoded(b'{"messages": []}', MessagesRequest)


# Answers


def test_a_plain_model_answers_a_message(client: Client) -> None:
    answer = client.post("/v1/messages", HELLO, {"anthropic-version": "2023-06-01"})
    assert answer.status == 200
    assert answer.json["content"] == [{"type": "text", "text": "a b "}]
    assert (answer.json["type"], answer.json["stop_reason"]) == ("message", "end_turn")
    # What says how to think is a hint.
    hinted = {**HELLO, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    assert client.post("/v1/messages?beta=true", hinted).status == 200


def test_a_stream_has_named_events(client: Client) -> None:
    answer = client.post("/v1/messages", {**HELLO, "stream": True})
    told = events(answer)
    assert [name for name, _ in told] == [data["type"] for _, data in told] == [
        "message_start", "content_block_start", "ping", "content_block_delta",
        "content_block_delta", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip


def test_errors_have_anthropic_s_form(client: Client) -> None:
    def error(status: int, headers: Mapping[str, str] = {}, **fields: Any) -> dict[str, Any]:
        answer = client.post("/v1/messages", {**HELLO, **fields}, headers)
        assert answer.status == status
        assert answer.json["type"] == "error"
        assert answer.json["request_id"] == answer.headers["x-request-id"]
        found: dict[str, Any] = answer.json["error"]
        return found

    assert error(404, model="claude")["type"] == "not_found_error"
    wrong = error(400, {"x-request-id": "mine"}, temperature="warm")
    assert wrong["type"] == "invalid_request_error"
    assert wrong["message"].startswith("temperature: ")
    unable = error(400, stop_sequences=["x"])
    assert unable["message"] == "stop_sequences: the model 'parrot' does not support it"
    long = error(400, messages=[{"role": "user", "content": "long"}])
    assert long["message"].startswith("prompt is too long: 300 tokens")
    broken = error(500, messages=[{"role": "user", "content": "break"}])
    assert broken["type"] == "api_error"
    bare = client.post("/v1/messages", b"{")
    assert (bare.status, bare.json["error"]["type"]) == (400, "invalid_request_error")


def test_what_fails_later_is_an_event_of_the_stream(client: Client) -> None:
    said = [{"role": "user", "content": "a break"}]
    told = events(client.post("/v1/messages", {**HELLO, "messages": said, "stream": True}))
    name, data = told[-1]
    assert (name, data["type"], data["error"]["type"]) == ("error", "error", "api_error")
    assert "message_stop" not in dict(told)


def test_counting_needs_a_tokenizer(client: Client) -> None:
    wanted = {"model": "parrot", "messages": HELLO["messages"]}
    answer = client.post("/v1/messages/count_tokens", wanted)
    assert answer.status == 404
    assert answer.json["error"]["message"].endswith("for tokens (of each: it has no input 'task')")


def test_a_key_may_come_as_anthropic_s_clients_send_it() -> None:
    with served(parrot, common=Common(keys=ApiKeys(["a-key-of-ours-123"]))) as client:
        refused = client.post("/v1/messages", HELLO)
        assert (refused.status, refused.json["error"]["type"]) == (401, "authentication_error")
        taken = client.post("/v1/messages", HELLO, {"x-api-key": "a-key-of-ours-123"})
        assert taken.status == 200


def test_arguments_that_are_too_deep_to_be_read_are_none(client: Client) -> None:
    depths: tuple[tuple[int, dict[str, Any]], ...] = ((2, {"a": [[]]}), (5000, {}), (200_000, {}))
    for depth, given in depths:
        said = [{"role": "user", "content": str(depth)}]
        body = {"model": "deep", "max_tokens": 5, "messages": said, "tools": [TOOL]}
        answer = client.post("/v1/messages", body)
        assert answer.status == 200
        assert answer.json["content"][0]["input"] == given
