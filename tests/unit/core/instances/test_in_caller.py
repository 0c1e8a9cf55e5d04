"""Which caller gets an instance next, and is none forgotten that waits for one?"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.fakes import Gate, ManualDispatcher, desk, gated, threads, until
from wherry.core.instances.instance import Instance
from wherry.core.models.model import Model
from wherry.core.scheduler.model_batches import Acts


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


def test_an_interrupt_just_before_the_next_is_woken_leaves_nobody_asleep(gate: Gate) -> None:
    with desk(single(gate, instances=2), gate=gate) as d, running(d, "a"), running(d, "b"):
        gate.started()
        gate.started()
        hand_over, idle = d.dispatcher._hand_over, d.dispatcher._batches.table.idle
        interrupts = [KeyboardInterrupt()]

        def planted(chosen: Acts[Instance], **how: bool) -> None:
            if interrupts and chosen.wake:
                if threading.current_thread() is threading.main_thread():
                    raise interrupts.pop()
                until(lambda: len(idle) == 2 or not interrupts)  # when "c" looks both are idle
            hand_over(chosen, **how)

        d.dispatcher._hand_over = planted  # type: ignore[method-assign]
        answers: list[object] = []

        def another(_: int) -> None:
            until(lambda: d.dispatcher.queued_requests == 1)
            with running(d, "d") as answered:
                until(lambda: d.dispatcher.queued_requests == 2)
                gate.open(3)
            answers.extend(answered)

        with threads(1, another), pytest.raises(KeyboardInterrupt):
            d.dispatcher.run_in_caller({"text": ["c"]})
        assert answers == [{"output": ["D"]}]


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
