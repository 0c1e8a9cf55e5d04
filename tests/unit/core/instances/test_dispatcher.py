"""Which free instance gets a batch, and what happens when it does not come back?

Clock and timer belong to the test, and the model waits at a gate: nothing here depends on speed.
"""

import errno
import itertools
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import pytest

import wherry
from tests.fakes import (
    TIMEOUT,
    Call,
    Gate,
    ManualDispatcher,
    desk,
    gated,
    threads,
    until,
)
from wherry.core.instances.dispatcher import Dispatcher
from wherry.core.instances.instance import Instance
from wherry.core.instances.life import ModelState
from wherry.core.instances.thread import ThreadInstance
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device
from wherry.core.observability.statistics import ModelStatistics
from wherry.core.scheduler.instance_table import BatchRun
from wherry.core.values.errors import (
    BadModelOutput,
    Cancelled,
    DeadlineExceeded,
    ExecutionTimeout,
    InvalidRequest,
    LoadFailed,
    ModelFailed,
    ModelNotReady,
    Overloaded,
    PoisonRequest,
    QueueFull,
    WherryError,
    WorkerDied,
)
from wherry.core.values.execution import Execution, Failure, Outcome
from wherry.core.values.load import Load
from wherry.core.values.reply import StreamReply
from wherry.core.values.request import Batch, InferRequest


def pass_time(d: ManualDispatcher, until_this: Callable[[], bool], seconds: float = 0.1) -> None:
    """Move the clock until that has happened."""

    def step() -> bool:
        d.timer.advance(seconds)
        return until_this()

    until(step)


FOREVER = 1e9


@pytest.fixture
def gate() -> Gate:
    return Gate()


def totals(statistics: ModelStatistics) -> dict[str, int]:
    """What must add up, read together."""
    s = statistics.fold()
    return {
        "requests": s.success.count + s.fail.count,
        "failures": sum(s.failures.values()) - s.fail.count,
        "rows": s.inference_count,
        "executions": s.execution_count - sum(b.count for b in s.batch_sizes.values()),
    }


def executed_rows(statistics: ModelStatistics) -> int:
    return sum(rows * b.count for rows, b in statistics.batch_sizes.items())


# Batches


def test_a_batch_that_may_wait_leaves_when_its_time_has_come(gate: Gate) -> None:
    gate.open(10)
    with desk(gated(gate, max_queue_delay=0.5), gate=gate) as d:
        a = d.ask("a")
        d.timer.advance(0.4)
        b = d.ask("b")
        assert not a.answered
        assert not b.answered
        d.timer.advance(0.1)
        assert [a.rows(), b.rows()] == [["A"], ["B"]]
    assert gate.batches == [["a", "b"]]


def test_a_row_that_makes_its_batch_raise_fails_alone(gate: Gate) -> None:
    gate.open(100)
    with desk(gated(gate), gate=gate) as d:
        calls = d.ask_all("a", "b", "bad", "d")
        assert [calls[n].rows() for n in (0, 1, 3)] == [["A"], ["B"], ["D"]]
        error = calls[2].error()
        assert isinstance(error, ModelFailed)
        assert "ValueError: a bad row" in str(error)
        assert isinstance(error.__cause__, ValueError)
        assert totals(d.dispatcher.statistics)["rows"] == 3


def test_too_few_rows_fail_the_whole_batch_and_say_so() -> None:
    @wherry.model(max_batch_size=8)
    def short(text: list[str]) -> list[str]:
        return text[1:]

    with desk(short) as d:
        for call in d.ask_all("a", "b"):
            error = call.error()
            assert isinstance(error, BadModelOutput)
            assert "1 rows for 2 input rows" in str(error)


def test_an_exit_in_the_models_code_is_a_failure_and_the_instance_stays() -> None:
    @wherry.model(max_batch_size=8)
    def quitter(text: list[str]) -> list[str]:
        if text == ["quit"]:
            sys.exit(1)
        if text == ["interrupt"]:
            raise KeyboardInterrupt
        return text

    with desk(quitter) as d:
        assert isinstance(d.ask("quit").error(), ModelFailed)
        assert isinstance(d.ask("interrupt").error(), WherryError)
        assert d.ask("go on").rows() == ["go on"]
        assert not d.dispatcher.not_ready_reason()


# Callers who leave


def test_neighbours_of_one_who_leaves_a_running_batch_are_answered(gate: Gate) -> None:
    with desk(gated(gate), gate=gate) as d:
        calls = d.ask_all("a", "b", "c")
        gate.started()
        assert d.dispatcher.cancel(calls[1].request)
        assert isinstance(calls[1].error(), Cancelled)
        gate.open()
        assert [calls[0].rows(), calls[2].rows()] == [["A"], ["C"]]
        assert not d.dispatcher.cancel(calls[0].request)
        statistics = d.dispatcher.statistics
        assert (statistics.success.count, statistics.failures) == (2, {"CANCELED": 1})


def test_a_batch_whose_callers_have_all_left_does_not_run(gate: Gate) -> None:
    with desk(gated(gate, max_batch_size=2), gate=gate) as d:
        d.ask("running")
        gate.started()
        gone = d.ask_all("a", "b", "c")
        for call in gone:
            d.dispatcher.cancel(call.request)
        gate.open(1)
        assert d.dispatcher.drain(TIMEOUT)
    assert gate.batches == [["running"]]


# Deadlines and refusals


