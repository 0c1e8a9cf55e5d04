"""How many instances of a model are there to be, and when is one started that is not there?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from wherry.core.instances.restart import Restart, RestartPolicy
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device

T = TypeVar("T")


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
    """The instances that a model is to have, by their numbers. Pure; the life's lock is held.

    A number is not used again: the instance that had it may still end what it runs.
    """

    def __init__(self, config: ModelConfig, makers: Sequence[Callable[[], T]]) -> None:
        self._config = config
        self.makers: dict[int, Callable[[], T]] = {}
        #: Of all numbers that there ever were.
        self._policies: list[RestartPolicy] = []
        #: When those that crash too often, or cannot be started, are tried next.
        self._away: dict[int, float] = {}
        self.add(makers)
        placed = {n: one.device for n, one in enumerate(makers) if isinstance(one, Maker)}
        chosen = {n: device for n, device in placed.items() if device.automatic}
        #: On further GPUs that "auto" has chosen, until the first one's are up: they are started if
        #: the model uses a GPU.
        self.copies = {n for n, device in chosen.items() if device != min(chosen.items())[1]}

    def __len__(self) -> int:
        return len(self.makers)

    @property
    def next_number(self) -> int:
        return len(self._policies)

    def __contains__(self, number: int) -> bool:
        return number in self.makers

    def add(self, makers: Sequence[Callable[[], T]]) -> list[int]:
        """Have further instances; returns their numbers."""
        config, first = self._config, self.next_number
        numbers = list(range(first, first + len(makers)))
        self.makers |= dict(zip(numbers, makers, strict=True))
        self._policies += [
            RestartPolicy(
                budget=config.crash_budget,
                window=config.crash_window,
                longest=config.max_restart_delay,
            )
            for _ in makers
        ]
        return numbers

    def remove(self, numbers: Collection[int]) -> None:
        """Start these no more."""
        for number in numbers:
            self.makers.pop(number, None)
            self._away.pop(number, None)

    def decide_on_copies(self, *, needed: bool) -> int:
        """How many of the copies are dropped."""
        copies, self.copies = self.copies, set()
        if needed:
            return 0
        self.remove(copies)
        return len(copies)

    def came_up(self, number: int, now: float) -> None:
        self._policies[number].came_up(now)
        self._away.pop(number, None)

    def lost(
        self, number: int, now: float, *, short: bool, good_batches: int, explained: bool
    ) -> Restart:
        """An instance has ended, or could not be started; `short`: since the system was short of
        something. Says when it is tried again."""
        policy = self._policies[number]
        restart = policy.short() if short else policy.died(now, good_batches, explained=explained)
        if restart.away:
            self._away[number] = now + restart.delay
        return restart

    def excuse(self, number: int) -> None:
        """An earlier death was a request's fault."""
        self._policies[number].excused()

    def next_try(self) -> float | None:
        """When an instance is tried again, if all of them are away."""
        return None if len(self._away) < len(self.makers) else min(self._away.values(), default=0.0)


def changed(now: Mapping[int, T], target: Sequence[T]) -> tuple[list[int], list[T]]:
    """Compare what instances are on, by their numbers, with what is wanted: the numbers of those
    that are too many, the latest first to go, and what is missing."""
    missing = list(target)
    surplus = []
    for number, one in now.items():
        if one in missing:
            missing.remove(one)
        else:
            surplus.append(number)
    return surplus, missing
