"""Which scenarios does a seed draw?

Each property of a scenario (instances, limit, kind of curve, of callers, behaviour) is drawn on
its own, each kind equally often, and the n-th scenario of a seed does not depend on how many are
drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from benchmarks.batching.callers import CALLER_KINDS, Arrivals, Load, drawn_callers, load
from benchmarks.batching.curves import CURVE_KINDS
from benchmarks.batching.device import BEHAVIOURS, BatchSeconds, Device, drawn_device

T = TypeVar("T")
INSTANCES = (1, 2, 4, 8)
LIMITS = (16, 32, 64, 128, 256)
#: 60 % of the devices have only noise.
ALL_BEHAVIOURS = tuple(b for b in BEHAVIOURS for _ in range(2)) + ("noise",) * 15
#: Of the arrivals and the noise: the pair is elected on two (on one, a pair that holds a loop
#: together by luck would win), all are compared on others.
ELECTION_SEEDS, SEEDS = (1, 11), (2, 3, 4, 5)


@dataclass(frozen=True)
class Scenario:
    """A device, its callers and how the model is configured."""

    name: str
    device: Device
    arrivals: Arrivals
    instances: int
    limit: int
    #: Requests of a run.
    total: int

    @property
    def about(self) -> str:
        return (
            f"{self.name}: k={self.instances} limit {self.limit},"
            f" {self.device.about}, {self.arrivals.about}"
        )

    @property
    def closed(self) -> bool:
        return bool(self.arrivals.callers)

    def load(self, seed: int, total: int | None = None) -> Load:
        return load(self.arrivals, self.device, f"{self.name} {seed}", total or self.total)

    def batch_seconds(self, seed: object, total: int | None = None) -> BatchSeconds:
        return self.device.run(f"{self.name} {seed}", total or self.total)


def drawn(seed: int, count: int) -> Iterator[Scenario]:
    """The first `count` scenarios of this seed."""
    for number in range(count):
        rng = Random(f"{seed} scenario {number}")
        instances = turn(INSTANCES, f"{seed} instances", number)
        limit = turn(LIMITS, f"{seed} limits", number)
        behaviour = turn(ALL_BEHAVIOURS, f"{seed} behaviours", number)
        device = drawn_device(rng, turn(CURVE_KINDS, f"{seed} curves", number), behaviour)
        kind = turn(CALLER_KINDS, f"{seed} callers", number)
        arrivals, share = drawn_callers(rng, kind, device, limit, instances)
        long = share > 0.8 or arrivals.callers >= 128 or (share and limit >= 128)
        long = long or behaviour == "hiccups"
        total = 12_000 if long else 5_000
        yield Scenario(f"{seed}/{number}", device, arrivals, instances, limit, total)


def turn(kinds: Sequence[T], name: str, number: int) -> T:
    """The kind of the n-th scenario: each kind once in as many as there are, in random order."""
    block, place = divmod(number, len(kinds))
    order = list(kinds)
    Random(f"{name} {block}").shuffle(order)
    return order[place]
