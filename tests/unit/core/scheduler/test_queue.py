"""Which requests wait, in which order, and which of them may share a batch?"""

import random
from collections import defaultdict
from collections.abc import Iterator
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import Call
from tests.properties import seeds
from wherry.core.scheduler import queue as queue_module
from wherry.core.scheduler.queue import LEVEL_SECONDS, MANY, Deadlines, RequestQueue
from wherry.core.values.errors import Cancelled
from wherry.core.values.request import InferRequest


def request(
    id: str,
    rows: int = 1,
    *,
    at: float = 0.0,
    priority: int = 5,
    deadline: float | None = None,
    key: object = None,
    tenant: str = "",
) -> InferRequest:
    call = Call(*[id] * rows, priority=priority, deadline=deadline, shape_key=key)
    call.request.enqueued_at = at
    call.request.tenant = tenant
    return call.request


def filled(*requests: InferRequest) -> RequestQueue:
    queue = RequestQueue()
    for one in requests:
        queue.push(one)
    return queue


def take(queue: RequestQueue, max_rows: int) -> list[str]:
    """The batch that the first lane gives."""
    return [r.id for r in queue.take(queue.lanes()[0], max_rows)]


def drained(queue: RequestQueue, max_rows: int) -> list[list[str]]:
    batches = []
    while queue.queued_requests:
        batches.append(take(queue, max_rows))
    assert not queue.lanes()
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
    assert queue.lanes()[0].rows == 2
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
    assert not queue.lanes()
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
    assert not queue.lanes()
    assert Counting.looked_at < 8 * count


@pytest.mark.slow
def test_ten_thousand_cancelled_requests_leave_nothing_behind() -> None:
    head = request("head")
    queue = filled(head)
    for n in range(10_000):
        one = request("x", deadline=float(n))
        queue.push(one)
        queue.remove(one)
        one.reply.settle(Cancelled("gone"))
    (lane,) = queue.lanes()
    assert (lane.rows, queue.queued_requests) == (1, 1)
    assert sum(map(len, lane.tenants.values())) < 1000
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


# Tenants


def flood(queue: RequestQueue, count: int = 1000, **how: Any) -> None:
    for n in range(count):
        queue.push(request(f"greedy {n}", tenant="greedy", **how))


@pytest.mark.parametrize("max_rows", [1, 8])
@pytest.mark.parametrize("key", [None, "another shape"])
def test_a_polite_tenant_is_served_next_however_much_a_greedy_one_has_queued(
    max_rows: int, key: object
) -> None:
    queue = RequestQueue()
    flood(queue)
    take(queue, max_rows)
    queue.push(request("polite", at=1.0, tenant="polite", key=key))
    assert "polite" in take(queue, max_rows)
    assert take(queue, 1)[0].startswith("greedy")


def test_a_tenant_in_a_loop_shares_the_rows_equally_with_one_that_has_a_thousand_waiting() -> None:
    queue = RequestQueue()
    flood(queue)
    served = []
    for turn in range(100):
        if turn % 2 == 0:
            queue.push(request("polite", at=1.0 + turn, tenant="polite"))
        served += take(queue, 1)
    assert served.count("polite") == 50


def test_ever_new_tenants_do_not_keep_an_old_one_waiting_for_ever() -> None:
    queue = RequestQueue()
    flood(queue, 3)
    served = []
    for turn in range(12):
        for n in range(2):
            queue.push(request(f"new {turn} {n}", at=1.0 + turn, tenant=f"new {turn} {n}"))
        served += take(queue, 1)
    assert [who for who in served if who.startswith("greedy")] == ["greedy 0", "greedy 1"]


@pytest.mark.parametrize("how", ["taken", "cancelled"])
def test_a_lane_that_is_empty_serves_another_tenant_as_if_it_were_new(how: str) -> None:
    queue = filled(gone := request("gone", tenant="a"))
    if how == "taken":
        assert take(queue, 1) == ["gone"]
    else:
        assert queue.remove(gone)
    assert queue.rows_ahead(5, "b") == 0
    assert queue.oldest() is None
    queue.push(request("first", rows=2, at=1.0, tenant="b"))
    assert (queue.rows_ahead(5, "a"), queue.rows_ahead(5, "b"), queue.queued_rows) == (2, 2, 2)
    (lane,) = queue.lanes()
    assert (lane.head.id, lane.oldest_at, queue.oldest()) == ("first", 1.0, lane)
    assert drained(queue, 8) == [["first"]]
    assert queue.queued_rows == 0