def test_a_deadline_in_the_queue_is_kept_by_the_timer(gate: Gate) -> None:
    with desk(gated(gate), gate=gate) as d:
        running = d.ask("running")
        gate.started()
        call = d.ask("late", timeout=2.0)
        d.timer.advance(1.9)
        assert not call.answered
        d.timer.advance(0.1)
        error = call.error()
        assert isinstance(error, DeadlineExceeded)
        assert "(2.000 s)" in str(error)
        assert d.dispatcher.queued_requests == 0
        gate.open()
        assert running.rows() == ["RUNNING"]
    assert gate.batches == [["running"]]


def test_who_is_refused_hears_it_at_once_and_is_counted(gate: Gate) -> None:
    with desk(gated(gate, max_batch_size=1, max_queue_size=1), gate=gate) as d:
        first = d.ask("first")
        gate.started()
        d.clock.now += 10.0
        gate.open()
        first.wait()
        d.ask("running")
        gate.started()
        assert isinstance(d.ask("hasty", timeout=11.0).error(), Overloaded)
        d.ask("waiting")
        error = d.ask("one more").error()
        assert isinstance(error, QueueFull)
        assert "1 requests waiting" in str(error)
        assert error.retry_after
        statistics = d.dispatcher.statistics
        assert (statistics.predicted_late, statistics.failures) == (1, {"REJECTED": 2})


# Loading, draining, closing


class Failing(wherry.Model):
    """A model that fails in load, and says whether it was unloaded."""

    def __init__(self) -> None:
        self.unloaded = 0

    def load(self, device: Device) -> None:
        raise OSError("no weights")

    def execute(self, text: list[str]) -> list[str]:
        return text

    def unload(self) -> None:
        self.unloaded += 1


def test_a_load_that_raises_is_told_with_its_cause() -> None:
    model = Failing()
    with desk(model, ready=False) as d:
        call = d.ask("waits for the model")
        with pytest.raises(LoadFailed, match="'failing' could not be loaded: OSError: no weights"):
            d.dispatcher.wait_ready(TIMEOUT)
        assert d.dispatcher.readiness.state is ModelState.UNAVAILABLE
        assert "no weights" in d.dispatcher.not_ready_reason()
        assert isinstance(call.error(), ModelNotReady)
        assert isinstance(d.ask("too late").error(), ModelNotReady)
    assert model.unloaded == 1


def test_a_constructor_that_raises_in_a_further_instance_is_a_failed_load() -> None:
    def make(number: int, config: ModelConfig) -> Instance:
        raise TypeError("the second object cannot be made")

    failed = pytest.raises(LoadFailed, match="TypeError: the second object cannot be made")
    with desk(gated(Gate()), make=make, ready=False) as d, failed:
        d.dispatcher.wait_ready(TIMEOUT)


def test_requests_may_come_while_the_model_loads() -> None:
    may_load = threading.Event()

    class Slow(wherry.Model):
        def load(self, device: Device) -> None:
            assert may_load.wait(TIMEOUT)

        def execute(self, text: list[str]) -> list[str]:
            return text

    with desk(Slow(), ready=False) as d:
        call = d.ask("early")
        assert d.dispatcher.not_ready_reason() == "loading"
        may_load.set()
        assert call.rows() == ["early"]
        d.dispatcher.wait_ready(TIMEOUT)
        assert not d.dispatcher.not_ready_reason()


def test_drain_finishes_what_waits_and_takes_no_more(gate: Gate) -> None:
    with desk(gated(gate, max_batch_size=1), gate=gate) as d:
        calls = d.ask_all("a", "b")
        gate.started()
        assert not d.dispatcher.drain(0.0)
        assert isinstance(d.ask("c").error(), ModelNotReady)
        gate.open(2)
        assert d.dispatcher.drain(TIMEOUT)
        assert [call.rows() for call in calls] == [["A"], ["B"]]
        assert d.dispatcher.not_ready_reason() == "unloading"


def test_drain_ends_when_the_last_waiting_caller_leaves(gate: Gate) -> None:
    with desk(gated(gate, max_batch_size=1), gate=gate) as d:
        d.ask("a")
        gate.started()
        waiting = d.ask("b")
        drained: list[bool] = []
        with threads(1, lambda _: drained.append(d.dispatcher.drain(TIMEOUT))):
            gate.open()
            d.dispatcher.cancel(waiting.request)
        assert drained == [True]


def test_close_answers_those_who_wait_and_lets_the_running_finish(gate: Gate) -> None:
    with desk(gated(gate, max_batch_size=1), gate=gate) as d:
        running, waiting = d.ask_all("a", "b")
        gate.started()
        with threads(1, lambda _: d.dispatcher.close()):
            error = waiting.error()
            assert isinstance(error, ModelNotReady)
            assert "unloading" in str(error)
            gate.open()
        assert running.rows() == ["A"]
        d.dispatcher.close()  # twice is no harm
        assert d.dispatcher.readiness.state is ModelState.UNAVAILABLE
    assert gate.batches == [["a"]]


def test_close_while_the_model_loads_ends_the_wait() -> None:
    may_load = threading.Event()

    class Slow(wherry.Model):
        def load(self, device: Device) -> None:
            assert may_load.wait(TIMEOUT)

        def execute(self, text: list[str]) -> list[str]:
            return text

    with desk(Slow(), ready=False) as d:

        def wait(_: int) -> None:
            with pytest.raises(ModelNotReady, match="closed while it was loading"):
                d.dispatcher.wait_ready(TIMEOUT)

        with threads(1, wait), threads(1, lambda _: d.dispatcher.close()):
            until(lambda: d.dispatcher.readiness.state is ModelState.UNLOADING)
            may_load.set()
        assert isinstance(d.ask("late").error(), ModelNotReady)


