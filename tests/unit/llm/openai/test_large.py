"""Large OpenAI bodies are read beside the loop; one that would take long to build is refused."""

import json
import threading
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest

import wherry
from tests.http_exchange import served
from wherry.core.values.errors import RequestTooLarge
from wherry.llm.openai import tasks
from wherry.llm.openai.chat_request import ChatRequest
from wherry.llm.openai.errors import BadField
from wherry.llm.openai.reading import decoded
from wherry.server.v2.common import OpenAISettings

LONG = "word " * 40_000
CHAT = {"model": "chat", "messages": [{"role": "user", "content": LONG}]}


@wherry.model
def chat(messages: list[list[dict[str, Any]]]) -> list[str]:
    return [rows[0]["content"][:4] for rows in messages]


@wherry.model(max_batch_size=4096)
def embed(text: list[str]) -> Annotated[np.ndarray, wherry.FP32[64]]:
    return np.ones((len(text), 64), np.float32) * np.arange(len(text))[:, None]


@wherry.model
def complete(prompt: list[str]) -> list[str]:
    return prompt


def test_a_long_chat_is_read_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def noted(fields: ChatRequest) -> Any:
        threads.append(threading.current_thread().name)
        return call(fields)

    call = ChatRequest.call
    monkeypatch.setattr(ChatRequest, "call", noted)
    with served(chat) as client:
        answer = client.post("/v1/chat/completions", CHAT)
    assert answer.json["choices"][0]["message"]["content"] == "word"
    assert threads == ["wherry-offload"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/completions"])
def test_a_bomb_of_values_is_refused_before_it_is_built(path: str) -> None:
    body = b'{"model":"chat","messages":[' + b"{}," * 2**20 + b"{}]}"
    with served(chat, complete) as client:
        answer = client.post(path, body)
    assert answer.status == 413
    assert "values, names and brackets" in answer.json["error"]["message"]


def test_a_bomb_in_a_text_is_refused_before_it_is_built() -> None:
    def read(values: int) -> Any:
        calls = [{"function": {"name": "f", "arguments": json.dumps({"a": [0] * values})}}]
        body = {"messages": [{"role": "assistant", "tool_calls": calls}]}
        return decoded(json.dumps(body).encode(), ChatRequest).call().inputs

    with pytest.raises(RequestTooLarge, match="values, names and brackets"):
        read(2**18)
    (message,) = read(2**16)["messages"]
    assert message["tool_calls"][0]["function"]["arguments"] == {"a": [0] * 2**16}


def test_what_is_wrong_in_a_long_chat_is_said_as_ever() -> None:
    with served(chat) as client:
        answer = client.post("/v1/chat/completions", {**CHAT, "n": "two", "other": 1})
    assert answer.status == 400
    assert answer.json["error"]["param"] == "n"


def test_fields_that_are_ignored_are_named_in_a_header() -> None:
    hello = [{"role": "user", "content": "hi"}]
    for body in (CHAT, {"model": "chat", "messages": hello}, {"messages": hello, "stream": True}):
        with served(chat) as client:
            answer = client.post("/v1/chat/completions", {**body, "wrong": 1, "other": None})
        assert answer.status == 200
        assert answer.headers["x-wherry-ignored"] == "wrong"


def test_a_server_may_refuse_what_it_does_not_know() -> None:
    with served(chat, openai=OpenAISettings(strict_fields=True)) as client:
        answer = client.post("/v1/chat/completions", {**CHAT, "wrong": 1})
    assert answer.status == 400
    assert answer.json["error"]["param"] == "wrong"


def test_more_prompts_than_a_request_may_have_are_refused() -> None:
    with served(complete) as client:
        answer = client.post("/v1/completions", {"model": "complete", "prompt": ["a"] * 1025})
    assert answer.status == 400
    assert "at most 1024" in answer.json["error"]["message"]


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_many_vectors_are_written_beside_the_loop(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[str] = []
    monkeypatch.setattr(tasks, "give_way", lambda: pauses.append(threading.current_thread().name))
    body = {"model": "embed", "input": ["a"] * 200, "encoding_format": encoding}
    with served(embed) as client:
        answer = client.post("/v1/embeddings", body)
    data = json.loads(answer.body)["data"]
    assert [one["index"] for one in data] == list(range(200))
    if encoding == "float":
        assert data[199]["embedding"] == [199.0] * 64
    assert set(pauses) == {"wherry-offload"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {str(token): 1 for token in range(1025)}),
        ("stop", ["x"] * 65),
        ("stop_token_ids", [1] * 1025),
        ("tools", [{"type": "function", "function": {"name": "f"}}] * 1025),
    ],
)
def test_lists_have_bounds_where_they_are_read(field: str, value: Any) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], field: value}
    with pytest.raises(BadField, match="of length <= ") as refused:
        decoded(msgspec.json.encode(body), ChatRequest)
    assert refused.value.field == field
    some = [*value.items()] if isinstance(value, dict) else value
    fewer = type(value)(some[: len(some) - 1])
    assert decoded(msgspec.json.encode({**body, field: fewer}), ChatRequest) is not None
