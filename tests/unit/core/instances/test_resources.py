"""How do the dispatchers of several models agree on what they share?"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import wherry
from tests.fakes import (
    TIMEOUT,
    Call,
    Gate,
    ManualClock,
    ManualDispatcher,
    desk,
    gated,
    threads,
    until,
)
from wherry.core.instances.resources import Resources
from wherry.core.runtime.runtime import Runtime
from wherry.core.values.errors import Cancelled, ConfigError

GPU = {"gpu": 1}


class Shop:
    """Models behind gates that share resources; their clock is the test's."""

    def __init__(self, stack: ExitStack, limits: dict[str, int] | None = None) -> None:
        self.clock = ManualClock(1000.0)
        self.resources = Resources(limits, self.clock)
        self._stack = stack

    def open(self, name: str, **settings: Any) -> tuple[ManualDispatcher, Gate]:
        gate = Gate()
        model = gated(gate, **{"name": name, "resources": GPU, "max_batch_size": 1, **settings})
        one = desk(model, gate=gate, clock=self.clock, resources=self.resources)
        return self._stack.enter_context(one), gate


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def test_a_batch_starts_when_that_of_another_model_has_ended(stack: ExitStack) -> None:
    shop = Shop(stack)
    (a, gate_a), (b, gate_b) = shop.open("a"), shop.open("b")
    first = a.ask("first")
    gate_a.started()
    second, third = b.ask("second"), a.ask("third")
    assert gate_b.batches == []
    gate_a.open()
    gate_b.started()
    assert first.rows() == ["FIRST"]
    assert gate_a.batches == [["first"]]
    gate_b.open()
    gate_a.open()
    assert (second.rows(), third.rows()) == (["SECOND"], ["THIRD"])
    assert repr(shop.resources) == "<Resources: <DeviceShare: gpu 0/1, 0 waiting>>"


def test_what_came_while_a_batch_waited_for_its_turn_runs_with_it(stack: ExitStack) -> None:
    shop = Shop(stack)
    (a, gate_a), (b, gate_b) = shop.open("a"), shop.open("b", max_batch_size=8)
    a.ask("a")
    gate_a.started()
    calls = [b.ask("x"), b.ask("y"), b.ask("z")]
    gate_b.open()
    gate_a.open()
    assert [call.rows() for call in calls] == [["X"], ["Y"], ["Z"]]
    assert gate_b.batches == [["x", "y", "z"]]


def test_with_two_of_it_two_run_at_a_time_also_of_one_model(stack: ExitStack) -> None:
    shop = Shop(stack, {"gpu": 2})
    a, gate_a = shop.open("a", instances=3)
    b, gate_b = shop.open("b")
    calls = [a.ask("1"), a.ask("2")]
    gate_a.started()
    gate_a.started()
    calls += [a.ask("3"), b.ask("4")]
    assert len(gate_a.batches) == 2
    assert gate_b.batches == []
    gate_b.open()
    gate_a.open(3)
    assert [call.rows() for call in calls] == [["1"], ["2"], ["3"], ["4"]]


def test_a_wait_for_company_takes_nothing_from_others(stack: ExitStack) -> None:
    shop = Shop(stack)
    waits, gate_w = shop.open("waits", max_batch_size=2, max_queue_delay=1.0)
    b, gate_b = shop.open("b")
    held = waits.ask("held")
    gate_b.open()
    assert b.ask("b").rows() == ["B"]
    gate_w.open()
    waits.timer.advance(1.0)
    assert held.rows() == ["HELD"]


def test_a_model_whose_requests_were_all_cancelled_passes_its_turn_on(stack: ExitStack) -> None:
    shop = Shop(stack)
    (a, gate_a), (b, gate_b), (c, gate_c) = shop.open("a"), shop.open("b"), shop.open("c")
    a.ask("a")
    gate_a.started()
    gone = b.ask("gone")
    shop.clock.now += 1.0
    stays = c.ask("stays")
    assert b.dispatcher.cancel(gone.request)
    gate_c.open()
    gate_a.open()
    assert stays.rows() == ["STAYS"]
    assert gate_b.batches == []


def test_a_turn_that_nobody_needs_any_more_is_passed_on(stack: ExitStack) -> None:
    shop = Shop(stack)
    (a, gate_a), (b, gate_b) = shop.open("a"), shop.open("b")
    first, second = Call("first"), Call("second")

    def cancel_second(_: object) -> None:  # whose turn it is by now
        a.dispatcher.cancel(second.request)

    first.request.reply.first(cancel_second)
    a.dispatcher.submit([first.request, second.request])
    gate_a.open()
    assert first.rows() == ["FIRST"]
    assert isinstance(second.error(), Cancelled)
    gate_b.open()
    assert b.ask("b").rows() == ["B"]


