"""When does a batch leave, and who is in it? Tables: time is an argument."""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.batching.simulator import Arrivals, Curve, Result, simulate
from tests.fakes import Call
from tests.properties import examples
from wherry.core.scheduler.dynamic_batcher import (
    FADING,
    LEARNT,
    LIKELY,
    OVERDUE,
    ArrivalForecast,
    DynamicBatcher,
)
from wherry.core.scheduler.policy import Action, Dispatch, Idle, Wait
from wherry.core.values.errors import Cancelled
from wherry.core.values.request import InferRequest

#: Seconds that a batch takes.
BATCH = 0.1


def in_a_loop(
    arrivals: ArrivalForecast, callers: int, back: float, batches: int, now: float
) -> float:
    """So many callers are answered together and are back one after the other, the last after
    `back`; then their batch runs. When the last one ends."""
    for _ in range(batches):
        for n in range(callers):
            arrivals.arrived(now + back * (n + 1) / callers)
        now += back + BATCH
        arrivals.ended(callers, now)
    return now


def test_nothing_is_concluded_from_a_few_batches() -> None:
    arrivals = ArrivalForecast()
    now = in_a_loop(arrivals, 1, 0.001, LEARNT - 1, 0.0)
    arrivals.arrived(now + 0.001)
    assert arrivals.expected_until(now + 10.0) == now + 10.0
    assert arrivals.explain() == {"back_within_seconds": None, "others_per_second": None}


def test_nobody_is_expected_once_all_that_were_answered_are_back() -> None:
    arrivals = ArrivalForecast()
    now = in_a_loop(arrivals, 3, 0.003, 8, 0.0)
    for age in (0.001, 0.002):
        arrivals.arrived(now + age)
        assert abs(arrivals.expected_until(now + 10.0) - (now + OVERDUE * 0.003)) < 1e-9
    arrivals.arrived(now + 0.003)
    assert arrivals.expected_until(now + 10.0) == -inf
    assert arrivals.explain()["others_per_second"] == 0.0


def test_who_stays_away_is_waited_for_until_he_is_overdue_and_never_beyond_the_delay() -> None:
    arrivals = ArrivalForecast()
    now = in_a_loop(arrivals, 2, 0.004, 8, 0.0)
    arrivals.arrived(now + 0.002)
    assert arrivals.expected_until(now + 0.005) == now + 0.005
    now = in_a_loop(arrivals, 1, 0.002, 1, now)  # so he is given up
    arrivals.arrived(now + 0.002)
    assert arrivals.expected_until(now + 1.0) == -inf


def test_who_has_not_come_back_by_the_next_answer_is_given_up() -> None:
    arrivals = ArrivalForecast()
    now = in_a_loop(arrivals, 2, 0.004, 8, 0.0)
    arrivals.arrived(now + 0.002)  # the other one has left for good
    now += 0.1
    arrivals.ended(1, now)
    arrivals.arrived(now + 0.002)
    assert arrivals.expected_until(now + 1.0) == -inf


def test_callers_of_two_batches_that_end_together_are_both_expected() -> None:
    arrivals = ArrivalForecast()
    now = in_a_loop(arrivals, 2, 0.004, 8, 0.0)
    arrivals.ended(1, now + 0.001)  # another instance's
    arrivals.arrived(now + 0.002)
    arrivals.arrived(now + 0.003)
    assert arrivals.expected_until(now + 1.0) > now + 0.004
    arrivals.arrived(now + 0.004)
    assert arrivals.expected_until(now + 1.0) == -inf


def test_a_slow_return_is_believed_at_once_and_forgotten_slowly() -> None:
    arrivals = ArrivalForecast()
    now = in_a_loop(arrivals, 1, 0.001, 8, 0.0)
    now = in_a_loop(arrivals, 1, 0.050, 1, now)
    assert arrivals.explain()["back_within_seconds"] > 0.049
    now = in_a_loop(arrivals, 1, 0.001, 4, now)
    assert 0.030 < arrivals.explain()["back_within_seconds"] < 0.045
    in_a_loop(arrivals, 1, 0.001, 200, now)
    assert arrivals.explain()["back_within_seconds"] < 0.0011


