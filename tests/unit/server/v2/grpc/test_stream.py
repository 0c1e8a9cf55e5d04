"""ModelStreamInfer over calls in memory: order, ends, errors, slow readers, clients that leave."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import wherry
from tests.fakes import TIMEOUT, Gate, gated, until
from tests.grpc_calls import Client, MemoryRpc, served, words
from wherry.server.v2.element_bytes import pack_bytes
from wherry.server.v2.grpc import stream as stream_module

FINAL = "triton_final_response"
WANTS_END = {"triton_enable_empty_final_response": {"bool_param": True}}


@wherry.model(max_batch_size=8)
def shout(text: list[str]) -> list[str]:
    if "bad" in text:
        raise wherry.InvalidRequest("a bad word")
    return [t.upper() for t in text]


@wherry.model
def count(n: int) -> Iterator[int]:
    for i in range(n):
        if i == 100:
            raise wherry.InvalidRequest("a hundred is too much")
        yield i


def number(n: int, model: str = "count", **more: Any) -> dict[str, Any]:
    given = {"name": "n", "datatype": "INT64", "shape": [1]}
    raw = [np.int64(n).tobytes()]
    return {"model_name": model, "inputs": [given], "raw_input_contents": raw, **more}


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open(1000)


@pytest.fixture
def client() -> Iterator[Client]:
    with served(shout, count) as client:
        yield client


def open_stream(client: Client, **how: Any) -> MemoryRpc:
    return client.begin("ModelStreamInfer", **how)


def told(answer: dict[str, Any]) -> tuple[str, Any, bool | None]:
    """Id, what it says (numbers, an error, or nothing), and whether it is the last."""
    response = answer["infer_response"]
    request_id = response.get("id", "")
    if "error_message" in answer:
        assert set(response) <= {"id", "model_name", "parameters"}
        said = response.get("parameters", {FINAL: {"bool_param": None}})
        return request_id, answer["error_message"], said[FINAL]["bool_param"]
    final = response["parameters"][FINAL]["bool_param"]
    values = [np.frombuffer(raw, np.int64).tolist() for raw in response["raw_output_contents"]] if (
        response["model_name"] == "count" and "raw_output_contents" in response
    ) else response.get("raw_output_contents", [])  # fmt: skip
    return request_id, values, final


def test_a_model_that_does_not_stream_gives_one_final_answer(client: Client) -> None:
    rpc = open_stream(client)
    client.say(rpc, words("a", id="1"))
    assert told(rpc.wait_for(1)[0]) == ("1", [pack_bytes([b"A"])], True)
    client.half_close(rpc)
    assert rpc.wait().code == "OK"
    assert len(rpc.answers) == 1


def test_a_model_that_streams_gives_its_answers_in_order(client: Client) -> None:
    rpc = open_stream(client)
    client.say(rpc, number(3, id="1", parameters=WANTS_END))
    client.half_close(rpc)  # what has begun is answered all the same
    rpc.wait()
    assert [told(answer) for answer in rpc.answers] == [
        ("1", [[0]], False),
        ("1", [[1]], False),
        ("1", [[2]], False),
        ("1", [], True),
    ]


def test_an_empty_end_is_not_told_unasked(client: Client) -> None:
    rpc = open_stream(client)
    client.say(rpc, number(1), number(0))
    client.half_close(rpc)
    assert [told(answer) for answer in rpc.wait().answers] == [("", [[0]], False)]


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (words("bad", id="1"), "a bad word"),
        (words("a", model="nope", id="1"), "unknown model: 'nope' is not found"),
        (words("a", id="1", outputs=[{"name": "x"}]), "unexpected inference output 'x'"),
        (words("a", id="1", parameters={"triton_x": {"bool_param": True}}), "reserved"),
        (words("a", id="1", model_version="one"), "failed to get model version"),
    ],
)
def test_an_error_is_a_message_and_the_stream_goes_on(
    client: Client, request_: dict[str, Any], text: str
) -> None:
    rpc = open_stream(client)
    client.say(rpc, request_)
    request_id, error, _ = told(rpc.wait_for(1)[0])
    assert (request_id, text in error) == ("1", True)
    client.say(rpc, words("a", id="2"))
    assert told(rpc.wait_for(2)[1])[0] == "2"
    assert client.call(lambda: client.app._entry.admission.in_flight) == 0


def test_what_is_no_message_is_an_error_without_an_id(client: Client) -> None:
    rpc = open_stream(client)
    client.say(rpc, b"\x0a\x05ab")
    assert "failed to parse" in told(rpc.wait_for(1)[0])[1]


def test_a_generator_that_fails_has_given_what_it_gave(client: Client) -> None:
    rpc = open_stream(client)
    client.say(rpc, number(101, id="1"))
    answers = [told(answer) for answer in rpc.wait_for(101)]
    assert answers[99] == ("1", [[99]], False)
    assert answers[100][1].endswith("a hundred is too much")
    assert answers[100][2]


def test_what_the_model_answers_is_its_last_response_also_if_that_is_an_error(
    client: Client,
) -> None:
    rpc = open_stream(client)
    client.say(rpc, words("bad", id="1"), words("a", model="nope", id="2"))
    errors = {told(answer)[0]: answer["infer_response"] for answer in rpc.wait_for(2)}
    assert errors["1"] == {
        "model_name": "shout", "id": "1", "parameters": {FINAL: {"bool_param": True}}
    }  # fmt: skip
    assert errors["2"] == {"id": "2"}  # nobody ran it


def test_the_first_error_ends_the_stream_if_the_client_wants_that(gate: Gate) -> None:
    with served(shout, gated(gate, max_batch_size=1)) as client:
        rpc = open_stream(client, metadata={"triton_grpc_error": "true"})
        client.say(rpc, words("a", model="gated"))
        gate.started()
        client.say(rpc, words("b", model="gated"), words("x", model="nope"))
        rpc.wait()
        assert rpc.error == ("NOT_FOUND", "Request for unknown model: 'nope' is not found")
        gate.open(1000)
        after = client.ask("ModelInfer", words("c", model="gated"))
        assert after.code == "OK"
        assert gate.batches == [["a"], ["c"]]  # the others were cancelled


def test_requests_run_at_once_and_each_has_its_turn_to_be_answered(gate: Gate) -> None:
    done = threading.Event()

    @wherry.model
    def quick(text: str) -> str:
        done.set()
        return text

    with served(quick, count, gated(gate, max_batch_size=1)) as client:
        rpc = open_stream(client)
        client.say(
            rpc,
            words("slow", model="gated", id="1"),
            words("at once", model="quick", id="2"),
            words("a", model="nope", id="3"),
            number(1, id="4"),
        )
        gate.started()
        assert done.wait(30)
        assert told(rpc.wait_for(1)[0])[0] == "4"  # a model that streams waits for nobody
        gate.open()
        assert [told(answer)[0] for answer in rpc.wait_for(4)] == ["4", "1", "2", "3"]
        until(lambda: client.call(lambda: client.app._entry.admission.in_flight) == 0)


def test_the_requests_of_one_turn_share_a_batch(gate: Gate) -> None:
    with served(gated(gate, max_batch_size=8)) as client:
        rpc = open_stream(client)
        client.say(rpc, *(words(text, model="gated") for text in "abcd"))
        gate.open(4)
        rpc.wait_for(4)
        assert gate.batches == [["a", "b", "c", "d"]]


def test_a_client_that_does_not_read_holds_its_generator() -> None:
    yielded: list[int] = []
    changed = threading.Condition()

    @wherry.model
    def endless(n: int) -> Iterator[int]:
        for i in range(n):
            with changed:
                yielded.append(i)
                changed.notify_all()
            yield i

    def wait_for(total: int) -> None:
        with changed:
            assert changed.wait_for(lambda: len(yielded) >= total, TIMEOUT), len(yielded)

    with served(endless, shout) as client:
        rpc = open_stream(client, takes=False)
        client.say(rpc, number(300, model="endless"))
        wait_for(65)  # the reply's window, and the one that waits for room
        assert client.ask("ModelInfer", words("a")).code == "OK"
        assert len(yielded) == 65
        client.call(lambda: rpc.take(10))
        wait_for(75)
        rpc.takes = True
        client.call(lambda: rpc.take(1000))
        client.half_close(rpc)
        rpc.wait()
        assert len(rpc.answers) == 300


def test_a_client_that_is_owed_too_much_is_not_read(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "MAX_OWED", 3)
    with served(gated(gate, max_batch_size=1)) as client:
        rpc = open_stream(client, takes=False)
        client.say(rpc, words("a", model="gated"), words("b", model="gated"))
        assert not rpc.paused
        client.say(rpc, words("c", model="gated"))
        assert rpc.paused
        gate.open(3)
        rpc.wait_for(3)
        client.call(lambda: None)  # the answers are sent, and not taken
        assert rpc.paused
        client.call(rpc.take)
        assert not rpc.paused


def test_a_client_that_leaves_cancels_its_requests(gate: Gate) -> None:
    with served(gated(gate, max_batch_size=1)) as client:
        rpc = open_stream(client)
        client.say(rpc, words("a", model="gated"), words("b", model="gated"))
        gate.started()
        client.call(rpc.leave)
        gate.open(1000)
        assert client.ask("ModelInfer", words("c", model="gated")).code == "OK"
        assert gate.batches == [["a"], ["c"]]
        assert rpc.answers == []
        assert not client.app._entry.streams
        assert client.call(lambda: client.app._entry.admission.in_flight) == 0


def test_a_generator_stops_when_its_client_leaves() -> None:
    stopped = threading.Event()

    @wherry.model
    def endless(n: int) -> Iterator[int]:
        try:
            while True:
                yield n
        finally:
            stopped.set()

    with served(endless) as client:
        rpc = open_stream(client, takes=False)
        client.say(rpc, number(1, model="endless"))
        rpc.wait_for(10)
        client.call(rpc.leave)
        assert stopped.wait(TIMEOUT)


def test_a_drained_stream_ends_when_its_requests_are_answered(gate: Gate) -> None:
    with served(gated(gate, max_batch_size=1), shout) as client:
        idle = open_stream(client)
        busy = open_stream(client)
        client.say(busy, words("a", model="gated", id="1"))
        gate.started()
        client.call(client.app.drain)
        assert not idle.paused  # what is on its way is still taken
        client.call(client.app.end_streams)
        assert idle.wait().error[0] == "UNAVAILABLE"
        assert busy.paused
        assert not busy.ended
        gate.open()
        busy.wait()
        assert [told(answer)[0] for answer in busy.answers] == ["1"]
        assert busy.code == "UNAVAILABLE"
        assert "draining" in busy.details
        assert not client.app._entry.streams


def test_too_many_requests_in_flight_are_refused_one_by_one(gate: Gate) -> None:
    from wherry.server.calls.admission import Admission

    with served(gated(gate), admission=Admission(max_in_flight=1)) as client:
        rpc = open_stream(client)
        client.say(rpc, words("a", model="gated", id="1"), words("b", model="gated", id="2"))
        gate.open()
        first, second = rpc.wait_for(2)
        assert told(first)[0] == "1"
        assert "limit of 1 requests" in told(second)[1]


def test_an_answer_that_cannot_be_encoded_is_an_error() -> None:
    @wherry.model
    def odd(n: int) -> Iterator[list[dict[str, Any]]]:
        yield [{"a": object()}] * n

    with served(odd) as client:
        rpc = open_stream(client)
        client.say(rpc, number(1, model="odd", id="1"))
        request_id, text, _ = told(rpc.wait_for(1)[0])
        assert request_id == "1"
        assert "odd" in text
        assert client.call(lambda: client.app._entry.admission.in_flight) == 0