def test_a_model_that_is_closed_while_it_waits_leaves_its_turn_to_others(stack: ExitStack) -> None:
    shop = Shop(stack)
    a, gate_a = shop.open("a")
    with ExitStack() as inner:
        shop._stack, outer = inner, shop._stack
        b, _ = shop.open("b")
        shop._stack = outer
        c, gate_c = shop.open("c")
        a.ask("a")
        gate_a.started()
        lost = b.ask("lost")
        shop.clock.now += 1.0
        stays = c.ask("stays")
    assert isinstance(lost.error(), wherry.ModelNotReady)
    gate_c.open()
    gate_a.open()
    assert stays.rows() == ["STAYS"]


def test_a_batch_that_hangs_gives_back_what_it_took(stack: ExitStack) -> None:
    shop = Shop(stack)
    hangs, gate_h = shop.open("hangs", execution_timeout=5.0, crash_budget=0)
    b, gate_b = shop.open("b")
    late = hangs.ask("late")
    gate_h.started()
    waits = b.ask("waits")
    gate_b.open()
    hangs.timer.advance(5.0)
    assert isinstance(late.error(), wherry.WorkerDied)
    assert waits.rows() == ["WAITS"]


def test_a_local_call_runs_in_its_own_thread_only_if_it_gets_what_it_needs() -> None:
    busy = threading.Semaphore(0)
    may_finish = threading.Semaphore(0)

    @wherry.model(resources=GPU)
    def slow(text: str) -> str:
        busy.release()
        assert may_finish.acquire(timeout=TIMEOUT)
        return threading.current_thread().name

    @wherry.model(resources=GPU)
    def quick(text: str) -> str:
        return threading.current_thread().name

    with Runtime(slow, quick) as runtime:
        here = threading.current_thread().name
        assert runtime.infer("quick", "x") == here
        names: list[str] = []
        caller = threading.Thread(target=lambda: names.append(runtime.infer("slow", "x")))
        caller.start()
        assert busy.acquire(timeout=TIMEOUT)
        waiting = threading.Thread(target=lambda: names.append(runtime.infer("quick", "x")))
        waiting.start()
        quick_runner = runtime.model("quick").runner
        until(lambda: quick_runner.queued_requests == 1)
        assert names == []
        may_finish.release()
        for thread in (caller, waiting):
            thread.join(TIMEOUT)
        assert sorted(names) == sorted([caller.name, "wherry-quick-0"])
        until(lambda: not quick_runner.running())  # its thread may still be on its way back
        assert runtime.infer("quick", "x") == here


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("settings", [{}, {"max_batch_size": 4}, {"run_in_caller": False}])
def test_however_many_call_no_more_run_than_there_is_and_everybody_is_answered(
    limit: int, settings: dict[str, Any]
) -> None:
    lock = threading.Lock()
    running, most = 0, 0

    def work(value: Any) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1
        return value

    def made(name: str) -> Any:
        if "max_batch_size" in settings:

            def model(n: list[int]) -> list[int]:
                return list(work(n))
        else:

            def model(n: int) -> int:  # type: ignore[misc] # the same, unbatched
                return int(work(n))

        return wherry.model(name=name, resources=GPU, instances=2, **settings)(model)

    answers: list[bool] = []

    def call(number: int) -> None:
        answers.extend(runtime.infer(f"m{(number + n) % 3}", n) == n for n in range(50))

    with Runtime(*(made(f"m{i}") for i in range(3)), resources={"gpu": limit}) as runtime:
        with threads(8, call):
            pass
        assert repr(runtime.resources).endswith(f"gpu 0/{limit}, 0 waiting>>")
    assert answers == [True] * 400
    assert most <= limit


def test_a_model_that_needs_more_than_there_is_cannot_be_loaded() -> None:
    @wherry.model(resources={"gpu": 3})
    def large(text: str) -> str:
        return text

    with pytest.raises(ConfigError, match=r"'large'.*needs 3 of 'gpu', and there are 2"):
        Runtime(large, resources={"gpu": 2}).start()


@pytest.mark.parametrize("limits", [{"gpu": 0}, {"gpu": "one"}, {"gpu": True}])
def test_a_limit_is_a_whole_number_from_1_up(limits: Any) -> None:
    with pytest.raises(ConfigError, match="'gpu' must be a whole number"):
        Runtime(resources=limits)


@pytest.mark.parametrize("needs", [{"gpu": 0}, {"gpu": -1}, {"gpu": "many"}, ["gpu"]])
def test_what_a_model_needs_is_whole_numbers_by_name(needs: Any) -> None:
    with pytest.raises(ConfigError, match=r"'odd'.*resources"):
        wherry.model(resources=needs, name="odd")(str.upper)
