"""What was decided for the last batches?"""

import sys

from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import Call
from tests.properties import examples
from wherry.core.scheduler.decisions import REMEMBERED, Decision
from wherry.core.scheduler.dynamic_batcher import DynamicBatcher
from wherry.core.scheduler.forecast import Forecast
from wherry.core.scheduler.policy import Action, Dispatch, Wait
from wherry.core.scheduler.self_tuning_batcher import SelfTuningBatcher
from wherry.core.scheduler.sequence_batcher import SequenceBatcher
from wherry.core.values.request import Batch, InferRequest, SequenceStep


def request(rows: int = 1, *, at: float = 0.0, tenant: str = "") -> InferRequest:
    one = Call(*["x"] * rows).request
    one.enqueued_at, one.tenant = at, tenant
    return one


def left(forecast: Forecast, one: InferRequest, now: float, instance: int = 0) -> InferRequest:
    forecast.began((one,), now, one.rows, 0, one.enqueued_at, "idle", instance)
    return one


def batch(action: Action) -> Batch:
    assert isinstance(action, Dispatch), action
    return action.batch


def test_a_batch_is_remembered_with_what_it_left_behind_and_what_it_took() -> None:
    b = DynamicBatcher(max_batch_size=4)
    assert b.decisions.last() == []
    for at in (1.0, 1.5, 1.7):
        b.enqueue(request(2), at)
    first = batch(b.next_action(2.0, 3))
    running = Decision(2.0, 4, 2, oldest_at=1.0, reason="full", instance=3)
    assert b.decisions.last() == [running]
    b.finished(first.requests, 0.5, 2.5)
    ended = Decision(2.0, 4, 2, 1.0, "full", 3, runs=False, seconds=0.5)
    assert b.decisions.last() == [ended]
    b.enqueue(request(2), 2.5)
    second = batch(b.next_action(3.0))
    b.finished(second.requests, 0.7, 3.7)
    assert b.decisions.last() == [
        ended,
        Decision(3.0, 4, 0, 1.7, "full", 0, runs=False, seconds=0.7, expected_seconds=0.5),
    ]


def test_of_several_tenants_the_longest_wait_counts() -> None:
    b = DynamicBatcher(max_batch_size=4)
    b.enqueue(request(tenant="a"), 2.0)
    b.next_action(2.0)
    for at, tenant in ((3.0, "a"), (4.0, "b"), (5.0, "a")):
        b.enqueue(request(tenant=tenant), at)
    assert [one.tenant for one in batch(b.next_action(6.0)).requests] == ["b", "a", "a"]
    assert b.decisions.last()[-1].oldest_at == 3.0


def test_a_batch_is_held_from_the_first_decision_to_wait() -> None:
    b = DynamicBatcher(max_batch_size=4, max_queue_delay=1.0, always_wait=True)
    b.enqueue(request(), 1.0)
    assert b.next_action(1.25) == Wait(2.0)
    b.enqueue(request(), 1.5)
    assert b.next_action(1.5) == Wait(2.0)
    b.next_action(2.0)
    (decision,) = b.decisions.last()
    assert (decision.held_seconds, decision.held_for, decision.reason) == (0.75, "delay", "delay")
    for _ in range(4):
        b.enqueue(request(), 2.0)
    b.next_action(2.0)
    assert b.decisions.last()[-1].held_for == "", "one hold is that of one batch"
    assert b.decisions.held_seconds == {"callers": 0.0, "turn": 0.0, "delay": 0.75}


def test_a_hold_does_not_count_from_before_its_batch_arrived() -> None:
    b = DynamicBatcher(max_batch_size=2, max_queue_delay=9.0, always_wait=True)
    cancelled = request()
    b.enqueue(cancelled, 1.0)
    b.next_action(1.0)
    b.cancel(cancelled)
    for _ in range(2):
        b.enqueue(request(), 5.0)
    b.next_action(5.0)
    (decision,) = b.decisions.last()
    assert decision.held_seconds == 0.0


