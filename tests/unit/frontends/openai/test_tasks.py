"""frontends/openai/task_routes.py: vectors and scores, over any model whose types fit."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest

import wherry
from tests.http_exchange import Client, MemoryExchange, served
from wherry.frontends.openai.models import abilities

Vectors = Annotated[np.ndarray, wherry.FP32[3]]


class Counted(NamedTuple):
    vectors: Vectors
    tokens: list[int]


@wherry.model(max_batch_size=4)
def counts(text: list[str], prefix: list[str] | None = None) -> Counted:
    made = np.array([[3.0, 4.0, len(one)] for one in text], np.float32)
    return Counted(made, [len(one) for one in text])


@wherry.model(max_batch_size=4)
def of_tokens(token_ids: Annotated[list[np.ndarray], wherry.INT32[-1]]) -> Vectors:
    return np.array([[row.sum(), len(row), 0] for row in token_ids], np.float32)


@wherry.model(max_batch_size=4)
def of_lists(ids: list[list[int]]) -> Vectors:
    return np.array([[sum(row), len(row), 0] for row in ids], np.float32)


@wherry.model
def of_both(
    text: list[str] | None = None,
    tokens: Annotated[list[np.ndarray] | None, wherry.INT64[-1]] = None,
) -> Vectors:
    rows = text if text is not None else tokens
    assert rows is not None
    return np.array([[len(row), 0, 0] for row in rows], np.float32)


@wherry.model(max_batch_size=2)
def cross(query: list[str], document: list[str], cased: list[bool] | None = None) -> list[float]:
    """How many of the query's words are in the document."""
    pairs = zip(query, document, strict=True)
    return [float(len(set(one.split()) & set(other.split()))) for one, other in pairs]


@wherry.model
def turned(passage: list[str], query: list[str]) -> Annotated[np.ndarray, wherry.FP32[1]]:
    pairs = zip(query, passage, strict=True)
    return np.array([[len(q) - 10 * len(p)] for q, p in pairs], np.float32)


@wherry.model
def broken(a: list[str], b: list[str]) -> list[float]:
    return [float("nan")] * len(a)


@wherry.model
def purposes(
    text: list[str], input_type: list[str] | None = None
) -> Annotated[np.ndarray, wherry.FP32[8]]:
    kinds = input_type or ["none"] * len(text)
    rows = [[-1, len(kind), 1, 0, -2, 3, 3, -1] for kind in kinds]
    return np.array(rows, np.float32)


MODELS = (counts, of_tokens, of_lists, of_both, purposes, cross, turned, broken)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(*MODELS) as client:
        yield client


def embedded(client: Client, model: str, given: Any, **fields: Any) -> MemoryExchange:
    return client.post("/v1/embeddings", {"model": model, "input": given, **fields})


def vectors(exchange: MemoryExchange) -> list[Any]:
    assert exchange.status == 200, exchange.body
    return [one["embedding"] for one in exchange.json["data"]]


def refusal(exchange: MemoryExchange) -> tuple[str, str]:
    assert exchange.status == 400, exchange.body
    error = exchange.json["error"]
    return error["param"], error["message"]


def test_what_a_model_can_is_told_by_its_types(client: Client) -> None:
    able = {loaded.name: abilities(loaded) for loaded in client.runtime.models()}
    assert able == {
        "counts": {"embeddings"},
        "of_tokens": {"embeddings"},
        "of_lists": {"embeddings"},
        "of_both": {"embeddings"},
        "purposes": {"embeddings"},
        "cross": {"scores"},
        "turned": {"scores"},
        "broken": {"scores"},
    }
    answer = client.post("/v1/rerank", {"model": "counts", "query": "a", "documents": ["b"]})
    assert answer.status == 404
    assert "it does not make one float of two texts" in answer.json["error"]["message"]


