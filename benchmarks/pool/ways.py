"""By which rule does a front choose, and what does it know?"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random
from typing import Protocol

from wherry.remote.choice import ReplicaChoice
from wherry.values.load import Load


class Way(Protocol):
    """The rule of one front. Owners have numbers."""

    def choose(self, now: float, sequence: int | None) -> int:
        """Choose for one row, which is sent at once."""
        ...

    def ended(self, owner: int, rows: int) -> None: ...
    def reported(self, owner: int, load: Load, yours: int, now: float) -> None: ...
    def removed(self, owner: int) -> None: ...


#: With the number of owners, and the seconds of a round trip.
MakeWay = Callable[[int, Random, float], Way]


class Predicted:
    """The rule of wherry."""

    def __init__(self, owners: int, random: Random, round_trip: float) -> None:
        self._choice = ReplicaChoice(random)
        self._replicas = [self._choice.added(str(n), round_trip) for n in range(owners)]
        self._numbers = {replica: n for n, replica in enumerate(self._replicas)}

    def choose(self, now: float, sequence: int | None) -> int:
        if sequence is None:
            replica = self._choice.choose(1, now)
        else:
            replica = self._choice.choose_for_sequence(sequence, now, starts=True)
        assert replica is not None
        self._choice.sent(replica, 1, now)
        return self._numbers[replica]

    def ended(self, owner: int, rows: int) -> None:
        self._choice.ended(self._replicas[owner], rows)

    def reported(self, owner: int, load: Load, yours: int, now: float) -> None:
        self._choice.reported(self._replicas[owner], load, yours, now)

    def removed(self, owner: int) -> None:
        self._choice.removed(self._replicas[owner])


class Plain:
    """A rule that knows only the rows of its own front."""

    def __init__(self, owners: int, random: Random, round_trip: float) -> None:
        self._random = random
        self._own = [0] * owners
        self._open = list(range(owners))

    def choose(self, now: float, sequence: int | None) -> int:
        owner = self._next()
        self._own[owner] += 1
        return owner

    def _next(self) -> int:
        raise NotImplementedError

    def ended(self, owner: int, rows: int) -> None:
        self._own[owner] -= rows

    def reported(self, owner: int, load: Load, yours: int, now: float) -> None:
        """Not looked at."""

    def removed(self, owner: int) -> None:
        self._open.remove(owner)


class AtRandom(Plain):
    def _next(self) -> int:
        return self._random.choice(self._open)


class RoundRobin(Plain):
    def __init__(self, owners: int, random: Random, round_trip: float) -> None:
        super().__init__(owners, random, round_trip)
        self._turns = count(random.randrange(owners))

    def _next(self) -> int:
        return self._open[next(self._turns) % len(self._open)]


class LeastOutstanding(Plain):
    """Of all of them, the first after a random place."""

    def _next(self) -> int:
        start = self._random.randrange(len(self._open))
        return min(self._open[start:] + self._open[:start], key=self._own.__getitem__)


WAYS: dict[str, MakeWay] = {
    "predicted": Predicted,
    "random": AtRandom,
    "round robin": RoundRobin,
    "least outstanding": LeastOutstanding,
}
