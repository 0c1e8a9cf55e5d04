"""How do a model's responses become OpenAI's choices, whole or in chunks?"""

from __future__ import annotations

from typing import Any

import pytest

from tests.http_exchange import plain
from wherry.llm.openai.chat_answer import ChatAnswer
from wherry.llm.openai.chat_request import AllowedCalls
from wherry.llm.openai.completions import TextAnswer
from wherry.llm.openai.generation import ChoiceDelta
from wherry.llm.openai.generation_request import AnswerParts

USAGE = {"prompt_tokens": 4, "completion_tokens": 2, "cached_tokens": 1}


#: A function, with no schema.
ADD: dict[str, dict[str, object]] = {"add": {}}


def token(text: str, logprob: float) -> dict[str, Any]:
    said = {"token": text, "id": 1, "logprob": logprob, "bytes": list(text.encode())}
    return {**said, "top": [said]}


def test_a_chat_is_a_role_its_texts_and_a_reason() -> None:
    answer = ChatAnswer("m", "abc-1")
    chunks = plain(answer.add(ChoiceDelta(0, "Hel")))
    chunks += plain(answer.add(ChoiceDelta(0, "lo", "stop", usage=USAGE)))
    chunks += plain(answer.end())

    assert [(chunk["delta"], chunk["finish_reason"]) for chunk in chunks] == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "Hel"}, None),
        ({"content": "lo"}, "stop"),
    ]
    whole = plain(answer.whole())
    assert whole["id"] == "chatcmpl-abc-1"
    assert whole["choices"][0]["message"] == {
        "role": "assistant", "content": "Hello", "reasoning_content": None, "reasoning": None,
    }  # fmt: skip
    assert whole["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 2,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def test_tokens_of_thoughts_are_told_where_the_engine_counts_them() -> None:
    answer = ChatAnswer("m", "x", shown=AnswerParts(usage=True))
    for thoughts in (3, 0):
        counted = {**USAGE, "reasoning_tokens": thoughts}
        answer.add(ChoiceDelta(0, "a", usage=counted))
    assert plain(answer.whole())["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    assert plain(answer.closing())[0]["usage"] == plain(answer.whole())["usage"]


def test_several_choices_come_as_they_come_and_stand_in_order() -> None:
    answer = ChatAnswer("m", "x")
    for index, text in ((1, "b"), (0, "a"), (1, "B"), (0, "A")):
        answer.add(ChoiceDelta(index, text))
    answer.end()
    choices = plain(answer.whole())["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["aA", "bB"]
    assert [choice["finish_reason"] for choice in choices] == ["stop", "stop"]


def test_of_several_calls_one_is_left_where_only_one_is_wanted() -> None:
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    answer = ChatAnswer("m", "x", AllowedCalls(ADD, most=1))
    chunks = plain(answer.add(ChoiceDelta(0, call + call, "stop")))
    called = [c["delta"]["tool_calls"] for c in chunks if "tool_calls" in c["delta"]]
    assert [piece["index"] for (piece,) in called] == [0, 0]
    assert len(plain(answer.whole())["choices"][0]["message"]["tool_calls"]) == 1


def test_calls_of_tools_are_no_text_and_the_reason_says_so() -> None:
    answer = ChatAnswer("m", "x", AllowedCalls(ADD))
    chunks = plain(answer.add(ChoiceDelta(0, '<tool_call>{"name": "add", "argum')))
    chunks += plain(answer.add(ChoiceDelta(0, 'ents": {}}</tool_call>', "stop")))

    calls = [chunk["delta"]["tool_calls"] for chunk in chunks if "tool_calls" in chunk["delta"]]
    assert [call["function"] for (call,) in calls] == [
        {"name": "add", "arguments": ""},
        {"arguments": "{}"},
    ]
    assert [call.keys() for (call,) in calls] == [
        {"index", "id", "type", "function"},
        {"index", "function"},
    ]
    assert calls[0][0]["index"] == 0
    assert chunks[-1]["finish_reason"] == "tool_calls"
    message = plain(answer.whole())["choices"][0]["message"]
    assert message["content"] is None
    assert "index" not in message["tool_calls"][0]


def test_arguments_come_as_the_model_writes_them() -> None:
    answer = ChatAnswer("m", "x", AllowedCalls(ADD))
    pieces = ['<tool_call>{"name": "add", "argu', 'ments": {"a": "o', "ne", '"}}', "</tool_call>"]
    functions = [
        [call["function"] for chunk in plain(answer.add(ChoiceDelta(0, piece))) for call in
         chunk["delta"].get("tool_calls", ())]
        for piece in pieces
    ]  # fmt: skip
    assert functions == [
        [],
        [{"name": "add", "arguments": ""}, {"arguments": '{"a": "o'}],
        [{"arguments": "ne"}],
        [{"arguments": '"}'}],
        [],
    ]
    answer.end()
    (call,) = plain(answer.whole())["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": "one"}'}


def test_a_call_that_is_cut_off_stays_as_it_has_come() -> None:
    answer = ChatAnswer("m", "x", AllowedCalls(ADD))
    answer.add(ChoiceDelta(0, '<tool_call>{"name": "add", "arguments": {"a": "on', "length"))
    choice = plain(answer.whole())["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": "on'
    assert choice["finish_reason"] == "length"


def test_text_behind_a_call_comes_behind_it_in_the_same_piece() -> None:
    answer = ChatAnswer("m", "x", AllowedCalls(ADD))
    answer.add(ChoiceDelta(0, '<tool_call>{"name": "add", "arguments": {"a": '))
    chunks = plain(answer.add(ChoiceDelta(0, "1}}</tool_call>Done.", "stop")))
    assert [*map(list, (chunk["delta"] for chunk in chunks))] == [["tool_calls"], ["content"]]


def test_two_calls_have_two_ids() -> None:
    answer = ChatAnswer("m", "x", AllowedCalls(ADD))
    call = '<tool_call>{"name": "add"}</tool_call>'
    answer.add(ChoiceDelta(0, call + call, "stop"))
    ids = [made["id"] for made in plain(answer.whole())["choices"][0]["message"]["tool_calls"]]
    assert len(set(ids)) == 2


def test_logprobs_are_gathered_token_by_token() -> None:
    answer = ChatAnswer("m", "x")
    answer.add(ChoiceDelta(0, "a", logprobs=[token("a", -1.0)]))
    answer.add(ChoiceDelta(0, "b", "length", logprobs=[token("b", -2.0)]))
    content = plain(answer.whole())["choices"][0]["logprobs"]["content"]
    assert [(one["token"], one["logprob"]) for one in content] == [("a", -1.0), ("b", -2.0)]
    assert content[0]["top_logprobs"] == [{"token": "a", "logprob": -1.0, "bytes": [97]}]


def test_a_model_that_says_nothing_has_answered_with_an_empty_text() -> None:
    chat = ChatAnswer("m", "x")
    (*_, last) = plain(chat.end())
    assert last["finish_reason"] == "stop"
    (choice,) = plain(chat.whole())["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
    text = TextAnswer("m", "x", ["a", "b", "c"], n=1, prompt_count=3)
    text.add(ChoiceDelta(1, "c"))
    assert [chunk["text"] for chunk in plain(text.end())] == ["a", "", "c"]
    choices = plain(text.whole())["choices"]
    assert [(one["text"], one["finish_reason"]) for one in choices] == [
        ("a", "stop"), ("bc", "stop"), ("c", "stop"),
    ]  # fmt: skip


def test_completions_echo_their_prompt_once_and_offsets_count_on() -> None:
    answer = TextAnswer("m", "x", ["once", "the "], n=1)
    first = plain(answer.add(ChoiceDelta(0, " upon", logprobs=[token(" upon", -1.0)])))
    answer.add(ChoiceDelta(0, " a", "length", logprobs=[token(" a", -2.0)]))
    answer.add(ChoiceDelta(1, "sun", "stop"))
    assert first[0]["text"] == "once upon"
    whole = plain(answer.whole())
    assert [choice["text"] for choice in whole["choices"]] == ["once upon a", "the sun"]
    assert whole["choices"][0]["logprobs"]["tokens"] == [" upon", " a"]
    assert whole["object"] == "text_completion"


def said(raw: str | bytes, logprob: float | None = -1.0, **others: float) -> dict[str, Any]:
    raw = raw.encode() if isinstance(raw, str) else raw
    entry = {"token": raw.decode(errors="replace"), "logprob": logprob, "bytes": list(raw)}
    return {**entry, "top": [{"token": t, "logprob": p} for t, p in others.items()]}


@pytest.mark.parametrize(
    ("text", "tokens", "offsets"),
    [
        ("Hi you", ["Hi", " you"], [0, 2]),
        ("Hi you", ["<s>", "Hi", " you", "</s>"], [0, 0, 2, 6]),  # special ones are not text
        ("Hi you", [" Hi", " you"], [0, 2]),  # SentencePiece puts a space before each text
        ("a\u00e9b", ["a", b"\xc3", b"\xa9", "b"], [0, 1, 1, 2]),  # one character, two tokens
        ("\U0001f40d!", [b"\xf0\x9f", b"\x90", b"\x8d!", ""], [0, 0, 0, 2]),
        ("e\u0301 x", ["\u00e9", " x"], [0, 2]),  # as one letter to the tokenizer
        ("", ["a", "b"], [0, 0]),
    ],
)
def test_each_token_begins_where_its_text_does(
    text: str, tokens: list[str | bytes], offsets: list[int]
) -> None:
    for cut in range(len(text) + 1):  # text may come later than its tokens, a stop text could begin
        answer = TextAnswer("m", "x", [], n=1)
        chunks = [
            *plain(
                answer.add(ChoiceDelta(0, text[:cut], logprobs=[said(token) for token in tokens]))
            ),
            *plain(answer.add(ChoiceDelta(0, text[cut:] + "x", "stop", logprobs=[said("x")]))),
        ]
        streamed = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"]]
        places = [place for one in streamed for place in one["text_offset"]]
        assert places == [*offsets, len(text)]
        (choice,) = plain(answer.whole())["choices"]
        assert choice["logprobs"]["text_offset"] == [*offsets, len(text)]


def test_a_prompts_first_token_has_no_log_probability_and_others_their_alternatives() -> None:
    answer = TextAnswer("m", "x", [], n=1)
    tokens = [said("a", None), said("b", -3.0, c=-0.5), said("c", -0.5, c=-0.5, d=-1.0)]
    answer.add(ChoiceDelta(0, "abc", "length", logprobs=tokens))
    logprobs = plain(answer.whole())["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [None, -3.0, -0.5]
    assert list(logprobs["top_logprobs"][1]) == ["b", "c"]  # itself first, as vLLM has it
    assert logprobs["top_logprobs"] == [
        None,
        {"c": -0.5, "b": -3.0},  # the token that is there stands beside the best
        {"c": -0.5, "d": -1.0},
    ]


def test_of_alternatives_that_look_the_same_the_more_probable_counts() -> None:
    broken = "\ufffd"
    tops = [{"token": broken, "logprob": p} for p in (-0.5, -2.0)]
    answer = TextAnswer("m", "x", [], n=1)
    token = {**said(b"\xe2", -2.0), "top": tops}
    answer.add(ChoiceDelta(0, broken, "stop", logprobs=[token]))
    assert plain(answer.whole())["choices"][0]["logprobs"]["top_logprobs"] == [{broken: -0.5}]


def test_usage_comes_last_and_the_chunks_before_say_that_they_have_none() -> None:
    answer = ChatAnswer("m", "x", shown=AnswerParts(usage=True))
    (role, *_) = answer.add(ChoiceDelta(0, "a", usage=USAGE))
    assert plain(answer.chunk(role))["usage"] is None
    assert "usage" not in plain(ChatAnswer("m", "x").chunk(role))
    last = plain(answer.closing())[0]
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 6


def test_tokens_are_told_where_they_are_wished_for() -> None:
    shown, details = AnswerParts(token_ids=True), {"prompt_token_ids": [7, 8]}
    chat: Any = ChatAnswer("m", "x", shown=shown)
    text = TextAnswer("m", "x", [], 1, shown)
    pieces = [
        ChoiceDelta(0, "a", token_ids=[1], details=details),
        ChoiceDelta(0, "", "stop", token_ids=[2], details={"stop_reason": 2}),
    ]
    chunks = [plain(chat.chunk(choice)) for piece in pieces for choice in chat.add(piece)]
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [[7, 8], None, None]
    assert [chunk["choices"][0].get("token_ids") for chunk in chunks] == [None, [1], [2]]
    whole = plain(chat.whole())
    assert (whole["prompt_token_ids"], whole["choices"][0]["token_ids"]) == ([7, 8], [1, 2])
    assert whole["choices"][0]["stop_reason"] == 2
    events = [choice for piece in pieces for choice in plain(text.add(piece))]
    assert [event.get("prompt_token_ids") for event in events] == [[7, 8], None]
    choice = plain(text.whole())["choices"][0]
    assert (choice["prompt_token_ids"], choice["token_ids"], choice["stop_reason"]) == (
        [7, 8], [1, 2], 2
    )  # fmt: skip
    assert ChatAnswer("m", "x").whole().prompt_token_ids is None


# Thoughts

THINKS = {"style": {"tools": "hermes", "thoughts": "think", "opened": True}}


def test_thoughts_stand_beside_the_content_under_both_names() -> None:
    answer = ChatAnswer("m", "x")
    chunks = plain(answer.add(ChoiceDelta(0, "Hm.</th", details=THINKS)))
    chunks += plain(answer.add(ChoiceDelta(0, "ink>\n\nYes.", "stop")))
    both = {"reasoning_content": "Hm.", "reasoning": "Hm."}
    assert [chunk["delta"] for chunk in chunks[1:]] == [both, {"content": "Yes."}]
    message = plain(answer.whole())["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes.", **both}


def test_of_an_answer_cut_off_while_it_thinks_there_is_no_content() -> None:
    answer = ChatAnswer("m", "x")
    answer.add(ChoiceDelta(0, "Hm", "length", details=THINKS))
    choice = plain(answer.whole())["choices"][0]
    assert (choice["message"]["content"], choice["message"]["reasoning"]) == (None, "Hm")
    assert choice["finish_reason"] == "length"


def test_thoughts_are_left_out_where_they_are_not_wanted() -> None:
    answer = ChatAnswer("m", "x", shown=AnswerParts(thoughts=False))
    chunks = plain(answer.add(ChoiceDelta(0, "Hm.</think>Yes.", "stop", details=THINKS)))
    assert [chunk["delta"] for chunk in chunks[1:]] == [{"content": "Yes."}]
    message = plain(answer.whole())["choices"][0]["message"]
    assert (message["reasoning"], message["reasoning_content"]) == (None, None)


def test_log_probabilities_come_once_with_the_first_part_of_a_piece() -> None:
    answer = ChatAnswer("m", "x", AllowedCalls(ADD))
    text = 'Hm.</think>Yes.<tool_call>{"name": "add"}</tool_call>'
    piece = ChoiceDelta(0, text, "stop", [token("a", -1.0)], details=THINKS)
    chunks = plain(answer.add(piece))
    assert [chunk["logprobs"] is not None for chunk in chunks] == [False, True] + [False] * 4
    assert [*chunks[-2]["delta"]] == ["tool_calls"]
    assert chunks[-1]["finish_reason"] == "tool_calls"


def test_a_forced_call_is_json_whatever_the_model_s_form_is() -> None:
    answer = ChatAnswer("m", "x", AllowedCalls(ADD, forced=True))
    style = {"style": {"tools": "glm", "thoughts": "think", "opened": True}}
    text = 'Hm.</think>{"name": "add", "arguments": {"a": 1}}'
    answer.add(ChoiceDelta(0, text, "stop", details=style))
    assert plain(answer.whole())["choices"][0]["message"]["reasoning_content"] == "Hm."
    (call,) = plain(answer.whole())["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}


def test_ids_of_calls_are_unique_and_fit_the_model_s_template() -> None:
    def ids(request: str, family: str) -> list[str]:
        answer = ChatAnswer("m", request, AllowedCalls(ADD))
        style = {"style": {"tools": family, "thoughts": "none", "opened": False}}
        calls = '[TOOL_CALLS][{"name": "add"}, {"name": "add"}]'
        calls = calls if family == "mistral" else '<tool_call>{"name": "add"}</tool_call>' * 2
        for index in (0, 1):
            answer.add(ChoiceDelta(index, calls, "stop", details=style))
        choices = plain(answer.whole())["choices"]
        return [call["id"] for one in choices for call in one["message"]["tool_calls"]]

    found = [one for request in ("1-1", "1-11", "2-1") for one in ids(request, "hermes")]
    assert len(set(found)) == len(found) == 12
    assert all(one.startswith("call_") for one in found)
    assert all(len(one) == 9 and one.isalnum() for one in ids("1-1", "mistral"))
