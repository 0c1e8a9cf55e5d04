"""How do a model's responses become OpenAI's choices, whole or in chunks?"""

from __future__ import annotations

from typing import Any

from wherry.frontends.http.openai.answers import ChatAnswer, Piece, TextAnswer

USAGE = {"prompt_tokens": 4, "completion_tokens": 2, "cached_tokens": 1}


def token(text: str, logprob: float) -> dict[str, Any]:
    said = {"token": text, "id": 1, "logprob": logprob, "bytes": list(text.encode())}
    return {**said, "top": [said]}


def test_a_chat_is_a_role_its_texts_and_a_reason() -> None:
    answer = ChatAnswer("m", "abc-1")
    chunks = answer.add(Piece(0, "Hel"))
    chunks += answer.add(Piece(0, "lo", "stop", usage=USAGE))
    chunks += answer.end()

    assert [(chunk["delta"], chunk["finish_reason"]) for chunk in chunks] == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "Hel"}, None),
        ({"content": "lo"}, None),
        ({}, "stop"),
    ]
    whole = answer.whole()
    assert whole["id"] == "chatcmpl-abc-1"
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "Hello"}
    assert whole["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 2,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def test_several_choices_come_as_they_come_and_stand_in_order() -> None:
    answer = ChatAnswer("m", "x")
    for index, text in ((1, "b"), (0, "a"), (1, "B"), (0, "A")):
        answer.add(Piece(index, text))
    answer.end()
    choices = answer.whole()["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["aA", "bB"]
    assert [choice["finish_reason"] for choice in choices] == ["stop", "stop"]


def test_of_several_calls_one_is_left_where_only_one_is_wanted() -> None:
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    answer = ChatAnswer("m", "x", {"add"}, most_calls=1)
    chunks = answer.add(Piece(0, call + call, "stop"))
    assert len([chunk for chunk in chunks if "tool_calls" in chunk["delta"]]) == 1
    assert len(answer.whole()["choices"][0]["message"]["tool_calls"]) == 1


def test_calls_of_tools_are_no_text_and_the_reason_says_so() -> None:
    answer = ChatAnswer("m", "x", {"add"})
    chunks = answer.add(Piece(0, '<tool_call>{"name": "add", "argum'))
    chunks += answer.add(Piece(0, 'ents": {}}</tool_call>', "stop"))

    calls = [chunk["delta"]["tool_calls"] for chunk in chunks if "tool_calls" in chunk["delta"]]
    assert [call["function"] for (call,) in calls] == [{"name": "add", "arguments": "{}"}]
    assert calls[0][0]["index"] == 0
    assert chunks[-1]["finish_reason"] == "tool_calls"
    message = answer.whole()["choices"][0]["message"]
    assert message["content"] is None
    assert "index" not in message["tool_calls"][0]


def test_two_calls_have_two_ids() -> None:
    answer = ChatAnswer("m", "x", {"add"})
    call = '<tool_call>{"name": "add"}</tool_call>'
    answer.add(Piece(0, call + call, "stop"))
    ids = [made["id"] for made in answer.whole()["choices"][0]["message"]["tool_calls"]]
    assert len(set(ids)) == 2


def test_logprobs_are_gathered_token_by_token() -> None:
    answer = ChatAnswer("m", "x")
    answer.add(Piece(0, "a", logprobs=[token("a", -1.0)]))
    answer.add(Piece(0, "b", "length", logprobs=[token("b", -2.0)]))
    content = answer.whole()["choices"][0]["logprobs"]["content"]
    assert [(one["token"], one["logprob"]) for one in content] == [("a", -1.0), ("b", -2.0)]
    assert content[0]["top_logprobs"] == [{"token": "a", "logprob": -1.0, "bytes": [97]}]


def test_completions_echo_their_prompt_once_and_offsets_count_on() -> None:
    answer = TextAnswer("m", "x", ["once", "the "], n=1)
    first = answer.add(Piece(0, " upon", logprobs=[token(" upon", -1.0)]))
    answer.add(Piece(0, " a", "length", logprobs=[token(" a", -2.0)]))
    answer.add(Piece(1, "sun", "stop"))
    assert first[0]["text"] == "once upon"
    whole = answer.whole()
    assert [choice["text"] for choice in whole["choices"]] == ["once upon a", "the sun"]
    assert whole["choices"][0]["logprobs"]["tokens"] == [" upon", " a"]
    assert whole["object"] == "text_completion"


def test_usage_comes_last_and_the_chunks_before_say_that_they_have_none() -> None:
    answer = ChatAnswer("m", "x")
    (role, *_) = answer.add(Piece(0, "a", usage=USAGE))
    assert answer.chunk(role, with_usage=True)["usage"] is None
    assert "usage" not in answer.chunk(role, with_usage=False)
    last = answer.usage_chunk()
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 6
