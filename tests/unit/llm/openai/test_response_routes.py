"""How does a response go on from one that is kept, and how is that one asked for again?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

import wherry
from tests.http_exchange import Client, MemoryExchange, served
from wherry.server.calls.offload import LARGE_BYTES
from wherry.server.v2.common import Common, OpenAISettings

RESPONSES = "/v1/responses"


@wherry.model
def tell(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Tells how the messages begin: `user: Hi|assistant: ...`; `raise` is an error."""
    if messages[-1]["content"] == "raise":
        raise ValueError("broke")
    yield "|".join(f"{said['role']}: {said['content'][:6]}" for said in messages)


@pytest.fixture
def client() -> Iterator[Client]:
    with served(tell, common=Common(openai=OpenAISettings(max_kept_responses=2**20))) as client:
        yield client


def asked(client: Client, input: Any, caller: str = "", **fields: Any) -> MemoryExchange:
    """Ask with the key of this name."""

    def with_key(exchange: MemoryExchange) -> None:
        exchange.request.caller = caller

    body = {"input": input, **fields}
    exchange = client.begin("POST", RESPONSES, body, prepare=with_key)
    exchange.answered.result(30)
    return exchange


def said(answer: MemoryExchange) -> str:
    assert answer.status == 200, answer.body
    (item,) = answer.json["output"]
    return str(item["content"][0]["text"])


def error(answer: MemoryExchange) -> tuple[int, str | None, str | None]:
    found = answer.json["error"]
    return answer.status, found["param"], found["code"]


def test_a_response_goes_on_from_another(client: Client) -> None:
    first = asked(client, "Hi", instructions="be brief").json
    assert (first["store"], first["previous_response_id"]) == (True, None)
    second = asked(client, "And?", previous_response_id=first["id"])
    # The instructions are of the first request alone, as OpenAI has it.
    assert said(second) == "user: Hi|assistant: system|user: And?"
    assert second.json["previous_response_id"] == first["id"]
    third = asked(client, [{"role": "user", "content": "So?"}], stream=True,
                  previous_response_id=second.json["id"])  # fmt: skip
    last = json.loads(third.body.split(b"data: ")[-1])["response"]
    text = last["output"][0]["content"][0]["text"]
    assert text.count("|") == 4
    # A stream is kept as well, and one response may go on in two ways.
    assert said(asked(client, "?", previous_response_id=last["id"])).count("|") == 6
    assert said(asked(client, "Or?", previous_response_id=first["id"])).endswith("user: Or?")


def test_an_item_that_refers_to_one_that_is_kept_stands_for_it(client: Client) -> None:
    first = asked(client, "Hi").json
    refers = {"type": "item_reference", "id": first["output"][0]["id"]}
    given = [{"role": "user", "content": "Hi"}, refers, {"role": "user", "content": "And?"}]
    whole = [given[0], first["output"][0], given[2]]
    assert said(asked(client, given)) == said(asked(client, whole))
    # What is kept of it is whole, too.
    second = asked(client, given).json
    client.ask("DELETE", f"{RESPONSES}/{first['id']}")
    assert said(asked(client, "?", previous_response_id=second["id"])).count("|") == 4
    assert error(asked(client, given)) == (400, "input[1]", None)
    for id in ("", "x", "msg_x_1", "msg_in_x_0", "_" * 1000):
        refused = asked(client, [{"type": "item_reference", "id": id}])
        assert error(refused) == (400, "input[0]", None)
        assert len(refused.body) < 1000
    wrong = asked(client, [{"type": "item_reference", "id": 3}])
    assert error(wrong) == (400, "input[0].id", None)


def test_what_is_kept_is_told_deleted_and_gone(client: Client) -> None:
    first = asked(client, "Hi", metadata={"a": "b"}).json
    path = f"{RESPONSES}/{first['id']}"
    assert client.get(path).json == first
    assert client.get(f"{path}?stream=true").status == 400
    assert client.post(path).status == 405
    assert client.get(f"{path}/else").status == 404
    gone = {"id": first["id"], "object": "response", "deleted": True}
    assert client.ask("DELETE", path).json == gone
    for method in ("GET", "DELETE"):
        assert client.ask(method, path).status == 404
    refused = asked(client, "?", previous_response_id=first["id"])
    assert error(refused) == (400, "previous_response_id", "previous_response_not_found")


def test_another_key_finds_nothing(client: Client) -> None:
    first = asked(client, "Hi", caller="ada").json
    refused = asked(client, "?", caller="bob", previous_response_id=first["id"])
    assert error(refused)[:2] == (400, "previous_response_id")
    refers = [{"type": "item_reference", "id": first["output"][0]["id"]}]
    assert error(asked(client, refers, caller="bob"))[:2] == (400, "input[0]")
    assert client.get(f"{RESPONSES}/{first['id']}").status == 404
    assert asked(client, "?", caller="ada", previous_response_id=first["id"]).status == 200


def test_what_failed_or_is_not_to_be_kept_is_not(client: Client) -> None:
    first = asked(client, "Hi", store=False).json
    assert first["store"] is False
    assert client.get(f"{RESPONSES}/{first['id']}").status == 404
    assert asked(client, "raise").status == 500
    assert error(asked(client, "Hi", conversation="c"))[:2] == (400, "conversation")


def test_a_long_conversation_is_read_beside_the_loop_and_has_a_bound() -> None:
    common = Common(openai=OpenAISettings(max_kept_responses=2**22), max_body_bytes=3 * LARGE_BYTES)
    with served(tell, common=common) as client:
        last: Mapping[str, Any] = {"id": None}
        for _ in range(2):
            text = "x" * LARGE_BYTES
            last = asked(client, text, previous_response_id=last["id"]).json
        answer = asked(client, "?", previous_response_id=last["id"])
        assert said(answer).count("|") == 4
        more = asked(client, "x" * LARGE_BYTES, previous_response_id=answer.json["id"]).json
        refused = asked(client, "?", previous_response_id=more["id"])
        assert error(refused)[:2] == (400, "previous_response_id")
        assert "bytes" in refused.json["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_that_is_too_large_to_be_kept_says_so(client: Client, stream: bool) -> None:
    for size, kept in ((2**19, True), (2**20, False)):
        answer = asked(client, "x" * size, stream=stream)
        events = answer.body.decode().split("data: ")
        response = json.loads(events[-1])["response"] if stream else answer.json
        assert response["store"] is kept
        found = client.get(f"{RESPONSES}/{response['id']}")
        assert found.status == (200 if kept else 404)


def test_a_reference_counts_as_often_as_it_is_made() -> None:
    def repeat(messages: Sequence[dict[str, Any]]) -> str:
        return "y" * 3000

    common = Common(openai=OpenAISettings(max_kept_responses=2**20), max_body_bytes=10_000)
    with served(wherry.model(repeat), common=common) as client:
        first = asked(client, "Hi").json
        named = {"type": "item_reference", "id": first["output"][0]["id"]}
        assert asked(client, [named] * 2).status == 200
        refused = asked(client, [{"role": "user", "content": "?"}, *[named] * 9])
        assert error(refused)[:2] == (400, "input[4]")
        assert "more than a body" in refused.json["error"]["message"]
        # What came before is not to blame, as it has room for itself.
        both = asked(client, [named] * 3, previous_response_id=first["id"])
        assert error(both)[:2] == (400, "input[1]")


def test_a_server_that_keeps_none_says_so() -> None:
    with served(tell) as client:
        first = asked(client, "Hi").json
        assert first["store"] is False
        for fields in ({"store": True}, {"previous_response_id": first["id"]}):
            refused = asked(client, "Hi", **fields)
            assert error(refused)[:2] == (400, next(iter(fields)))
            assert "--max-kept-responses" in refused.json["error"]["message"]
        answer = client.get(f"{RESPONSES}/{first['id']}")
        assert answer.status == 404
        assert "keeps no responses" in answer.json["error"]["message"]
