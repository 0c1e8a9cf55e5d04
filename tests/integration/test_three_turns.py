"""What the routes of OpenAI and Anthropic hand out their clients may send back: three turns of each
kind of answer, in each form in which the clients' own libraries keep one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypedDict

import pytest

import wherry
from wherry.testing.servers import local_server

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.timeout(120)

CALL: Final = '<tool_call>{"name": "weather", "arguments": {"city": "Bergen"}}</tool_call>'
#: What the model answers to a word, and why it ends.
ANSWERS: Final[dict[str, tuple[str, str]]] = {
    "text": ("It is wet.", "stop"),
    "cut": ("It is w", "length"),
    "empty": ("", "stop"),
    "nothing": ("", "length"),
    "blank": (" \n", "stop"),
    "filtered": ("It is", "content_filter"),
    "thoughts": ("<think>Hm, hm.</think>", "stop"),
    "cut thoughts": ("<think>Hm, h", "length"),
    "no thoughts": ("<think></think>", "stop"),
    "thoughts and text": ("<think>Hm.</think>It is wet.", "stop"),
    "call": (CALL, "stop"),
    "calls": (f"Let me see. {CALL}\n{CALL}", "stop"),
    "thoughts and call": (f"<think>Hm.</think>{CALL}", "stop"),
    "cut call": (CALL[:60], "length"),
    "call cut in its name": (CALL[:22], "length"),
    "two calls, one cut": (f"{CALL}{CALL[:60]}", "length"),
    "call without arguments": ('<tool_call>{"name": "weather"}</tool_call>', "stop"),
    "call of null": ('<tool_call>{"name": "weather", "arguments": null}</tool_call>', "stop"),
    "call of a list": ('<tool_call>{"name": "weather", "arguments": [1]}</tool_call>', "stop"),
    "call of a text": ('<tool_call>{"name": "weather", "arguments": "x"}</tool_call>', "stop"),
    "call of no JSON": ('<tool_call>{"name": "weather", "arguments": {c: }}</tool_call>', "stop"),
    "call of another": ('<tool_call>{"name": "nope", "arguments": {}}</tool_call>', "stop"),
    "call of no name": ('<tool_call>{"arguments": {}}</tool_call>', "stop"),
}  # fmt: skip
PARAMETERS: Final = {"type": "object", "properties": {"city": {"type": "string"}}}


class Said(TypedDict):
    index: int
    text: str
    finish_reason: str
    logprobs: list[dict[str, Any]]
    details: dict[str, Any]


@wherry.model(max_batch_size=1)
def scripted(
    messages: Sequence[dict[str, Any]], tools: Sequence[Any] = (),
    parameters: dict[str, Any] = {}, template: dict[str, Any] = {},  # noqa: B006 - never changed
) -> Iterator[Said]:  # fmt: skip
    """Answers what its last user has asked for; "seen": the conversation as it was given."""
    asked = next(m["content"] for m in reversed(messages) if m["role"] == "user")
    asked = asked if isinstance(asked, str) else asked[0]["text"]
    said: Said = {"index": 0, "text": "", "finish_reason": "", "logprobs": [], "details": {}}
    if asked == "seen":
        yield {**said, "text": json.dumps(messages), "finish_reason": "stop"}
        return
    text, reason = ANSWERS[asked]
    yield {**said, "details": {"style": {"tools": "hermes", "thoughts": "think"}}}
    for place in range(0, len(text), 7):
        piece = text[place : place + 7]
        token = {"token": piece, "logprob": -1.0, "bytes": [*piece.encode()]}
        told = [{**token, "top": [token]}] if parameters.get("logprobs") is not None else []
        yield {**said, "text": piece, "logprobs": told}
    yield {**said, "finish_reason": reason}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with local_server(scripted) as server:
        yield server.url


@pytest.fixture
def of_openai(url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        yield client


@pytest.fixture
def of_anthropic(url: str) -> Iterator[Any]:
    anthropic = pytest.importorskip("anthropic")  # here: its import takes seconds
    with anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as client:
        yield client


#: How a client keeps an answer, or a part of one.
KEPT: Final[dict[str, Callable[[Any], Any]]] = {
    "as it is": lambda part: part,
    "dumped": lambda part: part.model_dump(),
    "without None": lambda part: part.model_dump(exclude_none=True),
    "as sent": lambda part: part.to_dict(),
}
Json = dict[str, Any]
Conversation = list[Any]


def users(text: str) -> Json:
    return {"role": "user", "content": text}


class Answer(NamedTuple):
    """What one answer says, or the model is told that it said."""

    text: str
    thoughts: str
    #: The arguments of its calls.
    calls: list[Any]

    @classmethod
    def seen(cls, message: Json) -> Answer:
        text, thoughts = message.get("content"), message.get("reasoning_content")
        calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
        return cls("".join(p["text"] for p in text) if isinstance(text, list) else text or "",
                   thoughts or "", calls)  # fmt: skip


def of_json(arguments: str) -> Any:
    """The arguments of a call; a text if they are cut off."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def refused(turn: Callable[[Conversation, bool], Answer]) -> Json:
    """The answers with which no conversation goes on, or of which the model is told otherwise: two
    of a kind, and then it tells what it has seen."""
    problems: Json = {}
    for asked in ANSWERS:
        said: Conversation = []
        try:
            answers = []
            for streamed in (False, True):
                said.append(users(asked))
                answers.append(turn(said, streamed))
            said.append(users("seen"))
            seen = [m for m in json.loads(turn(said, False).text) if m["role"] == "assistant"]
        except Exception as error:  # noqa: BLE001 - all are told
            problems[asked] = f"{type(error).__name__}: {error}"
            continue
        if (told := [Answer.seen(message) for message in seen]) != answers:
            problems[asked] = told, answers
    return problems


