"""How is a wanted number of owners kept on an engine?

The plan decides; here its commands are carried out and it is told what happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from wherry.deploy.plan import (
    DrainOwner,
    JoinOwner,
    OwnerStage,
    ReplicaPlan,
    StartOwner,
    StopOwner,
)
from wherry.instances.restart import RestartPolicy

log = logging.getLogger("wherry")

#: After LOSSES lost owners within LOSS_WINDOW seconds the next tries come ever later.
LOSSES = 5
LOSS_WINDOW = 60.0
LONGEST_PAUSE = 30.0


@dataclass(frozen=True, slots=True)
class OwnerAddress:
    """Where an owner is reached: by fronts, as HOST:PORT, and by HTTP."""

    rows: str
    url: str


class OwnerNotStarted(Exception):
    """Raised by an engine for an owner that has ended before it was ready. The text says why."""


class OwnerEngine(Protocol):
    """Where owners run. Its methods run in the event loop and block it not.

    An engine neither restarts nor replaces owners. Numbers are not used again.
    """

    async def start(self, number: int, placed: Callable[[], None]) -> OwnerAddress:
        """Start an owner; return when it has loaded its models. `placed` is called once it has a
        machine, which may take for ever. OwnerNotStarted if it ends before."""

    async def ended(self, number: int) -> str:
        """Wait until an owner that was started has ended. Returns the reason."""

    async def stop(self, number: int, *, at_once: bool) -> None:
        """End an owner, also one that is being started, and return when it has gone. It may finish
        what it has, unless `at_once`. An owner that is out of reach is given up."""

    async def close(self) -> None:
        """Give back what the engine itself holds. After the last `stop`."""


class OwnerEvents(Protocol):
    """What a front is to tell of its links to owners."""

    def joined(self, number: int) -> None: ...
    def drained(self, number: int) -> None: ...
    def leaving(self, number: int) -> None: ...
    def cut(self, number: int, error: Exception) -> None: ...


class OwnerLinks(Protocol):
    """A front's links to owners. In the event loop."""

    #: Told when a link is there, has answered all, or has ended other than by `leave`.
    events: OwnerEvents

    def join(self, number: int, address: OwnerAddress) -> None:
        """Connect to an owner, and send it its share of the rows."""

    def drain(self, number: int) -> None:
        """Send it no more."""

    def leave(self, number: int) -> None:
        """Close its link, if there is one. What it has not answered is lost."""


class ReplicaKeeper:
    """Keeps owners on an engine, for the front in the same event loop."""

    def __init__(
        self, engine: OwnerEngine, links: OwnerLinks, *, wanted: int, drain_timeout: float = 30.0
    ) -> None:
        policy = RestartPolicy(budget=LOSSES, window=LOSS_WINDOW, longest=LONGEST_PAUSE)
        self.plan = ReplicaPlan(wanted, policy, drain_timeout=drain_timeout)
        self._engine = engine
        self._links = links
        #: Watch over an owner until it is to stop.
        self._lives: dict[int, asyncio.Task[None]] = {}
        self._addresses: dict[int, OwnerAddress] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        #: Done when an owner serves, or none could be started.
        self._first: asyncio.Future[None] | None = None
        self._changed = asyncio.Event()
        links.events = self

    # Life

    async def start(self) -> None:
        """Start the owners; return when one of them serves. OwnerNotStarted if the first one that
        ends has not come so far."""
        self._first = asyncio.get_running_loop().create_future()
        self._follow()
        await self._first

    async def close(self) -> None:
        """Drain and stop every owner, and the engine."""
        self.plan.want(0)
        self._follow()
        while self.plan.owners:
            self._changed.clear()
            await self._changed.wait()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*self._tasks)
        await self._engine.close()

    def want(self, count: int) -> None:
        """Keep this number from now on."""
        if count != self.plan.wanted:
            log.info("replicas wanted", extra={"replicas": count, "before": self.plan.wanted})
            self.plan.want(count)
            self._follow()

    def roll(self) -> None:
        """Replace all owners, one after the other."""
        self.plan.roll()
        self._follow()

    def serving(self) -> list[int]:
        """The owners that are sent rows."""
        owners = self.plan.owners.values()
        return [owner.number for owner in owners if owner.stage is OwnerStage.SERVING]

    # As OwnerEvents

    def joined(self, number: int) -> None:
        """The front is connected to it."""
        log.info("replica serves", extra={"replica": number})
        self.plan.joined(number, self._now())
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        self._follow()

    def drained(self, number: int) -> None:
        """It has answered all that this front has sent."""
        self.plan.drained(number, self._now())
        self._follow()

    def leaving(self, number: int) -> None:
        """It takes no more, though it was not told to: it was stopped by another."""
        log.warning("replica is leaving", extra={"replica": number})
        self.plan.ended(number, self._now())
        self._follow()

    def cut(self, number: int, error: Exception) -> None:
        """The link to it has ended."""
        log.warning("replica is lost", extra={"replica": number, "why": str(error)})
        self.plan.failed(number, self._now())
        self._follow()

    # Commands

    def _follow(self) -> None:
        """Do what the plan says, and ask again when it wants to be asked."""
        for command in self.plan.next(self._now()):
            match command:
                case StartOwner(number):
                    self._lives[number] = self._spawn(self._live(number))
                case JoinOwner(number):
                    self._links.join(number, self._addresses[number])
                case DrainOwner(number):
                    self._links.drain(number)
                case StopOwner(number, at_once):
                    self._links.leave(number)
                    self._spawn(self._stop(number, at_once))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.plan.due()
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due, self._follow)
        self._changed.set()

    async def _live(self, number: int) -> None:
        log.info("replica starts", extra={"replica": number})
        try:
            address = await self._engine.start(number, lambda: self._placed(number))
        except OwnerNotStarted as error:
            return self._not_started(number, error)
        self._addresses[number] = address
        self.plan.loaded(number, self._now())
        self._follow()
        why = await self._engine.ended(number)
        log.warning("replica has ended", extra={"replica": number, "why": why})
        self.plan.ended(number, self._now())
        self._follow()

    def _placed(self, number: int) -> None:
        self.plan.placed(number, self._now())
        self._follow()

    def _not_started(self, number: int, error: OwnerNotStarted) -> None:
        log.error("replica could not be started", extra={"replica": number, "why": str(error)})
        if self._first is not None and not self._first.done():
            self._first.set_exception(error)
        self.plan.failed(number, self._now())
        self._follow()

    async def _stop(self, number: int, at_once: bool) -> None:
        life = self._lives.pop(number)
        life.cancel()
        await asyncio.wait([life])
        self._addresses.pop(number, None)
        await self._engine.stop(number, at_once=at_once)
        log.info("replica is gone", extra={"replica": number})
        self.plan.stopped(number, self._now())
        self._follow()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
