"""llm/anthropic/answer.py: the events of a message, in Anthropic's order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http_exchange import plain
from wherry.llm.anthropic.answer import MessageAnswer
from wherry.llm.openai.chat_answer import ChatAnswer
from wherry.llm.openai.chat_request import AllowedCalls
from wherry.llm.openai.generation import ChoiceDelta

USAGE = {"prompt_tokens": 40, "completion_tokens": 2, "cached_tokens": 32}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def answer(*tools: str, most: int = 2, cached: bool = False) -> MessageAnswer:
    calls = AllowedCalls({name: {} for name in tools})
    return MessageAnswer(ChatAnswer("m", "abc-1", calls), most, counts_cached=cached)


def events_of(made: MessageAnswer, *pieces: ChoiceDelta) -> list[dict[str, Any]]:
    events = [event for piece in pieces for event in made.add(piece)]
    return list(plain([*events, *made.end()]))


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def test_a_text_is_one_block_between_the_message_s_start_and_stop() -> None:
    made = answer()
    first = ChoiceDelta(0, "Hel", details={"prompt_tokens": 40})
    events = events_of(made, first, ChoiceDelta(0, "lo", "stop", usage=USAGE))
    assert kinds(events) == [
        "message_start", "content_block_start", "ping", "content_block_delta",
        "content_block_delta", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    start = events[0]["message"]
    assert (start["id"], start["role"], start["content"]) == ("msg_abc-1", "assistant", [])
    assert (start["stop_reason"], start["stop_sequence"]) == (None, None)
    assert start["usage"]["input_tokens"] == 40
    assert events[1] == {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    assert events[3]["delta"] == {"type": "text_delta", "text": "Hel"}
    assert events[6] == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {
            "input_tokens": 40,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 2,
        },
    }
    assert plain(made.whole()) == {
        **start,
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "usage": events[6]["usage"],
    }


def test_calls_are_blocks_whose_input_comes_as_json() -> None:
    made = answer("add")
    events = events_of(made, ChoiceDelta(0, "Let me see" + CALL + CALL, "stop", usage=USAGE))
    starts = [event["content_block"] for event in events if "content_block" in event]
    assert [(start["type"], start.get("input")) for start in starts] == [
        ("text", None), ("tool_use", {}), ("tool_use", {}),
    ]  # fmt: skip
    assert [event["index"] for event in events if "index" in event] == [0] * 3 + [1] * 3 + [2] * 3
    assert kinds(events).count("ping") == 1
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert deltas[1] == {"type": "input_json_delta", "partial_json": '{"a": 1}'}
    whole = plain(made.whole())
    assert whole["stop_reason"] == "tool_use"
    one, other = whole["content"][1:]
    assert (one["name"], one["input"]) == ("add", {"a": 1})
    assert one["id"].startswith("toolu_")
    assert one["id"] != other["id"]


@pytest.mark.parametrize(
    ("reason", "details", "most", "said"),
    [
        ("length", {}, 2, ("max_tokens", None)),
        ("length", {}, 1000, ("model_context_window_exceeded", None)),
        ("stop", {"stop_reason": "\n\n"}, 2, ("stop_sequence", "\n\n")),
        ("stop", {"stop_reason": 7}, 2, ("end_turn", None)),
        ("content_filter", {}, 2, ("refusal", None)),
    ],
)
def test_why_it_ended(reason: str, details: Any, most: int, said: tuple[str, str | None]) -> None:
    made = answer(most=most)
    events_of(made, ChoiceDelta(0, "a", reason, usage=USAGE, details=details))
    whole = plain(made.whole())
    assert (whole["stop_reason"], whole["stop_sequence"]) == said


def test_an_answer_without_a_word_has_no_block() -> None:
    for pieces in ([], [ChoiceDelta(0, "", "stop")]):
        made = answer()
        events = events_of(made, *pieces)
        assert kinds(events) == ["message_start", "message_delta", "message_stop"]
        assert (plain(made.whole())["content"], plain(made.whole())["stop_reason"]) == (
            [],
            "end_turn",
        )


def test_cached_tokens_are_told_apart_where_the_client_marks_what_to_keep() -> None:
    made = answer(cached=True)
    events_of(made, ChoiceDelta(0, "a", "stop", usage=USAGE))
    usage = plain(made.whole())["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (8, 32)


def test_tokens_of_thoughts_are_told_where_the_engine_counts_them() -> None:
    made = answer()
    events_of(made, ChoiceDelta(0, "a", "stop", usage={**USAGE, "reasoning_tokens": 1}))
    assert plain(made.whole())["usage"]["output_tokens_details"] == {"thinking_tokens": 1}


def test_thoughts_are_a_block_that_ends_with_its_signature() -> None:
    made = answer()
    style = {"style": {"thoughts": "think"}}
    events = events_of(made, ChoiceDelta(0, "<think>hm</think>so", "stop", details=style))
    assert kinds(events)[1:-2] == [
        "content_block_start", "ping", "content_block_delta", "content_block_delta",
        "content_block_stop", "content_block_start", "content_block_delta", "content_block_stop",
    ]  # fmt: skip
    assert events[1]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert [event["delta"] for event in events[3:5]] == [
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": "msg_abc-1"},
    ]
    assert [block["type"] for block in plain(made.whole())["content"]] == ["thinking", "text"]
