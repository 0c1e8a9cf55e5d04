"""ModelInfer over calls in memory: its way through the core, and what ends it early."""

import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import wherry
from tests.fakes import Gate, gated
from tests.grpc_calls import Client, served, words
from wherry.core.models.config import ModelConfig
from wherry.core.runtime.loaded_model import LoadedModel
from wherry.core.values.errors import QueueFull
from wherry.core.values.request import InferRequest, SequenceStep
from wherry.server.calls.admission import Admission
from wherry.server.calls.parameters import Forwarding, HeaderForwarding
from wherry.server.v2.element_bytes import pack_bytes


@wherry.model(max_batch_size=8)
def shout(text: list[str]) -> list[str]:
    if "bug" in text:
        raise ZeroDivisionError
    if "bad" in text:
        raise wherry.InvalidRequest("a bad word")
    return [t.upper() for t in text]


@wherry.model
def count(n: int) -> Iterator[int]:
    yield from range(n)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open(1000)


@dataclass
class Seen:
    """A request as it reaches the core."""

    request: InferRequest
    timeout: float | None


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """What reaches the core."""
    seen: list[Seen] = []
    make = LoadedModel.request

    def request(self: LoadedModel, *args: Any, **how: Any) -> InferRequest:
        made = make(self, *args, **how)
        timeout = None if made.deadline is None else made.deadline - made.enqueued_at
        seen.append(Seen(made, timeout))
        return made

    monkeypatch.setattr(LoadedModel, "request", request)
    return seen


def test_a_request_is_answered() -> None:
    with served(shout) as client:
        answer = client.ask("ModelInfer", words("a", "b", id="7")).answer
        assert (answer["model_name"], answer["model_version"], answer["id"]) == ("shout", "1", "7")
        assert answer["raw_output_contents"] == [pack_bytes([b"A", b"B"])]
        assert "parameters" not in answer
        assert client.ask("ModelInfer", words("a", model_version="1")).code == "OK"


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (words("bad"), "INVALID_ARGUMENT", "a bad word"),
        (words("bug"), "INTERNAL", "ZeroDivisionError"),
        (words("a", model="nope"), "NOT_FOUND", "unknown model: 'nope' is not found"),
        ({}, "NOT_FOUND", "unknown model: '' is not found"),
        (words("a", model_version="9"), "NOT_FOUND", "'shout' version 9 is not found"),
        (
            {"model_name": "count"},
            "UNIMPLEMENTED",
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ),
        (
            words("a", parameters={"priority": {"int64_param": 999}}),
            "INVALID_ARGUMENT",
            "priority 999 is not between",
        ),
        (
            words("a", parameters={"timeout": {"string_param": "soon"}}),
            "INVALID_ARGUMENT",
            "'timeout' must be a whole number of microseconds",
        ),
        (
            words("a", parameters={"sequence_id": {"double_param": 1.0}}),
            "INVALID_ARGUMENT",
            "'sequence_id' must be",
        ),
    ],
)
def test_errors_have_their_code(request_: dict[str, Any], code: str, text: str) -> None:
    with served(shout, count) as client:
        error = client.ask("ModelInfer", request_).error
        assert error[0] == code
        assert text in error[1]
        assert client.app._entry.admission.in_flight == 0


def test_parameters_go_where_they_belong(requests: list[Seen]) -> None:
    with served(shout, forwarding=Forwarding(grpc=HeaderForwarding("^x-user"))) as client:
        parameters = {
            "priority": {"uint64_param": 2},
            "timeout": {"int64_param": 5_000_000},
            "sequence_id": {"string_param": "talk"},
            "sequence_start": {"bool_param": True},
            "mine": {"int64_param": 1},
        }
        metadata = {"x-user-name": "Ann", "x-tenant-id": "t1", "other": "x"}
        outputs = [{"name": "output"}]
        asked = words("a", id="7", parameters=parameters, outputs=outputs)
        client.ask("ModelInfer", asked, metadata=metadata)
        client.ask("ModelInfer", words("a"))
    request, plain = (seen.request for seen in requests)
    assert request.id == "7"
    assert request.priority == 2
    assert requests[0].timeout == pytest.approx(5.0)
    assert request.sequence == SequenceStep("talk", start=True, end=False)
    assert request.parameters == {"mine": 1, "x-user-name": "Ann"}
    assert request.requested_outputs == ["output"]
    assert request.tenant == "t1"
    assert (plain.parameters, plain.sequence, plain.requested_outputs) == (None, None, None)
    assert plain.deadline is None


