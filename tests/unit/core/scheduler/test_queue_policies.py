"""How many requests of a priority may wait, how long, and what becomes of those that have?"""

import pytest

from tests.fakes import Call
from wherry.core.models.config import QueuePolicy
from wherry.core.scheduler.dynamic_batcher import DynamicBatcher
from wherry.core.scheduler.policy import Dispatch, Scheduler
from wherry.core.scheduler.self_tuning_batcher import SelfTuningBatcher
from wherry.core.values.request import InferRequest


def request(id: str, until: float | None = None, *, priority: int = 5) -> InferRequest:
    made = Call(id, priority=priority).request
    made.wait_until = until
    return made


@pytest.fixture(params=["fixed", "self-tuning"])
def make(request: pytest.FixtureRequest) -> type[Scheduler]:
    kinds: dict[str, type[Scheduler]] = {"fixed": DynamicBatcher, "self-tuning": SelfTuningBatcher}
    return kinds[request.param]


def batcher(make: type[Scheduler], *policies: QueuePolicy, rows: int = 1) -> Scheduler:
    return make(max_batch_size=rows, queue_policies=policies)  # type: ignore[call-arg]


def order(b: Scheduler, now: float) -> list[str]:
    ids = []
    while isinstance(action := b.next_action(now), Dispatch):
        ids += [request.id for request in action.batch.requests]
    return ids


def test_who_has_waited_long_enough_is_given_up_at_that_very_moment(make: type[Scheduler]) -> None:
    b = batcher(make, QueuePolicy(timeout=0.3))
    first, second = request("a", 0.3), request("b", 0.5)
    b.enqueue(first, 0.0)
    b.enqueue(second, 0.2)
    assert b.next_deadline() == 0.3
    assert b.expire(0.299) == []
    assert b.expire(0.3) == [first]
    assert b.next_deadline() == 0.5
    assert b.queue.queued_requests == 1


def test_a_request_that_runs_has_waited_enough_and_is_left_alone(make: type[Scheduler]) -> None:
    b = batcher(make, QueuePolicy(timeout=0.3))
    b.enqueue(request("a", 0.3), 0.0)
    assert order(b, 0.1) == ["a"]
    assert b.next_deadline() is None
    assert b.expire(1.0) == []


def test_a_delayed_request_goes_on_waiting_behind_all_others_of_its_level(
    make: type[Scheduler],
) -> None:
    b = batcher(make, QueuePolicy(timeout=0.3, timeout_action="delay"))
    for id, level in (("a", 2), ("b", 2), ("low", 3)):
        b.enqueue(request(id, 0.3 if id == "a" else None, priority=level), 0.0)
    assert b.expire(0.3) == []
    assert b.next_deadline() is None, "it waits for ever now"
    b.enqueue(request("c", priority=2), 0.3)
    assert b.queue.queued_requests == 4
    assert order(b, 0.4) == ["b", "c", "a", "low"]


def test_a_delayed_request_can_be_cancelled_and_keeps_its_deadline(make: type[Scheduler]) -> None:
    b = batcher(make, QueuePolicy(timeout=0.3, timeout_action="delay"))
    kept, gone = request("a", 0.3), request("b", 0.3)
    kept.deadline = 0.9
    b.enqueue(kept, 0.0)
    b.enqueue(gone, 0.0)
    assert b.expire(0.3) == []
    assert b.cancel(gone)
    assert b.next_deadline() == 0.9
    assert b.expire(0.9) == [kept]
    assert not b.queue.queued_requests


def test_each_level_has_its_own_bound_and_the_default_is_for_all_others(
    make: type[Scheduler],
) -> None:
    b = batcher(make, QueuePolicy(max_queue_size=1), QueuePolicy(level=2, max_queue_size=2))
    taken = [b.enqueue(request(str(n), priority=level), 0.0) for n, level in enumerate([2] * 3)]
    assert taken == [True, True, False]
    assert b.enqueue(request("x", priority=1), 0.0)
    assert not b.enqueue(request("y", priority=1), 0.0)
    assert b.enqueue(request("z", priority=3), 0.0)
    assert order(b, 0.0)[0] == "x"
    assert b.enqueue(request("y", priority=1), 0.0)


def test_a_level_without_any_policy_is_bounded_by_the_model_alone(make: type[Scheduler]) -> None:
    b = batcher(make, QueuePolicy(level=1, max_queue_size=1))
    assert all(b.enqueue(request(str(n), priority=2), 0.0) for n in range(9))