def test_others_are_waited_for_as_long_as_half_a_one_is_likely() -> None:
    arrivals = ArrivalForecast()
    now = 0.0
    for _ in range(100):  # one is answered, and then every 10 ms somebody comes
        for n in range(10):
            arrivals.arrived(now + 0.01 * (n + 1))
        now += 0.1
        arrivals.ended(1, now)
    assert abs(arrivals.rate - 100.0) < 1e-6
    arrivals.arrived(now + 0.01)
    leaves_at = now + 0.03
    assert abs(arrivals.expected_until(leaves_at) - (leaves_at - LIKELY / 100.0)) < 1e-6
    # After four times the usual silence nobody is left of them.
    assert abs(arrivals.expected_until(now + 20.0) - (now + 0.01 + OVERDUE / 100.0)) < 1e-6


def test_others_who_have_stayed_away_for_long_are_forgotten() -> None:
    arrivals = ArrivalForecast()
    now = in_a_loop(arrivals, 1, 0.001, LEARNT, 0.0)
    arrivals.arrived(now + 0.001)
    arrivals.arrived(now + 0.002)  # a stranger
    arrivals.ended(2, now + 0.1)
    before = arrivals.rate
    assert before > 0.0
    now = in_a_loop(arrivals, 2, 0.001, 300, now + 0.1)
    assert arrivals.rate < before * FADING**250


def batcher(
    max_batch_size: int = 4,
    max_queue_delay: float = 0.0,
    preferred: tuple[int, ...] = (),
    max_queue_size: int | None = None,
    wait_when_mixed: bool = True,
) -> DynamicBatcher:
    return DynamicBatcher(
        max_batch_size=max_batch_size,
        max_queue_delay=max_queue_delay,
        preferred_batch_sizes=preferred,
        max_queue_size=max_queue_size,
        wait_when_mixed=wait_when_mixed,
    )


def request(
    id: str = "x",
    rows: int = 1,
    *,
    priority: int = 5,
    deadline: float | None = None,
    key: object = None,
) -> InferRequest:
    return Call(*[id] * rows, priority=priority, deadline=deadline, shape_key=key).request


def ids(action: Action) -> list[str]:
    assert isinstance(action, Dispatch), action
    return [r.id for r in action.batch.requests]


def reason(action: Action) -> str:
    assert isinstance(action, Dispatch), action
    return action.batch.reason


def test_an_empty_queue_is_idle() -> None:
    assert batcher().next_action(0.0) == Idle()
    assert batcher().may_run_alone(0.0)


def test_a_free_instance_takes_what_waits_at_once() -> None:
    b = batcher(4)
    for name in "abcde":
        assert b.enqueue(request(name), 0.0)
    full = b.next_action(0.0)
    assert (ids(full), reason(full)) == (list("abcd"), "full")
    rest = b.next_action(0.0)
    assert (ids(rest), reason(rest)) == (["e"], "idle")
    assert b.next_action(0.0) == Idle()
    assert repr(b) == "<DynamicBatcher: 0 queued, 2 running>"


def test_rows_are_counted_not_requests() -> None:
    b = batcher(4)
    for name, rows in (("a", 2), ("b", 2), ("c", 1)):
        b.enqueue(request(name, rows), 0.0)
    action = b.next_action(0.0)
    assert ids(action) == ["a", "b"]
    assert isinstance(action, Dispatch)
    assert action.batch.rows == 4


def test_a_model_without_a_batch_dimension_gets_one_request_at_a_time() -> None:
    b = batcher(0)
    b.enqueue(request("a"), 0.0)
    b.enqueue(request("b"), 0.0)
    assert [ids(b.next_action(0.0)), ids(b.next_action(0.0))] == [["a"], ["b"]]


def test_a_partial_batch_leaves_when_its_oldest_request_has_waited_long_enough() -> None:
    b = batcher(4, max_queue_delay=0.010)
    b.enqueue(request("a"), 0.000)
    b.enqueue(request("b"), 0.004)
    assert b.next_action(0.009) == Wait(until=0.010)
    action = b.next_action(0.010)
    assert (ids(action), reason(action)) == (["a", "b"], "delay")


