"""Which caller gets an instance next, and is none forgotten that waits for one?"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.fakes import Gate, ManualDispatcher, desk, gated, threads, until
from wherry.core.instances.instance import Instance
from wherry.core.instances.thread import ThreadInstance
from wherry.core.models.model import Device, Model
from wherry.core.scheduler.instance_table import CallerLine, Waiter

ANY = st.integers(0, 99)


class LineOfCallers(RuleBasedStateMachine):
    """Callers come, wake up, give up and run rows, in any order."""

    def __init__(self) -> None:
        super().__init__()
        model = gated(Gate())
        self.idle: list[Instance] = [
            ThreadInstance(f"gated_{n}", Device(), model, model.config()) for n in range(2)
        ]
        self.line = CallerLine(inf, self.idle)
        self.all = set(self.idle)
        self.busy: list[Instance] = []
        #: Those that wait, and those that were given an instance, as they came.
        self.waiting: list[Waiter[Instance]] = []
        #: Those that were woken and have not looked yet.
        self.awake: list[Waiter[Instance]] = []

    def took(self, waiter: Waiter[Instance]) -> None:
        self.waiting.remove(waiter)
        if waiter.instance is not None:
            self.busy.append(waiter.instance)

    @rule(callers=st.integers(1, 4))
    def come(self, callers: int) -> None:
        """An idle instance is taken at once, even if others wait for their threads to wake up."""
        for _ in range(callers):
            if self.idle:
                self.busy.append(self.idle.pop())
            else:
                self.waiting.append(Waiter())
                self.line.join(self.waiting[-1])

    @precondition(lambda self: self.busy)
    @rule(which=ANY, at_once=st.booleans())
    def has_run(self, which: int, at_once: bool) -> None:
        instance = self.busy.pop(which % len(self.busy))
        first = next((one for one in self.waiting if one.instance is None), None)
        if self.line.freed(instance, 1.0, self.awake, at_once=at_once):
            assert first is not None
            assert first.instance is instance
        else:
            assert not at_once or first is None
            self.idle.append(instance)

    @precondition(lambda self: self.awake)
    @rule(which=ANY)
    def looks(self, which: int) -> None:
        waiter = self.awake.pop(which % len(self.awake))
        if self.line.look(waiter, 1.0, self.awake):
            self.took(waiter)

    @precondition(lambda self: any(one.instance is None for one in self.waiting))
    @rule(which=st.sampled_from([0, 0, 1, -1]))
    def is_interrupted(self, which: int) -> None:
        those = [one for one in self.waiting if one.instance is None]
        waiter = those[which % len(those)]
        self.line.leave(waiter, self.awake)
        if waiter in self.awake:
            self.awake.remove(waiter)
        self.waiting.remove(waiter)

    @precondition(lambda self: len(self.waiting) > 4)
    @rule()
    def all_are_sent_away(self) -> None:
        self.line.send_away(self.awake)
        for waiter in list(self.waiting):
            self.awake.remove(waiter)
            assert self.line.look(waiter, 1.0, self.awake)
            assert (waiter.instance is None) == waiter.is_sent_away
            self.took(waiter)

    @invariant()
    def each_instance_is_in_one_place(self) -> None:
        given = [one.instance for one in self.waiting if one.instance is not None]
        places = [*self.idle, *self.busy, *given]
        assert len(places) == len(self.all)
        assert set(places) == self.all

    @invariant()
    def the_first_is_awake_while_an_instance_is_idle(self) -> None:
        waiting = [one for one in self.waiting if one.instance is None]
        assert list(self.line.waiting) == waiting
        assert not (waiting and self.idle) or waiting[0] in self.awake

    @invariant()
    def what_was_given_is_seen(self) -> None:
        assert all(one in self.awake for one in self.waiting if one.instance is not None)


LineOfCallers.TestCase.settings = settings(max_examples=100)
TestLineOfCallers = LineOfCallers.TestCase


def single(gate: Gate, **settings: Any) -> Model:
    return gated(gate, max_batch_size=1, run_in_caller=True, **settings)


@contextmanager
def running(d: ManualDispatcher, row: str) -> Iterator[list[object]]:
    """A local call in a thread of its own; what it gives is in the list at the end."""
    answers: list[object] = []
    with threads(1, lambda _: answers.append(d.dispatcher.run_in_caller({"text": [row]}))):
        yield answers


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_a_local_call_waits_for_the_instance_and_runs_in_its_own_thread(gate: Gate) -> None:
    ran_in: dict[str, int] = {}

    with desk(single(gate), gate=gate) as d:

        def call(number: int) -> None:
            answer = d.dispatcher.run_in_caller({"text": [f"row {number}"]})
            assert answer == {"output": [f"ROW {number}"]}
            ran_in[f"row {number}"] = threading.get_ident()

        with threads(3, call):
            until(lambda: d.dispatcher.queued_requests == 2)
            gate.open(3)
        assert len(set(ran_in.values())) == 3
        assert not d.dispatcher.queued_requests
        counted = d.dispatcher.statistics.fold()
        assert (counted.success.count, counted.queue.count) == (3, 3)
        assert counted.success.ns >= counted.compute.infer_ns
        assert sum(counted.queue_seconds.counts) == 3


def test_what_is_queued_later_runs_after_those_that_wait(gate: Gate) -> None:
    with desk(single(gate), gate=gate) as d:
        with running(d, "a"):
            gate.started()
            with running(d, "b"):
                until(lambda: d.dispatcher.queued_requests == 1)
                queued = d.ask("c")
                assert d.dispatcher.run_in_caller({"text": ["d"]}) is None  # not before "c"
                gate.open(3)
        assert queued.rows() == ["C"]
    assert gate.batches == [["a"], ["b"], ["c"]]


def test_those_that_wait_go_behind_a_request_of_higher_priority(gate: Gate) -> None:
    with desk(single(gate), gate=gate) as d:
        with running(d, "a"):
            gate.started()
            with running(d, "b") as answers:
                until(lambda: d.dispatcher.queued_requests == 1)
                first = d.ask("c", priority=1)
            assert answers == [None]  # it is to queue its row
            gate.open(2)
        assert first.rows() == ["C"]


def test_a_batch_that_ends_leaves_its_instance_to_a_local_call(gate: Gate) -> None:
    with desk(single(gate), gate=gate) as d:
        queued = d.ask("a")
        gate.started()
        with running(d, "b") as answers:
            until(lambda: d.dispatcher.queued_requests == 1)
            gate.open(2)
        assert queued.rows() == ["A"]
        assert answers == [{"output": ["B"]}]


def test_as_many_local_calls_wait_as_requests_may_be_queued(gate: Gate) -> None:
    with desk(single(gate, max_queue_size=1), gate=gate) as d, running(d, "a"):
        gate.started()
        with running(d, "b"):
            until(lambda: d.dispatcher.queued_requests == 1)
            assert d.dispatcher.run_in_caller({"text": ["c"]}) is None
            gate.open(2)


def test_an_interrupted_wait_holds_up_nobody(gate: Gate) -> None:
    with desk(single(gate), gate=gate) as d, running(d, "a"):
        gate.started()

        def interrupt(number: int) -> None:
            until(lambda: d.dispatcher.queued_requests == 1)
            os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C in the main thread

        with threads(1, interrupt), pytest.raises(KeyboardInterrupt):
            d.dispatcher.run_in_caller({"text": ["b"]})
        assert not d.dispatcher.queued_requests
        with running(d, "c"):
            until(lambda: d.dispatcher.queued_requests == 1)
            gate.open(2)
    assert gate.batches == [["a"], ["c"]]


def test_what_waits_runs_before_its_version_is_unloaded(gate: Gate) -> None:
    with desk(single(gate), gate=gate) as d:
        with running(d, "a") as first:
            gate.started()
            with running(d, "b") as answers:
                until(lambda: d.dispatcher.queued_requests == 1)
                assert not d.dispatcher.drain(0.0)
                assert d.dispatcher.run_in_caller({"text": ["c"]}) is None
                gate.open(2)
                assert d.dispatcher.drain(None)
        assert (first, answers) == ([{"output": ["A"]}], [{"output": ["B"]}])


def test_close_sends_away_what_waits(gate: Gate) -> None:
    with desk(single(gate), gate=gate) as d, running(d, "a"):
        gate.started()
        with running(d, "b") as answers:
            until(lambda: d.dispatcher.queued_requests == 1)
            with threads(1, lambda _: d.dispatcher.close()):
                until(lambda: answers == [None])
                gate.open()
