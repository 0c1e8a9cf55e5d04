"""What becomes of a request whose owner answers, refuses, hangs or goes? The test is the owner."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.fakes import ManualClock
from wherry.core.models.config import ModelConfig, SequenceBatching
from wherry.core.models.model import model
from wherry.core.values.errors import (
    BadModelOutput,
    Cancelled,
    DeadlineExceeded,
    MayHaveRun,
    ModelNotReady,
    QueueFull,
    WherryError,
    WorkerDied,
)
from wherry.core.values.reply import Reply, StreamReply
from wherry.core.values.request import InferRequest, InferResponse, SequenceStep
from wherry.core.workers.loop import LoopCalls
from wherry.server.fronts.encoding import card_of, refused
from wherry.server.fronts.link import ModelChannel, OwnerLink
from wherry.server.fronts.link_protocol import LinkMessage, OneRequest, Response, RowAnswers, Rows
from wherry.server.fronts.runner import GRACE, OwnedModelRunner


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
    """The link to the owner, which the test plays."""

    def __init__(self) -> None:
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
    """A runner with the channel of each load of its model, the last one first."""

    def __init__(self, config: ModelConfig | None = None) -> None:
        self.clock = ManualClock()
        self.config = config or echo.config()
        self.runner = OwnedModelRunner(self.config, cast(LoopCalls, Here()), clock=self.clock)
        self.link = FakeLink()
        self.channels: list[ModelChannel] = []
        self.load()

    def load(self) -> ModelChannel:
        card = card_of(7, echo, self.config, echo.signature())
        channel = ModelChannel(cast(OwnerLink, self.link), card, echo.signature(), self.runner)
        self.channels.insert(0, channel)
        self.runner.add(channel)
        return channel

    @property
    def channel(self) -> ModelChannel:
        return self.channels[0]

    def request(self, text: str, **fields: Any) -> InferRequest:
        reply: Reply[InferResponse] = Reply(lambda _: None)
        return InferRequest({"text": [text]}, 1, reply, **fields)

    def stream(self) -> tuple[InferRequest, list[InferResponse]]:
        came: list[InferResponse] = []
        reply: StreamReply[InferResponse] = StreamReply(
            lambda _, response: came.append(response), lambda _: None
        )
        return InferRequest({"text": ["x"]}, 1, reply), came

    def channel_of(self, request: InferRequest) -> ModelChannel:
        """The only one that has it."""
        (channel,) = (one for one in self.channels if request in one.requests.values())
        return channel

    def id_of(self, request: InferRequest) -> int:
        requests = self.channel_of(request).requests
        return next(id for id, one in requests.items() if one is request)

    def answer(self, *requests: InferRequest) -> None:
        texts = [request.inputs["text"][0] + "!" for request in requests]
        ids = [self.id_of(request) for request in requests]
        self.channel_of(requests[0]).answers(RowAnswers(7, ids, {"output": texts}))

    def refuse(self, request: InferRequest, error: WherryError) -> None:
        self.channel_of(request).refused(refused(7, [self.id_of(request)], error))

    def lose(self) -> None:
        """The owner is gone."""
        for channel in self.channels:
            self.runner.lost(channel, EOFError("closed"))
        self.channels = []


def outcome(request: InferRequest) -> Any:
    """The text of the answer, or the error."""
    result = request.reply.outcome
    return result if isinstance(result, Exception) else result.outputs["output"][0]


def test_rows_of_one_turn_that_differ_in_nothing_else_cross_as_one_message() -> None:
    front = Front()
    plain = [front.request(text, tenant="t") for text in "xyz"]
    front.runner.submit([*plain, front.request("w", tenant="t", timeout=1.0), front.request("v")])
    bundles = [one for one in front.link.sent if isinstance(one, Rows)]
    assert [(one.tenant, one.first, one.columns) for one in bundles] == [
        ("t", 1, {"text": ["x", "y", "z"]}),
        ("", 4, {"text": ["v"]}),
    ]
    (other,) = (one for one in front.link.sent if isinstance(one, OneRequest))
    assert (other.id, other.timeout, other.columns) == (0, 1.0, {"text": ["w"]})


def test_answers_reach_their_callers_in_any_order() -> None:
    front = Front()
    requests = [front.request(text) for text in "abcd"]
    front.runner.submit(requests)
    front.answer(requests[2], requests[0])
    front.answer(requests[3], requests[1])
    assert [outcome(one) for one in requests] == ["a!", "b!", "c!", "d!"]


def test_a_caller_that_leaves_is_cancelled_at_the_owner_and_its_late_answer_ignored() -> None:
    front = Front()
    gone, stays = front.request("g"), front.request("s")
    front.runner.submit([gone, stays])
    id = front.id_of(gone)
    assert front.runner.cancel(gone)
    assert front.link.cancelled == [id]
    front.channel.answers(RowAnswers(7, [id, front.id_of(stays)], {"output": ["g!", "s!"]}))
    assert isinstance(outcome(gone), Cancelled)
    assert outcome(stays) == "s!"


@pytest.mark.parametrize(("run_again", "kind"), [(True, WorkerDied), (False, MayHaveRun)])
def test_what_a_lost_owner_had_fails_and_says_why(run_again: bool, kind: type[WherryError]) -> None:
    front = Front(echo.config(run_again=run_again))
    request, (begun, came) = front.request("x"), front.stream()
    front.runner.submit([request, begun])
    begins = Response(7, front.id_of(begun), 1, {"output": ["1"]}, None, False, ends=False)
    front.channel.response(begins)
    front.lose()
    error = outcome(request)
    assert type(error) is kind
    assert error.http_status == (503 if run_again else 500)
    assert "echo" in str(error)
    assert "closed" in str(error)
    assert [one.outputs for one in came] == [{"output": ["1"]}]
    assert "broke off" in str(outcome(begun))
    later = front.request("y")
    front.runner.submit([later])
    assert isinstance(outcome(later), ModelNotReady)
    assert front.runner.not_ready_reason()


def test_what_meets_the_next_load_of_its_model_on_its_way_runs_there() -> None:
    front = Front()
    request, running = front.request("x"), front.request("r")
    front.runner.submit([request, running])
    old = front.channel
    front.runner.remove(old)
    new = front.load()
    front.refuse(request, ModelNotReady("the model is unloaded"))
    assert front.channel_of(request) is new
    assert front.channel_of(running) is old
    front.answer(request)
    front.answer(running)
    assert (outcome(request), outcome(running)) == ("x!", "r!")


def test_what_an_unloaded_model_has_refused_fails() -> None:
    front = Front()
    request = front.request("x")
    front.runner.submit([request])
    front.runner.remove(front.channel)
    front.refuse(request, ModelNotReady("the model is unloaded"))
    assert isinstance(outcome(request), ModelNotReady)
    later = front.request("y")
    front.runner.submit([later])
    assert isinstance(outcome(later), ModelNotReady)


def test_a_step_of_a_sequence_does_not_go_on_in_the_next_load() -> None:
    front = Front(echo.config(sequence=SequenceBatching()))
    step = front.request("s", sequence=SequenceStep("id"))
    front.runner.submit([step])
    front.runner.remove(front.channel)
    front.load()
    front.refuse(step, ModelNotReady("the model is unloaded"))
    assert isinstance(outcome(step), ModelNotReady)


def test_a_deadline_is_kept_though_the_owner_hangs() -> None:
    front = Front()
    request = front.request("x", deadline=front.clock() + 1.0)
    front.runner.submit([request])
    front.clock.now += 1.0
    front.runner.give_up_late(front.channel)
    assert not request.reply.settled  # the owner may say so itself
    front.clock.now += GRACE + 0.01
    front.runner.give_up_late(front.channel)
    assert isinstance(outcome(request), DeadlineExceeded)
    assert front.link.cancelled == [0]


@pytest.mark.parametrize(
    "error", [BadModelOutput("model 'echo' returned 3 rows"), QueueFull("echo", 3, 0.5)]
)
def test_an_error_keeps_its_class_its_text_and_what_clients_are_told(error: WherryError) -> None:
    front = Front()
    request = front.request("x")
    front.runner.submit([request])
    front.refuse(request, error)
    assert type(outcome(request)) is type(error)
    assert str(outcome(request)) == str(error)
    assert outcome(request).retry_after == error.retry_after


class RequestsOfAnOwner(RuleBasedStateMachine):
    """Whatever the owner does, each request has one outcome."""

    def __init__(self) -> None:
        super().__init__()
        self.front = Front()
        self.requests: list[InferRequest] = []
        self.outcomes: dict[int, int] = {}

    def sent(self) -> list[InferRequest]:
        """Those that the owner has."""
        channels = self.front.channels
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

    @rule()
    def reload(self) -> None:
        if self.front.channels:
            self.front.runner.remove(self.front.channel)
        self.front.load()

    @rule()
    def unload(self) -> None:
        if self.front.channels:
            self.front.runner.remove(self.front.channel)

    @rule()
    def lose(self) -> None:
        self.front.lose()

    @invariant()
    def each_request_is_with_the_owner_or_has_one_outcome(self) -> None:
        sent = self.sent()
        assert len(set(sent)) == len(sent) == self.front.runner.queued_requests
        for number, request in enumerate(self.requests):
            assert request.reply.settled != (request in sent)
            assert self.outcomes.get(number, 0) == request.reply.settled


def test_each_request_has_one_outcome_whatever_the_owner_does() -> None:
    run_state_machine_as_test(
        RequestsOfAnOwner, settings=settings(max_examples=60, stateful_step_count=30)
    )
