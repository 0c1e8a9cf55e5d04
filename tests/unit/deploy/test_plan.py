"""Which owners a plan starts, uses, drains and stops, in a world of virtual time."""

import heapq
import itertools
import math
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from wherry.deploy.plan import (
    CONNECTING,
    ROOM,
    Command,
    DrainOwner,
    JoinOwner,
    OwnerStage,
    ReplicaPlan,
    StartOwner,
    StopOwner,
)
from wherry.instances.restart import RestartPolicy

LOADS = 3.0
CONNECTS = 0.1
ANSWERS = 1.0
UNLOADS = 0.5
DRAIN_TIMEOUT = 30.0


class World:
    """Machines for so many owners, and what happens on them while a plan is followed."""

    def __init__(self, wanted: int, machines: int = 100) -> None:
        policy = RestartPolicy(budget=5, window=60.0, longest=30.0)
        self.plan = ReplicaPlan(wanted, policy, drain_timeout=DRAIN_TIMEOUT)
        self.machines = machines
        self.now = 0.0
        self.said: list[Command] = []
        #: Owners on a machine, those that wait for one, and those that answer.
        self.placed: set[int] = set()
        self.waiting: list[int] = []
        self.reachable: set[int] = set()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        #: At each moment: how many answer and get new rows; how many there are.
        self.in_use: list[int] = []
        self.alive: list[int] = []
        self._follow()

    def run(self, seconds: float) -> "World":
        until = self.now + seconds
        while (moment := self._next_moment()) <= until:
            said = len(self.said)
            happens = bool(self._agenda) and self._agenda[0][0] <= moment
            self.now = moment
            while self._agenda and self._agenda[0][0] <= self.now:
                heapq.heappop(self._agenda)[2]()
            self._follow()
            assert happens or len(self.said) > said, "the plan wants to be asked for nothing"
        self.now = until
        return self

    def _next_moment(self) -> float:
        moments = [self.plan.due(), self._agenda[0][0] if self._agenda else None]
        return max(self.now, min((m for m in moments if m is not None), default=math.inf))

    def numbers(self, stage: OwnerStage) -> list[int]:
        return [n for n, owner in self.plan.owners.items() if owner.stage is stage]

    # What happens

    def dies(self, number: int) -> None:
        """Its process: the link ends, and the engine knows."""
        if number in self.placed:
            self._gone(number)
            self.plan.failed(number, self.now)
            self.plan.ended(number, self.now)
            self._follow()

    def loses_its_agent(self, number: int) -> None:
        """The engine cannot reach its machine any more, but its fronts can."""
        if number in self.placed:
            self.machines -= 1
            self.placed.discard(number)
            self.plan.ended(number, self.now)
            self._follow()

    def wants(self, count: int) -> None:
        self.plan.want(count)
        self._follow()

    def rolls(self) -> None:
        self.plan.roll()
        self._follow()

    # The engine and the fronts

    def _follow(self) -> None:
        for command in self.plan.next(self.now):
            self.said.append(command)
            number = command.owner
            match command:
                case StartOwner():
                    self.waiting.append(number)
                case JoinOwner():
                    self._in(CONNECTS, partial(self._joined, number))
                case DrainOwner():
                    self._in(ANSWERS, partial(self._drained, number))
                case StopOwner(at_once=at_once):
                    self.reachable.discard(number)
                    if number in self.waiting:
                        self.waiting.remove(number)
                    self._in(0.0 if at_once else UNLOADS, partial(self._stopped, number))
        self._place()
        in_use = {
            n
            for n in self.reachable
            if n in self.plan.owners and self.plan.owners[n].stage is OwnerStage.SERVING
        }
        self.in_use.append(len(in_use))
        self.alive.append(len(self.plan.owners))

    def _place(self) -> None:
        while self.waiting and len(self.placed) < self.machines:
            number = self.waiting.pop(0)
            self.placed.add(number)
            self.plan.placed(number, self.now)
            self._in(LOADS, partial(self._loaded, number))

    def _loaded(self, number: int) -> None:
        if number in self.placed:
            self.reachable.add(number)
            self.plan.loaded(number, self.now)

    def _joined(self, number: int) -> None:
        if number in self.reachable:
            self.plan.joined(number, self.now)

    def _drained(self, number: int) -> None:
        self.plan.drained(number, self.now)

    def _stopped(self, number: int) -> None:
        self._gone(number)
        self.plan.stopped(number, self.now)

    def _gone(self, number: int) -> None:
        self.placed.discard(number)
        self.reachable.discard(number)

    def _in(self, seconds: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.now + seconds, next(self._order), happens))


