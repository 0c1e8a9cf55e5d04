"""How many instances should a model have, and when is a missing one started?"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device
from wherry.core.values.errors import LoadFailed

#: Good batches that make up for one death.
GOOD_BATCHES = 10
#: Seconds between two tries, at least, once the budget is used up.
AWAY_AT_LEAST = 1.0
#: Most seconds between two tries before that, and while a resource is short.
SOON = 5.0

#: What the system is short of, by the error's number.
_SHORT_OF = {
    errno.EMFILE: "no file descriptor is left in this process",
    errno.ENFILE: "no file descriptor is left on this machine",
    errno.ENOMEM: "no memory is left",
    errno.EAGAIN: "no further process or thread may be started",
    errno.ENOSPC: "no space is left",
    errno.ENOBUFS: "no buffer space is left",
}


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Restart:
    """Try again in `delay` seconds; if it is `away`, requests should not wait for it."""

    delay: float
    away: bool = False


class RestartPolicy:
    """Back-off with a budget that refills: pure, time comes in as an argument.

    Deaths add up; time in which the instance is loaded and good batches take them away again. The
    first is answered at once, later ones after 0.1, 0.2, 0.4 ... seconds; with more than `budget`
    within `window` seconds the instance is away, and tried every `longest` seconds in the end. It
    is never given up.
    """

    def __init__(
        self, *, budget: int, window: float, longest: float, first_delay: float = 0.1
    ) -> None:
        self.budget = budget
        self.window = window
        self.longest = longest
        self.first_delay = first_delay
        self._deaths = 0.0
        self._up_since: float | None = None
        #: Deaths in a row that requests have caused, with no good batch between them.
        self._explained = 0
        #: Tries in a row that failed since something was short.
        self._short = 0

    def came_up(self, now: float) -> None:
        self._up_since = now
        self._short = 0

    def died(self, now: float, good_batches: int = 0, *, explained: bool = False) -> Restart:
        """Record that it has ended, or could not be loaded. `explained`: a request is the cause.

        At most `budget` deaths in a row count as explained: beyond, the model is the cause.
        """
        refilled = good_batches / GOOD_BATCHES
        if self._up_since is not None:
            refilled += (now - self._up_since) * self.budget / self.window
        self._up_since = None
        self._deaths = max(0.0, self._deaths - refilled)
        if good_batches:
            self._explained = 0
        if explained and self._explained < self.budget:
            self._explained += 1
            return Restart(0.0)
        # Bounded, so that the count falls to zero again in bounded time.
        self._deaths = min(self._deaths + 1, max(self.budget, 10) + 1.0)
        delay = 0.0 if self._deaths <= 1 else self.first_delay * 2.0 ** (self._deaths - 2)
        if self._deaths > self.budget:
            return Restart(min(self.longest, max(AWAY_AT_LEAST, delay)), away=True)
        return Restart(min(self.longest, SOON, delay))

    def excused(self) -> None:
        """An earlier death was a request's fault."""
        self._deaths = max(0.0, self._deaths - 1)

    def short(self) -> Restart:
        """Record that the system was short of something: that does not count against the model."""
        delay = min(self.longest, SOON, self.first_delay * 2.0**self._short)
        self._short = min(self._short + 1, 10)
        return Restart(delay, away=delay >= AWAY_AT_LEAST)


def shortage(error: BaseException) -> str:
    """What the system was short of when this was raised, here or in a worker; "" if nothing."""
    number = error.errno if isinstance(error, OSError) else None
    kind, text = type(error).__name__, str(error)
    if isinstance(error, LoadFailed):  # what a worker has reported
        kind, _, text = text.partition(": ")
        if (numbered := re.match(r"\[Errno (\d+)\]", text)) is not None:
            number = int(numbered[1])
    if kind == "MemoryError":
        number = errno.ENOMEM
    elif kind == "RuntimeError" and text.startswith("can't start new thread"):
        number = errno.EAGAIN
    return _SHORT_OF.get(number, "") if number is not None else ""


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes one instance of a model, when it is started."""

    make: Callable[[str, Device], Any]
    model: str
    number: int
    device: Device

    def __call__(self) -> Any:
        return self.make(f"{self.model}_{self.number}", self.device)


class InstanceSlots(Generic[T]):
    """The instances that a model should have, by their numbers. Pure; the life's lock is held."""

    def __init__(self, config: ModelConfig, makers: Sequence[Callable[[], T]]) -> None:
        self.makers = dict(enumerate(makers))
        #: Also of those that were dropped.
        self._policies = [
            RestartPolicy(
                budget=config.crash_budget,
                window=config.crash_window,
                longest=config.max_restart_delay,
            )
            for _ in makers
        ]
        #: When those that crash too often, or cannot be started, are tried next.
        self._away: dict[int, float] = {}
        placed = {n: one.device for n, one in enumerate(makers) if isinstance(one, Maker)}
        chosen = {n: device for n, device in placed.items() if device.automatic}
        #: Instances on further GPUs that "auto" has chosen, until those of the first are up: they
        #: are started if the model uses a GPU.
        self.copies = {n for n, device in chosen.items() if device != min(chosen.items())[1]}

    def __len__(self) -> int:
        return len(self.makers)

    def __contains__(self, number: int) -> bool:
        return number in self.makers

    def decide_on_copies(self, *, needed: bool) -> int:
        """How many of the copies are dropped."""
        copies, self.copies = self.copies, set()
        if needed:
            return 0
        for number in copies:
            self.makers.pop(number, None)
            self._away.pop(number, None)
        return len(copies)

    def came_up(self, number: int, now: float) -> None:
        self._policies[number].came_up(now)
        self._away.pop(number, None)

    def lost(
        self, number: int, now: float, *, short: bool, good_batches: int, explained: bool
    ) -> Restart:
        """An instance has ended, or could not be started; `short`: since the system was short of
        something. Returns when it is tried again."""
        policy = self._policies[number]
        restart = policy.short() if short else policy.died(now, good_batches, explained=explained)
        if restart.away:
            self._away[number] = now + restart.delay
        return restart

    def excuse(self, number: int) -> None:
        self._policies[number].excused()

    def next_try(self) -> float | None:
        """When an instance is tried again, if all of them are away."""
        return None if len(self._away) < len(self.makers) else min(self._away.values(), default=0.0)
