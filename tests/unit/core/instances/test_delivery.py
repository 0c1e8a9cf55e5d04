"""What callers get and when: order of arrival, counted before it leaves, no lock held."""

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import TIMEOUT, Call, ManualClock
from tests.properties import seeds
from wherry.core.instances.delivery import ArrivalOrder, Delivery
from wherry.core.observability.statistics import ModelStatistics
from wherry.core.values.errors import Cancelled
from wherry.core.values.request import InferRequest, InferResponse


def arrived(*requests: str) -> ArrivalOrder[str, int]:
    order: ArrivalOrder[str, int] = ArrivalOrder()
    for request in requests:
        order.arrived(request)
    return order


def test_an_answer_waits_for_those_before_it() -> None:
    order = arrived("a", "b", "c")
    assert order.answered("c", 3) == []
    assert order.answered("a", 1) == [("a", 1)]
    assert order.answered("b", 2) == [("b", 2), ("c", 3)]
    assert len(order) == 0


def test_who_has_left_holds_nobody_up() -> None:
    order = arrived("a", "b", "c")
    assert order.answered("b", 2) == []
    assert order.left("a") == [("b", 2)]
    assert order.left("a") == []
    assert order.answered("c", 3) == [("c", 3)]


def test_who_was_never_let_in_is_answered_at_once() -> None:
    assert arrived("a").answered("x", 0) == [("x", 0)]


@pytest.mark.parametrize("seed", seeds(20))
def test_whatever_is_answered_first_the_order_holds_and_nothing_stays(seed: int) -> None:
    chance = random.Random(seed)
    names = [str(n) for n in range(30)]
    order = arrived(*names)
    left = {name for name in names if chance.random() < 0.3}
    told: list[str] = []
    for name in chance.sample(names, len(names)):
        leaving = order.left(name) if name in left else order.answered(name, int(name))
        told += [request for request, _ in leaving]
        assert all(int(request) == answer for request, answer in leaving)
    assert told == [name for name in names if name not in left]
    assert len(order) == 0


def delivery(*, in_order: bool = True) -> Delivery:
    return Delivery("m", ModelStatistics(), ManualClock(), in_order=in_order)


def answer(request: InferRequest) -> tuple[InferRequest, InferResponse]:
    assert request.reply.claim()
    return request, InferResponse({"output": [request.id]})


@given(st.permutations(range(6)), st.sets(st.integers(0, 5)))
def test_answers_leave_in_order_of_arrival_and_errors_at_once(
    ends: list[int], failing: set[int]
) -> None:
    one, left = delivery(), list[int]()
    calls = [Call(number) for number in range(6)]
    for number, call in enumerate(calls):
        call.request.reply.first(lambda _, number=number: left.append(number))  # type: ignore[misc]
        one.arrived([call.request])
    for number in ends:
        request = calls[number].request
        if number in failing:
            assert request.reply.claim()
            one.fail(request, Cancelled("gone"))
            assert number in left, "an error waits for no other request"
        else:
            one.answer([answer(request)])
    assert sorted(left) == list(range(6))
    answered = [number for number in left if number not in failing]
    assert answered == sorted(answered)


def test_without_an_order_answers_leave_at_once() -> None:
    one, (first, second) = delivery(in_order=False), (Call("a"), Call("b"))
    one.arrived([first.request])
    one.arrived([second.request])
    one.answer([answer(second.request)])
    assert (first.answered, second.answered) == (False, True)


def test_another_thread_is_not_held_up_by_a_caller_that_takes_its_answer_slowly() -> None:
    """It leaves its answer to the thread that is at it, which keeps the order."""
    one, told, may_go_on = delivery(), threading.Event(), threading.Event()
    slow, quick = Call("slow"), Call("quick")

    def taken(_: object) -> None:
        told.set()
        assert may_go_on.wait(TIMEOUT)

    slow.request.reply.first(taken)
    for call in (slow, quick):
        one.arrived([call.request])
    thread = threading.Thread(target=lambda: one.answer([answer(slow.request)]))
    thread.start()
    assert told.wait(TIMEOUT)
    one.answer([answer(quick.request)])  # it returns
    assert not quick.answered
    may_go_on.set()
    thread.join()
    assert (slow.answered, quick.answered) == (True, True)


def test_a_caller_that_raises_takes_no_answer_from_others() -> None:
    one, (bad, good) = delivery(), (Call("bad"), Call("good"))

    def raises(_: object) -> None:
        raise ValueError("a bug")

    bad.request.reply.first(raises)
    for call in (bad, good):
        one.arrived([call.request])
    one.answer([answer(bad.request), answer(good.request)])
    assert good.answered


class Loop:
    """An event loop whose turn the test takes."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[[Any], None], Any]] = []

    def call(self, callback: Callable[[Any], None], argument: Any) -> None:
        self.calls.append((callback, argument))

    def turn(self) -> None:
        for callback, argument in self.calls:
            callback(argument)


def test_a_loop_is_told_of_all_its_answers_by_one_call_and_in_its_turn() -> None:
    one, loops = delivery(in_order=False), (Loop(), Loop())
    calls = [Call(number) for number in range(5)]
    for call, loop in zip(calls, (loops[0], loops[1], loops[0], None, loops[0]), strict=True):
        call.request.reply.loop = loop
    one.answer([answer(call.request) for call in calls])
    assert [call.answered for call in calls] == [False, False, False, True, False]
    assert [len(loop.calls) for loop in loops] == [1, 1]
    loops[0].turn()
    assert [call.answered for call in calls] == [True, False, True, True, True]
    assert [call.rows() for call in calls[2:]] == [["2"], ["3"], ["4"]]


def test_a_bug_of_one_caller_in_a_loop_takes_no_answer_from_others() -> None:
    one, loop = delivery(in_order=False), Loop()
    calls = [Call(number) for number in range(4)]

    def raises(_: object) -> None:
        raise ValueError("a bug")

    for call in calls:
        call.request.reply.loop = loop
    calls[0].request.reply.on_done = calls[2].request.reply.on_done = raises
    one.answer([answer(call.request) for call in calls])
    with pytest.raises(ValueError, match="a bug"):
        loop.turn()
    assert [call.answered for call in calls] == [False, True, False, True]


def test_what_comes_first_comes_in_the_settling_thread_also_where_a_loop_awaits_the_reply() -> None:
    one, loop, call = delivery(in_order=False), Loop(), Call("a")
    told: list[str] = []
    call.request.reply.loop = loop
    call.request.reply.first(lambda _: told.append("first"))
    one.answer([answer(call.request)])
    assert (told, call.answered) == (["first"], False)
    loop.turn()
    assert (told, call.answered) == (["first"], True)


def test_an_outcome_is_counted_before_it_leaves() -> None:
    statistics, seen = ModelStatistics(), list[tuple[int, int]]()
    one = Delivery("m", statistics, ManualClock())
    for call in (good := Call("good"), bad := Call("bad")):
        call.request.reply.first(
            lambda _: seen.append((statistics.success.count, statistics.fail.count))
        )
    one.answer([answer(good.request)])
    assert bad.request.reply.claim()
    one.fail(bad.request, Cancelled("gone"))
    assert seen == [(1, 0), (1, 1)]
