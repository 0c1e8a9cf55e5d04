"""How do requests reach a model that works in steps, and its responses their callers?"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import wherry
from tests.fakes import TIMEOUT, Call, Gate, ManualClock, ManualTimer, threads, until
from wherry.core.instances.step_instance import StepInstance, StepThread
from wherry.core.instances.step_loop import StepLoop
from wherry.core.instances.step_runner import StepRunner
from wherry.core.instances.worker_protocol import Share, Stepped
from wherry.core.models.model import Device
from wherry.core.observability.statistics import ModelStatistics
from wherry.core.values.errors import (
    BadModelOutput,
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    ModelFailed,
    ModelNotReady,
    Overloaded,
    QueueFull,
    Unsupported,
)
from wherry.core.values.load import Load
from wherry.core.values.request import InferResponse


@dataclass
class Counter:
    left: int


class Countdown(wherry.StepModel):
    """Counts down; each step waits for the test."""

    max_batch_size = 2

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.stopped: list[int] = []
        self.broken = False
        self.dead = False
        self.loads = 0

    def load(self, device: Device) -> None:
        self.loads += 1

    def start(self, n: int) -> Counter:
        if n < 0:
            raise InvalidRequest("n must not be negative")
        return Counter(n)

    def step(self, active: list[Counter]) -> list[wherry.Step[int]]:
        self.gate.hold([counter.left for counter in active])
        if self.broken:
            raise RuntimeError("out of order")
        if self.dead or any(counter.left == 666 for counter in active):
            self.dead = False
            raise wherry.WorkerDied("the engine is gone")
        if any(counter.left == 1000 for counter in active):
            return []
        return [self.count(counter) for counter in active]

    def count(self, counter: Counter) -> wherry.Step[int]:
        if counter.left == 500:
            return wherry.Step(error=ValueError("I do not like 500"))
        if counter.left == 300:
            return wherry.Step([*range(300)], done=True)
        counter.left -= 1
        return wherry.Step([counter.left], done=counter.left == 0)

    def stop(self, state: Counter) -> None:
        self.stopped.append(state.left)

    def gauges(self) -> dict[str, float]:
        return {"stopped": len(self.stopped)}


class ManualDispatcher:
    def __init__(self, runner: StepRunner, model: Countdown, timer: ManualTimer) -> None:
        self.runner, self.model, self.timer, self.clock = runner, model, timer, timer.clock
        self.gate = model.gate

    def ask(self, n: int, timeout: float | None = None, **how: Any) -> Call:
        deadline = None if timeout is None else self.clock.now + timeout
        call = Call(n, name="n", stream=True, deadline=deadline, **how)
        call.request.inputs = {"n": np.array([n])}
        self.runner.submit([call.request])
        return call

    def step(self) -> list[int]:
        """Let the step end that has begun, or begins next; what was active in it."""
        self.gate.started()
        active = list(self.gate.batches[-1])
        self.gate.open()
        return active

    def finish(self, *calls: Call) -> None:
        """Let all steps run; wait for these."""
        self.gate.open(1000)
        for call in calls:
            call.wait()


@contextmanager
def desk(
    make: Callable[[], StepInstance] | None = None, **settings: Any
) -> Iterator[ManualDispatcher]:
    model = Countdown(Gate())
    config = model.config(**settings)
    clock = ManualClock(1000.0)
    timer = ManualTimer(clock)
    runner = StepRunner(
        config,
        [make or (lambda: StepThread("countdown_0", Device(), model, config))],
        clock=clock,
        timer=timer,
        statistics=ModelStatistics(),
    )
    runner.start()
    try:
        runner.wait_ready(TIMEOUT)
        yield ManualDispatcher(runner, model, timer)
    finally:
        model.gate.open(1000)
        runner.close()


def responses(call: Call) -> list[int]:
    return [int(response.outputs["output"][0]) for response in call.responses]


def test_requests_join_and_leave_between_steps() -> None:
    with desk() as d:
        first = d.ask(3)
        assert d.step() == [3]
        second = d.ask(1)
        assert d.step() in ([2, 1], [2])
        d.finish(first, second)
        assert (responses(first), responses(second)) == ([2, 1, 0], [0])
        end = first.wait()
        assert isinstance(end, InferResponse)
        assert end.outputs == {}


def test_who_finds_no_room_waits_and_joins_when_somebody_is_done() -> None:
    with desk() as d:
        calls = [d.ask(2), d.ask(2), d.ask(1)]
        assert d.runner.queued_requests == 1
        d.finish(*calls)
        assert [responses(call) for call in calls] == [[1, 0], [1, 0], [0]]
        assert max(len(batch) for batch in d.gate.batches) == 2
        statistics = d.runner.statistics
        assert (statistics.success.count, statistics.responses) == (3, 5)
        assert statistics.execution_count == len(d.gate.batches)
        assert sum(statistics.first_response_seconds.counts) == 3


def test_the_load_is_what_is_active_and_what_waits() -> None:
    with desk() as d:
        assert d.runner.load() == Load(ready=True, instances=1, full_rows=2, joins=True)
        calls = [d.ask(9)]
        d.gate.started()
        d.clock.now += 1.0
        d.gate.open()
        until(lambda: calls[0].responses != [])
        calls += [d.ask(9), d.ask(9)]
        assert d.runner.load() == Load(
            ready=True,
            instances=1,
            busy=1,
            queued_rows=2,
            running_rows=1,
            full_rows=2,
            one_seconds=1.0,
            full_seconds=2.0,
            joins=True,
        )
        d.finish(*calls)


def test_responses_are_counted_by_their_place_like_those_of_generators() -> None:
    with desk() as d:
        stays, leaves = d.ask(3), d.ask(9)
        d.step()
        while not leaves.responses:
            d.step()
        d.runner.cancel(leaves.request)
        d.finish(stays)
        stays.wait()
        places = d.runner.statistics.response_places
        assert all(at.came.count >= 1 for at in places[:3])
        assert places[0].came.count == 2
        assert sum(at.came.count for at in places) == d.runner.statistics.responses
        assert places[3].empty_response.count == 1
        assert sum(at.cancel.count for at in places) == 1
        assert d.runner.explain()["active_requests"] == 0


def test_a_caller_who_leaves_is_out_before_the_next_step() -> None:
    with desk() as d:
        stays, leaves = d.ask(3), d.ask(9)
        d.gate.started()
        assert d.runner.cancel(leaves.request)
        assert not d.runner.cancel(leaves.request)
        assert isinstance(leaves.error(), Cancelled)
        batches = len(d.gate.batches)
        d.finish(stays)
        assert all(len(batch) == 1 for batch in d.gate.batches[batches:])
        assert d.model.stopped in ([9], [8])
        assert responses(stays) == [2, 1, 0]
        assert d.runner.gauges() == {"countdown_0": {"stopped": 1}}


def test_one_that_cannot_start_ends_alone() -> None:
    with desk() as d:
        good, bad = d.ask(2), d.ask(-1)
        d.finish(good)
        error = bad.error()
        assert isinstance(error, InvalidRequest)
        assert str(error) == "n must not be negative"
        assert responses(good) == [1, 0]


def test_one_that_fails_in_a_step_ends_alone() -> None:
    with desk() as d:
        good, bad = d.ask(2), d.ask(500)
        d.finish(good)
        assert isinstance(bad.error(), ModelFailed)
        assert "I do not like 500" in str(bad.error())
        assert responses(good) == [1, 0]


def test_what_step_raises_ends_all_that_are_active_and_the_model_goes_on() -> None:
    with desk() as d:
        first, second = d.ask(5), d.ask(6)
        d.model.broken = True
        d.finish(first, second)
        assert isinstance(first.error(), ModelFailed)
        assert isinstance(second.error(), ModelFailed)
        assert sorted(d.model.stopped) == [5, 6]
        d.model.broken = False
        third = d.ask(1)
        d.finish(third)
        assert responses(third) == [0]


class AheadOfService(StepInstance):
    """Its only step is over before it is served, as it may be in the loop of a worker's sockets."""

    def __init__(self) -> None:
        super().__init__("ahead_0", Device())
        self.stepped, self.closed = threading.Event(), threading.Event()

    def join(self, key: int, columns: Any) -> None:
        threading.Thread(target=self.step, args=(key,)).start()

    def step(self, key: int) -> None:
        self.hand_out(self, Stepped([Share(key, [{"output": np.array([7])}], done=True)]))
        self.stepped.set()

    def serve(self) -> None:
        self.stepped.wait(TIMEOUT)
        self.closed.wait(TIMEOUT)

    def stop(self) -> None:
        self.closed.set()

    def load(self) -> None: ...
    def leave(self, key: int) -> None: ...
    def unload(self) -> None: ...


