"""Which step of which sequence runs next? Tables: time is an argument."""

import random
from typing import Any

import pytest

from tests.fakes import Call
from tests.properties import seeds
from wherry.core.scheduler.open_sequences import NOT_READY
from wherry.core.scheduler.policy import Action, Dispatch, Idle, Wait
from wherry.core.scheduler.sequence_batcher import SequenceBatcher
from wherry.core.values.errors import Cancelled, InvalidRequest, SequenceLost, WherryError
from wherry.core.values.request import InferRequest, SequenceStep


def batcher(rows: int = 2, *, up: int = 1, **how: Any) -> SequenceBatcher:
    b = SequenceBatcher(model="m", **{"max_batch_size": rows, "slots": 0, **how})
    for number in range(up):
        b.instance_up(number)
    return b


def step(text: str, *, key: object = None, deadline: float | None = None) -> InferRequest:
    """`a1` is a step of sequence a; `<a1` starts and `a1>` ends it."""
    name = text.strip("<>")
    request = Call(name, shape_key=key, deadline=deadline).request
    request.sequence = SequenceStep(name[0], text.startswith("<"), text.endswith(">"))
    return request


def send(b: SequenceBatcher, steps: str, now: float = 0.0) -> list[InferRequest]:
    requests = [step(text) for text in steps.split()]
    for request in requests:
        assert b.enqueue(request, now)
        b.sequences.check()
    return requests


def ids(action: Action) -> list[str]:
    assert isinstance(action, Dispatch), action
    return ["-" if r.sequence is NOT_READY else r.id for r in action.batch.requests]


def run(b: SequenceBatcher, now: float = 0.0, instance: int = 0) -> list[str]:
    """One batch of this instance from its start to its end."""
    action = b.next_action(now, instance)
    b.sequences.check()
    if isinstance(action, Dispatch):
        b.finished(action.batch.requests, 0.001, now)
        b.sequences.check()
        return ids(action)
    return []


def broken(b: SequenceBatcher, kind: type[WherryError] = SequenceLost) -> list[str]:
    taken = b.broken()
    assert all(isinstance(error, kind) for _, error in taken)
    return [request.id for request, _ in taken]


# What may follow what


@pytest.mark.parametrize("before", ["", "<a0>", "<a0 a1>", "<b0"])
def test_a_step_without_a_start_is_refused_as_triton_does(before: str) -> None:
    b = batcher()
    send(b, before)
    with pytest.raises(InvalidRequest) as caught:
        b.enqueue(step("a9"), 0.0)
    assert str(caught.value) == (
        "inference request for sequence a to model 'm' must specify the START flag on the first"
        " request of the sequence"
    )


def test_numbers_and_texts_are_different_ids() -> None:
    b = batcher()
    one, other = step("<a0"), step("<a1")
    one.sequence, other.sequence = SequenceStep(7, start=True), SequenceStep("7", start=True)
    assert b.enqueue(one, 0.0)
    assert b.enqueue(other, 0.0)
    assert len(b.sequences) == 2


def test_a_start_in_the_middle_starts_the_same_sequence_again() -> None:
    b = batcher()
    send(b, "<a0 a1 <a2 a3>")
    assert [run(b), run(b), run(b), run(b)] == [["a0"], ["a1"], ["a2"], ["a3"]]
    assert len(b.sequences) == 0


def test_a_sequence_of_one_step_starts_and_ends() -> None:
    b = batcher()
    send(b, "<a0> <a1>")
    assert [run(b), run(b), run(b)] == [["a0"], ["a1"], []]
    assert len(b.sequences) == 0


def test_a_full_queue_refuses_a_step_and_the_sequence_goes_on() -> None:
    b = batcher(max_queue_size=1)
    send(b, "<a0")
    assert not b.enqueue(step("a1"), 0.0)
    assert run(b) == ["a0"]
    send(b, "a1")
    assert run(b) == ["a1"]


# Slots