def test_only_one_lane_that_is_empty_is_kept() -> None:
    queue = RequestQueue()
    for n in range(100):
        queue.push(request(str(n), key=n))
        assert take(queue, 1) == [str(n)]
    assert len(queue._lanes) <= 2


def test_turns_never_break_priority_but_a_second_of_waiting_counts_as_a_level() -> None:
    queue = RequestQueue()
    flood(queue, 3, priority=4)
    queue.push(request("polite", tenant="polite", priority=5))
    assert take(queue, 1) == ["greedy 0"]
    lanes = queue.lanes(now=1.5 * LEVEL_SECONDS)
    assert [lane.head.id for lane in lanes] == ["greedy 1", "polite"]
    queue.push(request("young", at=1.5 * LEVEL_SECONDS, tenant="young", priority=4))
    queue.push(request("old", at=0.0, tenant="young", priority=5))
    served = []
    while queue.queued_requests:
        served += [r.id for r in queue.take(queue.lanes(now=1.5 * LEVEL_SECONDS)[0], 1)]
    assert served == ["young", "greedy 1", "greedy 2", "polite", "old"]


@pytest.mark.parametrize("seed", seeds(30))
def test_whatever_happens_each_tenant_keeps_its_order_and_nobody_is_served_twice_in_a_round(
    seed: int,
) -> None:
    rng = random.Random(seed)
    queue = RequestQueue()
    waiting: defaultdict[str, list[InferRequest]] = defaultdict(list)
    served: list[str] = []
    for step in range(400):
        happens = rng.random()
        if happens < 0.55:
            tenant = rng.choice(["greedy"] * 5 + ["a", "b", "c"])
            deadline = step + 20.0 if rng.random() < 0.1 else None
            one = request(str(step), at=step, tenant=tenant, deadline=deadline)
            waiting[tenant].append(one)
            queue.push(one)
        elif happens < 0.65 and (several := [r for rs in waiting.values() for r in rs]):
            gone = rng.choice(several)
            assert queue.remove(gone)
            gone.reply.settle(Cancelled("gone"))
            waiting[gone.tenant].remove(gone)
        elif happens < 0.7:
            for gone in queue.expire(step):
                gone.reply.settle(Cancelled("late"))
                if gone in waiting[gone.tenant]:
                    waiting[gone.tenant].remove(gone)
        elif queue.queued_requests:
            before = {tenant: len(rs) for tenant, rs in waiting.items() if rs}
            batch = queue.take(queue.lanes(step)[0], rng.randint(1, 6))
            for one in batch:
                assert one is waiting[one.tenant].pop(0), "out of its tenant's order"
                served.append(one.tenant)
            counts = {tenant: sum(r.tenant == tenant for r in batch) for tenant in before}
            for tenant, count in counts.items():
                # Only who has no more may get less than another one, by more than one turn.
                assert count == before[tenant] or count >= max(counts.values()) - 1
        assert queue.queued_requests == sum(len(rs) for rs in waiting.values())
        assert queue.queued_rows == queue.queued_requests
    assert set(served) >= {"greedy", "a", "b", "c"}


def test_a_full_queue_has_room_for_a_tenant_below_its_share() -> None:
    queue = RequestQueue()
    flood(queue, 10)
    assert queue.is_full(10, request("greedy too", tenant="greedy"))
    assert not queue.is_full(11, request("greedy too", tenant="greedy"))
    assert not queue.is_full(None, request("greedy too", tenant="greedy"))
    for n in range(5):
        polite = request(f"polite {n}", tenant="polite")
        assert not queue.is_full(10, polite)
        queue.push(polite)
    assert queue.is_full(10, request("polite too", tenant="polite"))
    follower = request("the rest", tenant="greedy")
    follower.follows = True
    assert not queue.is_full(10, follower)