def test_a_step_that_is_over_before_its_instance_is_served_is_not_lost() -> None:
    with desk(make=AheadOfService) as it:
        call = it.ask(1)
        call.wait()
        assert responses(call) == [7]


def test_a_model_that_cannot_go_on_is_loaded_anew() -> None:
    with desk() as d:
        begun = d.ask(5)
        assert d.step() == [5]
        new = d.ask(1)
        d.gate.started()
        d.model.dead = True
        d.finish(begun, new)
        assert isinstance(begun.error(), wherry.WorkerDied)
        assert responses(new) == [0]  # it had no response yet, and was tried once more
        assert (d.model.loads, d.runner.statistics.worker_restarts) == (2, 1)


def test_a_request_that_ends_its_model_is_refused_and_its_neighbours_are_answered() -> None:
    """Those that were there are tried one after the other, until each has a response."""
    with desk() as d:
        calls = [d.ask(n) for n in (1, 1, 666, 1, 666)]
        d.gate.open(1000)

        def all_answered() -> bool:
            d.timer.advance(0.1)  # it may wait to be loaded again
            return all(call.answered for call in calls)

        until(all_answered)
        assert [responses(calls[i]) for i in (0, 1, 3)] == [[0], [0], [0]]
        for bad in (calls[2], calls[4], d.ask(666)):
            assert isinstance(bad.error(), wherry.PoisonRequest)
        assert d.model.loads <= 4
        good = d.ask(1)
        d.finish(good)
        assert responses(good) == [0]