def test_a_full_batch_does_not_wait() -> None:
    b = batcher(2, max_queue_delay=9.0)
    b.enqueue(request("a"), 0.0)
    assert b.next_action(0.0) == Wait(until=9.0)
    b.enqueue(request("b"), 0.0)
    assert (ids(b.next_action(0.0))) == ["a", "b"]


def test_a_preferred_size_leaves_early_and_the_largest_one_wins() -> None:
    b = batcher(8, max_queue_delay=1.0, preferred=(2, 4))
    b.enqueue(request("a"), 0.0)
    assert b.next_action(0.0) == Wait(until=1.0)
    b.enqueue(request("b"), 0.0)
    action = b.next_action(0.0)
    assert (ids(action), reason(action)) == (["a", "b"], "preferred")
    for name in "cdefg":
        b.enqueue(request(name), 0.0)
    assert ids(b.next_action(0.0)) == list("cdef")
    assert b.next_action(0.5) == Wait(until=1.0)


@pytest.mark.parametrize(
    ("rows", "leave"),
    [
        ([2], [1]),
        ([6], [1]),
        ([7], [1]),
        ([3], []),
        ([1, 3], []),
        ([1, 1, 1], [2]),
        ([1, 1, 1, 1, 1, 1], [6]),
        ([1, 5], [2]),
        ([3, 7], [1, 1]),
        ([3, 4], [1]),
        ([5, 2], [1, 1]),
        ([1] * 9, [6, 2]),
    ],
)
def test_preferred_sizes_are_those_of_whole_requests_from_the_head(
    rows: list[int], leave: list[int]
) -> None:
    """With sizes of 2 and 6 of at most 8: the numbers of requests that leave at once."""
    b = batcher(8, max_queue_delay=10.0, preferred=(2, 6))
    for number, size in enumerate(rows):
        b.enqueue(request(str(number), size), 0.0)
    for count in leave:
        assert len(ids(b.next_action(0.0))) == count
    left = sum(leave) == len(rows)
    assert b.next_action(0.0) == (Idle() if left else Wait(until=10.0))
    if not left:
        action = b.next_action(10.0)
        assert (len(ids(action)), reason(action)) == (len(rows) - sum(leave), "delay")


@pytest.mark.parametrize(
    ("rows", "leave", "why"),
    [
        ([1] * 5, [4, 1], ["preferred", "idle"]),
        ([1] * 8, [6, 2], ["preferred", "idle"]),
        ([1] * 10, [6, 4], ["preferred", "preferred"]),
        ([1] * 3, [3], ["idle"]),
        ([1, 2, 2], [3], ["idle"]),
        ([3, 5], [1, 1], ["preferred", "idle"]),
        ([8, 1], [1, 1], ["preferred", "idle"]),
    ],
)
def test_without_a_delay_a_preferred_size_leaves_if_there_is_one_and_else_what_there_is(
    rows: list[int], leave: list[int], why: list[str]
) -> None:
    """With sizes of 4 and 6 of at most 8: the numbers of requests that leave, one after another."""
    b = batcher(8, preferred=(4, 6))
    for number, size in enumerate(rows):
        b.enqueue(request(str(number), size), 0.0)
    actions = [b.next_action(0.0) for _ in leave]
    assert [len(ids(action)) for action in actions] == leave
    assert [reason(action) for action in actions] == why
    assert b.next_action(0.0) == Idle()


def test_after_the_delay_a_batch_is_as_large_as_can_be_whatever_is_preferred() -> None:
    b = batcher(8, max_queue_delay=1.0, preferred=(2, 6))
    for name in "abcdefghi":
        b.enqueue(request(name), 0.0)
    action = b.next_action(1.0)
    assert (ids(action), reason(action)) == (list("abcdefgh"), "full")