@pytest.mark.parametrize("kept", KEPT)
def test_chats(of_openai: Any, kept: str) -> None:
    function = {"name": "weather", "parameters": PARAMETERS}
    wanted = {
        "model": "scripted", "tools": [{"type": "function", "function": function}],
        "logprobs": True, "top_logprobs": 1,
    }  # fmt: skip

    def turn(said: Conversation, streamed: bool) -> Answer:
        (choice,) = answer(said, streamed).choices
        said.append(KEPT[kept](choice.message))
        for call in choice.message.tool_calls or ():
            said.append({"role": "tool", "tool_call_id": call.id, "content": "wet"})
        calls = [of_json(call.function.arguments) for call in choice.message.tool_calls or ()]
        thoughts = getattr(choice.message, "reasoning_content", None)
        return Answer(choice.message.content or "", thoughts or "", calls)

    def answer(said: Conversation, streamed: bool) -> Any:
        if not streamed:
            return of_openai.chat.completions.create(messages=said, **wanted)
        with of_openai.chat.completions.stream(messages=said, **wanted) as stream:
            try:
                return stream.get_final_completion()
            except openai.LengthFinishReasonError as error:
                return error.completion
            except openai.ContentFilterFinishReasonError:  # which has no answer
                return answer(said, False)

    assert refused(turn) == {}


@pytest.mark.parametrize("kept", KEPT)
def test_responses(of_openai: Any, kept: str) -> None:
    function = {"name": "weather", "parameters": PARAMETERS, "strict": False}
    wanted = {
        "model": "scripted", "tools": [{"type": "function", **function}],
        "include": ["reasoning.encrypted_content"],
    }  # fmt: skip

    def turn(said: Conversation, streamed: bool) -> Answer:
        if streamed:
            with of_openai.responses.stream(input=said, **wanted) as stream:
                *_, last = stream
            answer = last.response
        else:
            answer = of_openai.responses.create(input=said, **wanted)
        said += [KEPT[kept](item) for item in answer.output] + results(answer)
        return of_items(answer)

    assert refused(turn) == {}


def test_responses_that_are_kept(of_openai: Any) -> None:
    function = {"name": "weather", "parameters": PARAMETERS, "strict": False}
    wanted = {"model": "scripted", "tools": [{"type": "function", **function}]}
    before: tuple[str | None, int] = None, 0

    def turn(said: Conversation, streamed: bool) -> Answer:
        nonlocal before
        previous, sent = before if len(said) > 1 else (None, 0)
        answer = of_openai.responses.create(
            input=said[sent:], previous_response_id=previous, **wanted
        )
        before = answer.id, len(said)
        said += results(answer)
        return of_items(answer)

    assert refused(turn) == {}


def of_items(answer: Any) -> Answer:
    """What the items of a response say."""
    thoughts = [part.text for item in answer.output if item.type == "reasoning"
                for part in item.content or ()]  # fmt: skip
    calls = [of_json(item.arguments) for item in answer.output if item.type == "function_call"]
    return Answer(answer.output_text, "".join(thoughts), calls)


def results(answer: Any) -> Conversation:
    """What the functions give that a response has called."""
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": "wet"}
        for item in answer.output
        if item.type == "function_call"
    ]


@pytest.mark.parametrize("kept", KEPT)
def test_messages(of_anthropic: Any, kept: str) -> None:
    tool = {"name": "weather", "input_schema": PARAMETERS}
    wanted = {"model": "scripted", "max_tokens": 100, "tools": [tool]}

    def turn(said: Conversation, streamed: bool) -> Answer:
        if streamed:
            with of_anthropic.messages.stream(messages=said, **wanted) as stream:
                answer = stream.get_final_message()
        else:
            answer = of_anthropic.messages.create(messages=said, **wanted)
        said.append({"role": "assistant", "content": [KEPT[kept](b) for b in answer.content]})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "wet"}
            for block in answer.content
            if block.type == "tool_use"
        ]
        if results:
            said.append({"role": "user", "content": results})
        return Answer(
            "".join(block.text for block in answer.content if block.type == "text"),
            "".join(block.thinking for block in answer.content if block.type == "thinking"),
            [block.input for block in answer.content if block.type == "tool_use"],
        )

    assert refused(turn) == {}