def test_a_sequence_stays_where_it_started() -> None:
    b = batcher(up=2)
    send(b, "<a0 <b0")
    assert [run(b, instance=0), run(b, instance=1)] == [["a0"], ["b0"]]
    send(b, "b1 a1")
    assert isinstance(b.next_action(0.0, 7), Idle)
    assert [run(b, instance=0), run(b, instance=1)] == [["a1"], ["b1"]]


def test_sequences_without_a_slot_wait_for_the_end_of_another_in_their_order() -> None:
    b = batcher(rows=1)
    send(b, "<a0 <b0 <c0 b1> a1> c1>")
    order = [run(b)[0] for _ in range(6)]
    assert order == ["a0", "a1", "b0", "b1", "c0", "c1"]
    assert repr(b) == "<SequenceBatcher m: 0 sequences, 0 queued>"


def test_what_follows_an_end_waits_behind_the_backlog() -> None:
    b = batcher(rows=1)
    send(b, "<a0 <b0> a1> <a2>")
    assert [run(b)[0] for _ in range(4)] == ["a0", "a1", "b0", "a2"]


def test_nothing_is_placed_before_an_instance_is_up() -> None:
    b = batcher(up=0)
    send(b, "<a0")
    assert isinstance(b.next_action(0.0), Idle)
    b.instance_up(0)
    assert run(b) == ["a0"]


def test_rows_are_slots_with_rows_that_are_not_ready_between() -> None:
    b = batcher(rows=4, rows_are_slots=True)
    send(b, "<a0 <b0 <c0")
    assert run(b) == ["a0", "b0", "c0"]
    send(b, "c1")
    assert run(b) == ["-", "-", "c1"]
    send(b, "b1>")
    assert run(b) == ["-", "b1"]
    send(b, "<d0 c2")
    assert run(b) == ["-", "d0", "c2"]


def test_rows_of_other_shapes_wait_for_a_batch_of_their_own() -> None:
    b = batcher(rows=2, rows_are_slots=True)
    for text, key in (("<a0", "wide"), ("<b0", "narrow")):
        assert b.enqueue(step(text, key=key), 0.0)
    assert [run(b), run(b)] == [["a0"], ["-", "b0"]]


# When a batch leaves


def test_direct_takes_what_is_there_without_a_minimum() -> None:
    b = batcher(rows=4)
    send(b, "<a0 <b0")
    assert run(b) == ["a0", "b0"]


def test_direct_waits_until_enough_slots_have_a_step_or_the_delay_is_over() -> None:
    b = batcher(rows=4, max_queue_delay=0.5, minimum_slot_utilization=0.5)
    send(b, "<a0")
    assert b.next_action(0.4) == Wait(0.5)
    send(b, "<b0", 0.4)
    assert run(b, 0.4) == ["a0", "b0"]
    send(b, "a1", 0.6)
    assert b.next_action(1.0) == Wait(1.1)
    assert run(b, 1.1) == ["a1"]


def test_oldest_forms_batches_as_the_dynamic_batcher_does() -> None:
    b = batcher(rows=4, slots=9, max_queue_delay=0.5, preferred_batch_sizes=[2])
    send(b, "<a0")
    assert b.next_action(0.0) == Wait(0.5)
    send(b, "<b0 <c0 <d0 <e0", 0.1)
    full = b.next_action(0.1)
    assert ids(full) == ["a0", "b0", "c0", "d0"]
    assert isinstance(full, Dispatch)
    assert full.batch.reason == "full"
    assert b.next_action(0.1) == Wait(0.6)


def test_a_sequence_that_sends_ahead_does_not_hold_up_the_others() -> None:
    b = batcher(rows=1, slots=3)
    send(b, "<a0 a1 a2 a3")
    send(b, "<b0 <c0", 0.1)
    order = [run(b, 0.2 + 0.1 * i)[0] for i in range(6)]
    assert order == ["a0", "b0", "c0", "a1", "a2", "a3"]


# What goes wrong