def test_too_few_steps_are_named_as_the_models_mistake() -> None:
    with desk() as d:
        call = d.ask(1000)
        d.finish(call)
        error = call.error()
        assert isinstance(error, BadModelOutput)
        assert "one wherry.Step for each of the 1 active requests" in str(error)


@pytest.mark.parametrize("responses", ["word", iter(["word"]), {"word": 1}])
def test_responses_that_are_no_list_are_named_and_the_model_may_go_on(responses: Any) -> None:
    class Speaker(wherry.StepModel):
        def start(self, n: int) -> int:
            return n

        def step(self, active: list[int]) -> list[wherry.Step[str]]:
            return [wherry.Step(["word"] if n else responses, done=True) for n in active]

    loop = StepLoop(Speaker(), Speaker().config())
    assert loop.join(0, {"n": np.array([0])}) is None
    assert loop.join(1, {"n": np.array([1])}) is None
    bad, good = loop.step()
    assert bad.failure is not None
    assert "responses of a wherry.Step must be a list" in bad.failure.message
    assert (good.responses, good.done) == ([{"output": ["word"]}], True)


def test_a_deadline_ends_a_request_that_waits_and_one_that_runs() -> None:
    with desk(max_batch_size=1) as d:
        runs, waits = d.ask(100, timeout=5.0), d.ask(1, timeout=3.0)
        d.gate.started()
        d.timer.advance(3.0)
        assert isinstance(waits.error(), DeadlineExceeded)
        assert not runs.answered
        d.timer.advance(2.0)
        assert isinstance(runs.error(), DeadlineExceeded)
        assert d.runner.queued_requests == 0
        d.gate.open(2)
        late = d.ask(1, timeout=0.0)
        assert isinstance(late.error(), DeadlineExceeded)


def test_a_full_queue_refuses() -> None:
    with desk(max_batch_size=1, max_queue_size=2) as d:
        d.ask(1)
        d.ask(1)
        d.ask(1)
        refused = d.ask(1)
        assert isinstance(refused.error(), QueueFull)
        assert refused.error().retry_after is not None  # type: ignore[attr-defined]


def test_who_would_wait_too_long_for_the_first_response_is_refused() -> None:
    with desk(max_batch_size=1, max_queue_wait=42.0) as d:
        for _ in range(2):
            slow = d.ask(1)
            d.gate.started()
            d.clock.now += 4.0  # so long takes a first response
            d.gate.open()
            slow.wait()
        accepted = [d.ask(1) for _ in range(12)]
        error = d.ask(1).error()
        assert isinstance(error, Overloaded)
        text = "its first response would take about 52.000 s, longer than max_queue_wait (42 s)"
        assert text in str(error)
        assert error.retry_after == pytest.approx(10.0)
        assert isinstance(d.ask(1, timeout=3.0).error(), Overloaded)
        d.gate.open(12)
        assert [responses(call) for call in accepted if call.wait()] == [[0]] * 12


def test_a_waiting_request_is_given_up_once_first_responses_turn_out_to_be_slow() -> None:
    with desk(max_batch_size=1, max_queue_wait=40.0) as d:
        asked = [d.ask(1) for _ in range(100)]
        for call in asked[:2]:
            d.gate.started()
            d.clock.now += 4.0
            d.gate.open()
            call.wait()
        for call in asked[-80:]:
            assert isinstance(call.error(), Overloaded)
        assert not any(call.answered for call in asked[2:11])
        d.gate.open(98)
        assert [responses(call) for call in asked[2:11] if call.wait()] == [[0]] * 9


def test_several_rows_are_refused() -> None:
    with desk() as d:
        call = Call(1, 2, name="n", stream=True)
        d.runner.submit([call.request])
        assert isinstance(call.error(), Unsupported)


def test_a_reader_who_does_not_read_is_left_behind_and_holds_nobody_up() -> None:
    with desk() as d:
        lazy, good = d.ask(50), d.ask(10)
        lazy.request.reply.limit = 3  # type: ignore[attr-defined]
        good.request.reply.limit = 100  # type: ignore[attr-defined]
        d.finish(good)
        assert isinstance(lazy.error(), Cancelled)
        assert responses(lazy) == [49, 48, 47]
        assert len(responses(good)) == 10


def test_a_reader_is_not_behind_for_what_one_step_hands_over() -> None:
    with desk() as d:
        whole = d.ask(300)
        whole.request.reply.limit = 3  # type: ignore[attr-defined]
        d.finish(whole)
        assert responses(whole) == [*range(300)]
        assert isinstance(whole.wait(), InferResponse)


def test_drain_waits_for_streams_and_takes_no_more() -> None:
    with desk() as d:
        call = d.ask(2)
        d.gate.started()
        assert not d.runner.drain(0.0)
        assert isinstance(d.ask(1).error(), ModelNotReady)
        d.gate.open(2)
        assert d.runner.drain(TIMEOUT)
        assert responses(call) == [1, 0]
        assert d.runner.not_ready_reason() == "unloading"


def test_close_ends_what_is_still_here() -> None:
    with desk(max_batch_size=1) as d:
        runs, waits = d.ask(100), d.ask(1)
        d.gate.started()
        with threads(1, lambda _: d.runner.close()):
            assert isinstance(runs.error(), ModelNotReady)
            assert isinstance(waits.error(), ModelNotReady)
            d.gate.open(1000)
        assert d.runner.running() == []


def test_parameters_of_a_request_reach_the_input_of_that_name() -> None:
    seen: list[dict[str, Any]] = []

    class Wishes(wherry.StepModel):
        def start(self, text: str, parameters: dict[str, Any] = {}) -> str:  # noqa: B006
            seen.append(parameters)
            return text

        def step(self, active: list[str]) -> list[wherry.Step[str]]:
            return [wherry.Step([text], done=True) for text in active]

    with wherry.Runtime(Wishes()) as runtime:
        loaded = runtime.model("wishes")
        for given in ({}, {"parameters": {"b": 3}}):
            call = Call("x", name="text", stream=True)
            columns = loaded.row_columns((), {"text": "x", **given})
            request = loaded.request(columns, 1, call.request.reply, parameters={"a": 1, "b": 2})
            loaded.submit([request])
            call.wait()
    assert seen == [{"a": 1, "b": 2}, {"a": 1, "b": 3}]
