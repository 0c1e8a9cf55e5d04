"""What does the shell do for sequences, and for answers in order?

Clock and timer belong to the test, and the model waits at a gate.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import wherry
from tests.fakes import TIMEOUT, Call, Gate, ManualDispatcher, desk, gated
from wherry.core.instances.instance import Instance
from wherry.core.instances.sequence_inputs import SequenceInputs
from wherry.core.instances.thread import ThreadInstance
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device, Model
from wherry.core.scheduler.sequence_batcher import SequenceBatcher
from wherry.core.values.errors import (
    Cancelled,
    ExecutionTimeout,
    InvalidRequest,
    ModelFailed,
    ModelNotReady,
    SequenceLost,
)
from wherry.core.values.execution import RESCHEDULED, Execution, Failure
from wherry.core.values.reply import Reply
from wherry.core.values.request import Batch, InferRequest, InferResponse, SequenceStep


@pytest.fixture
def gate() -> Gate:
    return Gate()


# Sequences


@contextmanager
def sequences(
    gate: Gate, *, iterative: bool = False, make: Any = None, **settings: Any
) -> Iterator[ManualDispatcher]:
    batching = wherry.SequenceBatching(max_sequence_idle=1.0, iterative=iterative)
    model = gated(gate, max_batch_size=2, sequence=batching, **settings)
    config = model.config()
    scheduler = SequenceBatcher(
        model="gated", max_batch_size=2, slots=0, max_sequence_idle=1.0, iterative=iterative
    )
    inputs = SequenceInputs(config.name, batching, model.signature())
    with desk(model, scheduler=scheduler, sequence_inputs=inputs, gate=gate, make=make) as d:
        yield d


def ask(d: ManualDispatcher, text: str, *, start: bool = False, end: bool = False) -> Call:
    call = Call(text)
    call.request.sequence = SequenceStep(text[0], start, end)
    d.dispatcher.submit([call.request])
    return call


def test_the_timer_forgets_an_idle_sequence_and_the_backlog_gets_its_slot(gate: Gate) -> None:
    gate.open(100)
    with sequences(gate) as d:
        for name in "ab":
            ask(d, f"{name}0", start=True).rows()
        waiting = ask(d, "c0", start=True)
        d.timer.advance(0.9)
        assert not waiting.answered
        d.timer.advance(0.2)
        assert waiting.rows() == ["C0"]
        assert isinstance(ask(d, "a1").error(), InvalidRequest)


def test_steps_of_one_sequence_run_one_after_the_other(gate: Gate) -> None:
    with sequences(gate) as d:
        steps = [ask(d, "a0", start=True), ask(d, "a1"), ask(d, "a2", end=True)]
        gate.open(3)
        assert [step.rows() for step in steps] == [["A0"], ["A1"], ["A2"]]
    assert gate.batches == [["a0"], ["a1"], ["a2"]]


def test_the_steps_behind_one_that_was_cancelled_are_cancelled_too(gate: Gate) -> None:
    with sequences(gate) as d:
        running = ask(d, "a0", start=True)
        gate.started()
        second, third = ask(d, "a1"), ask(d, "a2")
        assert d.dispatcher.cancel(second.request)
        assert isinstance(second.error(), Cancelled)
        assert isinstance(third.error(), Cancelled)
        gate.open(1)
        assert running.rows() == ["A0"]


def test_a_step_whose_caller_left_while_it_ran_is_no_gap(gate: Gate) -> None:
    with sequences(gate) as d:
        running = ask(d, "a0", start=True)
        gate.started()
        assert d.dispatcher.cancel(running.request)
        following = ask(d, "a1")
        gate.open(2)
        assert following.rows() == ["A1"]
    assert gate.batches == [["a0"], ["a1"]]


class Slow(ThreadInstance):
    """Takes its time between being given a batch and running it."""

    def __init__(self, name: str, device: Device, model: Model, config: ModelConfig) -> None:
        super().__init__(name, device, model, config)
        self.given, self.may_run = threading.Semaphore(0), threading.Semaphore(0)

    def run(self, batch: Batch) -> None:
        self.given.release()
        assert self.may_run.acquire(timeout=TIMEOUT)
        super().run(batch)


def test_a_step_whose_caller_left_just_before_it_ran_is_not_skipped(gate: Gate) -> None:
    gate.open(10)
    made: list[Slow] = []

    def make(number: int, config: ModelConfig) -> Instance:
        made.append(Slow(f"gated_{number}", Device(), gated(gate, max_batch_size=2), config))
        return made[0]

    with sequences(gate, make=make) as d:
        left = ask(d, "a0", start=True)
        assert made[0].given.acquire(timeout=TIMEOUT)
        d.dispatcher.cancel(left.request)
        made[0].may_run.release(10)
        assert ask(d, "a1").rows() == ["A1"]
    assert gate.batches == [["a0"], ["a1"]]


def test_an_instance_that_hangs_loses_its_sequences(gate: Gate) -> None:
    with sequences(gate, execution_timeout=5.0) as d:
        hung = ask(d, "a0", start=True)
        gate.started()
        behind = ask(d, "a1")
        other = ask(d, "b0", start=True)
        d.timer.advance(5.0)
        assert isinstance(hung.error(), ExecutionTimeout)
        assert isinstance(behind.error(), SequenceLost)
        gate.open(100)
        assert other.rows() == ["B0"], "it had not started: another instance will do"


def test_closing_answers_what_waits(gate: Gate) -> None:
    with sequences(gate) as d:
        ask(d, "a0", start=True)
        gate.started()
        waiting = [ask(d, "a1"), ask(d, "b0", start=True)]
        gate.open(100)
        d.dispatcher.close()
        assert all(call.answered for call in waiting)


def test_a_bad_row_is_not_looked_for_by_running_a_step_again(gate: Gate) -> None:
    gate.open(10)
    with sequences(gate) as d:
        calls = [Call("bad"), Call("good")]
        for call in calls:
            call.request.sequence = SequenceStep(call.request.id, start=True)
        d.dispatcher.submit([call.request for call in calls])
        assert [type(call.error()) for call in calls] == [ModelFailed, ModelFailed]
    assert gate.batches == [["bad", "good"]]


class Thrice(ThreadInstance):
    """Wants each request three times before it answers."""

    def __init__(self, name: str, device: Device, model: Model, config: ModelConfig) -> None:
        super().__init__(name, device, model, config)
        self.runs: list[list[tuple[str, bool]]] = []
        self.seen: dict[str, int] = {}

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        self.runs.append([(r.id, bool(r.sequence and r.sequence.start)) for r in requests])
        execution = super().execute(requests)
        for i, request in enumerate(requests):
            self.seen[request.id] = self.seen.get(request.id, 0) + 1
            if self.seen[request.id] < 3:
                execution.outcomes[i] = Failure(RESCHEDULED, "")
        return execution


def test_a_rescheduled_request_runs_again_with_others_until_it_is_answered(gate: Gate) -> None:
    made: list[Thrice] = []

    def make(number: int, config: ModelConfig) -> Instance:
        made.append(Thrice(f"gated_{number}", Device(), gated(gate, max_batch_size=2), config))
        return made[0]

    with sequences(gate, iterative=True, make=make) as d:
        a = ask(d, "a")
        gate.started()
        b = ask(d, "b")
        gate.open(10)
        assert (a.rows(), b.rows()) == (["A"], ["B"])
    assert [sorted(run) for run in made[0].runs] == [
        [("a", True)],
        [("a", False), ("b", True)],
        [("a", False), ("b", False)],
        [("b", False)],
    ]
    assert d.dispatcher.statistics.success.count == 2
    assert d.dispatcher.statistics.fail.count == 0


def test_a_rescheduled_request_whose_caller_has_left_is_let_go(gate: Gate) -> None:
    def make(number: int, config: ModelConfig) -> Instance:
        return Thrice(f"gated_{number}", Device(), gated(gate, max_batch_size=2), config)

    with sequences(gate, iterative=True, make=make) as d:
        call = ask(d, "a")
        gate.started()
        d.dispatcher.cancel(call.request)
        gate.open(10)
        assert isinstance(call.error(), Cancelled)
        assert d.dispatcher.drain(10.0)
    assert gate.batches == [["a"]]


# Answers in order


class Telling(Call):
    """Says when it is answered."""

    def __init__(self, name: str, told: list[str]) -> None:
        super().__init__(name)
        self._told = told

    def _settled(self, reply: Reply[InferResponse]) -> None:
        self._told.append(self.request.id)
        super()._settled(reply)


def test_answers_leave_in_the_order_of_arrival_whoever_is_done_first() -> None:
    gates = {name: Gate() for name in "abc"}
    told: list[str] = []

    @wherry.model(name="slow", run_in_caller=False, preserve_ordering=True, instances=3)
    def slow(text: list[str]) -> list[str]:
        gates[text[0]].hold(text)
        return text

    with desk(slow) as d:
        calls = []
        for name in "abc":
            call = Telling(name, told)
            calls.append(call)
            d.dispatcher.submit([call.request])
            gates[name].started()
        gates["c"].open()
        gates["b"].open()
        assert not any(call.answered for call in calls)
        gates["a"].open()
        for call in calls:
            call.rows()
    assert told == ["a", "b", "c"]


def test_who_leaves_or_fails_holds_up_no_answer() -> None:
    gates = {name: Gate() for name in "abc"}

    @wherry.model(name="slow", run_in_caller=False, preserve_ordering=True, instances=3)
    def slow(text: list[str]) -> list[str]:
        gates[text[0]].hold(text)
        if text == ["b"]:
            raise ValueError("no")
        return text

    with desk(slow) as d:
        calls = []
        for name in "abc":
            calls.append(d.ask(name))
            gates[name].started()
        gates["c"].open()
        gates["b"].open()
        assert isinstance(calls[1].error(), ModelFailed)
        assert not calls[2].answered
        d.dispatcher.cancel(calls[0].request)
        assert calls[2].rows() == ["c"]
        gates["a"].open()


def test_closing_answers_all_of_them() -> None:
    gate = Gate()
    with desk(gated(gate, preserve_ordering=True, max_batch_size=1), gate=gate) as d:
        calls = [d.ask("a"), d.ask("b")]
        gate.started()
        gate.open(10)
        d.dispatcher.close()
        assert calls[0].rows() == ["A"]
        assert isinstance(calls[1].wait(), InferResponse | ModelNotReady)