def test_an_idle_sequence_is_forgotten_and_its_slot_is_free() -> None:
    b = batcher(rows=1, max_sequence_idle=1.0)
    send(b, "<a0")
    assert run(b, 0.5) == ["a0"]
    send(b, "<b0", 0.6)
    assert b.next_deadline() == 1.5
    assert b.expire(1.4) == []
    assert run(b, 1.4) == []
    assert b.expire(1.5) == []
    assert run(b, 1.5) == ["b0"]
    with pytest.raises(InvalidRequest):
        b.enqueue(step("a1"), 1.6)


def test_a_sequence_is_not_idle_while_a_step_waits_or_runs() -> None:
    b = batcher(rows=1, max_sequence_idle=1.0)
    send(b, "<a0")
    b.expire(5.0)
    action = b.next_action(5.0)
    b.expire(50.0)
    assert isinstance(action, Dispatch)
    b.finished(action.batch.requests, 45.0, 50.0)
    b.expire(50.9)
    send(b, "a1", 50.9)
    b.expire(51.5)
    assert run(b, 51.5) == ["a1"]
    b.expire(52.4)
    assert len(b.sequences) == 1
    b.expire(52.5)
    assert len(b.sequences) == 0
    assert b.next_deadline() is None


def test_a_step_that_waits_longer_than_a_sequence_may_be_idle_still_runs() -> None:
    b = batcher(rows=1, max_sequence_idle=1.0)
    send(b, "<a0")
    assert run(b, 0.0) == ["a0"]
    send(b, "a1", 0.9)
    b.expire(2.5)
    assert run(b, 2.5) == ["a1"]


def test_a_step_that_is_cancelled_takes_those_behind_it_along() -> None:
    b = batcher(rows=1)
    _, second, *_ = send(b, "<a0 a1 a2 a3> <b0")
    assert b.cancel(second)
    b.sequences.check()
    assert broken(b, Cancelled) == ["a2", "a3"]
    with pytest.raises(InvalidRequest):
        b.enqueue(step("a4"), 0.0)
    assert [run(b), run(b)] == [["a0"], ["b0"]]


def test_a_start_behind_a_cancelled_step_still_runs() -> None:
    b = batcher(rows=1)
    first, *_ = send(b, "<a0 a1 <a2 a3>")
    assert b.cancel(first)
    assert not b.cancel(first)
    assert broken(b, Cancelled) == ["a1"]
    assert [run(b), run(b)] == [["a2"], ["a3"]]
    assert len(b.sequences) == 0


def test_a_running_step_cannot_be_cancelled_and_its_sequence_goes_on() -> None:
    b = batcher()
    (first,) = send(b, "<a0")
    action = b.next_action(0.0)
    assert not b.cancel(first)
    assert isinstance(action, Dispatch)
    b.finished(action.batch.requests, 0.1, 0.1)
    send(b, "a1", 0.2)
    assert run(b, 0.2) == ["a1"]


def test_a_step_that_comes_too_late_breaks_its_sequence() -> None:
    b = batcher(rows=1)
    send(b, "<b0")
    late = step("<a0", deadline=0.5)
    assert b.enqueue(late, 0.0)
    send(b, "a1")
    assert b.next_deadline() == 0.5
    assert b.expire(0.5) == [late]
    assert broken(b) == ["a1"]
    b.sequences.check()


def test_what_was_open_on_a_lost_instance_is_lost_and_a_new_start_goes_elsewhere() -> None:
    b = batcher(rows=2, up=2)
    send(b, "<a0 <b0")
    assert [run(b, instance=0), run(b, instance=1)] == [["a0"], ["b0"]]
    send(b, "a1 a2 <a3 b1 <c0")
    b.instance_lost(0)
    b.sequences.check()
    assert sorted(broken(b)) == ["a1", "a2"]
    assert sorted(run(b, instance=1)) == ["a3", "b1"]
    b.instance_up(0)
    assert run(b, instance=0) == ["c0"]


def test_the_lost_instance_may_have_been_running() -> None:
    b = batcher(rows=1)
    send(b, "<a0 a1")
    action = b.next_action(0.0)
    assert isinstance(action, Dispatch)
    b.finished(action.batch.requests, None, 0.0)
    b.instance_lost(0)
    assert broken(b) == ["a1"]
    with pytest.raises(InvalidRequest):
        b.enqueue(step("a2"), 0.0)