def test_an_owner_is_started_joined_drained_and_stopped_in_this_order() -> None:
    world = World(1).run(10)
    assert world.numbers(OwnerStage.SERVING) == [0]
    world.wants(0)
    world.run(10)
    assert world.said == [StartOwner(0), JoinOwner(0), DrainOwner(0), StopOwner(0, at_once=False)]
    assert world.plan.owners == {}
    assert world.plan.due() is None


def test_all_that_are_missing_start_at_once_and_the_youngest_go_first() -> None:
    world = World(1).run(10)
    world.wants(4)
    assert world.said[2:] == [StartOwner(1), StartOwner(2), StartOwner(3)]
    world.run(10)
    world.wants(2)
    assert world.said[-2:] == [DrainOwner(2), DrainOwner(3)]
    assert world.run(10).numbers(OwnerStage.SERVING) == [0, 1]


def test_what_has_not_served_yet_is_dropped_before_what_serves() -> None:
    world = World(1).run(10)
    world.wants(2)
    world.run(1)
    world.wants(1)
    assert world.said[-1] == StopOwner(1, at_once=True)
    assert world.run(10).numbers(OwnerStage.SERVING) == [0]


def test_a_lost_owner_is_replaced_at_once_and_ever_later_if_that_goes_on() -> None:
    world = World(1).run(10)
    started = []
    for _ in range(8):
        (number,) = world.plan.owners
        world.dies(number)
        died_at = world.now
        while StartOwner(number + 1) not in world.said:
            world.run(0.05)
        started.append(round(world.now - died_at, 1))
        world.run(LOADS + 1)
    assert started[0] == 0
    assert started == sorted(started)
    assert 1 <= started[-1] <= 30
    assert len(world.plan.owners) == 1


def test_the_end_of_one_that_drains_is_no_loss() -> None:
    world = World(2).run(10)
    for number in (1, 2):
        world.wants(1)
        world.plan.failed(number, world.now)
        world.wants(2)
        assert world.said[-2:] == [StopOwner(number, at_once=True), StartOwner(number + 1)]
        world.run(10)


def test_one_that_cannot_be_started_is_tried_again_and_the_others_go_on() -> None:
    world = World(2).run(10)
    world.wants(3)
    world.plan.failed(2, world.now)
    world.run(10)
    assert StopOwner(2, at_once=True) in world.said
    assert world.numbers(OwnerStage.SERVING) == [0, 1, 3]


def test_a_roll_starts_each_successor_before_its_predecessor_is_drained() -> None:
    world = World(3).run(10)
    world.in_use.clear()
    world.alive.clear()
    world.rolls()
    world.run(60)
    assert world.numbers(OwnerStage.SERVING) == [3, 4, 5]
    assert min(world.in_use) == 3
    assert max(world.alive) == 4
    rolled = [c for c in world.said[6:] if isinstance(c, StartOwner | DrainOwner)]
    assert [type(c) for c in rolled] == [StartOwner, DrainOwner] * 3
    assert [c.owner for c in rolled] == [3, 0, 4, 1, 5, 2]


def test_a_roll_without_room_for_one_more_drains_one_first_after_10_seconds() -> None:
    world = World(2, machines=2).run(10)
    world.in_use.clear()
    world.rolls()
    world.run(ROOM - 1)
    assert not any(isinstance(command, DrainOwner) for command in world.said)
    world.run(60)
    assert world.numbers(OwnerStage.SERVING) == [2, 3]
    assert min(world.in_use) == 1


def test_a_roll_ends_on_what_is_left_after_a_node_is_lost() -> None:
    world = World(2, machines=2).run(10)
    world.loses_its_agent(1)
    world.run(60)
    assert world.numbers(OwnerStage.SERVING) == [0, 1], "what still answers goes on"
    assert len(world.numbers(OwnerStage.WAITING)) == 1
    world.rolls()
    world.run(60)
    assert world.plan.owners[1].stage is OwnerStage.SERVING, "it alone gives no machine free"
    fresh = [n for n in world.numbers(OwnerStage.SERVING) if n != 1]
    assert len(fresh) == 1
    assert fresh[0] > 2
    world.machines += 1
    world.plan.failed(1, world.now)
    world._follow()
    assert len(world.run(60).numbers(OwnerStage.SERVING)) == 2


