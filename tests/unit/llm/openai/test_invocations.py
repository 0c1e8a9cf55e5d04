"""llm/openai/routes.py: one path for what several routes answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import pytest

import wherry
from tests.http_exchange import Client, served


@wherry.model
def parrot(messages: list[list[dict[str, Any]]]) -> list[str]:
    return [said[-1]["content"] for said in messages]


@wherry.model
def story(prompt: list[str]) -> list[str]:
    return [one + "!" for one in prompt]


@wherry.model
def vector(text: list[str]) -> Annotated[np.ndarray, wherry.FP32[2]]:
    return np.array([[3, len(one)] for one in text], np.float32)


@wherry.model
def cross(query: list[str], document: list[str]) -> list[float]:
    return [float(q == d) for q, d in zip(query, document, strict=True)]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(parrot, story, vector, cross) as client:
        yield client


SAID = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "parrot", "messages": SAID}),
        ("/v1/chat/completions", {"messages": SAID, "colour": 7}),
        ("/v1/completions", {"model": "story", "prompt": "once"}),
        ("/v1/completions", {"prompt": ["once", "more"], "input": None}),
        ("/v1/embeddings", {"model": "vector", "input": "a"}),
        ("/rerank", {"model": "cross", "query": "a", "documents": ["b", "a"]}),
        ("/score", {"model": "cross", "text_1": "a", "text_2": "a"}),
        ("/score", {"model": "vector", "text_1": "a", "text_2": ["a", "b"]}),
        ("/score", {"text_2": "a", "text_1": "a"}),
    ],
)
def test_the_body_tells_the_route(client: Client, path: str, body: dict[str, Any]) -> None:
    meant, invoked = client.post(path, body), client.post("/invocations", body)
    assert meant.status == invoked.status == 200, invoked.body
    told, asked = invoked.json, meant.json
    for changing in ("id", "created"):
        told.pop(changing, None)
        asked.pop(changing, None)
    assert told == asked
    assert invoked.headers.get("x-wherry-ignored") == meant.headers.get("x-wherry-ignored")


def test_a_chat_streams(client: Client) -> None:
    answer = client.post("/invocations", {"messages": SAID, "stream": True})
    assert answer.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({}, 400, "the body has none of messages"),
        ({"model": "parrot"}, 400, "the body has none of messages"),
        ({"messages": None}, 400, "the body has none of messages"),
        ([], 400, "expected object"),
        ({"model": 7, "input": "a"}, 400, "model"),
        ({"model": "nobody", "input": "a"}, 404, "does not exist"),
        ({"model": "parrot", "input": "a"}, 404, "does not support embeddings"),
        ({"model": "vector", "input": []}, 400, "input: is empty"),
        ({"model": "vector", "input": {"a": 1}}, 400, "input"),
        ({"model": "cross", "query": 5}, 400, "query"),
    ],
)
def test_what_is_no_route_s_is_refused(client: Client, body: Any, status: int, says: str) -> None:
    answer = client.post("/invocations", body)
    assert answer.status == status, answer.body
    assert says in answer.json["error"]["message"]


def test_a_body_that_is_no_json_is_refused(client: Client) -> None:
    answer = client.post("/invocations", b'{"messages": [')
    assert answer.status == 400
    assert "is not JSON" in answer.json["error"]["message"]


def test_a_server_without_a_model_for_it_says_so() -> None:
    with served(vector) as client:
        answer = client.post("/invocations", {"prompt": "a"})
    assert answer.status == 400
    assert answer.json["error"]["message"] == "model: is missing; none supports completions"