def test_one_that_cannot_join_ends_the_wait_of_those_before_it() -> None:
    b = batcher(8, max_queue_delay=1.0, preferred=(6,), wait_when_mixed=False)
    b.enqueue(request("a1", key="a"), 0.0)
    b.enqueue(request("a2", 3, key="a"), 0.1)
    assert b.next_action(0.1) == Wait(until=1.0)
    b.enqueue(request("b1", key="b"), 0.2)
    action = b.next_action(0.2)
    assert (ids(action), reason(action)) == (["a1", "a2"], "mixed")
    assert b.next_action(0.2) == Wait(until=1.2)
    b.enqueue(request("a3", key="a"), 0.3)
    assert ids(b.next_action(0.3)) == ["b1"]
    assert b.next_action(0.3) == Wait(until=1.3), "what passed its lane before is gone"


def test_of_those_that_came_while_nothing_was_free_only_the_last_wait() -> None:
    b = batcher(8, max_queue_delay=1.0, wait_when_mixed=False)
    for name, key in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("c1", "c")):
        b.enqueue(request(name, key=key), 0.0)
    assert ids(b.next_action(0.5)) == ["a1", "a2"]
    assert ids(b.next_action(0.5)) == ["b1"]
    assert b.next_action(0.5) == Wait(until=1.0)


def test_another_priority_ends_nobodys_wait() -> None:
    b = batcher(8, max_queue_delay=1.0, wait_when_mixed=False)
    b.enqueue(request("later", priority=5), 0.0)
    b.enqueue(request("now", priority=1), 0.0)
    assert b.next_action(0.5) == Wait(until=1.0)


def test_with_a_delay_nothing_runs_in_its_callers_thread() -> None:
    assert not batcher(4, max_queue_delay=0.01).may_run_alone(0.0)
    b = batcher(4)
    b.enqueue(request(), 0.0)
    assert not b.may_run_alone(0.0)


@pytest.mark.parametrize("deadline", [0.5, 1.0])
def test_a_batch_does_not_wait_past_the_deadline_of_its_head(deadline: float) -> None:
    b = batcher(4, max_queue_delay=1.0)
    b.enqueue(request("a", deadline=deadline), 0.0)
    action = b.next_action(0.0)
    assert (ids(action), reason(action)) == (["a"], "deadline")


def test_a_batch_does_not_wait_past_the_deadline_of_anybody_in_it() -> None:
    b = batcher(4, max_queue_delay=1.0)
    b.enqueue(request("patient"), 0.0)
    assert b.next_action(0.0) == Wait(until=1.0)
    b.enqueue(request("urgent", deadline=0.5), 0.1)
    assert ids(b.next_action(0.1)) == ["patient", "urgent"]


def test_a_deadline_after_the_delay_does_not_cut_it_short() -> None:
    b = batcher(4, max_queue_delay=1.0)
    b.enqueue(request("a", deadline=1.5), 0.0)
    assert b.next_action(0.0) == Wait(until=1.0)
    assert b.next_deadline() == 1.5


def test_lanes_wait_each_for_itself_and_the_first_that_is_ready_leaves() -> None:
    b = batcher(2, max_queue_delay=1.0)
    b.enqueue(request("a1", key="a"), 0.0)
    b.enqueue(request("b1", key="b"), 0.1)
    assert b.next_action(0.2) == Wait(until=1.0)
    b.enqueue(request("b2", key="b"), 0.2)
    assert ids(b.next_action(0.2)) == ["b1", "b2"]
    assert b.next_action(0.2) == Wait(until=1.0)
    assert ids(b.next_action(1.0)) == ["a1"]


def test_different_shapes_never_share_a_batch() -> None:
    b = batcher(8)
    for name, key in (("a", 1), ("b", 2), ("c", 1), ("d", 2)):
        b.enqueue(request(name, key=key), 0.0)
    assert [ids(b.next_action(0.0)), ids(b.next_action(0.0))] == [["a", "c"], ["b", "d"]]


def test_who_has_waited_long_is_not_overtaken_for_ever() -> None:
    b = batcher(1)
    b.enqueue(request("patient", priority=9), 0.0)
    b.enqueue(request("urgent", priority=1), 7.5)
    assert ids(b.next_action(7.5)) == ["urgent"]  # seven levels up is level 2
    b.enqueue(request("urgent too", priority=1), 8.5)
    assert ids(b.next_action(8.5)) == ["patient"]  # level 1 by now, and older