def test_texts_become_vectors_and_are_counted(client: Client) -> None:
    answer = embedded(client, "counts", ["a", "bb"])
    assert vectors(answer) == [[3, 4, 1], [3, 4, 2]]
    assert answer.json["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


@pytest.mark.parametrize("model", ["of_tokens", "of_lists"])
def test_tokens_become_vectors(client: Client, model: str) -> None:
    assert vectors(embedded(client, model, [[1, 2], [3]])) == [[3, 2, 0], [3, 1, 0]]
    alone = embedded(client, model, [1, 2, 3])
    assert vectors(alone) == [[6, 3, 0]]
    assert alone.json["usage"]["prompt_tokens"] == 3


def test_a_model_may_take_either(client: Client) -> None:
    assert vectors(embedded(client, "of_both", "abc")) == [[3, 0, 0]]
    assert vectors(embedded(client, "of_both", [7, 8])) == [[2, 0, 0]]


def test_fewer_dimensions_are_the_first_numbers_of_length_one(client: Client) -> None:
    answer = embedded(client, "counts", "a", dimensions=2, encoding_format="base64")
    (packed,) = vectors(answer)
    cut = np.frombuffer(base64.b64decode(packed), "<f4")
    assert np.allclose(cut, [0.6, 0.8])
    assert vectors(embedded(client, "counts", "a", dimensions=3)) == [[3, 4, 1]]
    assert vectors(embedded(client, "of_lists", [0], dimensions=1)) == [[0]]


@pytest.mark.parametrize(
    ("model", "given", "fields", "param", "says"),
    [
        ("counts", [1], {}, "input", "takes texts, and no tokens"),
        ("of_tokens", "a", {}, "input", "takes tokens, and no texts"),
        ("of_tokens", [[1], [2**31]], {}, "input[1]", "has tokens up to 2147483647"),
        ("counts", "a", {"dimensions": 4}, "dimensions", "the model 'counts' has 3"),
        ("counts", "a", {"dimensions": 0}, "dimensions", "expected int >= 1"),
        ("counts", "a", {"encoding_format": "int8"}, "encoding_format", "invalid enum"),
        ("counts", "a", {"truncate_prompt_tokens": 10}, "truncate_prompt_tokens", "not supported"),
        ("counts", "a", {"embed_dtype": "float16"}, "embed_dtype", "is not supported"),
        ("counts", "a", {"endianness": "big"}, "endianness", "is not supported"),
        ("counts", "a", {"use_activation": False}, "use_activation", "is not supported"),
    ],
)
def test_what_is_refused_names_its_field(
    client: Client, model: str, given: Any, fields: dict[str, Any], param: str, says: str
) -> None:
    field, message = refusal(embedded(client, model, given, **fields))
    assert field == param
    assert says in message


def embed(client: Client, model: str, texts: Any, **fields: Any) -> MemoryExchange:
    return client.post("/v2/embed", {"model": model, "texts": texts, **fields})


def test_what_a_field_asks_for_by_default_changes_nothing(client: Client) -> None:
    neutral = {"embed_dtype": "float32", "endianness": "native", "add_special_tokens": True}
    assert vectors(embedded(client, "counts", "a", **neutral)) == [[3, 4, 1]]


def test_cohere_s_clients_have_vectors_by_their_types(client: Client) -> None:
    types = ["float", "binary", "ubinary", "base64", "float"]
    answer = embed(client, "purposes", ["a", "b"], embedding_types=types).json
    told = answer["embeddings"]
    assert list(told) == ["float", "binary", "ubinary", "base64"]
    assert told["float"] == [[-1, 4, 1, 0, -2, 3, 3, -1]] * 2
    assert told["ubinary"] == [[0b01110110]] * 2
    assert told["binary"] == [[0b01110110 - 128]] * 2
    assert np.frombuffer(base64.b64decode(told["base64"][1]), "<f4").tolist() == told["float"][1]
    assert (answer["texts"], answer["response_type"]) == (["a", "b"], "embeddings_by_type")
    assert answer["meta"]["api_version"] == {"version": "2"}


def test_cohere_s_vectors_are_floats_and_are_counted_and_cut(client: Client) -> None:
    answer = embed(client, "counts", ["a", "bb"], output_dimension=2, truncate="END").json
    assert np.allclose(answer["embeddings"]["float"], [[0.6, 0.8]] * 2)
    assert answer["meta"]["billed_units"] == {"input_tokens": 3, "image_tokens": 0}


def test_what_texts_are_for_is_an_input_of_the_model(client: Client) -> None:
    answer = embed(client, "purposes", ["a"], input_type="search_query")
    assert answer.json["embeddings"]["float"][0][1] == len("search_query")


@pytest.mark.parametrize(
    ("model", "texts", "fields", "param", "says"),
    [
        ("counts", ["a"], {"input_type": "search_query"}, "input_type", "does not support it"),
        ("counts", ["a"], {"embedding_types": ["binary"]}, "embedding_types", "there are 3"),
        ("counts", ["a"], {"embedding_types": ["int8"]}, "embedding_types[0]", "invalid enum"),
        ("counts", ["a"], {"output_dimension": 4}, "output_dimension", "'counts' has 3"),
        ("counts", ["a"], {"truncate": "START"}, "truncate", "is not supported"),
        ("counts", ["a"], {"images": ["data:"]}, "images", "is not supported"),
        ("counts", ["a"], {"inputs": [{}]}, "inputs", "send texts instead"),
        ("counts", [], {}, "texts", "is empty"),
        ("counts", ["a"] * 2049, {}, "texts", "at most 2048"),
        ("counts", None, {}, "texts", "expected array"),
        ("of_tokens", ["a"], {}, "texts", "takes tokens, and no texts"),
    ],
)
def test_what_cohere_s_clients_are_refused_names_its_field(
    client: Client, model: str, texts: Any, fields: dict[str, Any], param: str, says: str
) -> None:
    field, message = refusal(embed(client, model, texts, **fields))
    assert field == param
    assert says in message


DOCUMENTS = ["one", {"text": "two three", "id": 7}, "three one two"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_documents_come_in_the_order_of_the_query(client: Client, path: str) -> None:
    wanted = {"model": "cross", "query": "one two", "documents": DOCUMENTS}
    answer = client.post(path, wanted)
    assert answer.json["results"] == [
        {"index": 2, "relevance_score": 2.0, "document": {"text": "three one two"}},
        {"index": 0, "relevance_score": 1.0, "document": {"text": "one"}},
        {"index": 1, "relevance_score": 1.0, "document": {"text": "two three"}},
    ]
    brief = client.post(path, {**wanted, "top_n": 1, "return_documents": False})
    assert brief.json["results"] == [{"index": 2, "relevance_score": 2.0}]


def test_one_document_needs_no_list(client: Client) -> None:
    wanted = {"model": "cross", "query": "a b", "documents": "b"}
    assert client.post("/rerank", wanted).json["results"] == [
        {"index": 0, "relevance_score": 1.0, "document": {"text": "b"}}
    ]


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@pytest.mark.parametrize(
    "sides",
    [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")],
)
def test_pairs_have_scores(client: Client, path: str, sides: tuple[str, str]) -> None:
    def scores(*pair: Any) -> list[float]:
        answer = client.post(path, {"model": "cross", **dict(zip(sides, pair, strict=True))})
        return [one["score"] for one in answer.json["data"]]

    assert scores("a b", {"text": "b"}) == [1]
    assert scores("a b", "b") == [1]
    assert scores("a b", ["a b", "c"]) == [2, 0]
    assert scores(["a", "b"], ["a", "c"]) == [1, 0]


def test_an_input_called_query_is_the_query(client: Client) -> None:
    answer = client.post("/score", {"model": "turned", "text_1": "abc", "text_2": "z"})
    assert answer.json["data"][0]["score"] == -7


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b"] * 2049}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b", {"title": "c"}]}, "documents[1].text"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"documents": ["b"]}, "query"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_2"),
        ("/v1/score", {"text_1": [], "text_2": ["a"]}, "text_1"),
        ("/v1/score", {}, "text_1"),
        ("/v1/score", {"text_2": "a"}, "text_1"),
        ("/v1/score", {"text_1": None, "text_2": "a"}, "text_1"),
        ("/v1/score", {"queries": "a"}, "documents"),
        ("/v1/score", {"items": "a"}, "queries"),
        ("/v1/score", {"queries": ["a"] * 2, "items": "b"}, "items"),
        ("/v1/score", {"queries": "a", "documents": "b", "items": "c"}, None),
        ("/v1/score", {"text_1": "a", "data_2": "b"}, None),
        ("/v1/score", {"text_1": "a", "text_2": "b", "use_activation": False}, "use_activation"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "instruction": "c"}, "instruction"),
        (
            "/v1/rerank",
            {"query": "a", "documents": "b", "max_tokens_per_doc": 5},
            "max_tokens_per_doc",
        ),
        (
            "/v1/rerank",
            {"query": "a", "documents": "b", "truncate_prompt_tokens": 5},
            "truncate_prompt_tokens",
        ),
    ],
)
def test_what_cannot_be_scored_names_its_field(
    client: Client, path: str, fields: dict[str, Any], param: str | None
) -> None:
    assert refusal(client.post(path, {"model": "cross", **fields}))[0] == param


def test_a_score_that_is_no_number_is_the_model_s_fault(client: Client) -> None:
    answer = client.post("/v1/score", {"model": "broken", "text_1": "a", "text_2": "b"})
    assert answer.status == 500
    assert "a score is not a finite number" in answer.json["error"]["message"]
