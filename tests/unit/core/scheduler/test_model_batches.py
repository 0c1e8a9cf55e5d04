"""What follows from each event of one model's batches: a table of events, and any order of them."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.fakes import Call, ManualClock
from tests.properties import examples
from wherry.core.instances.resources import Resources
from wherry.core.models.config import ModelConfig, QueuePolicy
from wherry.core.scheduler.device_share import ModelShare
from wherry.core.scheduler.dynamic_batcher import DynamicBatcher
from wherry.core.scheduler.instance_table import BatchRun, BatchSlot, Waiter
from wherry.core.scheduler.model_batches import Acts, ModelBatches
from wherry.core.scheduler.policy import Scheduler
from wherry.core.scheduler.self_tuning_batcher import SelfTuningBatcher
from wherry.core.values.errors import (
    Cancelled,
    DeadlineExceeded,
    Overloaded,
    QueueFull,
    QueueLimitExceeded,
    QueueTimeout,
    RequestTimeoutExpired,
    WherryError,
)
from wherry.core.values.execution import Execution
from wherry.core.values.request import Batch, InferRequest, InferResponse

ANY = st.integers(0, 99)


class Slot(BatchSlot):
    """An instance that does nothing: what it is given is in the acts."""

    def __init__(self, number: int, *, in_caller: bool = False, ahead: bool = False) -> None:
        super().__init__()
        self.name, self.number, self.busy_since = f"m_{number}", number, None
        self.runs_in_caller, self.takes_ahead = in_caller, ahead


def model(
    instances: int = 1,
    *,
    share: ModelShare | None = None,
    scheduler: Scheduler | None = None,
    in_caller: bool = False,
    ahead: bool = False,
    **how: Any,
) -> tuple[ModelBatches[Slot], list[Slot]]:
    config = ModelConfig(name="m", **{"max_batch_size": 2, **how})
    scheduler = scheduler or DynamicBatcher(
        max_batch_size=config.max_batch_size,
        max_queue_delay=config.max_queue_delay or 0.0,
        max_queue_size=config.max_queue_size,
        always_wait=True,
    )
    batches: ModelBatches[Slot] = ModelBatches(config, scheduler, share)
    made = [Slot(n, in_caller=in_caller, ahead=ahead) for n in range(instances)]
    for one in made:
        assert batches.came_up(one, instances, stops=False) == Acts()
    return batches, made


def requests(*names: str, **how: Any) -> list[InferRequest]:
    return [Call(name, **how).request for name in names]


def given(acts: Acts[Slot]) -> dict[str, list[str]]:
    """The ids of the requests of each batch, by instance."""
    return {
        one.name: ["".join(request.id for request in batch.requests) for batch in batches]
        for one, batches in acts.give
    }


def run_of(batch: Batch, started: float = 0.0, ns: int = 1000) -> BatchRun:
    return BatchRun(batch, batch.requests, started, Execution([], 0, ns, 0, [batch.rows]))


def test_the_next_batch_is_given_when_the_callers_of_the_last_one_were_told() -> None:
    batches, (one,) = model()
    assert given(batches.arrived(requests(*"abc"), 0.0)) == {"m_0": ["ab"]}
    assert given(batches.arrived(requests("d"), 0.1)) == {}
    assert batches.ended(one, [run_of(one.batches[0])], 1.0) == Acts()
    follows = batches.answered(one, 1.1)
    assert follows is not None
    assert given(follows) == {"m_0": ["cd"]}
    assert batches.table.running() == [("m_0", 2, 1.1)]


def test_one_that_takes_batches_ahead_has_the_next_before_the_callers_are_told() -> None:
    batches, (one,) = model(ahead=True, max_batch_size=1)
    batches.arrived(requests(*"abcd"), 0.0)
    acts = batches.ended(one, [run_of(one.batches[0])], 1.0)
    assert given(acts) == {"m_0": ["b", "c", "d"]}
    assert batches.answered(one, 1.1) is None
    assert not batches.is_quiet()


def test_a_batch_that_is_told_of_twice_ends_once() -> None:
    batches, (one,) = model()
    batches.arrived(requests("a"), 0.0)
    run = run_of(one.batches[0])
    batches.ended(one, [run], 1.0)
    batches.ended(one, [run], 2.0)
    batches.answered(one, 2.0)
    assert (batches.table.idle, batches.is_quiet()) == ([one], True)


def test_a_wait_of_the_policy_names_its_end_once() -> None:
    batches, _ = model(max_queue_delay=0.5, max_batch_size=3)
    assert batches.arrived(requests("a"), 0.0) == Acts(wake_at=0.5)
    assert batches.arrived(requests("b"), 0.1) == Acts()
    assert given(batches.tick(0.5)) == {"m_0": ["ab"]}


def test_a_deadline_in_the_queue_names_its_moment_and_ends_its_request() -> None:
    batches, _ = model()
    assert batches.arrived(requests("a"), 0.0).wake_at == inf
    late = requests("b", deadline=0.2)
    assert batches.arrived(late, 0.1).wake_at == 0.2
    ((failed, error),) = batches.tick(0.2).fail
    assert failed is late[0]
    assert isinstance(error, DeadlineExceeded)
    assert batches.queued_requests == 0


def test_what_cannot_be_queued_is_refused_and_its_neighbours_are_not() -> None:
    batches, _ = model(max_queue_size=1, max_batch_size=1)
    a, b, c = requests(*"abc")
    (over,) = requests("d", deadline=0.5)
    left = Call("e")
    left.request.reply.settle(Cancelled("gone"))
    acts = batches.arrived([over, left.request, a, b, c], 1.0)
    assert given(acts) == {"m_0": ["a"]}
    assert [(one.id, type(error)) for one, error in acts.fail] == [
        ("d", DeadlineExceeded),
        ("c", QueueFull),
    ]
    assert batches.cancelled(b) == (True, ())
    assert batches.queued_requests == 0


def test_a_batch_that_runs_too_long_is_overdue_once_and_its_instance_is_left_behind() -> None:
    batches, (one,) = model(execution_timeout=5.0)
    assert batches.arrived(requests("a"), 1.0).wake_at == 6.0
    batch = one.batches[0]
    assert batches.tick(6.0).overdue == [(one, batch)]
    assert batches.tick(7.0).overdue == []
    assert batches.left_behind(one, (), 7.0) is None
    assert batches.left_behind(one, (batch,), 7.0) == Acts()
    assert batches.is_quiet()


def test_what_a_dead_worker_ran_runs_alone_and_what_waited_there_comes_first() -> None:
    batches, (one,) = model(ahead=True, max_batch_size=1)
    batches.table.ahead.ran(0.0)
    assert given(batches.arrived(requests(*"abc"), 0.0)) == {"m_0": ["a", "b", "c"]}
    had, ahead = batches.lost(one, 1.0)
    assert ["".join(r.id for r in those) for those in (had, ahead)] == ["a", "bc"]
    assert not batches.is_quiet()
    batches.arrived(requests("d"), 1.5)
    had[0].attempts = 1
    assert batches.gone(one, had, ahead, 2.0) == Acts()
    took_its_place = Slot(0)
    batches.came_up(took_its_place, 1, stops=False)
    order = ""
    acts = batches.arrived((), 3.0)
    while acts.give:
        ((_, (batch,)),) = acts.give
        order += batch.requests[0].id
        batches.ended(took_its_place, [run_of(batch)], 3.0)
        acts = batches.answered(took_its_place, 3.0) or Acts()
    assert sorted(order) == list("abcd")
    assert order.index("b") < order.index("c") < order.index("d")


def test_an_instance_that_is_let_go_stops_when_it_has_ended_what_it_has() -> None:
    batches, (one, other) = model(2)
    batches.arrived(requests("a"), 0.0)
    busy, idle = (one, other) if one.batches else (other, one)
    assert batches.retire([one, other]) == Acts(stop=[idle])
    batches.ended(busy, [run_of(busy.batches[0])], 1.0)
    assert batches.answered(busy, 1.0) == Acts(stop=[busy])


def test_a_model_that_is_held_begins_nothing_until_it_goes_on() -> None:
    batches, (one,) = model(in_caller=True, max_batch_size=1, execution_timeout=9.0)
    batches.arrived(requests("a"), 0.0)
    assert batches.hold(True) == Acts()
    assert given(batches.arrived(requests("b", deadline=5.0), 1.0)) == {}
    batches.ended(one, [run_of(one.batches[0])], 2.0)
    assert given(batches.answered(one, 2.0) or Acts()) == {}
    other = Slot(1, in_caller=True)
    assert given(batches.came_up(other, 2, stops=False)) == {}
    assert batches.hold(False) == Acts()
    assert given(batches.arrived((), 4.0)) in ({"m_0": ["b"]}, {"m_1": ["b"]})


def test_callers_in_line_queue_their_rows_when_a_model_is_held() -> None:
    batches, (one,) = model(in_caller=True, max_batch_size=1)
    assert batches.caller_came(0.0) is one
    waiter = batches.caller_waits(Waiter[Slot])
    assert waiter is not None
    assert batches.hold(True) == Acts(wake=[waiter])
    assert waiter.is_over
    assert waiter.instance is None


def test_held_instances_stop_and_those_that_take_their_place_run_what_waits() -> None:
    batches, (one, other) = model(2)
    batches.hold(True)
    batches.arrived(requests("a", deadline=5.0), 0.0)
    assert sorted(slot.name for slot in batches.retire([one, other]).stop) == ["m_0", "m_1"]
    batches.hold(False)
    assert [request.id for request, _ in batches.tick(5.0).fail] == ["a"]
    batches.arrived(requests("b"), 6.0)
    batches.table.remove(one)
    batches.table.remove(other)
    batches.came_up(Slot(0), 2, stops=False)
    assert given(batches.arrived((), 7.0)) == {"m_0": ["b"]}


def test_an_instance_that_comes_up_too_late_stops() -> None:
    batches, _ = model(0)
    one = Slot(0)
    assert batches.came_up(one, 0, stops=True) == Acts(stop=[one])
    assert given(batches.arrived(requests("a"), 0.0)) == {}


def test_a_model_that_shares_waits_for_its_turn() -> None:
    clock, turns = ManualClock(), list[str]()
    resources = Resources({"gpu": 1}, clock)
    config = ModelConfig(name="m", resources={"gpu": 1})
    first, (one,) = model(share=ModelShare(resources, config, lambda: turns.append("first")))
    other, (another,) = model(share=ModelShare(resources, config, lambda: turns.append("other")))
    assert given(first.arrived(requests("a"), 0.0)) == {"m_0": ["a"]}
    assert given(other.arrived(requests("b"), 0.0)) == {}
    first.ended(one, [run_of(one.batches[0])], 1.0)
    resources.pass_on()
    assert turns == ["other"]
    assert given(other.granted(1.0)) == {"m_0": ["b"]}
    assert given(first.arrived(requests("c"), 1.0)) == {}
    assert another.batches


@pytest.mark.parametrize("queued", [False, True])
def test_a_caller_that_waits_has_the_instance_before_what_is_queued_later(queued: bool) -> None:
    batches, (one,) = model(in_caller=True, max_batch_size=1)
    assert batches.caller_came(0.0) is one
    assert batches.caller_came(0.1) is None
    waiter = batches.caller_waits(Waiter[Slot])
    assert waiter is not None
    acts = batches.arrived(requests("a") if queued else (), 0.2)
    assert given(acts) == {}
    acts = batches.caller_ran(one, 1.0, is_ready=True) or Acts()
    assert acts.wake == [waiter]
    assert waiter.instance is (one if queued else None)
    assert batches.caller_looks(waiter, 1.1) == Acts()
    assert waiter.instance is one
    acts = batches.caller_ran(one, 2.0, is_ready=True) or Acts()
    assert given(acts) == ({"m_0": ["a"]} if queued else {})


class Played:
    """One model's batches in the hands of a table: time passes when it says so."""

    def __init__(self, instances: int = 1, us: int = 10, **how: Any) -> None:
        self.batches, self.up = model(instances, **how)
        self.now, self.us = 0.0, us
        self.refused: dict[str, WherryError] = {}
        self.predicted_late = 0
        self.here: dict[str, InferRequest] = {}

    def carry_out(self, acts: Acts[Slot] | None) -> None:
        for request, error in acts.fail if acts is not None else ():
            if request.reply.settle(error):
                self.refused[request.id] = error
        self.predicted_late += acts.predicted_late if acts is not None else 0

    def ask(self, *names: str, timeout: float | None = None, **how: Any) -> None:
        deadline = None if timeout is None else self.now + timeout
        come = requests(*names, deadline=deadline, **how)
        self.here |= {request.id: request for request in come}
        self.carry_out(self.batches.arrived(come, self.now))

    def end(self, count: int = 1, of: int = 0, seconds: float = 0.0) -> None:
        """The oldest batches of an instance end after so long, and all of them are told of."""
        one, began = self.up[of], self.now
        self.now += seconds
        runs = [run_of(batch, began, self.us * 1000) for batch in one.batches[:count]]
        self.carry_out(self.batches.ended(one, runs, self.now))
        for run in runs:
            for request in run.requests:
                request.reply.settle(InferResponse({}, 1))
        self.carry_out(self.batches.answered(one, self.now))

    def leave(self, name: str) -> None:
        assert self.here[name].reply.settle(Cancelled("gone"))
        self.batches.cancelled(self.here[name])

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.carry_out(self.batches.tick(self.now))

    def has(self) -> str:
        """The batches of each instance, and who was refused."""
        names = [
            " ".join("".join(request.id for request in batch.requests) for batch in one.batches)
            for one in self.up
        ]
        return "|".join(names) + "".join(f" !{name}" for name in self.refused)