def test_a_better_priority_overtakes() -> None:
    b = batcher(8)
    b.enqueue(request("normal"), 0.0)
    b.enqueue(request("first", priority=1), 1.0)
    assert [ids(b.next_action(1.0)), ids(b.next_action(1.0))] == [["first"], ["normal"]]


def test_a_full_queue_refuses_and_a_cancelled_request_makes_room() -> None:
    b = batcher(4, max_queue_size=2)
    first = request("a")
    assert b.enqueue(first, 0.0)
    assert b.enqueue(request("b"), 0.0)
    assert not b.enqueue(request("c"), 0.0)
    assert b.cancel(first)
    assert b.enqueue(request("d"), 0.0)
    assert ids(b.next_action(0.0)) == ["b", "d"]


def test_a_request_whose_worker_died_comes_back_alone_even_into_a_full_queue() -> None:
    b = batcher(4, max_queue_size=1)
    lost = request("lost")
    b.enqueue(lost, 0.0)
    b.next_action(0.0)
    b.enqueue(request("next"), 1.0)
    b.requeue(lost, 2.0, alone=True)
    assert b.queue.queued_requests == 2
    assert ids(b.next_action(2.0)) == ["lost"]
    assert ids(b.next_action(2.0)) == ["next"]


def test_a_request_whose_worker_died_does_not_wait_for_company_that_it_may_not_have() -> None:
    b = batcher(4, max_queue_delay=10.0)
    lost = request("lost")
    b.enqueue(lost, 0.0)
    b.next_action(10.0)
    b.enqueue(request("next"), 11.0)
    lost.attempts, lost.enqueued_at = 1, 10.5
    b.requeue(lost, 11.0, alone=True)
    assert ids(b.next_action(11.0)) == ["lost"]
    assert b.next_action(11.0) == Wait(until=21.0)


def test_clear_empties_the_queue() -> None:
    b = batcher()
    requests = [request("a"), request("b", key=1)]
    for one in requests:
        b.enqueue(one, 0.0)
    assert list(b.clear()) == requests
    assert b.next_action(0.0) == Idle()


@dataclass
class Arrival:
    rows: int
    key: int
    priority: int
    patience: float | None
    gap: float
    leaves: bool


arrivals = st.lists(
    st.builds(
        Arrival,
        rows=st.sampled_from([1, 1, 2, 5]),
        key=st.sampled_from([0, 0, 1]),
        priority=st.sampled_from([5, 5, 1]),
        patience=st.sampled_from([None, None, 0.0015, 0.012, 0.1]),
        gap=st.sampled_from([0.0, 0.0, 0.001, 0.01, 0.05]),
        leaves=st.sampled_from([False, False, True]),
    ),
    max_size=40,
)


@dataclass
class Story:
    """What became of each request."""

    left: dict[int, float] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    expired: set[int] = field(default_factory=set)