def test_unload_is_called_once_for_each_instance() -> None:
    unloaded: list[int] = []

    class Counted(wherry.Model):
        instances = 3

        def execute(self, text: list[str]) -> list[str]:
            return text

        def unload(self) -> None:
            unloaded.append(1)
            raise RuntimeError("unload fails, and is logged")

    with desk(Counted()) as d:
        assert d.ask("a").rows() == ["a"]
    assert len(unloaded) == 3


# Hangs


def test_a_batch_that_hangs_is_answered_and_its_instance_replaced(gate: Gate) -> None:
    with desk(gated(gate, execution_timeout=3.0), gate=gate) as d:
        hangs = d.ask_all("a", "b")
        gate.started()
        waits = d.ask("c")
        d.timer.advance(2.9)
        assert not any(call.answered for call in hangs)
        d.timer.advance(0.1)
        for call in hangs:
            error = call.error()
            assert isinstance(error, ExecutionTimeout)
            assert "execution_timeout" in str(error)
        gate.started()  # the new instance has taken what waited
        assert not d.dispatcher.not_ready_reason()
        gate.open(2)
        assert waits.rows() == ["C"]
        assert d.dispatcher.statistics.worker_restarts == 1
        assert len(d.dispatcher.instances) == 1


def test_a_batch_that_finishes_in_time_is_not_given_up_later(gate: Gate) -> None:
    with desk(gated(gate, execution_timeout=3.0), gate=gate) as d:
        first = d.ask("a")
        gate.started()
        second = d.ask("b")
        d.timer.advance(2.0)
        gate.open()
        assert first.rows() == ["A"]
        gate.started()
        d.timer.advance(2.0)  # the first one's moment has come, the second has run for 2 s
        assert not second.answered
        gate.open()
        assert second.rows() == ["B"]
        assert d.dispatcher.statistics.worker_restarts == 0


@pytest.mark.parametrize("moment", ["before it is given up", "while it is given up"])
def test_an_instance_that_comes_back_in_the_moment_it_is_given_up_stays(
    gate: Gate, moment: str
) -> None:
    """The timer has found it overdue; until it acts, the instance runs the next batch already."""
    with desk(gated(gate, execution_timeout=1.0), gate=gate) as d:
        running = d.ask("a")
        gate.started()
        late, next_one = Call("late", deadline=d.clock.now + 1.0), Call("b")
        d.dispatcher.submit([late.request, next_one.request])
        told = (late if moment == "before it is given up" else running).request.reply
        tell = told.on_done

        def come_back_and_tell(reply: Any) -> None:
            gate.open()
            gate.started()  # the next batch runs now
            tell(reply)

        told.on_done = come_back_and_tell
        d.timer.advance(1.0)
        assert isinstance(late.error(), DeadlineExceeded)
        assert isinstance(running.wait(), ExecutionTimeout) == (told is running.request.reply)
        gate.open()
        assert next_one.rows() == ["B"]
        assert d.dispatcher.statistics.worker_restarts == 0
        assert len(d.dispatcher.instances) == 1


def test_threads_that_hang_are_replaced_while_they_are_few(gate: Gate) -> None:
    """Each holds a copy of the model. When one of them ends, there is room for another."""
    settings = {"execution_timeout": 1.0, "crash_budget": 1, "crash_window": FOREVER}
    with desk(gated(gate, **settings), gate=gate) as d:
        for n in range(2):
            call = d.ask(str(n))
            gate.started()
            d.timer.advance(1.0)
            assert isinstance(call.error(), ExecutionTimeout)
        error = d.ask("waits for an instance that does not come").error()
        assert isinstance(error, ModelNotReady)
        assert "execution_timeout" in d.dispatcher.not_ready_reason()
        d.timer.advance(1000.0)
        assert d.dispatcher.not_ready_reason()
        gate.open()
        pass_time(d, lambda: not d.dispatcher.not_ready_reason())
        d.ask("a")
        gate.started()


def test_a_model_that_is_stuck_in_one_batch_is_not_ready_until_it_goes_on(gate: Gate) -> None:
    with desk(gated(gate, stall_timeout=5.0), gate=gate) as d:
        call = d.ask("a")
        gate.started()
        d.clock.now += 5.0
        assert not d.dispatcher.not_ready_reason()
        d.clock.now += 0.1
        assert "more than 5 s (stall_timeout)" in d.dispatcher.not_ready_reason()
        gate.open()
        call.rows()
        assert d.dispatcher.drain(TIMEOUT)


def test_one_stuck_instance_of_two_leaves_the_model_ready(gate: Gate) -> None:
    with desk(gated(gate, stall_timeout=5.0, instances=2), gate=gate) as d:
        d.ask("a")
        gate.started()
        d.clock.now += 60.0
        assert not d.dispatcher.not_ready_reason()


# Workers that die, played by a fake instance


class Worker(Instance):
    """An instance whose life and death the test decides."""

    def __init__(self, name: str, deaths: list[str]) -> None:
        super().__init__(name, Device())
        self.inbox: SimpleQueue[Batch | WorkerDied | None] = SimpleQueue()
        self.deaths = deaths
        self.given: list[Batch | None] = []
        self.on_give: Callable[[], None] = lambda: None

    def load(self) -> None:
        if self.deaths and self.deaths[0] == "load":
            self.deaths.pop(0)
            raise WorkerDied("died in load")

    def give(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self.given.append(batch)
            self.inbox.put(batch)

    def stop(self) -> None:
        self.given.append(None)
        self.inbox.put(None)

    def die_idle(self) -> None:
        self.inbox.put(WorkerDied("died while idle"))

    def serve(self) -> None:
        while (got := self.inbox.get(timeout=TIMEOUT)) is not None:
            if isinstance(got, WorkerDied):
                raise got
            self.run(got)

    def run(self, batch: Batch) -> None:
        run = BatchRun(batch, self.answers.prepared(batch), self.answers.now())
        if run.requests and run.requests[-1].streams:
            stream = self.answers.stream_run(self, run)
            self.answers.streamed(stream, self.stream(run.requests))
            return
        run.execution = self.execute(run.requests)
        self.answers.finished(self, (run,))

    def stream(self, requests: Sequence[InferRequest]) -> list[Outcome | None]:
        raise WorkerDied("died in a stream")

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        if self.deaths and self.deaths[0] == "run":
            self.deaths.pop(0)
            raise WorkerDied("died in a batch")
        if self.deaths and self.deaths[0] == "bug":
            self.deaths.pop(0)
            raise KeyError("our own mistake")
        outcomes: list[Outcome] = [{"output": r.inputs["text"]} for r in requests]
        return Execution(outcomes, executed_rows=[sum(r.rows for r in requests)])

    def abort(self, reason: str) -> bool:
        return False

    def unload(self) -> None:
        pass


class Workers:
    """Makes workers that die as the test has written down."""

    kind = Worker

    def __init__(self, *deaths: str) -> None:
        self.deaths = list(deaths)
        self.made: list[Worker] = []

    def __call__(self, number: int, config: ModelConfig) -> Instance:
        worker = self.kind(f"{config.name}_{number}", self.deaths)
        self.made.append(worker)
        return worker


def echo(**settings: Any) -> wherry.Model:
    @wherry.model(**{"max_batch_size": 8, **settings})
    def echo(text: list[str]) -> list[str]:
        return text

    return echo


def test_a_request_whose_worker_died_is_tried_once_more() -> None:
    workers = Workers("run")
    with desk(echo(), make=workers) as d:
        assert [call.rows() for call in d.ask_all("a", "b")] == [["a"], ["b"]]
        assert len(workers.made) == 2
        assert d.dispatcher.statistics.worker_restarts == 1
        # Each ran alone: had one of them killed the worker, the other would not die with it.
        assert sorted(d.dispatcher.statistics.batch_sizes) == [1]


def test_a_request_is_tried_once_more_if_a_bug_ends_the_thread_of_its_instance(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with desk(echo(), make=Workers("bug")) as d:
        assert d.ask("a").rows() == ["a"]
        assert d.dispatcher.statistics.worker_deaths == {"bug": 1}
    assert "our own mistake" in caplog.text


def test_a_request_that_kills_two_workers_is_answered_with_the_reason() -> None:
    with desk(echo(), make=Workers("run", "run")) as d:
        error = d.ask("killer").error()
        assert isinstance(error, PoisonRequest)
        assert "died in a batch" in str(error)
        assert d.ask("next").rows() == ["next"]


def test_a_stream_is_not_tried_again() -> None:
    with desk(echo(), make=Workers()) as d:
        assert isinstance(d.ask("s", stream=True).error(), WorkerDied)


def test_a_worker_that_dies_while_idle_is_replaced() -> None:
    workers = Workers()
    with desk(echo(), make=workers) as d:
        workers.made[0].die_idle()
        assert d.ask("a").rows() == ["a"]
        assert d.ask("b").rows() == ["b"]


def test_a_batch_handed_to_a_worker_in_the_moment_of_its_death_is_not_lost() -> None:
    """The worker's end is noticed first; the batch was assigned to it under the lock before."""
    workers = Workers()
    with desk(echo(), make=workers) as d:
        worker = workers.made[0]
        give = worker.give

        def die_first(batches: Sequence[Batch]) -> None:
            worker.inbox.put(WorkerDied("died while idle"))
            give(batches)

        worker.give = die_first  # type: ignore[method-assign] # the race, played
        assert d.ask("a").rows() == ["a"]
        worker.give = give  # type: ignore[method-assign] # back


def test_a_model_whose_workers_die_in_every_batch_is_away_and_says_why_and_until_when() -> None:
    with desk(echo(crash_budget=2, crash_window=FOREVER), make=Workers(*["run"] * 100)) as d:
        asked = itertools.count()
        while d.dispatcher.readiness.state is ModelState.READY:
            call = d.ask(f"{next(asked)}")
            pass_time(d, lambda call=call: call.answered)  # type: ignore[misc]
            assert isinstance(call.error(), WorkerDied | ModelNotReady)
        reason = d.dispatcher.not_ready_reason()
        assert "died more than 2 times" in reason
        assert "died in a batch" in reason
        assert re.search(r"tried next in \d+\.\d s", reason)
        refused = d.ask("late").error()
        assert isinstance(refused, ModelNotReady)
        assert refused.retry_after
        assert refused.retry_after == d.dispatcher.next_try()
        d.timer.clock.now += refused.retry_after  # it is tried now, and is not there yet
        again = d.ask("again").error()
        assert isinstance(again, ModelNotReady)
        assert again.retry_after


def test_a_model_that_was_away_comes_back_by_itself_when_the_cause_is_gone() -> None:
    workers = Workers()
    with desk(echo(crash_budget=1, crash_window=FOREVER), make=workers) as d:
        workers.deaths += ["load"] * 20
        d.ask("a", stream=True).error()
        pass_time(d, lambda: len(workers.deaths) < 10)
        assert d.dispatcher.readiness.state is ModelState.UNAVAILABLE
        assert isinstance(d.ask("b").error(), ModelNotReady)
        pass_time(d, lambda: not d.dispatcher.not_ready_reason(), 10.0)
        assert d.ask("c").rows() == ["c"]
        assert d.dispatcher.statistics.worker_deaths == {"exit": 21}
        assert d.dispatcher.next_try() is None


def test_an_instance_that_lacks_a_descriptor_is_tried_until_there_is_one() -> None:
    """Far more often than the budget allows crashes; it starts as if nothing had been."""

    class Lacking(Worker):
        def load(self) -> None:
            if self.deaths and self.deaths[0] == "short":
                self.deaths.pop(0)
                raise OSError(errno.EMFILE, "Too many open files")

    class LackingWorkers(Workers):
        kind = Lacking

    workers = LackingWorkers()
    with desk(echo(crash_budget=1), make=workers) as d:
        workers.deaths += ["run", *["short"] * 50]
        lost = d.ask("a")
        pass_time(d, lambda: d.dispatcher.readiness.state is ModelState.UNAVAILABLE)
        assert "no file descriptor is left" in d.dispatcher.not_ready_reason()
        assert isinstance(lost.error(), ModelNotReady)
        pass_time(d, lambda: not d.dispatcher.not_ready_reason(), 5.0)
        assert d.ask("b").rows() == ["b"]
        assert d.dispatcher.statistics.worker_deaths == {"exit": 1}


def test_one_instance_that_cannot_come_back_leaves_the_others_to_serve() -> None:
    workers = Workers()
    with desk(echo(instances=2, crash_budget=0), make=workers) as d:
        workers.deaths += ["load"] * 1000
        workers.made[0].die_idle()
        pass_time(d, lambda: len(workers.deaths) < 990)
        assert not d.dispatcher.not_ready_reason()
        assert d.ask("a").rows() == ["a"]


# Requests that kill their workers


class Poisoned(Worker):
    """Dies of every batch that holds the row "poison"."""

    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        rows = [row for request in requests for row in request.inputs["text"]]
        if "cured" not in self.deaths and any("poison" in row for row in rows):
            self.deaths.append("died")
            raise WorkerDied("died of it")
        return super().execute(requests)

    def stream(self, requests: Sequence[InferRequest]) -> list[Outcome | None]:
        if requests[0].inputs["text"] == ["poison"]:
            self.deaths.append("died")
            raise WorkerDied("died of it")
        return [None for _ in requests]


class PoisonedWorkers(Workers):
    kind = Poisoned


def test_a_request_that_has_killed_two_workers_is_refused_without_a_third() -> None:
    workers = PoisonedWorkers()
    with desk(echo(), make=workers) as d:
        for _ in range(20):
            error = d.ask("poison").error()
            assert isinstance(error, PoisonRequest)
            assert "do not send it again" in str(error)
            assert d.ask("good").rows() == ["good"]
        assert len(workers.deaths) == 2
        assert d.dispatcher.statistics.poisoned == 19


def test_what_waits_and_equals_a_poison_is_not_run() -> None:
    """Each of them would have been retried alone, and have killed a worker of its own."""
    workers = PoisonedWorkers()
    with desk(echo(), make=workers) as d:
        calls = d.ask_all(*["poison"] * 8, *["good"] * 8)
        for call in calls[:8]:
            assert isinstance(call.error(), PoisonRequest)
        assert [call.rows() for call in calls[8:]] == [["good"]] * 8
        assert len(workers.deaths) == 2


def test_poison_does_not_count_against_the_model() -> None:
    """A hundred different ones: the model is ready after each, and never waits."""
    workers = PoisonedWorkers()
    with desk(echo(crash_budget=2, crash_window=FOREVER), make=workers) as d:
        for number in range(100):
            assert isinstance(d.ask(f"poison {number}").error(), PoisonRequest)
            assert d.ask("good").rows() == ["good"]
        assert d.dispatcher.readiness.state is ModelState.READY
        assert len(workers.deaths) == 200


def test_a_poison_that_streams_kills_two_workers_and_is_refused_from_then_on() -> None:
    workers = PoisonedWorkers()
    with desk(echo(), make=workers) as d:
        errors = [type(d.ask("poison", stream=True).error()) for _ in range(4)]
        assert errors == [PoisonRequest] * 4
        d.ask("good", stream=True).wait()
        assert len(workers.deaths) == 2


def test_a_poison_is_tried_again_after_a_while() -> None:
    workers = PoisonedWorkers()
    with desk(echo(), make=workers) as d:
        assert isinstance(d.ask("poison").error(), PoisonRequest)
        d.timer.advance(61.0)
        workers.deaths.append("cured")
        assert d.ask("poison").rows() == ["poison"]
        assert not d.dispatcher.poisons.active


def test_a_request_whose_worker_was_killed_by_something_else_is_under_no_suspicion() -> None:
    workers = Workers()
    with desk(echo(crash_window=0.001), make=workers) as d:
        for _ in range(10):  # with an answer between any two deaths
            workers.deaths.append("run")
            call = d.ask("the same each time")
            pass_time(d, lambda call=call: call.answered)  # type: ignore[misc]
            assert call.rows() == ["the same each time"]
            assert not d.dispatcher.poisons.active


def test_a_drain_ends_when_the_last_worker_is_given_up() -> None:
    """The requests in retry are answered then; nothing else would wake the drain."""
    in_load, may_die, looked = threading.Event(), threading.Event(), threading.Semaphore(0)

    class Dying(Worker):
        def load(self) -> None:
            if len(workers.made) > 1:
                in_load.set()
                assert may_die.wait(TIMEOUT)
                raise WorkerDied("died in load")

    class DyingWorkers(Workers):
        kind = Dying

    class GivenUp(logging.Handler):
        """Holds the serving thread, after it has gone down, until drain() has looked again."""

        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == "worker died, restarting" and in_load.is_set():
                looked.acquire(timeout=TIMEOUT)

    workers, handler = DyingWorkers("run"), GivenUp()
    logging.getLogger("wherry").addHandler(handler)
    with desk(echo(crash_budget=1), make=workers) as d:
        is_quiet = d.dispatcher._is_quiet

        def look() -> bool:
            looked.release()
            return is_quiet()

        d.dispatcher._is_quiet = look  # type: ignore[method-assign] # planted
        call = d.ask("a")
        assert in_load.wait(TIMEOUT)
        drained: list[bool] = []
        with threads(1, lambda _: drained.append(d.dispatcher.drain(None))):
            assert looked.acquire(timeout=TIMEOUT)
            may_die.set()
        assert drained == [True]
        assert isinstance(call.error(), ModelNotReady)
    logging.getLogger("wherry").removeHandler(handler)


def test_a_worker_that_has_gone_on_is_not_killed_for_the_batch_before(gate: Gate) -> None:
    """The timer has found it overdue; before it acts, the worker runs another batch."""

    class Held(Worker):
        aborted = 0

        def execute(self, requests: Sequence[InferRequest]) -> Execution:
            gate.hold([r.id for r in requests])
            return super().execute(requests)

        def abort(self, reason: str) -> bool:
            self.aborted += 1
            return True

    class HeldWorkers(Workers):
        kind = Held

    workers = HeldWorkers()
    with desk(echo(execution_timeout=1.0), make=workers, gate=gate) as d:
        overdue = d.ask("a")
        gate.started()
        late, next_one = Call("late", deadline=d.clock.now + 1.0), Call("b")
        d.dispatcher.submit([late.request, next_one.request])
        tell = late.request.reply.on_done

        def go_on_and_tell(reply: Any) -> None:
            gate.open()
            gate.started()  # the next batch runs now
            tell(reply)

        late.request.reply.on_done = go_on_and_tell
        d.timer.advance(1.0)
        gate.open()
        assert [overdue.rows(), next_one.rows()] == [["a"], ["b"]]
        (worker,) = workers.made
        assert isinstance(worker, Held)
        assert worker.aborted == 0


def test_a_worker_that_dies_in_its_first_load_is_a_failed_load() -> None:
    failed = pytest.raises(LoadFailed, match="died in load")
    with desk(echo(), make=Workers("load"), ready=False) as d, failed:
        d.dispatcher.wait_ready(TIMEOUT)


def test_an_answer_that_cannot_be_delivered_does_not_harm_its_neighbours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with desk(echo()) as d:
        bad, good = Call("bad"), Call("good")

        def broken(reply: object) -> None:
            raise RuntimeError("the frontend has a bug")

        bad.request.reply.on_done = broken
        d.dispatcher.submit([bad.request, good.request])
        assert good.rows() == ["good"]
        assert d.ask("next").rows() == ["next"]
    assert "internal error" in caplog.text


# Streams


@wherry.model(max_batch_size=4)
def count(text: list[str]) -> Iterator[list[str]]:
    for n in range(3):
        yield [f"{t}{n}" for t in text]


def test_a_stream_sends_its_responses_and_then_ends() -> None:
    with desk(count) as d:
        call = d.ask("a", stream=True)
        call.wait()
        assert [r.outputs["output"] for r in call.responses] == [["a0"], ["a1"], ["a2"]]
        assert d.dispatcher.statistics.responses == 3


def test_streams_share_a_batch_and_each_caller_gets_its_own_rows() -> None:
    with desk(count) as d:
        calls = d.ask_all("a", "b", stream=True)
        for call, name in zip(calls, "ab", strict=True):
            call.wait()
            assert [r.outputs["output"] for r in call.responses] == [
                [f"{name}{n}"] for n in range(3)
            ]
        assert d.dispatcher.statistics.execution_count == 1


def test_a_stream_whose_only_caller_leaves_is_stopped() -> None:
    closed, go_on, first = threading.Event(), threading.Event(), threading.Event()

    @wherry.model
    def endless(text: list[str]) -> Iterator[list[str]]:
        try:
            while True:
                yield text
                first.set()
                assert go_on.wait(TIMEOUT)
        finally:
            closed.set()

    with desk(endless) as d:
        call = d.ask("a", stream=True)
        assert first.wait(TIMEOUT)
        d.dispatcher.cancel(call.request)
        go_on.set()
        assert closed.wait(TIMEOUT)
        assert len(call.responses) == 1


def test_a_reader_who_is_too_far_behind_in_a_shared_stream_is_dropped_alone() -> None:
    with desk(count) as d:
        calls = [Call(name, stream=True) for name in "ab"]
        slow = calls[0].request.reply
        assert isinstance(slow, StreamReply)
        slow.limit = 1
        d.dispatcher.submit([call.request for call in calls])
        error = calls[0].error()
        assert isinstance(error, Cancelled)
        assert "1 responses unread" in str(error)
        calls[1].wait()
        assert len(calls[1].responses) == 3


def test_a_generator_that_raises_ends_its_stream_with_the_error() -> None:
    @wherry.model
    def breaks(text: list[str]) -> Iterator[list[str]]:
        yield text
        raise InvalidRequest("not this one")

    with desk(breaks) as d:
        call = d.ask("a", stream=True)
        assert isinstance(call.error(), InvalidRequest)
        assert len(call.responses) == 1


# In the caller's own thread


def test_a_local_call_runs_in_its_callers_thread_if_an_instance_is_idle() -> None:
    ran_in: list[threading.Thread] = []

    @wherry.model(max_batch_size=8)
    def where(text: list[str]) -> list[str]:
        ran_in.append(threading.current_thread())
        return text

    with desk(where) as d:
        assert d.dispatcher.run_in_caller({"text": ["a"]}) == {"output": ["a"]}
        assert ran_in == [threading.current_thread()]
        assert d.ask("b").rows() == ["b"]
        assert ran_in[1] is not threading.current_thread()


def test_an_instance_is_idle_as_soon_as_its_model_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_work, work = threading.Event(), Dispatcher.serve

    def held_up(dispatcher: Dispatcher, instance: Instance) -> None:
        assert may_work.wait(TIMEOUT)
        work(dispatcher, instance)

    monkeypatch.setattr(Dispatcher, "serve", held_up)
    with desk(echo()) as d:
        assert d.dispatcher.run_in_caller({"text": ["a"]}) == {"output": ["a"]}
        waits = d.ask("b")
        assert d.dispatcher.queued_requests == 0
        may_work.set()
        assert waits.rows() == ["b"]


def test_a_local_call_goes_through_the_queue_if_something_waits_or_runs(gate: Gate) -> None:
    with desk(gated(gate, run_in_caller=True), gate=gate) as d:
        d.ask("a")
        gate.started()
        assert d.dispatcher.run_in_caller({"text": ["b"]}) is None


def test_a_request_that_comes_while_a_local_call_runs_is_served_after_it(gate: Gate) -> None:
    with desk(gated(gate, run_in_caller=True), gate=gate) as d:
        answers: list[object] = []
        with threads(1, lambda _: answers.append(d.dispatcher.run_in_caller({"text": ["a"]}))):
            gate.started()
            call = d.ask("b")
            assert d.dispatcher.queued_requests == 1
            assert [rows for _, rows, _ in d.dispatcher.running()] == [1]
            gate.open(2)
        assert answers == [{"output": ["A"]}]
        assert call.rows() == ["B"]


def test_a_local_call_that_fails_or_is_interrupted_gives_the_instance_back() -> None:
    @wherry.model
    def moody(text: list[str]) -> list[str]:
        if text == ["interrupt"]:
            raise KeyboardInterrupt  # Ctrl-C in the caller's thread
        if text == ["fail"]:
            raise ValueError("no")
        return text

    with desk(moody) as d:
        assert isinstance(d.dispatcher.run_in_caller({"text": ["fail"]}), Failure)
        with pytest.raises(KeyboardInterrupt):
            d.dispatcher.run_in_caller({"text": ["interrupt"]})
        assert d.dispatcher.run_in_caller({"text": ["a"]}) == {"output": ["a"]}
        assert d.ask("b").rows() == ["b"]
        assert d.dispatcher.drain(TIMEOUT)


def test_close_waits_for_a_local_call(gate: Gate) -> None:
    with desk(gated(gate, run_in_caller=True), gate=gate) as d:
        answers: list[object] = []
        with threads(1, lambda _: answers.append(d.dispatcher.run_in_caller({"text": ["a"]}))):
            gate.started()
            assert not d.dispatcher.drain(0.0)
            with threads(1, lambda _: d.dispatcher.close()):
                gate.open()
        assert answers == [{"output": ["A"]}]


class Alone:
    """A model's code that notices a second thread inside."""

    def __init__(self) -> None:
        self.inside = threading.Lock()
        self.rows = 0
        self.visitors: set[int] = set()

    def visit(self, text: list[str]) -> list[str]:
        assert self.inside.acquire(blocking=False), "two threads in one instance"
        self.rows += len(text)
        self.visitors.add(threading.get_ident())
        answer = [t.upper() for t in text]
        self.inside.release()
        return answer


@pytest.mark.usefixtures("_threads_switch_often")
@pytest.mark.parametrize("instances", [1, 2])
def test_ten_threads_never_meet_in_one_instance_and_the_counters_add_up(instances: int) -> None:
    copies: list[Alone] = []

    def make(number: int, config: ModelConfig) -> Instance:
        alone = Alone()
        copies.append(alone)
        model = wherry.model(name="alone", max_batch_size=4)(alone.visit)
        return ThreadInstance(f"alone_{number}", Device(), model, config)

    each = 150
    sent = [0] * 10
    answered = [0] * 10
    outer = wherry.model(name="alone", max_batch_size=4, instances=instances)(Alone().visit)
    with desk(outer, make=make) as d:

        def hammer(number: int) -> None:
            for n in range(each):
                row = f"{number}-{n}"
                outcome = d.dispatcher.run_in_caller({"text": [row]}) if n % 2 else None
                if outcome is not None:
                    assert not isinstance(outcome, Failure), outcome
                    answer = list(outcome["output"])
                else:
                    answer = d.ask(row).rows()
                sent[number] += 1
                answered[number] += answer == [row.upper()]

        with threads(10, hammer):
            pass
        assert sent == answered == [each] * 10
        assert d.dispatcher.drain(TIMEOUT)
        statistics = d.dispatcher.statistics
        assert totals(statistics) == {
            "requests": 10 * each,
            "failures": 0,
            "rows": 10 * each,
            "executions": 0,
        }
        assert executed_rows(statistics) == sum(copy.rows for copy in copies) == 10 * each


@pytest.mark.parametrize("outcome", ["good", "bad", "late"])
def test_a_caller_who_leaves_while_the_outcome_is_counted_is_counted_once(
    gate: Gate, outcome: str
) -> None:
    """The switch of threads that is hard to hit is planted: the cancel comes inside the count."""
    with desk(gated(gate), gate=gate) as d:
        statistics = d.dispatcher.statistics
        call = d.ask(outcome, timeout=1.0)
        gate.started()
        left: list[bool] = []

        def planted(count: Callable[..., None]) -> Callable[..., None]:
            def leave_and_count(*args: Any) -> None:
                left.append(d.dispatcher.cancel(call.request))
                count(*args)

            return leave_and_count

        statistics.succeeded = planted(statistics.succeeded)  # type: ignore[method-assign] # planted
        statistics.failed = planted(statistics.failed)  # type: ignore[method-assign] # planted
        if outcome == "late":
            d.timer.advance(1.0)
        gate.open()
        assert d.dispatcher.drain(TIMEOUT)
        assert len(call.outcomes) == 1
        assert left[0] is False
        assert totals(statistics)["requests"] == 1


@pytest.mark.usefixtures("_threads_switch_often")
def test_a_request_that_is_cancelled_answered_and_late_at_once_is_counted_once() -> None:
    """The canceller, the timer and the instance race for every request."""
    rounds = 200
    with desk(echo(max_queue_size=None)) as d:
        calls: list[Call] = []

        def ask(_: int) -> None:
            for n in range(rounds):
                call = Call(str(n), deadline=d.clock.now + 1.0)
                calls.append(call)
                d.dispatcher.submit([call.request])

        def cancel(_: int) -> None:
            done = 0
            while done < rounds:
                for call in calls[done:]:
                    d.dispatcher.cancel(call.request)
                    done += 1

        def late(_: int) -> None:
            for _ in range(rounds):
                d.timer.advance(1.0)

        jobs = [ask, cancel, late]
        with threads(3, lambda number: jobs[number](number)):
            pass
        d.timer.advance(2.0)
        for call in calls:
            call.wait()
            assert len(call.outcomes) == 1
        assert d.dispatcher.drain(TIMEOUT)
        found = totals(d.dispatcher.statistics)
        assert found["requests"] == rounds
        assert found["failures"] == 0
        assert found["rows"] == d.dispatcher.statistics.success.count


@pytest.mark.usefixtures("_threads_switch_often")
def test_an_unload_under_load_answers_everybody() -> None:
    for _ in range(10):
        with desk(echo(instances=2)) as d:
            calls: list[list[Call]] = [[] for _ in range(4)]

            def ask(number: int, d: ManualDispatcher = d, calls: list[list[Call]] = calls) -> None:
                for n in range(30):
                    calls[number].append(d.ask(str(n)))

            with threads(4, ask):
                d.dispatcher.drain(0.0)
                d.dispatcher.close()
            for call in (call for asked in calls for call in asked):
                outcome = call.wait()
                assert not isinstance(outcome, Exception) or isinstance(outcome, ModelNotReady)
            assert totals(d.dispatcher.statistics)["requests"] == 120


def test_repr_tells_what_an_instance_does(gate: Gate) -> None:
    with desk(gated(gate), gate=gate) as d:
        d.ask("a")
        gate.started()
        (instance,) = d.dispatcher.instances
        assert repr(instance) == "<ThreadInstance gated_0 on cpu: running 1 rows>"


def test_the_load_is_what_waits_and_the_rest_of_what_runs(gate: Gate) -> None:
    with desk(gated(gate), gate=gate, ready=False) as d:
        assert not d.dispatcher.load().ready
        d.dispatcher.wait_ready(TIMEOUT)
        assert d.dispatcher.load() == Load(ready=True, instances=1, full_rows=8)
        first = d.ask("a", "b")
        gate.started()
        d.clock.now += 3.0
        gate.open()
        first.rows()
        until(lambda: not d.dispatcher.load().busy)
        d.ask("c", "d")
        gate.started()
        d.ask("e")
        d.ask("f", "g")
        d.clock.now += 1.0
        assert d.dispatcher.load() == Load(
            ready=True,
            instances=1,
            busy=1,
            queued_rows=3,
            running_rows=2,
            free_after=2.0,
            full_rows=8,
            one_seconds=3.0,  # only one size has run
            full_seconds=3.0,
        )
        d.dispatcher.readiness.unloading()
        assert not d.dispatcher.load().ready
