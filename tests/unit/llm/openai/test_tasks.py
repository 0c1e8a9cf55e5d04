"""llm/openai/task_routes.py: vectors and scores, over any model whose types fit."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest

import wherry
from tests.http_exchange import Client, MemoryExchange, served
from wherry.core.runtime.loaded_model import LoadedModel
from wherry.core.values.request import InferRequest
from wherry.llm.openai.errors import BESIDE_V1
from wherry.llm.openai.models import abilities
from wherry.server.access.api_keys import ApiKeys
from wherry.server.calls.parameters import Forwarding, HeaderForwarding
from wherry.server.v2.common import Common

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
def unsound(text: list[str]) -> Vectors:
    return np.full((len(text), 3), np.nan, np.float32)


MODELS = (
    counts, of_tokens, of_lists, of_both, unsound, cross, turned, broken,
)  # fmt: skip


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
        "unsound": {"embeddings"},
        "cross": {"scores"},
        "turned": {"scores"},
        "broken": {"scores"},
    }
    answer = client.post("/v1/rerank", {"model": "of_tokens", "query": "a", "documents": ["b"]})
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
        ("counts", "a", {"encoding_format": "int8"}, "encoding_format", "'base64', not 'int8'"),
        ("counts", "a", {"truncate_prompt_tokens": 10}, "truncate_prompt_tokens", "not supported"),
        ("of_tokens", [1, "a"], {}, "input", "must hold texts, or tokens, or lists of tokens"),
        ("counts", "a", {"encoding_format": "x" * 999}, "encoding_format", f"not '{'x' * 63}..."),
        ("counts", "a", {"embed_dtype": "float16"}, "embed_dtype", "is not supported"),
        ("counts", "a", {"endianness": "big"}, "endianness", "is not supported"),
        ("counts", "a", {"use_activation": True}, "use_activation", "not supported"),
        ("counts", "a", {"add_special_tokens": False}, "add_special_tokens", "not supported"),
        ("counts", "a", {"padding": "max_length"}, "padding", "not supported"),
        ("counts", "a", {"messages": [{"role": "user", "content": ""}]}, "messages", "send input"),
        ("counts", None, {}, "input", "null"),
    ],
)
def test_what_is_refused_names_its_field(
    client: Client, model: str, given: Any, fields: dict[str, Any], param: str, says: str
) -> None:
    field, message = refusal(embedded(client, model, given, **fields))
    assert field == param
    assert says in message


def test_numbers_that_json_has_no_word_for_are_the_model_s_fault(client: Client) -> None:
    answer = embedded(client, "unsound", ["a"])
    assert answer.status == 500
    assert "a number is not finite" in answer.json["error"]["message"]
    assert embedded(client, "unsound", "a", dimensions=2).status == 500
    packed = embedded(client, "unsound", "a", encoding_format="base64")
    assert np.isnan(np.frombuffer(base64.b64decode(vectors(packed)[0]), "<f4")).all()


def test_what_a_field_asks_for_by_default_changes_nothing(client: Client) -> None:
    neutral = {
        "truncate_prompt_tokens": -1,
        "embed_dtype": "float32",
        "endianness": "native",
        "add_special_tokens": True,
    }
    assert vectors(embedded(client, "counts", "a", **neutral)) == [[3, 4, 1]]


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
def test_pairs_have_scores(client: Client, path: str) -> None:
    def scores(left: Any, right: Any) -> list[float]:
        answer = client.post(path, {"model": "cross", "text_1": left, "text_2": right})
        return [one["score"] for one in answer.json["data"]]

    assert scores("a b", {"text": "b"}) == [1]
    assert scores("a b", "b") == [1]
    assert scores("a b", ["a b", "c"]) == [2, 0]
    assert scores(["a", "b"], ["a", "c"]) == [1, 0]


def test_without_a_model_the_only_one_of_pairs_answers() -> None:
    with served(counts, cross) as client:
        assert client.post("/score", {"text_1": "a b", "text_2": "b"}).json["model"] == "cross"


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
        ("/v1/score", {"queries": "a", "documents": "b"}, "text_1"),
        ("/v1/score", {"text_1": "a", "data_2": "b"}, "text_2"),
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


@pytest.mark.parametrize("path", sorted(BESIDE_V1))
def test_a_refusal_has_openai_s_form_wherever_the_path_is(path: str) -> None:
    with served(counts, common=Common(keys=ApiKeys(["a-key-of-this-test-12345"]))) as client:
        answer = client.post(path, {"input": "a"})
        assert answer.status == 401
        assert answer.json["error"]["type"] == "authentication_error"


def test_a_score_that_is_no_number_is_the_model_s_fault(client: Client) -> None:
    answer = client.post("/v1/score", {"model": "broken", "text_1": "a", "text_2": "b"})
    assert answer.status == 500
    assert "a score is not a finite number" in answer.json["error"]["message"]


def test_a_task_has_the_headers_priority_and_traces_of_any_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forwarding = Forwarding(http=HeaderForwarding("^x-user-"))
    followed: list[InferRequest] = []

    def follow(_: LoadedModel, request: InferRequest, *__: Any, **___: Any) -> None:
        followed.append(request)

    with served(of_lists, forwarding=forwarding) as client:
        entry = client.app._entry
        monkeypatch.setattr(entry.traces, "follow", follow)
        monkeypatch.setattr(entry.trace_settings, "on", True)
        headers = {"x-user-id": "u", "x-request-timeout": "5"}
        fields = {"model": "of_lists", "input": [[1, 2], [3]], "priority": 0}
        answer = client.post("/v1/embeddings", fields, headers)
        assert answer.status == 200
        assert client.call(lambda: entry.admission.in_flight) == 0
    (request,) = followed
    assert request.parameters == {"x-user-id": "u"}
    assert (request.rows, request.timeout, request.priority) == (2, 5.0, 5)
    assert request.nbytes is not None
