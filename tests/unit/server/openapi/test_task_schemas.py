"""server/openapi/document.py: the document and the reading of requests agree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import wherry
from tests.http_exchange import Client, served

Vectors = Annotated[np.ndarray, wherry.FP32[8]]


@wherry.model
def embed(text: list[str]) -> Vectors:
    return np.ones((len(text), 8), np.float32)


class Guess(NamedTuple):
    label: list[str]
    logits: Annotated[np.ndarray, wherry.FP32[2]]


@wherry.model
def guess(
    text: list[str] | None = None,
    tokens: list[list[int]] | None = None,
) -> Guess:
    rows = len(text or tokens or ())
    return Guess(["a"] * rows, np.ones((rows, 2), np.float32))


@wherry.model
def cross(query: list[str], document: list[str]) -> list[float]:
    return [1.0] * len(query)


@pytest.fixture(scope="module")
def only_vectors() -> Iterator[Client]:
    with served(embed) as client:
        yield client


@pytest.fixture(scope="module")
def others() -> Iterator[Client]:
    with served(guess, cross) as client:
        yield client


def agree(client: Client, path: str, body: dict[str, Any]) -> bool:
    """Whether the request is answered, which the document must say, too."""
    document = client.get("/openapi.json").json
    content = document["paths"][path]["post"]["requestBody"]["content"]
    schema = {**content["application/json"]["schema"], "components": document["components"]}
    valid: bool = Draft202012Validator(json.loads(json.dumps(schema))).is_valid(body)
    answer = client.post(path, body)
    assert answer.status in (200, 400), answer.body
    assert valid == (answer.status == 200), (body, answer.body)
    return valid


SAID = [{"role": "user", "content": "a"}]
EMBEDDINGS: list[tuple[dict[str, Any], bool]] = [
    ({"input": "a"}, True),
    ({"input": ["a"]}, True),
    ({"input": []}, False),
    ({"input": [1]}, False),
    ({"input": None}, False),
    ({}, False),
    ({"messages": SAID}, False),
    ({"input": "a", "model": "embed", "colour": 7}, True),
    ({"input": ["a"] * 2049}, False),
    ({"input": "a", "dimensions": 8}, True),
    ({"input": "a", "dimensions": 9}, False),
    ({"input": "a", "dimensions": 0}, False),
    ({"input": "a", "priority": 10}, True),
    ({"input": "a", "priority": 11}, False),
    ({"input": "a", "encoding_format": "int4"}, False),
]


@pytest.mark.parametrize(("body", "valid"), EMBEDDINGS)
def test_vectors(only_vectors: Client, body: dict[str, Any], valid: bool) -> None:
    assert agree(only_vectors, "/v1/embeddings", body) == valid


@pytest.mark.parametrize(
    ("path", "body", "valid"),
    [
        ("/v1/embeddings", {"input": [1, 2]}, True),
        ("/v1/embeddings", {"input": [[1], [2]]}, True),
        ("/v1/embeddings", {"input": [[1], []]}, False),
        ("/v1/embeddings", {"messages": SAID}, False),
        ("/v1/embeddings", {"input": ["a", 1]}, False),
        ("/rerank", {"query": "a", "documents": "b"}, True),
        ("/rerank", {"query": "a", "documents": []}, False),
        ("/rerank", {"query": "a", "documents": [{"text": "b"}], "top_n": 0}, False),
        ("/rerank", {"query": "a"}, False),
        ("/rerank", {"query": "a", "documents": "b", "priority": 11}, False),
        ("/score", {"text_1": "a", "text_2": ["b", {"text": "c"}]}, True),
        ("/score", {"text_1": "a"}, False),
        ("/score", {"text_1": "a", "data_2": "b"}, False),
        ("/score", {"text_1": None, "text_2": "b"}, False),
        ("/score", {"text_1": [], "text_2": "b"}, False),
        ("/score", {}, False),
    ],
)
def test_many_inputs_and_scores(
    others: Client, path: str, body: dict[str, Any], valid: bool
) -> None:
    assert agree(others, path, body) == valid


def test_of_several_models_one_must_be_named() -> None:
    with served(embed, guess) as client:
        assert not agree(client, "/v1/embeddings", {"input": "a"})
        assert agree(client, "/v1/embeddings", {"input": "a", "model": "embed"})