@examples(3)
@given(
    arrivals=arrivals,
    max_batch_size=st.sampled_from([1, 3, 8, 16]),
    delay=st.sampled_from([0.0, 0.03]),
    preferred=st.booleans(),
    busy=st.sampled_from([0.0, 0.01]),
)
def test_every_request_leaves_once_in_order_never_late_in_no_batch_too_large(
    arrivals: list[Arrival], max_batch_size: int, delay: float, preferred: bool, busy: float
) -> None:
    """One instance, that is busy for `busy` seconds after each batch, and random callers."""
    sizes = (max(1, max_batch_size // 2),) if preferred else ()
    b = batcher(max_batch_size, delay, sizes)
    story, now, free_at = Story(), 0.0, 0.0
    requests: list[InferRequest] = []
    number: dict[InferRequest, int] = {}
    order_in_lane: dict[tuple[int, int], list[int]] = defaultdict(list)

    def expire(now: float) -> None:
        for one in b.expire(now):
            assert one.deadline is not None
            assert one.deadline <= now
            one.reply.settle(Cancelled("expired"))
            if number[one] not in story.left:
                story.expired.add(number[one])

    def serve(until: float) -> None:
        """Let the clock run to `until`, asking whenever the scheduler said and the instance can."""
        nonlocal now, free_at
        while True:
            moments = [until]
            if (deadline := b.next_deadline()) is not None:
                moments.append(max(now, deadline))
            if b.queue.queued_requests and free_at <= now:
                action = b.next_action(now)
                if isinstance(action, Dispatch):
                    check(action)
                    free_at = now + busy
                    continue
                assert isinstance(action, Wait), "requests wait, and it is idle"
                assert action.until > now
                moments.append(action.until)
            elif b.queue.queued_requests:
                moments.append(free_at)
            moment = min(moments)
            if moment >= until:
                now = until
                expire(now)
                return
            now = moment
            expire(now)

    def check(action: Dispatch) -> None:
        batch = action.batch
        assert batch.rows == sum(r.rows for r in batch.requests)
        assert batch.rows <= b.max_batch_size or len(batch.requests) == 1
        assert len({(r.shape_key, r.priority) for r in batch.requests}) == 1
        for one in batch.requests:
            assert number[one] not in story.left
            assert number[one] not in story.cancelled
            story.left[number[one]] = now
            order_in_lane[one.shape_key, one.priority].append(number[one])  # type: ignore[index] # an int
            one.reply.settle(Cancelled("done"))

    for n, arrival in enumerate(arrivals):
        serve(now + arrival.gap)
        deadline = None if arrival.patience is None else now + arrival.patience
        one = request(
            str(n), arrival.rows, priority=arrival.priority, deadline=deadline, key=arrival.key
        )
        number[one] = n
        requests.append(one)
        assert b.enqueue(one, now)
        victim = n // 2
        if arrival.leaves and b.cancel(requests[victim]):
            requests[victim].reply.settle(Cancelled("gone"))
            story.cancelled.add(victim)
    serve(now + 1000.0)

    assert b.queue.queued_requests == 0
    assert b.next_action(now) == Idle()
    ends = [*story.left, *story.cancelled, *story.expired]
    assert sorted(ends) == list(range(len(arrivals)))
    for lane in order_in_lane.values():
        assert lane == sorted(lane)
    if not busy:
        # A free instance: nobody waits longer than the delay, nobody expires in the queue.
        for n, at in story.left.items():
            assert at <= requests[n].enqueued_at + delay + 1e-9
        assert not story.expired


# A delay that nobody would come in


@pytest.mark.parametrize("callers", [1, 2, 3, 4, 10])
@pytest.mark.parametrize("milliseconds", [0.05, 5.0], ids=["a quick model", "a slow model"])
def test_callers_in_a_loop_do_not_wait_out_the_delay(callers: int, milliseconds: float) -> None:
    """Seed S3's table: at most 4 in a batch, a delay of 10 ms."""
    b = batcher(4, max_queue_delay=0.010)
    result = simulate(b, Curve(fixed=milliseconds), Arrivals(callers=callers, back=0.2e-3))
    rounds = -(-callers // 4)
    assert result.p99 < rounds * 1e-3 * milliseconds + 0.002
    assert result.mean_batch > 0.95 * min(4, callers)  # the loop is held together


def test_strangers_are_gathered_for_nearly_the_whole_delay() -> None:
    def run(always_wait: bool) -> Result:
        b = DynamicBatcher(max_batch_size=16, max_queue_delay=0.010, always_wait=always_wait)
        return simulate(b, Curve(fixed=1.0), Arrivals(rate=300.0))

    assert run(False).mean_batch > 0.9 * run(True).mean_batch


@pytest.mark.parametrize("delay", [0.2, 20.0])
@pytest.mark.parametrize("total", [100, 102])
def test_the_last_callers_of_a_loop_do_not_wait_for_those_who_are_done(
    delay: float, total: int
) -> None:
    """Seed S1: 20 callers, at most 10 in a batch of 50 ms."""
    b = batcher(10, max_queue_delay=delay)
    left: list[tuple[float, float, str, int]] = []

    class Seen:
        def enqueue(self, request: InferRequest, now: float) -> bool:
            return b.enqueue(request, now)

        def next_action(self, now: float) -> Action:
            action = b.next_action(now)
            if isinstance(action, Dispatch):
                oldest = min(r.enqueued_at for r in action.batch.requests)
                left.append((now, oldest, action.batch.reason, action.batch.rows))
            return action

        def finished(
            self, requests: Sequence[InferRequest], seconds: float | None, now: float
        ) -> None:
            b.finished(requests, seconds, now)

    arrivals = Arrivals(callers=20, back=1e-3)
    simulate(Seen(), Curve(fixed=50), arrivals, total=total)  # type: ignore[arg-type] # three of its methods
    assert [rows for *_, rows in left[:10]] == [10] * 10
    for at, oldest, reason, _ in left[10:]:
        assert reason == "no_arrivals_expected"
        assert at - oldest < 0.075  # the batch before it, and a moment


def test_nobody_leaves_in_vain_while_something_runs_elsewhere() -> None:
    b = DynamicBatcher(max_batch_size=4, max_queue_delay=1.0, instances=2)
    now = learnt_loop(b)
    b.enqueue(request("a"), now + 0.001)
    elsewhere = b.next_action(now + 0.001)
    assert reason(elsewhere) == "no_arrivals_expected"
    b.enqueue(request("b"), now + 0.002)
    assert b.next_action(now + 0.002) == Wait(until=now + 1.002)


def test_a_preferred_size_leaves_though_more_are_expected() -> None:
    b = batcher(4, max_queue_delay=1.0, preferred=(2,))
    now = 0.0
    for _ in range(8):
        for name in "abc":
            b.enqueue(request(name), now)
        assert reason(b.next_action(now)) == "preferred"
        b.finished([request("a"), request("b")], 0.1, now + 0.1)
        assert reason(b.next_action(now + 1.0)) in ("delay", "no_arrivals_expected")
        b.finished([request("c")], 0.1, now + 1.1)
        now += 1.2
    assert "back_within_seconds" in b.explain()


def learnt_loop(b: DynamicBatcher) -> float:
    """One caller, who is always back after 1 ms; when its last answer came."""
    now = 0.0
    for _ in range(8):
        b.enqueue(request(), now + 0.001)
        action = b.next_action(now + 0.001)
        if isinstance(action, Wait):
            action = b.next_action(action.until)
        assert isinstance(action, Dispatch)
        now += 2.0
        b.finished(action.batch.requests, 0.1, now)
    return now


@examples(2)
@given(
    gaps=st.lists(st.sampled_from([0.0, 0.0001, 0.001, 0.004, 0.02]), min_size=1, max_size=60),
    seconds=st.sampled_from([0.0001, 0.003, 0.05]),
    loop=st.integers(0, 5),
    instances=st.integers(1, 2),
)
def test_whatever_was_learnt_nobody_waits_longer_than_the_delay(
    gaps: list[float], seconds: float, loop: int, instances: int
) -> None:
    """Strangers by the list, and some callers in a loop beside them."""
    delay = 0.01
    b = DynamicBatcher(max_batch_size=4, max_queue_delay=delay, instances=instances)
    events: list[tuple[float, int, Sequence[InferRequest] | None]] = []
    number = 0

    def push(when: float, ended: Sequence[InferRequest] | None = None) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (when, number, ended))

    at = 0.0
    for gap in gaps:
        at += gap
        push(at)
    for _ in range(loop):
        push(0.0)
    looping, idle, asked = loop, instances, 0
    woken: set[int] = set()
    while events:
        now, n, ended = heapq.heappop(events)
        if ended is not None:
            idle += 1
            b.finished(ended, seconds, now)
            for _ in ended[:looping]:
                if asked < 300:
                    push(now + 0.0002)
        elif n not in woken:
            asked += 1
            b.enqueue(request(), now)
        while idle and b.queue.queued_requests:
            oldest = min(lane.oldest_at for lane in b.queue.lanes())
            action = b.next_action(now)
            if isinstance(action, Dispatch):
                idle -= 1
                push(now + seconds, action.batch.requests)
                continue
            assert isinstance(action, Wait)
            assert now < action.until <= oldest + delay
            push(action.until)
            woken.add(number)
            break
    assert not b.queue.queued_requests
