"""An instance that has several batches at once: which it is given, and what becomes of them.

The test says when the batches of an instance have ended, how long they ran, and when it dies.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import wherry
from tests.fakes import TIMEOUT, Call, ManualDispatcher, desk, until
from wherry.core.instances.instance import Instance
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device
from wherry.core.scheduler.instance_table import BatchRun
from wherry.core.values.errors import (
    Cancelled,
    ExecutionTimeout,
    ModelNotReady,
    PoisonRequest,
    WorkerDied,
)
from wherry.core.values.execution import Execution
from wherry.core.values.request import Batch

US = 1000


class Line(Instance):
    """An instance whose batches end when the test says so."""

    takes_ahead = True

    def __init__(self, name: str) -> None:
        super().__init__(name, Device())
        #: What was given and has not ended, by one call of `give` each.
        self.given: deque[Batch] = deque()
        self.gives: list[int] = []
        self._given_at: deque[float] = deque()
        self.stopped = False
        self._end: SimpleQueue[WorkerDied | None] = SimpleQueue()

    def load(self) -> None:
        """There is no model."""

    def serve(self) -> None:
        died = self._end.get(timeout=TIMEOUT)
        if died is not None:
            raise died

    def give(self, batches: Sequence[Batch]) -> None:
        assert not self.stopped
        self._given_at += [self.answers.now()] * len(batches)  # first: the test looks at `given`
        self.given += batches
        self.gives.append(len(batches))

    def stop(self) -> None:
        assert not self.given
        self.stopped = True
        self._end.put(None)

    def abort(self, reason: str) -> bool:
        self.die(f"was stopped: {reason}")
        return True

    def unload(self) -> None:
        """There is no model."""

    def rows(self) -> list[list[str]]:
        """The rows of each batch that has not ended."""
        return [[row for r in batch.requests for row in r.inputs["text"]] for batch in self.given]

    def finish(self, batches: int = 1, ns: int = 10 * US) -> None:
        """The oldest batches have run for so long each, and all of them are told of at once."""
        runs = []
        for _ in range(batches):
            batch = self.given.popleft()
            requests = self.answers.prepared(batch)
            outputs = [{"output": r.inputs["text"]} for r in requests]
            execution = Execution(list(outputs), 0, ns, 0, [batch.rows] if requests else [])
            runs.append(BatchRun(batch, requests, self._given_at.popleft(), execution))
        self.answers.finished(self, runs)

    def die(self, how: str = "died", *, reached: bool = True) -> None:
        died = WorkerDied(how)
        died.reached = reached
        self._end.put(died)


class Lines:
    """The instances of a model, each with those that have taken its place."""

    def __init__(self) -> None:
        self.made: list[Line] = []

    def __call__(self, number: int, config: ModelConfig) -> Instance:
        self.made.append(Line(f"{config.name}_{number}"))
        return self.made[-1]

    def next_after(self, line: Line) -> Line:
        """The one that takes its place."""

        def others() -> list[Line]:
            later = self.made[self.made.index(line) + 1 :]
            return [one for one in later if one.name == line.name and hasattr(one, "answers")]

        until(lambda: bool(others()))
        return others()[0]


def echo(**settings: Any) -> wherry.Model:
    @wherry.model(**{"name": "echo", "max_batch_size": 1, "crash_budget": 1000, **settings})
    def echo(text: list[str]) -> list[str]:
        return text

    return echo


@contextmanager
def lines(*, ends: bool = True, **settings: Any) -> Iterator[tuple[ManualDispatcher, Lines]]:
    made = Lines()
    how = {name: settings.pop(name) for name in ("scheduler", "resources") if name in settings}
    if "needs" in settings:
        settings["resources"] = settings.pop("needs")
    with desk(echo(**settings), make=made, **how) as d:
        try:
            yield d, made
        finally:
            d.dispatcher._fail_waiting(ModelNotReady("the test is over"))
            for line in made.made if ends else ():
                if line.given:
                    line.finish(len(line.given))


def learnt(d: ManualDispatcher, line: Line, ns: int = 10 * US, rows: int = 1) -> None:
    """Let a full batch run, so that it is known how long that takes."""
    calls = d.ask_all(*["first"] * rows)
    line.finish(ns=ns)
    assert all(call.answered for call in calls)
    line.gives.clear()


def letters(text: str) -> list[list[str]]:
    return [[letter] for letter in text]


# What is given


def test_what_is_given_after_a_wake_up_is_given_before_the_callers_are_told() -> None:
    with lines() as (d, made):
        (line,) = made.made
        learnt(d, line)
        d.ask_all(*"abcdefgh")
        seen: list[list[list[str]]] = []
        last = Call("i")
        last.request.reply.first(lambda _: seen.append(line.rows()))
        d.dispatcher.submit([last.request])
        line.finish(8)
        d.ask_all(*"jk")
        line.finish()
        assert seen == [letters("jk")]


# What does not end as it should


def test_the_answer_to_a_request_that_was_cancelled_ahead_is_dropped() -> None:
    with lines() as (d, made):
        (line,) = made.made
        learnt(d, line)
        a, b, c = d.ask_all(*"abc")
        assert d.dispatcher.cancel(b.request)
        assert isinstance(b.error(), Cancelled)
        line.finish(3)
        assert (a.rows(), c.rows()) == (["a"], ["c"])
        assert len(b.outcomes) == 1


def test_only_the_oldest_batch_was_run_by_a_worker_that_died() -> None:
    with lines() as (d, made):
        (line,) = made.made
        learnt(d, line)
        calls = d.ask_all(*"abcdefghij")
        line.finish()
        line.given.clear()
        line.die()
        successor = made.next_after(line)
        assert [call.request.attempts for call in calls] == [0, 1, *[0] * 8]
        # It is not known any more how long a batch runs.
        order = []
        until(lambda: bool(successor.given))
        while successor.given:
            order += [row for rows in successor.rows() for row in rows]
            successor.finish(len(successor.given))
        assert order == list("cdefghijb")
        assert [call.rows() for call in calls] == letters("abcdefghij")


def test_a_worker_that_has_not_read_all_that_was_sent_was_at_the_oldest() -> None:
    with lines() as (d, made):
        (line,) = made.made
        learnt(d, line)
        a, b = d.ask_all(*"ab")
        line.given.clear()
        line.die(reached=False)
        until(lambda: made.next_after(line).rows() == letters("b"))
        assert (a.request.attempts, b.request.attempts) == (1, 0)


def test_a_request_that_kills_workers_is_found_and_costs_no_other_its_answer() -> None:
    with lines() as (d, made):
        (line,) = made.made
        learnt(d, line)
        calls = d.ask_all(*"abkcde")
        while not calls[2].answered or line.given:
            if line.rows()[0] == ["k"]:
                line.given.clear()
                line.die("died of k")
                line = made.next_after(line)
                until(lambda line=line: bool(line.given) or calls[2].answered)  # type: ignore[misc]
            else:
                line.finish()
        assert isinstance(calls[2].error(), PoisonRequest)
        del calls[2]
        assert [call.rows() for call in calls] == letters("abcde")
        assert [call.request.attempts for call in calls] == [0] * 5


def test_a_batch_that_runs_too_long_fails_and_those_behind_it_run_elsewhere() -> None:
    with lines(execution_timeout=5.0) as (d, made):
        (line,) = made.made
        learnt(d, line)
        calls = d.ask_all(*"abc")
        d.timer.advance(4.0)
        line.finish()
        d.timer.advance(4.0)
        assert not calls[1].answered  # it runs since the one before it has ended
        line.given.clear()
        d.timer.advance(1.0)
        assert isinstance(calls[1].error(), ExecutionTimeout)
        successor = made.next_after(line)
        until(lambda: successor.rows() == letters("c"))
        successor.finish()
        assert calls[2].rows() == ["c"]


# The end


def test_a_model_that_is_closed_runs_what_was_given_and_is_told_to_stop_once() -> None:
    with lines() as (d, made):
        (line,) = made.made
        learnt(d, line)
        calls = d.ask_all(*"abcdefghijk")
        until_closed = _in_thread(d.dispatcher.close)
        until(lambda: all(call.answered for call in calls[8:]))
        assert not line.stopped
        line.finish(3)
        assert not line.stopped
        line.finish(5)
        assert line.stopped
        until_closed()
        assert [call.rows() for call in calls[:8]] == letters("abcdefgh")
        assert isinstance(calls[8].error(), ModelNotReady)


def test_to_drain_waits_until_the_last_caller_is_told() -> None:
    with lines() as (d, made):
        (line,) = made.made
        learnt(d, line)
        drained: list[bool] = []
        call = Call("a")
        call.request.reply.first(lambda _: drained.append(d.dispatcher.drain(0.0)))
        d.dispatcher.submit([call.request])
        line.finish()
        assert drained == [False]
        assert d.dispatcher.drain(TIMEOUT)


def _in_thread(work: Callable[[], None]) -> Callable[[], None]:
    thread = threading.Thread(target=work)
    thread.start()
    return lambda: thread.join(TIMEOUT)


# Anything


class AnyOrder(RuleBasedStateMachine):
    """Every request is answered once, whatever happens, and an answer is the request's own."""

    @initialize(instances=st.integers(1, 3), most=st.sampled_from([1, 1, 3]))
    def begin(self, instances: int, most: int) -> None:
        self.context = lines(ends=False, instances=instances, max_batch_size=most)
        self.desk, self.made = self.context.__enter__()
        self.calls: list[Call] = []
        self.instances = instances

    def up(self) -> list[Line]:
        """The lines that are loaded; those that died are replaced first."""
        return [line for line in self.made.made if line in self.desk.dispatcher.instances]

    def busy(self) -> list[Line]:
        return [line for line in self.up() if line.given]

    @rule(count=st.integers(1, 12), priority=st.sampled_from([3, 5]))
    def ask(self, count: int, priority: int) -> None:
        rows = [str(len(self.calls) + i) for i in range(count)]
        self.calls += self.desk.ask_all(*rows, priority=priority)

    # What is drawn must not depend on what other threads have done so far.

    @rule(which=st.integers(0, 5), most=st.integers(1, 8), us=st.sampled_from([5, 5, 5, 100, 1000]))
    def finish(self, which: int, most: int, us: int) -> None:
        busy = self.busy()
        if busy:
            line = busy[which % len(busy)]
            line.finish(min(most, len(line.given)), us * US)

    @rule(which=st.integers(0, 20))
    def cancel(self, which: int) -> None:
        if self.calls:
            self.desk.dispatcher.cancel(self.calls[-1 - which % len(self.calls)].request)

    @rule(which=st.integers(0, 5), reached=st.booleans())
    def die(self, which: int, reached: bool) -> None:
        up = self.up()
        line = up[which % len(up)]
        line.given.clear()
        line.die(reached=reached)
        until(lambda: line not in self.desk.dispatcher.instances)

        def replaced() -> bool:
            self.desk.timer.advance(0.1)
            return len(self.up()) == self.instances

        until(replaced)

    def teardown(self) -> None:
        if not hasattr(self, "context"):
            return
        while self.busy() or any(not call.answered for call in self.calls):
            until(lambda: bool(self.busy()) or all(call.answered for call in self.calls))
            for line in self.busy():
                line.finish(len(line.given))
        for call in self.calls:
            outcome = call.wait()
            if isinstance(outcome, Exception):
                assert isinstance(outcome, Cancelled | WorkerDied | PoisonRequest)
                assert isinstance(outcome, Cancelled) or call.request.attempts == 2
            else:
                assert outcome.outputs == {"output": [call.request.id]}
        assert self.desk.dispatcher.drain(TIMEOUT)
        self.context.__exit__(None, None, None)


AnyOrder.TestCase.settings = hypothesis_settings(
    max_examples=40, stateful_step_count=30, deadline=None
)
TestAnyOrder = AnyOrder.TestCase
