"""What follows from each event of a model that works in steps: a table, and any order of them."""

from __future__ import annotations

from math import inf
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.fakes import Call
from tests.properties import examples
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device
from wherry.core.scheduler.step_requests import Active, StepActs, StepRequests
from wherry.core.values.errors import Cancelled, DeadlineExceeded, QueueFull, WorkerDied
from wherry.core.values.request import InferRequest

ANY = st.integers(0, 99)


class Slot:
    """An instance that does nothing: who joins it is in the acts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.device, self.uses_device = Device(), True
        self.busy_since: float | None = None

    def __repr__(self) -> str:
        return self.name


def model(instances: int, most: int = 2, **how: Any) -> tuple[StepRequests[Slot], list[Slot]]:
    config = ModelConfig(name="m", max_batch_size=most, **how)
    made: StepRequests[Slot] = StepRequests(config, lambda _: most)
    slots = [Slot("ab"[number]) for number in range(instances)]
    for slot in slots:
        made.came_up(slot, 0.0)
    return made, slots


def requests(*names: str, attempts: int = 0, **how: Any) -> list[InferRequest]:
    made = [Call(name, **how).request for name in names]
    for request in made:
        request.attempts = attempts
    return made


def joined(acts: StepActs[Slot]) -> dict[str, str]:
    return {active.request.id: active.instance.name for active in acts.join}


def test_requests_join_the_emptiest_instance_until_all_are_full() -> None:
    made, _ = model(2)
    acts = made.arrived(requests("1", "2", "3", "4", "5"), 0.0)
    assert joined(acts) == {"1": "a", "2": "b", "3": "a", "4": "b"}
    assert [request.id for request in made.queue.waiting()] == ["5"]
    acts = made.left(made.active_on(made.all_active[1].instance)[0].request, 1.0)
    assert acts.leave is not None
    assert acts.leave.request.id == "2"
    assert joined(acts) == {"5": "b"}


def test_a_request_on_trial_is_alone_until_its_first_response() -> None:
    made, _ = model(1, most=4)
    assert joined(made.arrived(requests("suspect", attempts=1), 0.0)) == {"suspect": "a"}
    assert joined(made.arrived(requests("other"), 0.0)) == {}
    (suspect,) = made.all_active
    seconds, is_first, acts = made.responded(suspect, 3.0)
    assert (seconds, is_first) == (3.0, True)
    assert acts is not None
    assert joined(acts) == {"other": "a"}
    assert made.responded(suspect, 5.0) == (2.0, False, None)


def test_a_request_on_trial_waits_for_an_empty_instance() -> None:
    made, (_, b) = model(2, most=4)
    made.arrived(requests("1", "2"), 0.0)
    assert joined(made.arrived(requests("suspect", attempts=1), 0.0)) == {}
    (other,) = made.active_on(b)
    assert joined(made.finished(other, 1.0)) == {"suspect": "b"}
    assert joined(made.arrived(requests("3", "4"), 2.0)) == {"3": "a", "4": "a"}


def test_what_a_lost_instance_had_fails_or_waits_again() -> None:
    made, (a, b) = model(2)
    made.arrived(requests("1", "2", "3", "4", "5"), 0.0)
    first, third = made.active_on(a)
    failed = made.gone(a, {first.request: WorkerDied("gone")})
    assert [active.request.id for active in failed] == ["1"]
    assert {active.instance for active in made.all_active} == {b}
    assert [request.id for request in made.queue.waiting()] == ["5", "3"]
    assert made.stepped(a, [first.key, third.key], 1.0) == [None, None]
    assert not made.gone(a)


def test_a_step_that_takes_too_long_is_said_once() -> None:
    made, (a,) = model(1, execution_timeout=5.0)
    assert made.arrived(requests("1"), 1.0).wake_at == 6.0
    assert made.tick(5.9).overdue == []
    assert made.tick(6.0).overdue == [a]
    assert made.tick(7.0).overdue == []
    (active,) = made.stepped(a, [1], 8.0)
    assert active is not None
    assert made.tick(13.0).overdue == [a]


def test_those_that_wait_are_late_refused_or_held() -> None:
    made, _ = model(1, most=1, max_queue_size=1)
    made.arrived(requests("1"), 0.0)
    acts = made.arrived(requests("2", deadline=4.0), 1.0)
    assert (acts.fail, acts.wake_at) == ([], 4.0)
    ((refused, error),) = made.arrived(requests("3"), 2.0).fail
    assert (refused.id, type(error)) == ("3", QueueFull)
    ((expired, error),) = made.tick(4.0).fail
    assert (expired.id, type(error)) == ("2", DeadlineExceeded)

    made.arrived(requests("4"), 5.0)
    made.is_held = True
    assert joined(made.finished(made.all_active[0], 6.0)) == {}
    made.is_held = False
    assert joined(made.arrived((), 7.0)) == {"4": "a"}


class AnyOrder(RuleBasedStateMachine):
    """Every request ends once, no instance has more than it may, nobody waits where there is
    room, those of one level join in their order, and in the end nothing is left."""

    @initialize(instances=st.integers(1, 2), most=st.integers(1, 3))
    def made(self, instances: int, most: int) -> None:
        self.requests, self.up = model(instances, most, execution_timeout=3.0)
        self.most, self.now, self.names = most, 0.0, 0
        #: Requests without an outcome, and the last one that joined for the first time.
        self.here: set[InferRequest] = set()
        self.last_joined = -1

    def carry_out(self, acts: StepActs[Slot]) -> None:
        for active in acts.join:
            assert active.request in self.here
            assert active.instance in self.up
            assert not self.requests.is_held
            if not active.request.attempts:
                assert int(active.request.id) > self.last_joined
                self.last_joined = int(active.request.id)
        for request, error in acts.fail:  # those whose time is over while they run among them
            if not request.reply.settled:  # else it was queued twice, and is late twice
                self.end(request, error)
                self.carry_out(self.requests.left(request, self.now))

    def end(self, request: InferRequest, error: Exception | None = None) -> None:
        self.here.remove(request)
        assert request.reply.settle(error or Cancelled("the test"))

    @rule(count=st.integers(1, 4), timed=st.booleans())
    def arrive(self, count: int, timed: bool) -> None:
        new = requests(
            *[str(self.names + n) for n in range(count)],
            deadline=self.now + 1.0 if timed else None,
        )
        self.names += count
        self.here.update(new)
        self.carry_out(self.requests.arrived(new, self.now))

    @precondition(lambda self: self.here)
    @rule(which=ANY)
    def cancel(self, which: int) -> None:
        request = sorted(self.here, key=lambda one: int(one.id))[which % len(self.here)]
        self.end(request)
        acts = self.requests.left(request, self.now)
        assert acts.leave is None or acts.leave.request is request
        self.carry_out(acts)

    @precondition(lambda self: self.requests.all_active)
    @rule(which=ANY, ends=st.booleans())
    def step(self, which: int, ends: bool) -> None:
        active: Active[Slot] = self.requests.all_active[which % len(self.requests.all_active)]
        assert self.requests.stepped(active.instance, [active.key], self.now) == [active]
        _, _, acts = self.requests.responded(active, self.now)
        if acts is not None:
            self.carry_out(acts)
        if ends:
            self.end(active.request)
            self.carry_out(self.requests.finished(active, self.now))

    @precondition(lambda self: self.up)
    @rule(which=ANY)
    def worker_dies(self, which: int) -> None:
        one = self.up.pop(which % len(self.up))
        had = [active.request for active in self.requests.active_on(one)]
        failed = {request: WorkerDied("gone") for request in had if request.attempts}
        for request in had:
            request.attempts += 1
        for active in self.requests.gone(one, failed):
            self.end(active.request)
            self.carry_out(self.requests.left(active.request, self.now))
        self.carry_out(self.requests.arrived((), self.now))

    @precondition(lambda self: len(self.up) < 2)
    @rule()
    def comes_up(self) -> None:
        self.up.append(Slot("new"))
        self.requests.came_up(self.up[-1], self.now)
        self.carry_out(self.requests.arrived((), self.now))

    @rule(held=st.booleans())
    def hold(self, held: bool) -> None:
        self.requests.is_held = held
        self.carry_out(self.requests.arrived((), self.now))

    @rule(seconds=st.sampled_from([0.1, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        acts = self.requests.tick(self.now)
        assert acts.wake_at > self.now
        self.carry_out(acts)

    @invariant()
    def no_instance_has_too_many(self) -> None:
        for one in self.up:
            active = self.requests.active_on(one)
            assert len(active) <= self.most
            assert len(active) == 1 or not any(a.on_trial for a in active)
            assert active == [] or one.busy_since is not None or self.now > 2

    @invariant()
    def nobody_waits_where_there_is_room(self) -> None:
        waiting = self.requests.queue.waiting()
        if waiting and not self.requests.is_held and not waiting[0].attempts:
            for one in self.up:
                active = self.requests.active_on(one)
                assert len(active) == self.most or active[0].on_trial

    @invariant()
    def each_is_in_one_place(self) -> None:
        active = [one.request for one in self.requests.all_active]
        assert {*active, *self.requests.queue.waiting()} == self.here
        assert len(active) + self.requests.queue.queued_requests == len(self.here)

    def teardown(self) -> None:
        if not hasattr(self, "requests"):
            return
        self.hold(False)
        if not self.up:
            self.comes_up()
        while self.here:
            self.step(0, True)
        for one in self.up:
            self.requests.stepped(one, [], self.now)  # of those that had left
        assert self.requests.is_quiet()
        assert len(self.requests.first) == 0
        assert self.requests.tick(self.now).wake_at == inf


AnyOrder.TestCase.settings = settings(examples(0.8), stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase
