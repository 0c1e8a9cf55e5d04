"""What becomes of each request whose owners answer, refuse, hang or go: the test is the owners."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.fakes import ManualClock
from wherry.models.config import ModelConfig, SequenceBatching
from wherry.models.model import model
from wherry.remote.channel import ModelChannel
from wherry.remote.errors import refused
from wherry.remote.messages import LinkMessage, OneRequest, Response, RowAnswers, Rows
from wherry.remote.model import card_of
from wherry.remote.runner import GRACE, ReplicaRunner
from wherry.values.errors import (
    BadModelOutput,
    Cancelled,
    DeadlineExceeded,
    ModelNotReady,
    QueueFull,
    SequenceLost,
    WherryError,
    WorkerDied,
)
from wherry.values.load import Load
from wherry.values.reply import Reply, StreamReply
from wherry.values.request import InferRequest, InferResponse, SequenceStep
from wherry.workers.loop import LoopCalls


@model(max_batch_size=8)
def echo(text: list[str]) -> list[str]:
    return text


class Here:
    """A loop whose turn this is. The test calls what is to be called later."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.loop = self
        self.later: list[Callable[[], None]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        self.later.append(callback)

    def call(self, callback: Callable[[Any], None], argument: Any) -> None:
        callback(argument)


class FakeLink:
    """The link to an owner, which the test plays."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.round_trip = 0.0
        self.sent: list[LinkMessage] = []
        self.cancelled: list[int] = []

    def add(self, message: LinkMessage, size: int = 0) -> None:
        self.sent.append(message)

    def write_soon(self) -> None: ...

    def cancel(self, model: int, id: int) -> None:
        self.cancelled.append(id)

    def call(self, callback: Callable[[Any], None], argument: Any) -> None:
        callback(argument)


class Front:
    """A runner with owners that are links of the test."""

    def __init__(self, *owners: str, config: ModelConfig | None = None, hold: float = 0.0) -> None:
        self.clock = ManualClock()
        self.config = config or echo.config()
        self.loop = Here()
        self.runner = ReplicaRunner(
            self.config, cast(LoopCalls, self.loop), clock=self.clock, random=Random(1), hold=hold
        )
        self.channels: dict[str, ModelChannel] = {}
        for owner in owners:
            self.add(owner)

    def add(self, owner: str) -> ModelChannel:
        card = card_of(7, echo, self.config, echo.signature())
        channel = ModelChannel(FakeLink(owner), card, echo.signature(), self.runner)
        self.channels[owner] = channel
        self.runner.add(channel)
        channel.desk.reported(channel, Load(ready=True, instances=1, full_rows=8), 0)
        return channel

    def link(self, owner: str) -> FakeLink:
        return cast(FakeLink, self.channels[owner].link)

    def request(self, text: str, **fields: Any) -> InferRequest:
        reply: Reply[InferResponse] = Reply(lambda _: None)
        return InferRequest({"text": [text]}, 1, reply, **fields)

    def stream(self) -> tuple[InferRequest, list[InferResponse]]:
        came: list[InferResponse] = []
        reply: StreamReply[InferResponse] = StreamReply(
            lambda _, response: came.append(response), lambda _: None
        )
        return InferRequest({"text": ["x"]}, 1, reply), came

    def owner_of(self, request: InferRequest) -> str:
        """The only one that has it."""
        (owner,) = (n for n, c in self.channels.items() if request in c.requests.values())
        return owner

    def id_of(self, request: InferRequest) -> int:
        channel = self.channels[self.owner_of(request)]
        return next(id for id, one in channel.requests.items() if one is request)

    def answer(self, *requests: InferRequest) -> None:
        channel = self.channels[self.owner_of(requests[0])]
        texts = [request.inputs["text"][0] + "!" for request in requests]
        ids = [self.id_of(request) for request in requests]
        channel.answers(RowAnswers(7, ids, {"output": texts}))

    def pass_time(self, seconds: float) -> None:
        """So much time passes, and what was to be called later is called."""
        self.clock.now += seconds
        later, self.loop.later = self.loop.later, []
        for callback in later:
            callback()

    def refuse(self, request: InferRequest, error: WherryError) -> None:
        channel = self.channels[self.owner_of(request)]
        channel.refused(refused(7, [self.id_of(request)], error))

    def lose(self, owner: str) -> None:
        self.runner.lost(self.channels.pop(owner), EOFError("closed"))


def outcome(request: InferRequest) -> Any:
    """The text of the answer, or the error."""
    result = request.reply.outcome
    return result if isinstance(result, Exception) else result.outputs["output"][0]


def test_rows_of_one_turn_that_differ_in_nothing_else_cross_as_one_message() -> None:
    front = Front("a")
    plain = [front.request(text, tenant="t") for text in "xyz"]
    front.runner.submit([*plain, front.request("w", tenant="t", timeout=1.0), front.request("v")])
    bundles = [one for one in front.link("a").sent if isinstance(one, Rows)]
    assert [(one.tenant, one.first, one.columns) for one in bundles] == [
        ("t", 1, {"text": ["x", "y", "z"]}),
        ("", 4, {"text": ["v"]}),
    ]
    (other,) = (one for one in front.link("a").sent if isinstance(one, OneRequest))
    assert (other.id, other.timeout, other.columns) == (0, 1.0, {"text": ["w"]})


def test_answers_reach_their_callers_in_any_order() -> None:
    front = Front("a")
    requests = [front.request(text) for text in "abcd"]
    front.runner.submit(requests)
    front.answer(requests[2], requests[0])
    front.answer(requests[3], requests[1])
    assert [outcome(one) for one in requests] == ["a!", "b!", "c!", "d!"]


def test_a_caller_that_leaves_is_cancelled_at_the_owner_and_its_late_answer_ignored() -> None:
    front = Front("a")
    gone, stays = front.request("g"), front.request("s")
    front.runner.submit([gone, stays])
    id = front.id_of(gone)
    assert front.runner.cancel(gone)
    assert front.link("a").cancelled == [id]
    front.channels["a"].answers(RowAnswers(7, [id, front.id_of(stays)], {"output": ["g!", "s!"]}))
    assert isinstance(outcome(gone), Cancelled)
    assert outcome(stays) == "s!"


def test_what_a_lost_owner_had_runs_once_more_elsewhere_and_only_once() -> None:
    front = Front("a", "b", "c")
    request = front.request("x")
    front.runner.submit([request])
    front.lose(front.owner_of(request))
    assert not request.reply.settled
    front.lose(front.owner_of(request))
    error = outcome(request)
    assert isinstance(error, WorkerDied)
    assert error.http_status == 503
    assert "echo" in str(error)


def test_without_another_owner_it_fails_at_once_and_says_why() -> None:
    front = Front("a")
    request = front.request("x")
    front.runner.submit([request])
    front.lose("a")
    assert "closed" in str(outcome(request))
    later = front.request("y")
    front.runner.submit([later])
    assert isinstance(outcome(later), ModelNotReady)
    assert front.runner.not_ready_reason()


def test_a_stream_that_has_begun_is_not_run_again_and_one_that_has_not_is() -> None:
    front = Front("a")
    (begun, came), (fresh, _) = front.stream(), front.stream()
    front.runner.submit([begun, fresh])
    begins = Response(7, front.id_of(begun), 1, {"output": ["1"]}, None, False, ends=False)
    front.channels["a"].response(begins)
    front.add("b")
    front.lose("a")
    assert [one.outputs for one in came] == [{"output": ["1"]}]
    assert "broke off" in str(outcome(begun))
    assert not fresh.reply.settled
    assert front.owner_of(fresh) == "b"


def test_the_steps_of_a_sequence_stay_with_one_owner_and_end_with_it() -> None:
    config = echo.config(sequence=SequenceBatching())
    front = Front("a", "b", "c", config=config)
    steps = [front.request("s", sequence=SequenceStep("id", start=n == 0)) for n in range(5)]
    for step in steps:
        front.runner.submit([step])
    (owner,) = {front.owner_of(step) for step in steps}
    front.lose(owner)
    assert {type(outcome(step)) for step in steps} == {SequenceLost}


def test_a_sequence_stays_where_it_began_though_other_owners_come() -> None:
    """Also one that began while there was a single owner, or none that had reported."""
    config = echo.config(sequence=SequenceBatching())
    front = Front("first", config=config)
    ids = [f"sequence {number}" for number in range(20)]

    def step(id: str, start: bool = False) -> InferRequest:
        request = front.request("s", sequence=SequenceStep(id, start=start))
        front.runner.submit([request])
        return request

    for id in ids:
        step(id, start=True)
    for owner in "abcd":
        front.add(owner)
    assert {front.owner_of(step(id)) for id in ids} == {"first"}


def test_a_request_that_an_owner_is_not_ready_for_goes_to_another_one() -> None:
    front = Front("a", "b")
    request = front.request("x")
    front.runner.submit([request])
    first = front.owner_of(request)
    error = ModelNotReady("the model is unloaded")
    front.channels[first].refused(refused(7, [front.id_of(request)], error))
    assert front.owner_of(request) != first
    full = QueueFull("echo", 3, 0.5)
    front.channels[front.owner_of(request)].refused(refused(7, [front.id_of(request)], full))
    assert type(outcome(request)) is QueueFull
    assert outcome(request).retry_after == 0.5
    assert str(outcome(request)) == str(full)


def test_requests_wait_a_moment_for_a_successor_of_the_last_owner() -> None:
    front = Front("a", hold=3.0)
    sent, (begun, _), (fresh, _) = front.request("x"), front.stream(), front.stream()
    front.runner.submit([sent, begun, fresh])
    begins = Response(7, front.id_of(begun), 1, {"output": ["1"]}, None, False, ends=False)
    front.channels["a"].response(begins)
    front.lose("a")
    new = front.request("y")
    front.runner.submit([new])
    assert front.runner.not_ready_reason()  # whoever chooses a front takes another one meanwhile
    assert front.runner.queued_requests == 3
    assert "broke off" in str(outcome(begun))
    front.pass_time(2.9)
    front.add("b")
    assert [front.owner_of(one) for one in (sent, fresh, new)] == ["b"] * 3
    front.answer(sent, new)
    assert (outcome(sent), outcome(new)) == ("x!", "y!")


def test_without_a_successor_they_fail_and_what_comes_later_does_so_at_once() -> None:
    front = Front("a", hold=3.0)
    short = front.request("s", deadline=front.clock() + 1.0)
    sent, left = front.request("x"), front.request("l")
    front.runner.submit([short, sent, left])
    front.lose("a")
    front.runner.cancel(left)
    front.pass_time(1.1)
    assert isinstance(outcome(short), DeadlineExceeded)
    assert not sent.reply.settled
    front.pass_time(2.0)
    assert isinstance(outcome(sent), ModelNotReady)
    assert front.runner.queued_requests == 0
    later = front.request("y")
    front.runner.submit([later])
    assert isinstance(outcome(later), ModelNotReady)
    assert not front.loop.later


def test_an_owner_that_leaves_has_begun_nothing_that_it_refuses() -> None:
    front = Front("a", "b", "c", hold=3.0)
    request = front.request("x")
    front.runner.submit([request])
    for _ in range(2):  # that is no attempt
        owner = front.owner_of(request)
        front.runner.remove(front.channels[owner])
        front.refuse(request, ModelNotReady("the server is stopping"))
    front.lose(front.owner_of(request))
    assert not request.reply.settled
    front.add("d")
    assert front.owner_of(request) == "d"


def test_nothing_new_is_sent_to_the_last_owner_while_it_leaves() -> None:
    front = Front("a", hold=3.0)
    running, new = front.request("r"), front.request("n")
    front.runner.submit([running])
    front.runner.remove(front.channels["a"])
    front.runner.submit([new])
    assert new not in front.channels["a"].requests.values()
    front.add("b")
    assert front.owner_of(new) == "b"
    front.answer(running)
    assert outcome(running) == "r!"


def test_the_first_step_of_a_sequence_runs_elsewhere_if_no_other_step_was_sent() -> None:
    config = echo.config(sequence=SequenceBatching())
    front = Front("a", config=config)
    alone = front.request("s", sequence=SequenceStep("alone", start=True))
    pair = [front.request("s", sequence=SequenceStep("pair", start=n == 0)) for n in range(2)]
    front.runner.submit([alone, *pair])
    front.add("b")
    front.lose("a")
    assert {type(outcome(step)) for step in pair} == {SequenceLost}
    front.add("c")
    second = front.request("s", sequence=SequenceStep("alone"))
    front.runner.submit([second])
    assert (front.owner_of(alone), front.owner_of(second)) == ("b", "b")


def test_a_deadline_is_kept_though_the_owner_hangs() -> None:
    front = Front("a")
    request = front.request("x", deadline=front.clock() + 1.0)
    front.runner.submit([request])
    front.clock.now += 1.0
    front.runner.give_up_late(front.channels["a"])
    assert not request.reply.settled  # the owner may say so itself
    front.clock.now += GRACE + 0.01
    front.runner.give_up_late(front.channels["a"])
    assert isinstance(outcome(request), DeadlineExceeded)
    assert front.link("a").cancelled == [0]


def test_an_error_keeps_its_class_its_text_and_what_clients_are_told() -> None:
    front = Front("a")
    request = front.request("x")
    front.runner.submit([request])
    front.channels["a"].refused(refused(7, [0], BadModelOutput("model 'echo' returned 3 rows")))
    assert type(outcome(request)) is BadModelOutput
    assert str(outcome(request)) == "model 'echo' returned 3 rows"


class RequestsOfManyOwners(RuleBasedStateMachine):
    """Whatever the owners do, each request has one outcome, and rows are counted right."""

    def __init__(self) -> None:
        super().__init__()
        self.front = Front("a", "b", hold=3.0)
        self.requests: list[InferRequest] = []
        self.outcomes: dict[int, int] = {}
        self.names = iter(f"owner {n}" for n in range(10_000))

    def sent(self) -> list[InferRequest]:
        """Those that an owner has."""
        channels = self.front.channels.values()
        return [request for channel in channels for request in channel.requests.values()]

    @rule(count=st.integers(1, 5), timeout=st.sampled_from([None, 9.0]))
    def submit(self, count: int, timeout: float | None) -> None:
        new = []
        for _ in range(count):
            request = self.front.request(str(len(self.requests)), timeout=timeout)
            number = len(self.requests)
            request.reply.on_done = lambda _, number=number: self.count(number)  # type: ignore[misc]
            self.requests.append(request)
            new.append(request)
        self.front.runner.submit(new)

    def count(self, number: int) -> None:
        self.outcomes[number] = self.outcomes.get(number, 0) + 1

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        if requests := self.sent():
            self.front.answer(data.draw(st.sampled_from(requests)))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.requests:
            self.front.runner.cancel(data.draw(st.sampled_from(self.requests)))

    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        if requests := self.sent():
            error: WherryError = data.draw(st.sampled_from([ModelNotReady("no"), Cancelled("no")]))
            self.front.refuse(data.draw(st.sampled_from(requests)), error)

    @rule(seconds=st.sampled_from([1.0, 4.0]))
    def pass_time(self, seconds: float) -> None:
        self.front.pass_time(seconds)

    @rule()
    def come(self) -> None:
        self.front.add(next(self.names))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.front.channels:
            self.front.lose(data.draw(st.sampled_from(sorted(self.front.channels))))

    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        if self.front.channels:
            self.front.runner.remove(
                self.front.channels[data.draw(st.sampled_from(sorted(self.front.channels)))]
            )

    @invariant()
    def each_request_is_with_one_owner_or_waits_for_one_or_has_one_outcome(self) -> None:
        sent = self.sent()
        waits = len(self.requests) - len(sent)
        for number, request in enumerate(self.requests):
            if request.reply.settled:
                assert self.outcomes[number] == 1
                assert request not in sent
                waits -= 1
        assert len(set(sent)) == len(sent)
        assert waits >= 0
        if waits:
            assert not self.front.runner.has_owners
            assert self.front.loop.later  # it will be looked at

    @invariant()
    def rows_are_counted(self) -> None:
        told = {one["replica"]: one["own_rows"] for one in self.front.runner.explain()["replicas"]}
        for owner, rows in told.items():
            assert rows == len(self.front.channels[owner].requests)


def test_each_request_has_one_outcome_whatever_owners_do() -> None:
    run_state_machine_as_test(
        RequestsOfManyOwners, settings=settings(max_examples=60, stateful_step_count=30)
    )
