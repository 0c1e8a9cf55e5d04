"""Anthropic's own client, where it is installed, against a plain model and the language model
engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

import pytest

import wherry
from tests.unit.llm.engine import tiny
from wherry.llm import LLM

pytestmark = pytest.mark.timeout(180)

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bergen"}}</tool_call>'
WEATHER = {
    "name": "weather",
    "description": "Today's weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


class Said(TypedDict):
    text: str
    finish_reason: str


@wherry.model(max_batch_size=1)
def caller(
    messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None = None
) -> Iterator[Said]:
    """Asks for the weather, and says what it has become."""
    last = messages[-1]
    if last["role"] == "tool":
        yield {"text": f"It is {last['content']}.", "finish_reason": "stop"}
        return
    if last["content"] == "break":
        yield {"text": "well ", "finish_reason": ""}
        raise ValueError("broke")
    yield {"text": "Let me see. ", "finish_reason": ""}
    yield {"text": CALL if tools else "No.", "finish_reason": "stop"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wherry.Server]:
    folder = tiny.make(tmp_path_factory.mktemp("llm") / "tiny")
    chat = LLM(
        folder, name="chat", cache_gb=0.01, max_step_tokens=16, max_running=8, threads=1,
        isolation="thread",
    )  # fmt: skip
    with wherry.Server(chat, caller, port=0) as server:
        # The thread that reads grammars starts with the first one, and is the server's.
        asked = {"constraint": {"choice": ["!"]}}
        list(server.runtime.stream("chat", prompt="?", parameters=asked))
        yield server


@pytest.fixture(scope="module")
def anthropic() -> Any:
    return pytest.importorskip("anthropic")  # here: its import takes seconds


@pytest.fixture
def client(anthropic: Any, server: wherry.Server) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0) as client:
        yield client


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def test_a_loop_of_tools(client: Any) -> None:
    said: list[Any] = user("How is the weather?")
    wanted = {"model": "caller", "max_tokens": 100, "tools": [WEATHER]}
    first = client.messages.create(messages=said, **wanted)
    assert first.stop_reason == "tool_use"
    text, call = first.content
    assert (text.type, call.name, call.input) == ("text", "weather", {"city": "Bergen"})
    said += [
        {"role": "assistant", "content": [block.model_dump() for block in first.content]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "wet"}],
        },
    ]
    last = client.messages.create(messages=said, **wanted)
    assert (last.stop_reason, last.content[0].text) == ("end_turn", "It is wet.")


def test_a_stream_gathers_what_the_whole_message_has(client: Any) -> None:
    wanted = {"model": "caller", "max_tokens": 100, "tools": [WEATHER], "messages": user("?")}
    whole = client.messages.create(**wanted)
    with client.messages.stream(**wanted) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    for ours, theirs in zip(message.content, whole.content, strict=True):
        assert ours.model_dump(exclude={"id", "parsed_output"}) == theirs.model_dump(exclude={"id"})
    raw = [kind for kind in kinds if kind not in ("text", "input_json")]
    assert raw == [
        "message_start",
        "content_block_start", "content_block_delta", "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip


def test_models_are_listed(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["caller", "chat"]
    model = client.models.retrieve("chat")
    assert (model.type, model.display_name) == ("model", "chat")
    assert model.created_at.year >= 2024


def test_errors_have_the_client_s_classes(anthropic: Any, client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError, match="'claude' does not exist") as missing:
        client.messages.create(model="claude", max_tokens=1, messages=user("?"))
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(
            model="chat", max_tokens=1, messages=user("?"), extra_body={"temperature": -1}
        )
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(model="chat", max_tokens=1, messages=user("word " * 400))
    with (
        pytest.raises(anthropic.APIStatusError, match="api_error"),
        client.messages.stream(model="caller", max_tokens=9, messages=user("break")) as stream,
    ):
        stream.get_final_message()


#: Its last message goes on, in which this model repeats itself.
GOES_ON = [*user("?"), {"role": "assistant", "content": "So: word3"}]


def greedy(**fields: Any) -> dict[str, Any]:
    return {"model": "chat", "messages": GOES_ON, "extra_body": {"temperature": 0}, **fields}


def test_the_engine_counts_as_it_answers(client: Any) -> None:
    counted = client.messages.count_tokens(model="chat", messages=GOES_ON).input_tokens
    message = client.messages.create(**greedy(max_tokens=5))
    assert message.usage.input_tokens == counted
    assert (message.usage.output_tokens, message.stop_reason) == (5, "max_tokens")
    with client.messages.stream(**greedy(max_tokens=5)) as stream:
        start = next(iter(stream))
        final = stream.get_final_message()
    assert start.message.usage.input_tokens == counted
    assert final.content[0].text == message.content[0].text == " word3" * 5
    assert final.usage.output_tokens == 5


def test_a_stop_text_and_a_form(client: Any) -> None:
    cut = client.messages.create(**greedy(max_tokens=20, stop_sequences=["d3 w"]))
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", "d3 w")
    assert cut.content[0].text == " wor"
    full = client.messages.create(**greedy(max_tokens=10_000))
    assert full.stop_reason == "model_context_window_exceeded"
    form = {"type": "json_schema", "schema": {"enum": ["a", "b"]}}
    made = client.messages.create(
        model="chat", max_tokens=60, messages=user("?"), output_config={"format": form}
    )
    assert made.content[0].text in ('"a"', '"b"')
