"""frontends/openai/background.py: responses that are made while nobody waits for them."""

from __future__ import annotations

import json
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


def begun_stream(client: Client, slow: Slow, input: str = "well", **fields: Any) -> MemoryExchange:
    """The stream of a response that has begun, and does not go on yet."""
    body = {"input": input, "background": True, "stream": True, **fields}
    exchange = client.begin("POST", RESPONSES, body)
    assert slow.began.wait(PATIENCE)
    return exchange


def numbers(stream: MemoryExchange) -> list[int]:
    return [event["sequence_number"] for event in events(stream)]


def events(stream: MemoryExchange) -> list[dict[str, Any]]:
    parts = [part.split(b"data: ", 1) for part in stream.body.split(b"\n\n") if part]
    found = [json.loads(data) for _, data in parts]
    assert [head for head, _ in parts] == [b"event: %b\n" % one["type"].encode() for one in found]
    return found


def id_of(client: Client, stream: MemoryExchange) -> str:
    """The id that its first event tells, once it is there."""
    for _ in range(2000):
        if client.call(lambda: len(stream.chunks)):
            return str(events(stream)[0]["response"]["id"])
        threading.Event().wait(0.005)
    raise AssertionError(stream)


def test_a_stream_in_the_background_goes_on_without_its_client(client: Client, slow: Slow) -> None:
    stream = begun_stream(client, slow)
    id = id_of(client, stream)
    client.call(stream.leave)
    again = client.begin("GET", f"{RESPONSES}/{id}?stream=true&starting_after=0")
    slow.may_end.set()
    again.answered.result(PATIENCE)
    found = events(again)
    assert (found[0]["sequence_number"], found[-1]["type"]) == (1, "response.completed")
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == "begun well"
    assert again.content_type == "text/event-stream; charset=utf-8"
    # What has ended can be read again, whole or from any place on.
    whole = client.get(f"{RESPONSES}/{id}?stream=true")
    assert numbers(whole) == list(range(len(found) + 1))
    assert found == events(whole)[1:]
    assert client.get(f"{RESPONSES}/{id}?stream=true&starting_after=10000").body == b""
    assert ended(client, id) == found[-1]["response"]


def test_a_client_that_reads_slowly_gets_all_events_in_their_order(
    client: Client, slow: Slow
) -> None:
    stream = begun_stream(client, slow)
    id = id_of(client, stream)

    def held() -> None:
        stream.congested = True

    client.call(held)
    slow.may_end.set()
    ended(client, id)
    before = len(stream.chunks)

    def read() -> None:
        stream.congested = False
        stream.drained()

    client.call(read)
    stream.answered.result(PATIENCE)
    assert len(stream.chunks) > before
    assert numbers(stream) == list(range(len(stream.chunks)))


def test_a_stream_whose_response_is_cancelled_ends(client: Client, slow: Slow) -> None:
    stream = begun_stream(client, slow)
    id = id_of(client, stream)
    assert client.post(f"{RESPONSES}/{id}/cancel").json["status"] == "cancelled"
    stream.answered.result(PATIENCE)
    assert events(stream)[-1]["type"] != "response.completed"
    slow.may_end.set()


def test_a_stream_that_fails_says_so_as_one_that_is_waited_for(client: Client) -> None:
    body = {"input": "raise", "background": True, "stream": True}
    refused = client.post(RESPONSES, body)
    waited = client.post(RESPONSES, {"input": "raise", "stream": True})
    assert (refused.status, refused.json) == (waited.status, waited.json)


def test_events_that_are_too_many_end_the_streams_and_not_the_response(slow: Slow) -> None:
    common = Common(openai=OpenAISettings(max_kept_responses=3000))
    with served(slow.model(), common=common) as client:
        stream = begun_stream(client, slow)
        id = id_of(client, stream)
        slow.may_end.set()
        stream.answered.result(PATIENCE)
        assert json.loads(stream.chunks[-1].split(b"data: ")[1])["type"] == "error"
        assert ended(client, id)["status"] == "completed"
        answer = client.get(f"{RESPONSES}/{id}?stream=true")
        assert (answer.status, answer.json["error"]["param"]) == (400, "stream")


@pytest.mark.parametrize(
    ("query", "param"),
    [(f"stream=true&starting_after={after}", "starting_after") for after in ("x", "-1", "1.5", "٣")]
    + [(f"stream={text}", "stream") for text in ("yes", "2", "%00")],
)
def test_a_place_that_is_none_is_refused(
    client: Client, slow: Slow, query: str, param: str
) -> None:
    id = id_of(client, begun_stream(client, slow))
    answer = client.get(f"{RESPONSES}/{id}?{query}")
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
    assert client.get(f"{RESPONSES}/{id}?stream=False&starting_after=x").json["id"] == id
    slow.may_end.set()


def test_a_response_that_was_waited_for_cannot_be_cancelled(client: Client, slow: Slow) -> None:
    slow.may_end.set()
    waited = asked(client, "well", background=False).json
    answer = client.post(f"{RESPONSES}/{waited['id']}/cancel")
    assert (answer.status, answer.json["error"]["param"]) == (400, "background")


def test_a_server_that_keeps_none_makes_none(slow: Slow) -> None:
    with served(slow.model(), common=Common(openai=OpenAISettings(max_kept_responses=0))) as none:
        answer = asked(none, "well")
        assert (answer.status, answer.json["error"]["param"]) == (400, "background")
