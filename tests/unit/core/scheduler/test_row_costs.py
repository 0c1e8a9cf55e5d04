"""Which requests share a batch, where their sizes matter, and where they do not?"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.core.scheduler.costs import RowCosts
from wherry.core.scheduler.forecast import Forecast
from wherry.core.scheduler.queue import RequestQueue
from wherry.core.values.reply import Reply
from wherry.core.values.request import InferRequest, InferResponse

MOST = 8


def request(size: float, rows: int = 1, deadline: float | None = None) -> InferRequest:
    one = InferRequest({}, rows, Reply[InferResponse](lambda _: None), deadline=deadline)
    one.cost = size
    return one


def padded(requests: list[InferRequest]) -> float:
    rows, longest = sum(one.rows for one in requests), max(one.cost for one in requests)
    return (3 + 0.016 * rows * longest) * 1e-3


def constant(requests: list[InferRequest]) -> float:
    return 5e-3


def by_sum(requests: list[InferRequest]) -> float:
    return (1 + 0.01 * sum(one.rows * one.cost for one in requests)) * 1e-3


class World:
    """A queue that always holds so many requests, and batches of them one after the other."""

    def __init__(self, waiting: int, costs: RowCosts, seed: int = 1) -> None:
        self.costs = costs
        self.queue = RequestQueue()
        self.rng = random.Random(seed)
        self.waiting = waiting
        self.now = 0.0
        #: Batches in which requests that came later went first.
        self.reordered = 0
        #: By id() of a request that waits: batches since it came.
        self.passed: dict[int, int] = {}

    def run(self, seconds: Callable[[list[InferRequest]], float], batches: int) -> float:
        """Run batches of this model; rows a second."""
        started, rows = self.now, 0
        for _ in range(batches):
            while self.queue.queued_requests < self.waiting:
                one = request(int(min(512, max(8, self.rng.lognormvariate(4.4, 0.9)))))
                one.enqueued_at = self.now
                self.queue.push(one)
                self.passed[id(one)] = 0
            batch = self.take()
            took = seconds(batch) * self.rng.lognormvariate(0, 0.05)
            self.now += took
            self.costs.learn(batch, len(batch), max(one.cost for one in batch), took)
            rows += len(batch)
        return rows / (self.now - started)

    def take(self) -> list[InferRequest]:
        (lane,) = self.queue.lanes(self.now)
        in_order = list(lane.in_turn())
        chosen = self.costs.choose(lane, MOST, self.now)
        if chosen is None:
            batch = self.queue.take(lane, MOST)
        else:
            assert in_order[0] in chosen
            assert sum(one.rows for one in chosen) <= MOST
            batch = self.queue.take_these(lane, chosen)
            self.reordered += set(map(id, batch)) != set(map(id, in_order[: len(batch)]))
        for one in batch:
            del self.passed[id(one)]
        for one in self.queue.waiting():
            self.passed[id(one)] += 1
        # One that came behind at most `waiting` others is the oldest after so many batches.
        assert max(self.passed.values(), default=0) <= self.waiting
        return batch


def test_sizes_that_are_given_group_at_once_those_that_are_learnt_once_they_matter() -> None:
    learnt, given = World(64, RowCosts(known=False)), World(64, RowCosts())
    given.run(padded, 1)
    assert (learnt.costs.matter, given.costs.matter) == (False, True)
    learnt.run(padded, 40)
    assert learnt.costs.matter
    assert learnt.run(padded, 200) > 0.97 * given.run(padded, 200)


@pytest.mark.parametrize("waiting", [MOST, MOST + 2, 64])
@pytest.mark.parametrize("seconds", [constant, by_sum])
def test_where_sizes_do_not_matter_batches_run_in_order_but_for_a_few(
    seconds: Callable[[list[InferRequest]], float], waiting: int
) -> None:
    world = World(waiting, RowCosts(known=False))
    world.run(seconds, 1000)
    assert not world.costs.matter
    assert world.reordered <= 0.03 * 1000
    assert world.costs.per_row == 1.0


@pytest.mark.parametrize("other", [constant, by_sum])
def test_a_model_that_pads_or_ceases_to_is_followed_both_ways(
    other: Callable[[list[InferRequest]], float],
) -> None:
    world = World(64, RowCosts(known=False))
    for _ in range(2):
        world.run(other, 300)
        assert not world.costs.matter
        world.run(padded, 300)
        assert world.costs.matter


def test_it_costs_one_percent_of_the_time_to_see_what_padding_costs_now() -> None:
    learnt, given = World(64, RowCosts(known=False), 2), World(64, RowCosts(), 2)
    learnt.run(padded, 100)
    given.run(padded, 100)
    assert learnt.run(padded, 2000) > 0.98 * given.run(padded, 2000)


def test_requests_of_one_size_go_in_order() -> None:
    world = World(64, RowCosts())
    world.run(padded, 100)
    while world.queue.queued_requests:
        world.take()
    world.passed.clear()
    for size in range(100, 132):
        world.queue.push(one := request(size % 7 + 100))
        world.passed[id(one)] = 0
    world.reordered = 0
    while world.queue.queued_requests:
        world.take()
    assert world.reordered == 0


@given(
    st.lists(st.tuples(st.floats(1, 1000), st.integers(1, 3)), min_size=1, max_size=80),
    st.integers(3, 20),
    st.booleans(),
)
def test_the_oldest_is_in_each_batch_and_no_batch_is_too_large(
    sizes: list[tuple[float, int]], most: int, urgent: bool
) -> None:
    costs, queue = RowCosts(), RequestQueue()
    World(32, costs).run(padded, 20)
    for size, rows in sizes:
        queue.push(request(size, rows, 1e-3 if urgent else None))
    left = len(sizes)
    while left:
        (lane,) = queue.lanes()
        oldest = lane.head
        chosen = costs.choose(lane, most, 0.0)
        batch = queue.take(lane, most) if chosen is None else queue.take_these(lane, chosen)
        assert oldest in batch
        assert sum(one.rows for one in batch) <= most
        assert len(set(map(id, batch))) == len(batch)
        left -= len(batch)


def test_one_that_would_be_late_is_not_passed_over() -> None:
    world = World(64, RowCosts())
    world.run(padded, 50)
    queue = RequestQueue()
    for n in range(20):
        queue.push(request(20))
        if n == 3:
            queue.push(urgent := request(500, deadline=world.now + 0.05))
    (lane,) = queue.lanes()
    chosen: Any = world.costs.choose(lane, MOST, world.now)
    assert urgent in chosen
    urgent.deadline = world.now + 60
    chosen = world.costs.choose(lane, MOST, world.now)
    assert urgent not in chosen


def test_without_sizes_nothing_is_learnt_and_nothing_chosen() -> None:
    forecast = Forecast()
    costs = forecast.costs = RowCosts(known=False)
    queue = RequestQueue()
    for _ in range(20):
        queue.push(request(1.0))
    (lane,) = queue.lanes()
    for _ in range(50):
        forecast.ended([request(1.0)] * 4, 0.01)
        assert costs.choose(lane, 4, 0.0) is None
    assert [point.rows for point in forecast.curve.points()] == [4]
    assert costs.explain()["batches_tried_by_size"] == 0
