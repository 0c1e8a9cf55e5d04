"""Answers leave in the order in which their requests came."""

import random

import pytest

from wherry.core.scheduler.arrival_order import ArrivalOrder


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


@pytest.mark.parametrize("seed", range(20))
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