@pytest.mark.slow
def test_twenty_thousand_tenants_leave_nothing_behind_and_fill_no_queue_without_end() -> None:
    queue = RequestQueue()
    for n in range(20_010):
        one = request("x", at=n, tenant=str(n))
        if not queue.is_full(100, one):
            queue.push(one)
        if n % 7 == 0:
            take(queue, 1)
    assert queue.queued_requests == 100
    assert len(queue._served) <= MANY + 2 * 101
    assert len(drained(queue, 8)) == 13


def test_rows_ahead_are_those_of_better_priority_and_one_turn_of_every_other_tenant() -> None:
    queue = RequestQueue()
    flood(queue, 100)
    assert queue.rows_ahead(5, "greedy") == 100
    assert queue.rows_ahead(5, "polite") == 1
    assert queue.rows_ahead(4, "polite") == 0
    queue.push(request("polite", 3, tenant="polite"))
    queue.push(request("urgent", 7, tenant="polite", priority=1))
    assert queue.rows_ahead(1, "greedy") == 7
    assert queue.rows_ahead(5, "polite") == pytest.approx(110 * 5 / 102)


def test_a_queue_is_cut_from_the_worst_priority_and_each_tenants_end() -> None:
    queue = RequestQueue()
    kept = [Call("k", deadline=9.0).request, Call("k").request, Call("k").request]
    large = Call(*"abcdefgh", priority=9).request
    polite = Call("p").request
    polite.tenant = "polite"
    greedy = [Call(str(n)).request for n in range(10)]
    for n, one in enumerate((*kept, *greedy, polite, large)):
        one.enqueued_at = float(n)
        queue.push(one)
    assert queue.cut(100) == []
    assert queue.cut(15, most=2) == [large]
    assert queue.cut(6) == greedy[:1:-1]
    assert queue.cut(0) == [greedy[1], greedy[0], kept[2], kept[1], polite]
    assert queue.queued_requests == 1


def test_what_is_put_back_comes_first_in_its_lane_and_its_order() -> None:
    requests = [request(id, tenant=id[0]) for id in ("a1", "a2", "a3", "b1", "b2", "a4")]
    queue = filled(*requests)
    taken = queue.take(queue.lanes()[0], 4)
    assert [r.id for r in taken] == ["a1", "b1", "a2", "b2"]
    for one in reversed(taken):
        queue.put_back(one)
    assert queue.queued_requests == queue.queued_rows == 6
    assert sorted(r.id for r in queue.waiting()) == ["a1", "a2", "a3", "a4", "b1", "b2"]
    assert [r.id for r in queue.take(queue.lanes()[0], 6) if r.tenant == "a"] == [
        "a1", "a2", "a3", "a4"
    ]  # fmt: skip


def test_what_is_put_back_stands_in_its_lane_once_wherever_it_was_taken_from() -> None:
    requests = [request(id) for id in "abcd"]
    queue = filled(*requests)
    taken = queue.take_these(queue.lanes()[0], [requests[1], requests[2]])
    for one in reversed(taken):
        queue.put_back(one)
    assert drained(queue, 10) == [["b", "c", "a", "d"]]


def test_what_is_put_back_into_a_queue_without_its_lane_has_one_again() -> None:
    alone = request("alone", key="one")
    queue = filled(alone, request("other", key="another"))
    queue.take(queue.lanes()[0], 1)
    queue.put_back(alone)
    assert drained(queue, 10) in ([["alone"], ["other"]], [["other"], ["alone"]])


@given(
    st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 9)), st.booleans())), st.integers(0, 9)
)
def test_what_is_due_is_taken_once_and_in_order(
    added: list[tuple[int | None, bool]], now: int
) -> None:
    deadlines, open_ones = Deadlines(), list[int]()
    for deadline, settled in added:
        request = Call("a", deadline=deadline).request
        deadlines.add(request, deadline)
        if settled:
            request.reply.settle(Cancelled("gone"))
        elif deadline is not None:
            open_ones.append(deadline)
    due = [request.deadline for request in deadlines.take_due(now)]
    assert due == sorted(one for one in open_ones if one <= now)
    assert deadlines.next() == min((one for one in open_ones if one > now), default=inf)
    assert deadlines.take_due(now) == []