@pytest.mark.parametrize(
    ("deadline", "microseconds", "expected"),
    [(2.0, None, 2.0), (2.0, 1_000_000, 1.0), (2.0, 9_000_000, 2.0), (None, 1_000_000, 1.0),
     (2.0, 0, 2.0)],
)  # fmt: skip
def test_the_shorter_of_deadline_and_timeout_holds(
    requests: list[Seen], deadline: float | None, microseconds: int | None, expected: float
) -> None:
    parameters = {} if microseconds is None else {"timeout": {"int64_param": microseconds}}
    with served(shout) as client:
        client.ask("ModelInfer", words("a", parameters=parameters), timeout=deadline)
    (seen,) = requests
    assert seen.timeout == pytest.approx(expected)


def test_a_deadline_that_has_passed_runs_nothing(gate: Gate) -> None:
    with served(gated(gate)) as client:
        error = client.ask("ModelInfer", words("a", model="gated"), timeout=-1.0).error
        assert error[0] == "DEADLINE_EXCEEDED"
        assert error[1].startswith("Deadline Exceeded: ")  # as a client says it itself
        assert gate.batches == []


def test_what_is_too_much_is_refused_with_the_time_to_wait(gate: Gate) -> None:
    admission = Admission(max_in_flight=1)
    with served(gated(gate), admission=admission) as client:
        first = client.begin("ModelInfer", words("a", model="gated"))
        gate.started()
        refused = client.ask("ModelInfer", words("b", model="gated"))
        assert refused.code == "RESOURCE_EXHAUSTED"
        assert "limit of 1 requests" in refused.details
        assert refused.trailers == (("grpc-retry-pushback-ms", "1000"),)
        gate.open()
        assert first.wait().code == "OK"
        assert admission.in_flight == 0


def test_a_full_queue_says_so(gate: Gate) -> None:
    assert QueueFull.grpc_code == "RESOURCE_EXHAUSTED"
    with served(gated(gate, max_batch_size=1, max_queue_size=1)) as client:
        calls = [client.begin("ModelInfer", words("a", model="gated"))]
        gate.started()
        calls.append(client.begin("ModelInfer", words("b", model="gated")))
        refused = client.ask("ModelInfer", words("c", model="gated"))
        assert refused.code == "RESOURCE_EXHAUSTED"
        assert "queue is full" in refused.details
        gate.open(2)
        assert [call.wait().code for call in calls] == ["OK", "OK"]


def test_who_leaves_is_not_computed_and_its_neighbours_are(gate: Gate) -> None:
    with served(gated(gate, max_batch_size=2)) as client:
        running = client.begin("ModelInfer", words("a", model="gated"))
        gate.started()
        waiting = client.begin("ModelInfer", words("b", model="gated"))
        neighbour = client.begin("ModelInfer", words("c", model="gated"))
        client.call(waiting.leave)
        gate.open(2)
        assert running.wait().code == "OK"
        assert neighbour.wait().code == "OK"
        assert gate.batches == [["a"], ["c"]]
        assert waiting.answers == []
        assert client.app._entry.admission.in_flight == 0


def test_who_leaves_while_it_runs_gets_no_answer(gate: Gate) -> None:
    with served(gated(gate)) as client:
        running = client.begin("ModelInfer", words("a", model="gated"))
        gate.started()
        client.call(running.leave)
        gate.open()
        after = client.begin("ModelInfer", words("b", model="gated"))
        gate.open()
        assert after.wait().code == "OK"
        assert running.answers == []
        assert running.code == ""


def test_a_model_that_is_loaded_again_gets_a_codec_of_its_own() -> None:
    @wherry.model(name="shout")
    def other(number: int) -> int:
        return number

    with served(shout) as client:
        assert client.ask("ModelInfer", words("a")).code == "OK"
        client.runtime.load(other)
        assert "unexpected inference input 'text'" in client.ask("ModelInfer", words("a")).details


def test_an_unloaded_model_is_not_kept_alive_by_its_codec() -> None:
    with served(shout) as client:
        client.ask("ModelInfer", words("a"))
        loaded = weakref.ref(client.runtime.model("shout"))
        client.runtime.unload("shout")
        gc.collect()
        assert loaded() is None


def test_requests_leave_no_circles_behind() -> None:
    with served(shout, count) as client:
        garbage_of(client)
        assert garbage_of(client) == []


def garbage_of(client: Client) -> list[str]:
    """What only the garbage collector would find after an answer and a refusal."""
    gc.collect()
    gc.disable()
    try:
        client.ask("ModelInfer", words("a"))
        client.ask("ModelInfer", words("a", model="nope"))
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = [type(o).__name__ for o in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    return [name for name in found if name in ("InferCall", "InferRequest", "MemoryRpc")]


def test_a_config_may_ask_for_a_timeout_of_its_own(requests: list[Seen]) -> None:
    assert ModelConfig(name="m").request_timeout is None
    with served(shout, overrides={"shout": {"request_timeout": 3.0}}) as client:
        client.ask("ModelInfer", words("a"))
    (seen,) = requests
    assert seen.timeout == pytest.approx(3.0)