def test_an_owner_whose_agent_is_gone_serves_until_its_successor_does() -> None:
    world = World(1).run(10)
    world.in_use.clear()
    world.loses_its_agent(0)
    world.run(20)
    assert world.numbers(OwnerStage.SERVING) == [1]
    assert min(world.in_use) == 1
    assert world.said[-2:] == [DrainOwner(0), StopOwner(0, at_once=False)]


def test_a_drain_and_a_connection_have_a_limit() -> None:
    policy = RestartPolicy(budget=5, window=60.0, longest=30.0)
    plan = ReplicaPlan(1, policy, drain_timeout=DRAIN_TIMEOUT)
    assert plan.next(0) == [StartOwner(0)]
    plan.loaded(0, 1.0)
    assert plan.next(1.0) == [JoinOwner(0)]
    assert plan.due() == 1.0 + CONNECTING
    assert plan.next(1.0 + CONNECTING) == [StopOwner(0, at_once=True), StartOwner(1)]
    plan.loaded(1, 40.0)
    plan.joined(1, 40.0)
    plan.want(0)
    assert plan.next(40.0) == [DrainOwner(1)]
    assert plan.due() == 40.0 + DRAIN_TIMEOUT
    assert plan.next(40.0 + DRAIN_TIMEOUT) == [StopOwner(1, at_once=True)]


@pytest.mark.parametrize(
    "event", ["placed", "loaded", "joined", "drained", "failed", "ended", "stopped"]
)
def test_an_event_of_an_owner_that_is_gone_changes_nothing(event: str) -> None:
    plan = ReplicaPlan(0, RestartPolicy(budget=5, window=60.0, longest=30.0), drain_timeout=1.0)
    getattr(plan, event)(7, 1.0)
    assert plan.next(1.0) == []
    assert plan.due() is None


EVENTS = st.one_of(
    st.tuples(st.just("dies"), st.integers(0, 20)),
    st.tuples(st.just("loses"), st.integers(0, 20)),
    st.tuples(st.just("wants"), st.integers(1, 5)),
    st.tuples(st.just("rolls"), st.just(0)),
)


@given(
    wanted=st.integers(1, 5),
    machines=st.integers(6, 8),
    story=st.lists(st.tuples(st.floats(0.0, 20.0), EVENTS), max_size=12),
)
@examples(2)
def test_whatever_happens_the_wanted_number_of_new_owners_serves_in_the_end(
    wanted: int, machines: int, story: list[tuple[float, tuple[str, int]]]
) -> None:
    world = World(wanted, machines)
    for pause, (event, which) in story:
        world.run(pause)
        living = sorted(world.placed)
        if event == "wants":
            world.wants(which)
        elif event == "rolls":
            world.rolls()
        elif living and event == "dies":
            world.dies(living[which % len(living)])
        elif living:
            world.loses_its_agent(living[which % len(living)])
            world.machines += 1  # another node comes
        assert len(world.plan.owners) <= 2 * 5 + len(story) + 1
    generation = world.plan._generation
    world.run(600)
    owners = world.plan.owners.values()
    assert [one.stage for one in owners] == [OwnerStage.SERVING] * world.plan.wanted
    assert all(one.generation == generation and not one.lost for one in owners)
    assert world.placed == set(world.plan.owners)
    world.wants(0)
    world.run(60)
    assert world.plan.owners == {}
    assert world.placed == set()


@given(wanted=st.integers(1, 5), spare=st.integers(0, 2), extra=st.integers(1, 3))
@examples(1)
def test_a_roll_of_a_quiet_pool_never_has_fewer_than_wanted_in_use_if_there_is_room(
    wanted: int, spare: int, extra: int
) -> None:
    world = World(wanted, wanted + spare).run(30)
    world.in_use.clear()
    world.alive.clear()
    for _ in range(extra):
        world.rolls()
        world.run(300)
    assert min(world.in_use) >= (wanted if spare else wanted - 1)
    assert max(world.alive) <= wanted + 1
