"""frontends/openai/background.py: responses that are made while nobody waits for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import wherry
from tests.fakes import PATIENCE
from tests.http_exchange import Client, MemoryExchange, served
from wherry.frontends.v2.common import Common, OpenAISettings

RESPONSES = "/v1/responses"


class Slow:
    """A model that goes on when the test says so, and says when it began and was left."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.left = threading.Event()

    def model(self) -> wherry.Model:
        @wherry.model(name="slow")
        def slow(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
            said = messages[-1]["content"]
            if said == "raise":
                raise ValueError("broke")
            self.began.set()
            try:
                yield "be"
                assert self.may_end.wait(PATIENCE)
                yield "gun " + said[:20]
            finally:
                self.left.set()

        return slow


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.may_end.set()


@pytest.fixture
def client(slow: Slow) -> Iterator[Client]:
    common = Common(openai=OpenAISettings(max_kept_responses=2**16))
    with served(slow.model(), common=common) as client:
        yield client


def asked(client: Client, input: Any, caller: str = "", **fields: Any) -> MemoryExchange:
    def with_key(exchange: MemoryExchange) -> None:
        exchange.request.caller = caller

    body = {"input": input, "background": True, **fields}
    exchange = client.begin("POST", RESPONSES, body, prepare=with_key)
    exchange.answered.result(PATIENCE)
    return exchange


def shown(client: Client, id: str) -> dict[str, Any]:
    answer = client.get(f"{RESPONSES}/{id}")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def ended(client: Client, id: str) -> dict[str, Any]:
    """The response, asked for until it has ended, as clients do."""
    for _ in range(2000):
        found = shown(client, id)
        if found["status"] != "queued":
            return found
        threading.Event().wait(0.005)
    raise AssertionError(found)


def test_a_response_is_made_behind_its_client_s_back(client: Client, slow: Slow) -> None:
    begun = asked(client, "well").json
    assert (begun["status"], begun["background"], begun["output"]) == ("queued", True, [])
    assert shown(client, begun["id"]) == begun
    items = client.get(f"{RESPONSES}/{begun['id']}/input_items").json["data"]
    assert items[0]["content"][0]["text"] == "well"
    slow.may_end.set()
    whole = ended(client, begun["id"])
    assert (whole["status"], whole["background"]) == ("completed", True)
    assert whole["output"][0]["content"][0]["text"] == "begun well"
    # It is one like any other: cancelled no more, gone on from, forgotten.
    assert client.post(f"{RESPONSES}/{begun['id']}/cancel").json == whole
    then = asked(client, "on", previous_response_id=begun["id"], background=False)
    assert then.json["output"][0]["content"][0]["text"] == "begun on"
    assert client.ask("DELETE", f"{RESPONSES}/{begun['id']}").json["deleted"]
    assert client.get(f"{RESPONSES}/{begun['id']}").status == 404


def test_a_response_that_is_cancelled_ends_its_request(client: Client, slow: Slow) -> None:
    begun = asked(client, "well").json
    assert slow.began.wait(PATIENCE)
    gone = client.post(f"{RESPONSES}/{begun['id']}/cancel").json
    assert gone == {**begun, "status": "cancelled"}
    slow.may_end.set()
    assert slow.left.wait(PATIENCE)
    assert shown(client, begun["id"]) == gone
    assert client.post(f"{RESPONSES}/{begun['id']}/cancel").json == gone


def test_a_response_that_is_forgotten_while_it_is_made_stays_so(client: Client, slow: Slow) -> None:
    begun = asked(client, "well").json
    assert slow.began.wait(PATIENCE)
    assert client.ask("DELETE", f"{RESPONSES}/{begun['id']}").json["deleted"]
    slow.may_end.set()
    assert slow.left.wait(PATIENCE)
    assert client.get(f"{RESPONSES}/{begun['id']}").status == 404


def test_a_response_that_fails_says_so(client: Client) -> None:
    failed = ended(client, asked(client, "raise").json["id"])
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == "server_error"
    assert "broke" in failed["error"]["message"]


def test_a_response_that_is_too_large_to_be_kept_says_so(client: Client, slow: Slow) -> None:
    slow.may_end.set()
    begun = asked(client, "x" * 2**15, metadata={"a": "y" * 2**15}).json
    for _ in range(2000):
        answer = client.get(f"{RESPONSES}/{begun['id']}")
        if answer.status != 200 or answer.json["status"] != "queued":
            break
        threading.Event().wait(0.005)
    assert answer.status == 404  # not even that it failed could be kept


def test_only_its_owner_sees_a_response_that_is_made(client: Client, slow: Slow) -> None:
    begun = asked(client, "well", caller="ada").json
    assert client.get(f"{RESPONSES}/{begun['id']}").status == 404
    assert client.post(f"{RESPONSES}/{begun['id']}/cancel").status == 404
    slow.may_end.set()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "background"),
        ({"store": False}, "background"),
        ({"temperature": 0.5}, "temperature"),
        ({"model": "nobody"}, "model"),
    ],
)
def test_what_is_refused_is_refused_at_once(
    client: Client, fields: dict[str, Any], param: str
) -> None:
    answer = asked(client, "well", **fields)
    assert answer.status in (400, 404)
    assert answer.json["error"]["param"] == param


def test_a_response_that_was_waited_for_cannot_be_cancelled(client: Client, slow: Slow) -> None:
    slow.may_end.set()
    waited = asked(client, "well", background=False).json
    answer = client.post(f"{RESPONSES}/{waited['id']}/cancel")
    assert (answer.status, answer.json["error"]["param"]) == (400, "background")


def test_a_server_that_keeps_none_makes_none(slow: Slow) -> None:
    with served(slow.model(), common=Common(openai=OpenAISettings(max_kept_responses=0))) as none:
        answer = asked(none, "well")
        assert (answer.status, answer.json["error"]["param"]) == (400, "background")
