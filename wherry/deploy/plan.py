"""Which owners are to be started, used, drained and stopped now? (pure)

An owner is a server with models on some machine; fronts send it rows. The shell tells of events
and carries out commands; time comes in as an argument.

    StartOwner -> placed -> loaded
    JoinOwner  -> joined
    DrainOwner -> drained
    StopOwner  -> stopped
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from wherry.instances.restart import RestartPolicy

#: Seconds that an owner may wait for a machine until an old one makes room for it.
ROOM: Final = 10.0
#: Seconds for the fronts to connect to an owner that has its models.
CONNECTING: Final = 30.0


@dataclass(frozen=True, slots=True)
class StartOwner:
    """Have the engine start an owner, and load its models."""

    owner: int


@dataclass(frozen=True, slots=True)
class JoinOwner:
    """Have the fronts connect to it."""

    owner: int


@dataclass(frozen=True, slots=True)
class DrainOwner:
    """Have the fronts send it no more."""

    owner: int


@dataclass(frozen=True, slots=True)
class StopOwner:
    """Have the fronts close their links to it, and the engine end it: at once, or giving it time
    to unload its models."""

    owner: int
    at_once: bool


Command = StartOwner | JoinOwner | DrainOwner | StopOwner


class OwnerStage(IntEnum):
    """How far an owner is. They follow each other; any may be left out."""

    WAITING = 0  # for a machine
    LOADING = 1
    JOINING = 2
    SERVING = 3
    DRAINING = 4
    STOPPING = 5


@dataclass(slots=True, eq=False)
class KeptOwner:
    """What is known of one owner."""

    number: int
    generation: int
    #: When it came to its stage.
    since: float
    stage: OwnerStage = OwnerStage.WAITING
    #: The last stage that a command has told of.
    told: OwnerStage | None = None
    #: The engine has lost it.
    lost: bool = False
    #: It has, or may have, nothing to finish.
    at_once: bool = False


class ReplicaPlan:
    """Keeps a wanted number of owners.

    One that is lost is replaced, after a pause if that happens often. In a roll, one by one, a
    successor serves before its predecessor is drained; if there is no room for it within 10 s, an
    old owner is drained first. An owner that the engine has lost but that still answers serves
    until its successor does.
    """

    def __init__(self, wanted: int, policy: RestartPolicy, *, drain_timeout: float) -> None:
        self.wanted = wanted
        self.owners: dict[int, KeptOwner] = {}
        self._policy = policy
        self._drain_timeout = drain_timeout
        self._generation = 0
        self._next = 0
        #: No owner is started before.
        self._not_before = 0.0

    # Events

    def want(self, count: int) -> None:
        """Keep this number from now on; 0 ends all."""
        self.wanted = count

    def roll(self) -> None:
        """Replace every owner that there is by a new one."""
        self._generation += 1

    def placed(self, number: int, now: float) -> None:
        """It has a machine."""
        self._advance(number, OwnerStage.LOADING, now)

    def loaded(self, number: int, now: float) -> None:
        """It has its models and listens."""
        self._advance(number, OwnerStage.JOINING, now)

    def joined(self, number: int, now: float) -> None:
        """A front is connected to it."""
        if self._advance(number, OwnerStage.SERVING, now):
            self._policy.came_up(now)

    def drained(self, number: int, now: float) -> None:
        """It has answered all that it was sent."""
        self._advance(number, OwnerStage.STOPPING, now)

    def failed(self, number: int, now: float) -> None:
        """Its link has ended, or it could not be started."""
        owner = self.owners.get(number)
        if owner is not None and owner.stage is not OwnerStage.STOPPING:
            if owner.stage is not OwnerStage.DRAINING:
                self._lose(owner, now)
            owner.at_once = True
            self._advance(number, OwnerStage.STOPPING, now)

    def ended(self, number: int, now: float) -> None:
        """The engine says that it is gone. If a front is connected to it that may be wrong, as with
        a node whose agent has died; the link's end tells."""
        owner = self.owners.get(number)
        if owner is None:
            return
        if owner.stage < OwnerStage.SERVING:
            self.failed(number, now)
        elif owner.stage is OwnerStage.SERVING:
            self._lose(owner, now)

    def stopped(self, number: int, now: float) -> None:
        """Nothing is left of it. Its machine may take one that waits."""
        self.owners.pop(number, None)
        for owner in self.owners.values():
            if owner.stage is OwnerStage.WAITING:
                owner.since = now

    def _advance(self, number: int, stage: OwnerStage, now: float) -> bool:
        """It has come so far. False if it was there already, or further."""
        owner = self.owners.get(number)
        if owner is None or owner.stage >= stage:
            return False
        owner.stage, owner.since = stage, now
        return True

    def _lose(self, owner: KeptOwner, now: float) -> None:
        if not owner.lost:
            owner.lost = True
            self._not_before = now + self._policy.died(now).delay

    # Decisions

    def next(self, now: float) -> list[Command]:
        """What is to be done now. To be asked after each event, and at `due`."""
        self._give_up(now)
        self._drop_surplus(now)
        self._make_room(now)
        self._add_missing(now)
        commands = []
        for owner in self.owners.values():
            if owner.told is not owner.stage:
                owner.told = owner.stage
                if (command := _command(owner)) is not None:
                    commands.append(command)
        return commands

    def due(self) -> float | None:
        """When `next` may have something to do though nothing has happened."""
        moments = [owner.since + limit for owner, limit in self._limits()]
        if self._missing() > 0:
            moments.append(self._not_before)
        return min(moments, default=None)

    def _is_fresh(self, owner: KeptOwner) -> bool:
        """Whether it counts: it is of this generation, not lost, and not on its way out."""
        return (
            owner.stage < OwnerStage.DRAINING
            and not owner.lost
            and owner.generation == self._generation
        )

    def _fresh(self) -> list[KeptOwner]:
        return [one for one in self.owners.values() if self._is_fresh(one)]

    def _serving_until_replaced(self) -> list[KeptOwner]:
        """Those that do not count but go on; first those whose machine can be had."""
        old = [
            owner
            for owner in self.owners.values()
            if owner.stage is OwnerStage.SERVING and not self._is_fresh(owner)
        ]
        return sorted(old, key=lambda owner: owner.lost)

    def _of_earlier_generations(self) -> list[KeptOwner]:
        return [one for one in self.owners.values() if one.generation < self._generation]

    def _limits(self) -> list[tuple[KeptOwner, float]]:
        """How long owners may stay in their stage."""
        limits = []
        earlier = [one for one in self._of_earlier_generations() if not one.lost]
        gives_room = bool(earlier) and all(one.stage is OwnerStage.SERVING for one in earlier)
        for owner in self.owners.values():
            if owner.stage is OwnerStage.JOINING:
                limits.append((owner, CONNECTING))
            elif owner.stage is OwnerStage.DRAINING:
                limits.append((owner, self._drain_timeout))
            elif owner.stage is OwnerStage.WAITING and gives_room:
                limits.append((owner, ROOM))
        return limits

    def _give_up(self, now: float) -> None:
        """End what has taken too long to connect or to drain."""
        for owner, limit in self._limits():
            if owner.stage is not OwnerStage.WAITING and now >= owner.since + limit:
                self.failed(owner.number, now)

    def _drop_surplus(self, now: float) -> None:
        """Drain what is more than wanted, the least useful first; old ones do not count as wanted
        but go only when enough serve without them."""
        for owner in list(self.owners.values()):
            if owner.stage < OwnerStage.SERVING and not self._is_fresh(owner):
                self._drop(owner, now)
        fresh = sorted(self._fresh(), key=lambda one: (one.stage, -one.number))
        for owner in fresh[: max(0, len(fresh) - self.wanted)]:
            self._drop(owner, now)
        serving = [one for one in self._fresh() if one.stage is OwnerStage.SERVING]
        old = self._serving_until_replaced()
        for owner in old[: max(0, len(serving) + len(old) - self.wanted)]:
            self._drop(owner, now)

    def _make_room(self, now: float) -> None:
        """Drain an old owner whose successor finds no machine."""
        waits = any(
            owner.stage is OwnerStage.WAITING and now >= owner.since + limit
            for owner, limit in self._limits()
        )
        if waits:
            self._drop(self._serving_until_replaced()[0], now)

    def _missing(self) -> int:
        """How many may be started, once the pause after a loss is over."""
        fresh = len(self._fresh())
        if earlier := self._of_earlier_generations():  # a roll: one more than wanted at a time
            return min(self.wanted, self.wanted + 1 - len(earlier)) - fresh
        return self.wanted - fresh

    def _add_missing(self, now: float) -> None:
        if now < self._not_before:
            return
        for _ in range(self._missing()):
            self.owners[self._next] = KeptOwner(self._next, self._generation, now)
            self._next += 1

    def _drop(self, owner: KeptOwner, now: float) -> None:
        owner.at_once = owner.stage < OwnerStage.SERVING
        self._advance(
            owner.number, OwnerStage.STOPPING if owner.at_once else OwnerStage.DRAINING, now
        )


def _command(owner: KeptOwner) -> Command | None:
    match owner.stage:
        case OwnerStage.WAITING:
            return StartOwner(owner.number)
        case OwnerStage.JOINING:
            return JoinOwner(owner.number)
        case OwnerStage.DRAINING:
            return DrainOwner(owner.number)
        case OwnerStage.STOPPING:
            return StopOwner(owner.number, owner.at_once)
    return None
