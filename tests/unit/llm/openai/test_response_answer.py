"""How does a chat's answer become a response: items, and numbered events while it goes on?"""

from __future__ import annotations

from typing import Any

import msgspec
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.http_exchange import plain
from wherry.llm.openai.chat_answer import ChatAnswer
from wherry.llm.openai.chat_request import AllowedCalls
from wherry.llm.openai.generation import ChoiceDelta
from wherry.llm.openai.reading import decoded
from wherry.llm.openai.response_answer import ResponseAnswer
from wherry.llm.openai.response_request import ResponsesRequest

EVENTS = TypeAdapter[Any](ResponseStreamEvent)
USAGE = {"prompt_tokens": 4, "completion_tokens": 2, "cached_tokens": 1}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'

#: What a response says of a request that asks for nothing.
REPEATED = ResponsesRequest(input="?").repeated()


def failure(answer: ResponseAnswer, error: dict[str, Any]) -> tuple[str, Any]:
    """Name and data of the event of an error."""
    name, event = answer.failure(msgspec.json.encode({"error": error}))
    return name, msgspec.json.decode(event)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_a_text_is_a_message_with_one_part_that_grows() -> None:
    answer = ResponseAnswer(ChatAnswer("m", "abc-1"), REPEATED | {"instructions": "be brief"})
    events = plain(answer.add(ChoiceDelta(0, "Hel")))
    events += plain(answer.add(ChoiceDelta(0, "lo", "stop", usage=USAGE)))
    events += plain(answer.end())

    assert kinds(events) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.delta", "output_text.done", "content_part.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in events] == list(range(10))
    first, last = events[0]["response"], events[-1]["response"]
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
    assert (first["id"], last["id"], last["instructions"]) == (
        "resp_abc-1",
        "resp_abc-1",
        "be brief",
    )
    assert last == plain(answer.whole())
    (message,) = last["output"]
    assert (message["status"], message["content"][0]["text"]) == ("completed", "Hello")
    assert last["usage"]["input_tokens_details"]["cached_tokens"] == 1
    assert last["usage"]["total_tokens"] == 6
    # What was sent before is not what has become of it.
    assert events[2]["item"] == {**message, "status": "in_progress", "content": []}
    assert events[3]["part"]["text"] == ""
    places = {(e["item_id"], e["output_index"]) for e in events if "item_id" in e}
    assert places == {(message["id"], 0)}


def test_what_was_cut_off_is_incomplete() -> None:
    answer = ResponseAnswer(ChatAnswer("m", "x"), REPEATED)
    answer.add(ChoiceDelta(0, "Hel", "length", usage=USAGE))
    assert kinds(plain(answer.end()))[-1] == "incomplete"
    whole = plain(answer.whole())
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (whole["status"], whole["output"][0]["status"]) == ("incomplete", "incomplete")


def test_calls_are_items_of_their_own_in_the_order_of_the_text() -> None:
    answer = ResponseAnswer(ChatAnswer("m", "x", AllowedCalls({"add": {}})), REPEATED)
    events = plain(answer.add(ChoiceDelta(0, "Let me see" + CALL + CALL)))
    events += plain(answer.add(ChoiceDelta(0, " so", "stop")))
    events += plain(answer.end())
    items = plain(answer.whole())["output"]
    types = [item["type"] for item in items]
    assert types == ["message", "function_call", "function_call", "message"]
    assert items[0]["content"][0]["text"] == "Let me see"
    assert (items[1]["name"], items[1]["arguments"]) == ("add", '{"a": 1}')
    assert len({item["id"] for item in items}) == 4
    assert items[1]["call_id"] != items[2]["call_id"]
    added = [event for event in events if event["type"] == "response.output_item.added"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in added] == [0, 1, 2, 3]
    assert [event["output_index"] for event in done] == [0, 1, 2, 3]
    assert [event["item"] for event in done] == items
    assert kinds(events)[7:11] == ["output_item.done", *[
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done"
    ]]  # fmt: skip
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_of_several_calls_one_is_left_where_only_one_is_wanted() -> None:
    answer = ResponseAnswer(ChatAnswer("m", "x", AllowedCalls({"add": {}}, 1)), REPEATED)
    answer.add(ChoiceDelta(0, CALL + CALL, "stop"))
    answer.end()
    assert [item["type"] for item in plain(answer.whole())["output"]] == ["function_call"]


def test_an_answer_without_a_word_is_an_empty_message() -> None:
    for pieces in ([], [ChoiceDelta(0, "", "stop")]):
        answer = ResponseAnswer(ChatAnswer("m", "x"), REPEATED)
        events = [event for piece in pieces for event in plain(answer.add(piece))]
        events += plain(answer.end())
        assert kinds(events)[0] == "created"
        assert kinds(events)[-1] == "completed"
        (message,) = plain(answer.whole())["output"]
        assert message["content"][0]["text"] == ""


def test_an_error_is_an_event_that_says_so_in_two_ways() -> None:
    answer = ResponseAnswer(ChatAnswer("m", "x"), REPEATED)
    answer.add(ChoiceDelta(0, "a"))
    error = {"message": "broke", "type": "server_error", "param": None, "code": None}
    name, event = failure(answer, error)
    assert name == "error"
    assert (event["type"], event["message"], event["error"]) == ("error", "broke", error)
    assert event["sequence_number"] == 5


def test_events_and_responses_are_of_the_types_of_openai_s_client() -> None:
    asked = {
        "input": "?",
        "tools": [{"type": "function", "name": "add", "parameters": {}}],
        "tool_choice": {"type": "function", "name": "add"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
        "reasoning": {"effort": "low", "summary": "auto"},
    }
    wanted = decoded(msgspec.json.encode(asked), ResponsesRequest)
    spoken = ChatAnswer("m", "x", AllowedCalls({"add": {}}))
    answer = ResponseAnswer(spoken, wanted.repeated())
    style = {"style": {"thoughts": "think"}}
    text = f"<think>hm</think>so{CALL}"
    events = plain(answer.add(ChoiceDelta(0, text, "stop", details=style))) + plain(answer.end())
    error = {"message": "broke", "type": "server_error", "param": None, "code": None}
    for event in [*events, failure(answer, error)[1]]:
        assert EVENTS.validate_python(event).type == event["type"]
    response = Response.model_validate(plain(answer.whole()))
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert kinds(events)[2:7] == [
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
        "content_part.done",
    ]  # fmt: skip