def test_clearing_gives_everything_back_that_waits() -> None:
    b = batcher(rows=1)
    requests = send(b, "<a0 a1 <b0 b1")
    assert sorted(r.id for r in b.clear()) == [r.id for r in requests]
    assert not b.queue.queued_requests
    b.sequences.check()
    assert run(b) == []


# Iterative sequences


def test_an_iterative_request_runs_until_the_model_is_done_with_it() -> None:
    b = batcher(rows=2, iterative=True)
    requests = [Call(name).request for name in "xyz"]
    for request in requests:
        assert b.enqueue(request, 0.0)
    x, y, _ = requests
    assert len({r.sequence.id for r in requests if r.sequence}) == 3
    first = b.next_action(0.0)
    assert ids(first) == ["x", "y"]
    assert isinstance(first, Dispatch)
    assert all(r.sequence and r.sequence.start for r in (x, y))
    assert b.reschedule(x, 0.1)
    b.finished(first.batch.requests, 0.1, 0.1)
    b.sequences.check()
    assert x.sequence is not None
    assert not x.sequence.start
    assert sorted(run(b, 0.2)) == ["x", "z"]
    assert len(b.sequences) == 0
    assert not b.reschedule(x, 0.3), "it is over"


def test_many_iterative_requests_take_turns() -> None:
    b = batcher(rows=1, slots=3, iterative=True)
    requests = [Call(name).request for name in "xyz"]
    for request in requests:
        b.enqueue(request, 0.0)
    seen = []
    for turn in range(6):
        action = b.next_action(turn)
        assert isinstance(action, Dispatch)
        (request,) = action.batch.requests
        seen.append(request.id)
        assert b.reschedule(request, turn + 0.5)
        b.finished([request], 0.5, turn + 0.5)
    assert seen == list("xyzxyz")


def test_only_iterative_models_may_run_a_request_again() -> None:
    b = batcher()
    (request,) = send(b, "<a0")
    b.next_action(0.0)
    assert not b.reschedule(request, 0.0)


# Whatever comes