Event = str | Callable[[Played], None]


def end(count: int = 1, of: int = 0) -> Event:
    return lambda played: played.end(count, of)


def urgent(name: str) -> Event:
    return lambda played: played.ask(name, priority=1)


def leaves(name: str) -> Event:
    return lambda played: played.leave(name)


ONE: dict[str, Any] = {"max_batch_size": 1}
AHEAD: dict[str, Any] = {"max_batch_size": 1, "ahead": True}
FOUR: dict[str, Any] = {"max_batch_size": 4, "ahead": True}
#: Settings; requests that come, or what else happens, and what the instances have then.
TABLE: dict[str, tuple[dict[str, Any], list[tuple[Event, str]]]] = {
    "a free instance takes what waits, up to the maximum": (
        {},
        [("a", "a"), ("bcdef", "a"), (end(), "bc"), (end(), "de"), (end(), "f"), (end(), "")],
    ),
    "several instances work side by side": (
        {**ONE, "instances": 3},
        [("abcd", "c|b|a"), (end(of=1), "c|d|a")],
    ),
    "what is urgent runs next and shares no batch": (
        {},
        [("a", "a"), ("bc", "a"), (urgent("u"), "a"), (end(), "u"), (end(), "bc")],
    ),
    "who leaves the queue is never run": (
        {},
        [("a", "a"), ("bcd", "a"), (leaves("c"), "a"), (end(), "bd")],
    ),
    "a batch whose callers have all left does not run": (
        {},
        [("a", "a"), ("bc", "a"), (leaves("b"), "a"), (leaves("c"), "a"), (end(), "")],
    ),
    "a full queue refuses, and has room for one when another leaves": (
        {**ONE, "max_queue_size": 2},
        [("a", "a"), ("bc", "a"), ("d", "a !d"), (leaves("b"), "a !d"), ("e", "a !d")],
    ),
    "an idle instance takes what fills the queue": (
        {**ONE, "max_queue_size": 1, "instances": 2},
        [("abcd", "b|a !d")],
    ),
    "one batch is given at a time until it is known how long one runs": (
        AHEAD,
        [("abcdefghijklm", "a"), (end(), "b c d e f g h i"), (end(8), "j k l m")],
    ),
    "only a batch that cannot grow is given ahead": (
        FOUR,
        [
            ("wxyz", "wxyz"),
            (end(), ""),
            ("a", "a"),
            ("bcd", "a"),
            ("efg", "a bcde"),
            (end(), "bcde"),
            ("hijk", "bcde fghi"),
            (end(2), "jk"),
        ],
    ),
    "a batch that is not full says nothing about a full one": (
        FOUR,
        [("a", "a"), (end(), ""), ("bcdefghi", "bcde")],
    ),
    "idle instances are given batches first, and then the one with the fewest": (
        {**AHEAD, "instances": 2},
        [("x", "|x"), (end(of=1), "|"), ("abcd", "b c|a d"), (end(2), "|a d"), ("ef", "e f|a d")],
    ),
    "an instance that does not take batches ahead is given one at a time": (
        ONE,
        [("x", "x"), (end(), ""), ("abc", "a"), (end(), "b"), (end(), "c")],
    ),
    "the most urgent of what waits is given next": (
        AHEAD,
        [
            ("x", "x"),
            (end(), ""),
            ("abcdefghij", "a b c d e f g h"),
            (urgent("u"), "a b c d e f g h"),
            (end(), "b c d e f g h u"),
        ],
    ),
    "what waits has room in the queue beside what is ahead": (
        {**AHEAD, "max_queue_size": 2},
        [("x", "x"), (end(), ""), ("abcdefghijk", "a b c d e f g h !k")],
    ),
    "instances that share the load by what was learnt take full batches ahead": (
        {**FOUR, "scheduler": SelfTuningBatcher(max_batch_size=4)},
        [
            ("wxyz", "wxyz"),
            (end(), ""),
            ("abcdefghijk", "abcd efgh"),
            (end(), "efgh"),
            (end(), "ijk"),
        ],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_instances_have_after_each_event(name: str) -> None:
    how, events = TABLE[name]
    played = Played(**how)
    for number, (event, has) in enumerate(events):
        if isinstance(event, str):
            played.ask(*event)
        else:
            event(played)
        assert (number, played.has()) == (number, has)


@pytest.mark.parametrize(("us", "most"), [(10, 8), (100, 3), (299, 2), (999, 2), (5200, 1)])
def test_the_longer_batches_run_the_fewer_are_given_ahead(us: int, most: int) -> None:
    played = Played(us=us, **AHEAD)
    played.ask("x")
    played.end()
    played.ask(*"abcdefghijklm")
    assert played.has() == " ".join("abcdefghijklm"[:most])
    played.end()
    assert played.has() == " ".join("bcdefghijklm"[:most])


def test_the_batch_after_a_long_one_is_with_the_worker_just_before_its_end() -> None:
    played = Played(us=5000, **FOUR)
    played.ask(*"wxyz")
    played.end(seconds=0.005)
    played.ask(*"abcdefg")
    played.tick(0.003)
    assert played.has() == "abcd"
    played.ask("h")
    assert played.batches.tick(played.now).wake_at == inf  # it is set already
    played.ask(*"ij")
    played.tick(0.001)
    assert played.has() == "abcd efgh"
    played.ask(*"kl")
    played.tick(0.5)
    assert played.has() == "abcd efgh"
    played.end()
    assert played.has() == "efgh"
    played.tick(0.004)
    assert played.has() == "efgh ijkl"


def test_a_batch_that_can_still_grow_is_not_given_just_before_the_end() -> None:
    played = Played(us=5000, **FOUR)
    played.ask(*"wxyz")
    played.end(seconds=0.005)
    played.ask(*"abcdefg")
    played.tick(0.0045)
    assert played.has() == "abcd"
    played.ask("h")
    assert played.has() == "abcd efgh"


def test_of_two_instances_the_one_that_ends_first_is_given_the_next_batch() -> None:
    played = Played(2, us=5000, **FOUR)
    played.ask(*"wxyz")
    played.end(of=1, seconds=0.005)
    played.ask(*"abcd")
    played.tick(0.002)
    played.ask(*"efgh")
    played.ask(*"ijkl")
    first = played.has()
    assert first in ("abcd|efgh", "efgh|abcd")
    played.tick(0.002)
    assert played.has() == first.replace("abcd", "abcd ijkl")


def test_a_model_that_needs_what_others_share_has_one_batch_at_a_time() -> None:
    resources = Resources({"gpu": 8}, ManualClock())
    config = ModelConfig(name="m", resources={"gpu": 1})
    played = Played(share=ModelShare(resources, config, lambda: None), **AHEAD)
    played.ask("x")
    played.end()
    played.ask(*"abc")
    assert played.has() == "a"


def test_nothing_is_before_or_behind_a_request_with_which_a_worker_has_died() -> None:
    played = Played(**AHEAD)
    played.ask("s")
    (suspect,), _ = played.batches.lost(played.up[0], 0.0)
    suspect.attempts = 1
    played.batches.gone(played.up[0], [suspect], (), 0.0)
    played.up = [Slot(0, ahead=True)]
    played.batches.came_up(played.up[0], 1, stops=False)
    played.ask()
    played.ask(*"ab")
    played.batches.table.ahead.ran(10e-6)
    played.ask(*"cd")
    assert played.has() == "s"
    played.end()
    assert played.has() == "a b c d"


def test_the_time_behind_others_is_no_execution_time() -> None:
    played = Played(**AHEAD)
    played.ask("a")
    played.end(seconds=0.010)
    played.ask(*"bcde")
    played.end(2, seconds=0.010)
    played.end(seconds=0.005)
    (point,) = played.batches.explain(played.now)["curve"]
    # 10, then 5 each, then 5 ms
    assert (point["rows"], round(point["seconds"], 6)) == (1, 0.006667)


# Deadlines


def test_each_moment_is_named_once() -> None:
    """One long deadline beside many short ones must not heap up wake-ups."""
    batches, _ = model()
    moments = [batches.arrived(requests("slow", deadline=1000.0), 0.0).wake_at]
    for n in range(20):
        (late,) = requests(str(n), deadline=n + 1.0)
        moments.append(batches.arrived([late], n + 0.5).wake_at)
        ((failed, error),) = batches.tick(n + 1.0).fail
        assert failed is late
        assert late.reply.settle(error)
    assert moments == [1000.0, *[n + 1.0 for n in range(20)]]


def test_an_earlier_deadline_that_comes_later_is_kept_and_so_is_that_of_what_runs() -> None:
    played = Played()
    played.ask("r", timeout=9.0)
    played.ask("l", timeout=5.0)
    played.ask("e", timeout=1.0)
    played.tick(1.0)
    assert played.has() == "r !e"
    played.tick(4.0)
    assert played.has() == "r !e !l"
    played.tick(4.0)
    assert played.has() == "r !e !l !r"
    assert {type(error) for error in played.refused.values()} == {DeadlineExceeded}


@pytest.mark.parametrize("triton", [False, True])
def test_a_wait_ends_by_its_policy_and_what_runs_has_waited_enough(triton: bool) -> None:
    policies = (QueuePolicy(timeout=0.3, max_queue_size=1, triton=triton),)
    scheduler = DynamicBatcher(max_batch_size=1, queue_policies=policies)
    batches, _ = model(scheduler=scheduler, queue_policies=policies)
    running, late, more = requests(*"abc")
    running.wait_until = late.wait_until = 0.3
    assert given(batches.arrived([running], 0.0)) == {"m_0": ["a"]}
    acts = batches.arrived([late, more], 0.0)
    ((refused, full),) = acts.fail
    assert (refused, type(full)) == (more, QueueLimitExceeded if triton else QueueFull)
    assert (str(full) == "[request id: c] Exceeds maximum queue size") == triton
    assert acts.wake_at == 0.3
    assert batches.tick(0.299).fail == []
    ((failed, error),) = batches.tick(0.3).fail
    assert (failed, type(error)) == (late, RequestTimeoutExpired if triton else QueueTimeout)
    assert (str(error) == "Request timeout expired") == triton


# Who would wait too long


def slow(longest: float | None) -> Played:
    """A batch takes 10 s, and one has just begun."""
    played = Played(**ONE, max_queue_wait=longest)
    for name in "xy":
        played.ask(name)
        played.end(seconds=10.0)
    played.ask("r")
    return played


@pytest.mark.parametrize(("longest", "refused"), [(85.0, True), (1.0, True), (None, False)])
def test_who_would_wait_longer_than_any_caller_and_behind_eight_batches_is_refused(
    longest: float | None, refused: bool
) -> None:
    played = slow(longest)
    for name in "12345678":
        played.ask(name)
    assert played.has() == "r"  # the last of them waits for 75 s
    played.ask("9")
    assert played.has() == ("r !9" if refused else "r")
    assert played.predicted_late == refused
    if longest == 85.0:
        error = played.refused["9"]
        assert isinstance(error, Overloaded)
        assert "would take about 95.000 s, longer than max_queue_wait (85 s)" in str(error)
        assert error.retry_after == pytest.approx(10.0)


def test_a_long_queue_of_worse_priority_or_of_another_tenant_is_no_reason_to_refuse() -> None:
    played = slow(1.0)
    for name in "12345678":
        played.ask(name)
    played.ask("9")
    played.ask("u", priority=1, timeout=20.0)
    (polite,) = requests("p")
    polite.tenant = "polite"
    assert played.batches.arrived([polite], played.now).fail == []
    assert played.has() == "r !9"


def test_what_waits_is_given_up_once_the_model_turns_out_to_be_too_slow_for_it() -> None:
    played = Played(**ONE, max_queue_wait=30.0)
    for n in range(1024):
        played.ask(str(n))
    played.ask("patient", timeout=5000.0)
    for _ in range(2):
        played.end(seconds=1.0)
    # 30 are left, the patient one among them.
    assert sorted(played.refused, key=int) == [str(n) for n in range(31, 1024)]
    assert played.predicted_late == len(played.refused)
    error = played.refused["1023"]
    assert isinstance(error, Overloaded)
    assert error.retry_after == pytest.approx(30.0)
    assert played.batches.queued_requests == 29


def test_a_first_batch_that_compiles_for_a_minute_lets_no_request_be_refused() -> None:
    played = Played(max_batch_size=4, max_queue_wait=30.0)
    for n in range(500):
        played.ask(str(n))
    played.end(seconds=60.0)
    for n in range(100):
        played.ask(str(n))
    for _ in range(3):
        played.end(seconds=0.05)
    for n in range(100):
        played.ask(str(n))
    assert played.refused == {}


@pytest.mark.parametrize("longest", [None, 0.0])
def test_without_max_queue_wait_no_request_is_given_up(longest: float | None) -> None:
    played = Played(**ONE, max_queue_wait=longest)
    for n in range(100):
        played.ask(str(n))
    for _ in range(4):
        played.end(seconds=100.0)
    played.ask("one more")
    assert played.refused == {}


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens, each request ends once, and at the end nothing is left."""

    @initialize(
        instances=st.integers(1, 3),
        most=st.sampled_from([1, 3]),
        delay=st.sampled_from([0.0, 0.5]),
        ahead=st.booleans(),
        size=st.sampled_from([None, 4]),
        limit=st.sampled_from([None, 3.0]),
    )
    def begin(
        self,
        instances: int,
        most: int,
        delay: float,
        ahead: bool,
        size: int | None,
        limit: float | None,
    ) -> None:
        how: dict[str, Any] = {
            "max_batch_size": most,
            "max_queue_delay": delay,
            "max_queue_size": size,
        }
        self.batches, self.up = model(
            instances, ahead=ahead, in_caller=not ahead, execution_timeout=limit, **how
        )
        self.now, self.ahead, self.delay = 0.0, ahead, delay
        self.names = 0
        #: What was given and has not ended, and callers' rows.
        self.running: dict[Slot, list[Batch]] = {one: [] for one in self.up}
        self.rows: list[Slot] = []
        self.telling: list[Slot] = []
        self.waiters: list[Waiter[Slot]] = []
        self.awake: list[Waiter[Slot]] = []
        self.ticks: list[float] = []
        self.here: set[InferRequest] = set()
        self.begun: dict[int, int] = {}
        self.first_time: set[InferRequest] = set()

    # The shell

    def carry_out(self, acts: Acts[Slot] | None) -> None:
        if acts is None:
            return
        assert not acts.give or not self.batches.is_held
        for one, batches in acts.give:
            if not self.ahead:
                assert not self.running[one], "an instance was used twice"
                assert len(batches) == 1
                assert one not in self.rows
            self.running[one] += batches
        self.begin_in_order([r for _, batches in acts.give for b in batches for r in b.requests])
        for request, error in acts.fail:
            self.end(request, error)
        self.awake += [one for one in acts.wake if one not in self.awake]
        for one, batch in acts.overdue:
            assert self.running[one][0] is batch
        if acts.wake_at < inf:
            self.ticks.append(acts.wake_at)

    def begin_in_order(self, given: list[InferRequest]) -> None:
        """Those that run for the first time come in the order in which they arrived."""
        assert len(given) == len(set(given))
        for request in sorted(given, key=lambda one: int(one.id)):
            assert request in self.here or request.reply.settled
            if request in self.first_time:
                self.first_time.remove(request)
                assert int(request.id) > self.begun.get(request.priority, -1)
                self.begun[request.priority] = int(request.id)

    def end(self, request: InferRequest, error: Exception | None = None) -> None:
        if request in self.here:
            self.here.remove(request)
            assert request.reply.settle(error or Cancelled("the test"))

    # Events

    @rule(count=st.integers(1, 6), priority=st.sampled_from([3, 5, 5]), timed=st.booleans())
    def arrive(self, count: int, priority: int, timed: bool) -> None:
        deadline = self.now + 1.0 if timed else None
        new = requests(
            *[str(self.names + n) for n in range(count)], priority=priority, deadline=deadline
        )
        self.names += count
        self.here.update(new)
        self.first_time.update(new)
        self.carry_out(self.batches.arrived(new, self.now))

    def busy(self) -> list[Slot]:
        return [one for one in self.up if self.running[one]]

    @precondition(lambda self: self.busy())
    @rule(which=ANY, most=st.integers(1, 3), us=st.sampled_from([5, 5000]))
    def some_end(self, which: int, most: int, us: int) -> None:
        one = self.busy()[which % len(self.busy())]
        if one in self.telling and not self.ahead:
            return
        ended, self.running[one] = self.running[one][:most], self.running[one][most:]
        runs = [run_of(batch, self.now, us * 1000) for batch in ended]
        self.carry_out(self.batches.ended(one, runs, self.now))
        for batch in ended:
            for request in batch.requests:
                self.end(request)
        self.telling.append(one)

    @precondition(lambda self: self.telling)
    @rule(which=ANY)
    def callers_are_told(self, which: int) -> None:
        one = self.telling.pop(which % len(self.telling))
        self.carry_out(self.batches.answered(one, self.now))

    @precondition(lambda self: self.here)
    @rule(which=ANY)
    def cancel(self, which: int) -> None:
        request = sorted(self.here, key=lambda one: int(one.id))[which % len(self.here)]
        self.end(request)
        queued, broken = self.batches.cancelled(request)
        assert not broken
        given = any(request in b.requests for those in self.running.values() for b in those)
        assert queued != given

    @rule(seconds=st.sampled_from([0.1, 0.5, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        while (due := [at for at in self.ticks if at <= self.now]) != []:
            self.ticks.remove(min(due))
            self.carry_out(self.batches.tick(self.now))

    @precondition(lambda self: self.up)
    @rule(which=ANY)
    def worker_dies(self, which: int) -> None:
        one = self.up[which % len(self.up)]
        if one in self.rows or one in self.telling or any(w.instance is one for w in self.waiters):
            return
        had, ahead = self.batches.lost(one, self.now)
        mine = [request for batch in self.running[one] for request in batch.requests]
        assert had + ahead == mine
        assert not self.batches.is_quiet()
        again = [request for request in had if not request.attempts]
        for request in had:
            request.attempts += 1
            if request not in again:
                self.end(request)
        self.running[one] = []
        self.carry_out(self.batches.gone(one, again, ahead, self.now))
        new = Slot(one.number, ahead=self.ahead, in_caller=not self.ahead)
        self.up[self.up.index(one)] = new
        self.running[new] = []
        self.carry_out(self.batches.came_up(new, len(self.up), stops=False))
        self.carry_out(self.batches.arrived((), self.now))

    @rule()
    def hold(self) -> None:
        self.carry_out(self.batches.hold(True))

    @rule()
    def goes_on(self) -> None:
        self.carry_out(self.batches.hold(False))
        self.carry_out(self.batches.arrived((), self.now))

    @precondition(lambda self: not self.batches.is_held)
    @rule()
    def caller_comes(self) -> None:
        one = self.batches.caller_came(self.now)
        if one is not None:
            assert not self.running[one]
            assert one not in self.rows
            self.rows.append(one)
        elif (waiter := self.batches.caller_waits(Waiter[Slot])) is not None:
            self.waiters.append(waiter)

    @precondition(lambda self: self.rows)
    @rule(which=ANY)
    def caller_has_run(self, which: int) -> None:
        one = self.rows.pop(which % len(self.rows))
        self.carry_out(self.batches.caller_ran(one, self.now, is_ready=True))

    @precondition(lambda self: self.awake)
    @rule()
    def caller_looks(self) -> None:
        waiter = self.awake.pop(0)
        acts = self.batches.caller_looks(waiter, self.now)
        if waiter.is_over:
            self.caller_goes(waiter)
        self.carry_out(acts)

    def caller_goes(self, waiter: Waiter[Slot]) -> None:
        self.waiters.remove(waiter)
        if waiter.instance is not None:
            assert waiter.instance not in self.rows
            self.rows.append(waiter.instance)

    @precondition(lambda self: self.waiters)
    @rule(which=ANY, has_looked=st.booleans())
    def caller_is_interrupted(self, which: int, has_looked: bool) -> None:
        """Anywhere: also before it has woken the one that it was to wake."""
        waiter = self.waiters[which % len(self.waiters)]
        if waiter in self.awake:
            self.awake.remove(waiter)
            if has_looked:
                self.batches.caller_looks(waiter, self.now)
        acts = self.batches.caller_left(waiter)
        self.caller_goes(waiter)
        self.carry_out(acts)

    # What holds at all times

    @invariant()
    def an_idle_instance_has_nothing(self) -> None:
        for one in self.batches.table.idle:
            assert not self.running[one]
            assert one not in self.rows

    @invariant()
    def nothing_waits_for_what_is_free(self) -> None:
        waits = self.batches.queued_requests - len(self.batches.line.waiting)
        if self.batches.table.idle and waits and not self.batches.is_held:
            assert self.delay
            assert self.ticks
        if self.batches.table.idle and self.batches.line.waiting:
            assert self.awake

    @invariant()
    def the_table_is_right(self) -> None:
        assert self.batches.table.up == [] or set(self.batches.table.up) == set(self.up)
        for one in self.up:
            assert one.batches == self.running[one]

    def teardown(self) -> None:
        if not hasattr(self, "batches"):
            return
        self.goes_on()
        while self.busy() or self.telling or self.rows or self.awake or self.ticks:
            while self.telling:
                self.callers_are_told(0)
            if self.busy():
                self.some_end(0, 9, 5)
            if self.rows:
                self.caller_has_run(0)
            if self.awake:
                self.caller_looks()
            self.time_passes(0.5)
        assert self.here == set()
        assert self.waiters == []
        assert self.batches.is_quiet()
        assert set(self.batches.closing().stop) == set(self.up)


AnyOrder.TestCase.settings = settings(examples(0.8), stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase
