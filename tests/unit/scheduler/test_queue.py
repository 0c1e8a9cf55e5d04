"""Which requests wait, in which order, and which of them may share a batch?"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes import Call
from wherry.errors import Cancelled
from wherry.request import InferRequest
from wherry.scheduler import queue as queue_module
from wherry.scheduler.queue import RequestQueue


def request(
    id: str,
    rows: int = 1,
    *,
    at: float = 0.0,
    priority: int = 5,
    deadline: float | None = None,
    key: object = None,
) -> InferRequest:
    call = Call(*[id] * rows, priority=priority, deadline=deadline, shape_key=key)
    call.request.enqueued_at = at
    return call.request


def filled(*requests: InferRequest) -> RequestQueue:
    queue = RequestQueue()
    for one in requests:
        queue.push(one)
    return queue


def take(queue: RequestQueue, max_rows: int) -> list[str]:
    """The batch that the first lane gives."""
    return [r.id for r in queue.take(next(queue.lanes()), max_rows)]


def drained(queue: RequestQueue, max_rows: int) -> list[list[str]]:
    batches = []
    while queue.queued_requests:
        batches.append(take(queue, max_rows))
    assert list(queue.lanes()) == []
    return batches


@pytest.mark.parametrize(
    ("rows", "max_rows", "batches"),
    [
        ([1, 1, 1, 1, 1], 2, [["0", "1"], ["2", "3"], ["4"]]),
        ([1, 2, 3], 3, [["0", "1"], ["2"]]),
        ([3, 1, 1], 3, [["0"], ["1", "2"]]),
        ([5, 1], 3, [["0"], ["1"]]),
        ([1, 5, 1], 3, [["0"], ["1"], ["2"]]),
        ([1, 1, 1], 100, [["0", "1", "2"]]),
    ],
)
def test_the_longest_run_of_rows_that_fits_is_taken_and_the_first_in_any_case(
    rows: list[int], max_rows: int, batches: list[list[str]]
) -> None:
    queue = filled(*[request(str(n), count) for n, count in enumerate(rows)])
    assert drained(queue, max_rows) == batches


def test_a_better_priority_is_served_first_and_never_shares_a_batch_with_a_worse_one() -> None:
    queue = filled(
        request("slow", at=0.0, priority=9),
        request("normal", at=1.0),
        request("fast", at=2.0, priority=1),
        request("slow too", at=3.0, priority=9),
    )
    assert drained(queue, 10) == [["fast"], ["normal"], ["slow", "slow too"]]


def test_within_a_priority_the_lane_whose_head_is_oldest_is_served_first() -> None:
    queue = filled(
        request("a1", at=0.0, key="a"),
        request("b1", at=1.0, key="b"),
        request("a2", at=2.0, key="a"),
        request("b2", at=3.0, key="b"),
    )
    assert take(queue, 1) == ["a1"]
    assert take(queue, 2) == ["b1", "b2"]
    assert take(queue, 2) == ["a2"]


def test_a_request_that_runs_alone_shares_with_nobody() -> None:
    queue = filled(request("x", at=1.0))
    for n in range(2):
        queue.push(request(f"alone {n}", at=0.0), alone=True)
    queue.push(request("y", at=2.0))
    assert drained(queue, 10) == [["alone 0"], ["alone 1"], ["x", "y"]]


def test_a_cancelled_request_is_forgotten_wherever_it_stands() -> None:
    requests = [request(str(n)) for n in range(5)]
    queue = filled(*requests)
    for n in (0, 2, 4):
        assert queue.remove(requests[n])
        assert not queue.remove(requests[n])
    assert queue.queued_requests == 2
    assert next(queue.lanes()).rows == 2
    assert drained(queue, 10) == [["1", "3"]]


def test_a_taken_request_cannot_be_cancelled_here() -> None:
    one = request("a")
    queue = filled(one)
    take(queue, 1)
    assert not queue.remove(one)
    assert queue.queued_requests == 0


def test_a_cancelled_request_lets_go_of_its_tensors() -> None:
    one = request("a")
    queue = filled(request("head"), one)
    queue.remove(one)
    assert one.inputs == {}


def test_cancelling_one_that_runs_alone_leaves_the_rows_of_its_old_lane_alone() -> None:
    queue = filled(request("x"), request("y"))
    alone = request("alone")
    queue.push(alone, alone=True)
    assert queue.remove(alone)
    (lane,) = queue.lanes()
    assert lane.rows == 2


def test_deadlines_are_told_in_their_order_and_those_of_answered_requests_are_not() -> None:
    early, late, never = request("e", deadline=1.0), request("l", deadline=2.0), request("n")
    queue = filled(late, early, never)
    assert queue.next_deadline == 1.0
    early.reply.settle(Cancelled("gone"))
    assert queue.next_deadline == 2.0
    assert queue.expire(1.9) == []
    assert queue.expire(2.0) == [late]
    assert queue.next_deadline is None
    assert queue.queued_requests == 2  # the cancelled one was not removed by its caller


def test_a_running_request_expires_too() -> None:
    one = request("a", deadline=1.0)
    queue = filled(one)
    take(queue, 1)
    assert queue.expire(1.0) == [one]
    assert queue.expire(5.0) == []


def test_clear_gives_back_everything_that_waits_and_nothing_else() -> None:
    gone, waiting = request("gone"), request("waiting", key="other")
    queue = filled(gone, waiting)
    queue.remove(gone)
    assert queue.clear() == [waiting]
    assert queue.queued_requests == 0
    assert list(queue.lanes()) == []
    assert not queue.remove(waiting)


class Counting(list[Any]):
    """A deque or heap that counts how many elements anybody has looked at or moved."""

    looked_at = 0

    def popleft(self) -> Any:
        Counting.looked_at += 1
        return self.pop(0)

    def __iter__(self) -> Iterator[Any]:
        for element in super().__iter__():
            Counting.looked_at += 1
            yield element

    def __getitem__(self, index: Any) -> Any:
        Counting.looked_at += 1
        return super().__getitem__(index)


def test_cancelling_a_long_queue_looks_at_each_request_a_few_times_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_module, "deque", Counting)
    count = 4_000  # Counting.popleft itself moves all others
    requests = [request(str(n), deadline=1e9 + n) for n in range(count)]
    queue = filled(*requests)
    Counting.looked_at = 0
    for one in reversed(requests[1:]):
        queue.remove(one)
        one.reply.settle(Cancelled("gone"))
    assert next(iter(queue.lanes())).rows == 1
    assert take(queue, 8) == ["0"]
    assert list(queue.lanes()) == []
    assert Counting.looked_at < 8 * count


def test_a_hundred_thousand_cancelled_requests_leave_nothing_behind() -> None:
    head = request("head")
    queue = filled(head)
    for n in range(100_000):
        one = request("x", deadline=float(n))
        queue.push(one)
        queue.remove(one)
        one.reply.settle(Cancelled("gone"))
    (lane,) = queue.lanes()
    assert (lane.rows, queue.queued_requests) == (1, 1)
    assert len(lane.requests) < 1000
    assert len(queue._deadlines) < 1000
    assert drained(queue, 8) == [["head"]]


def test_answered_requests_are_not_kept_until_their_deadline() -> None:
    """A slow one with an early deadline must not hold the tensors of all that come after it."""
    slow = request("slow", deadline=1.0)
    queue = filled(slow)
    take(queue, 1)
    for n in range(10_000):
        one = request("x", deadline=2.0 + n)
        queue.push(one)
        take(queue, 1)
        one.reply.settle(Cancelled("answered"))
    assert len(queue._deadlines) < 1000
    assert queue.next_deadline == 1.0


def test_one_that_was_chosen_and_came_back_alone_stands_in_one_lane_only() -> None:
    """It was behind others when it was taken, so its old place is still there."""
    head, chosen, last = request("head"), request("chosen"), request("last")
    queue = filled(head, chosen, last)
    (lane,) = queue.lanes()
    assert queue.take_these(lane, [chosen]) == [chosen]
    queue.push(chosen, alone=True)
    assert lane.rows == 2
    assert queue.clear() == [head, last, chosen]
    queue = filled(request("head"), again := request("chosen"))
    (lane,) = queue.lanes()
    queue.take_these(lane, [again])
    queue.push(again, alone=True)
    assert drained(queue, 8) == [["head"], ["chosen"]]