@pytest.mark.parametrize("seed", seeds(60))
def test_whatever_comes_every_step_ends_once_in_order_and_alone_in_its_slot(seed: int) -> None:
    chance = random.Random(seed)
    rows = chance.randint(1, 3)
    direct = chance.random() < 0.5
    b = batcher(
        rows,
        up=chance.randint(1, 3),
        slots=0 if direct else chance.randint(1, 5),
        rows_are_slots=direct and chance.random() < 0.5,
        max_queue_delay=chance.choice([0.0, 0.02]),
        minimum_slot_utilization=chance.choice([0.0, 0.6]) if direct else 0.0,
        max_sequence_idle=chance.choice([0.05, 5.0]),
        max_queue_size=chance.choice([None, 8]),
    )
    up, down = set(b.sequences._places), set[int]()
    running: dict[int, tuple[InferRequest, ...]] = {}
    accepted: dict[InferRequest, str] = {}
    dispatched: dict[str, list[InferRequest]] = {}
    place: dict[object, tuple[int, int]] = {}
    now = 0.0

    def end(requests: Any, how: str) -> None:
        for request in requests:
            assert accepted[request] == "", f"{request} ends as {accepted[request]} and {how}"
            accepted[request] = how
            request.reply.settle(ValueError(how))

    for turn in range(400):
        now += chance.choice([0.0, 0.001, 0.01])
        name = chance.choice("abcdefg")
        if chance.random() < 0.7 and turn < 330:
            request = step(
                "<" * (chance.random() < 0.3) + f"{name}{turn}" + ">" * (chance.random() < 0.25),
                deadline=now + 0.03 if chance.random() < 0.1 else None,
            )
            try:
                if b.enqueue(request, now):
                    accepted[request] = ""
            except InvalidRequest:
                pass
        waiting = [r for r, how in accepted.items() if not how]
        if waiting and chance.random() < 0.05:
            victim = chance.choice(waiting)
            was_running = any(victim in batch for batch in running.values())
            assert b.cancel(victim) != was_running
            if not was_running:
                end([victim], "cancelled")
        late = b.expire(now)
        end([r for r in late if accepted[r] == ""], "late")
        if up and chance.random() < 0.03:
            number = chance.choice(sorted(up))
            up.remove(number)
            down.add(number)
            batch = running.pop(number, ())
            if batch:
                b.finished(batch, None, now)
            end([r for r in batch if accepted.get(r) == ""], "died")
            b.instance_lost(number)
        if down and chance.random() < 0.3:
            number = down.pop()
            up.add(number)
            b.instance_up(number)
        for number in sorted(up):
            if number in running and chance.random() < 0.6:
                batch = running.pop(number)
                b.finished(batch, 0.01, now)
                end([r for r in batch if accepted.get(r) == ""], "answered")
            if number in running:
                continue
            action = b.next_action(now, number)
            if not isinstance(action, Dispatch):
                continue
            batch = action.batch.requests
            running[number] = batch
            real = [r for r in batch if r.sequence is not NOT_READY]
            assert 1 <= len(real) <= len(batch) <= rows
            assert len({r.sequence.id for r in real if r.sequence}) == len(real)
            for row, request in enumerate(batch):
                if request.sequence is NOT_READY:
                    continue
                assert request.sequence is not None
                dispatched.setdefault(str(request.sequence.id), []).append(request)
                where = place.setdefault(request.run, (number, row))
                if not request.sequence.start:
                    assert where[0] == number, "a sequence stays on its instance"
                    assert not b.rows_are_slots or where[1] == row, "and in its row"
                place[request.run] = (number, row)
        end([r for r, _ in b.broken()], "broken")
        b.sequences.check()

    for number in sorted(down):
        b.instance_up(number)
        up.add(number)
    for _ in range(2000):  # nothing starves: whoever is left gets through
        now += 0.05
        for number in sorted(up):
            batch = running.pop(number, ())
            if batch:
                b.finished(batch, 0.01, now)
            end([r for r in batch if accepted.get(r) == ""], "answered")
            action = b.next_action(now, number)
            if isinstance(action, Dispatch):
                running[number] = action.batch.requests
                for request in action.batch.requests:
                    if request.sequence is not NOT_READY and request.sequence is not None:
                        dispatched.setdefault(str(request.sequence.id), []).append(request)
        end([r for r in b.expire(now) if accepted[r] == ""], "late")
        end([r for r, _ in b.broken()], "broken")
        if not b.queue.queued_requests and not running:
            break
    assert all(accepted.values()), [r for r, how in accepted.items() if not how]
    assert not b.queue.queued_requests
    b.expire(now + 100.0)
    b.sequences.check()
    assert len(b.sequences) == 0, "every slot is free in the end"
    for requests in dispatched.values():
        ids = [int(r.id[1:]) for r in requests]
        assert ids == sorted(ids), "the order within a sequence"
        open_run = False
        for request in requests:
            assert request.sequence is not None
            assert request.sequence.start or open_run, "no step runs without its START"
            open_run = not request.sequence.end


def test_what_a_step_and_a_batch_will_take_is_learnt_from_those_that_ran() -> None:
    b = batcher()
    assert b.head() is None
    send(b, "<a0")
    assert b.head() == (0.0, 0.0)  # not known yet
    action = b.next_action(0.0)
    assert isinstance(action, Dispatch)
    following = step("a1")
    b.enqueue(following, 0.5)
    assert b.predicted_seconds(following) == 0.0
    b.finished(action.batch.requests, 2.0, 2.0)
    assert b.head() == (0.5, 2.0)
    b.next_action(2.0)
    send(b, "a2 a3", 3.0)
    # Half of what runs; then one after the other those that wait, and itself.
    assert b.predicted_seconds(step("a4")) == 1.0 + 2.0 + 2 * 2.0
    assert b.is_short(0.0)
    (point,) = b.explain()["curve"]
    assert (point["rows"], point["seconds"], point["age_batches"]) == (1, 2.0, 0)