def test_callers_that_return_are_counted_where_they_are_waited_for() -> None:
    b = SelfTuningBatcher(max_batch_size=64)
    now = 0.0
    for _ in range(30):
        for _ in range(4):
            now += 1e-4
            b.enqueue(request(), now)
        running = batch(b.next_action(now))
        now += 0.005 + 2e-4 * running.rows
        b.finished(running.requests, 0.005 + 2e-4 * running.rows, now)
    b.enqueue(request(), now + 1e-4)
    action = b.next_action(now + 1e-4)
    assert isinstance(action, Wait), action
    for _ in range(3):
        b.enqueue(request(), now + 4e-4)
    assert batch(b.next_action(now + 4e-4)).rows == 4
    decision = b.decisions.last()[-1]
    assert (decision.held_for, decision.held_count, decision.reason) == ("callers", 3, "waited")
    assert abs(decision.held_seconds - 3e-4) < 1e-9


def test_a_step_waits_since_it_could_run_and_is_held_on_its_own_instance() -> None:
    b = SequenceBatcher(model="m", max_batch_size=2, slots=2, max_queue_delay=1.0)
    for number in range(2):
        b.instance_up(number)
    for name in "abc":  # a and c on one instance, b on the other
        step = request()
        step.sequence = SequenceStep(name, start=True)
        b.enqueue(step, 1.0)
    places = [b.next_action(1.0, number) for number in range(2)]
    (held,) = [number for number, action in enumerate(places) if isinstance(action, Wait)]
    b.next_action(2.0, held)
    full, delayed = b.decisions.last()
    assert (full.reason, full.held_for) == ("full", "")
    assert (delayed.reason, delayed.held_for, delayed.held_seconds) == ("delay", "delay", 1.0)
    assert (delayed.oldest_at, delayed.instance) == (1.0, held)


def test_equal_batches_that_are_told_of_together_have_each_its_share() -> None:
    forecast = Forecast()
    decisions = forecast.decisions
    a, other, b, c = (left(forecast, request(), 1.0, instance) for instance in (0, 1, 0, 0))
    forecast.ended([a, b], 0.5, 2)
    assert [one.seconds for one in decisions.last()] == [0.5, None, 0.5, None]
    assert [one.runs for one in decisions.last()] == [False, True, False, True]
    later = left(forecast, request(), 2.0)
    forecast.ended([later], 0.1)
    assert [one.runs for one in decisions.last()] == [False, True, False, True, False]
    forecast.ended([other], None)
    forecast.ended([c], 0.6)
    assert [one.seconds for one in decisions.last()] == [0.5, None, 0.5, 0.6, 0.1]
    assert not any(one.runs for one in decisions.last())


def test_no_request_is_held_and_only_so_many_batches() -> None:
    forecast = Forecast()
    decisions = forecast.decisions
    one = request()
    before = sys.getrefcount(one)
    for now in range(10 * REMEMBERED):
        left(forecast, one, float(now))
        forecast.ended([one], 1.0)
    assert sys.getrefcount(one) == before
    assert len(decisions.last()) == REMEMBERED
    assert decisions.last()[-1].left_at == 10 * REMEMBERED - 1


@examples(2)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 3), st.booleans(), st.booleans()), max_size=300
    )
)
def test_what_has_ended_does_not_run_whatever_order_the_ends_come_in(
    steps: list[tuple[int, int, bool, bool]],
) -> None:
    """Each step gives an instance a batch, or ends its oldest ones: some at once, or one."""
    forecast = Forecast()
    decisions = forecast.decisions
    running: dict[int, list[InferRequest]] = {0: [], 1: [], 2: []}
    for now, (instance, rows, begins, together) in enumerate(steps):
        mine = running[instance]
        if begins and len(mine) < 4:
            mine.append(left(forecast, request(rows), float(now), instance))
        elif mine:
            alike = [one for one in mine if one.rows == mine[0].rows] if together else mine[:1]
            forecast.ended(alike, 1.0, len(alike))
            running[instance] = [one for one in mine if one not in alike]
        shown = [one for one in decisions.last() if one.runs]
        assert len(shown) == sum(map(len, running.values()))
        for number, has in running.items():
            assert [one.rows for one in shown if one.instance == number] == [r.rows for r in has]
