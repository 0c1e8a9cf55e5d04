"""When is each request meant to start? (Pure: seconds from the beginning.)

An open load's moments do not depend on the answers. Latency counts from them, so that a server
that stalls is charged for the requests that it kept from being sent on time.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from wherry.bench.plan import Bursts, Closed, Rate, Replay


def moments(load: Rate | Bursts | Replay, *, seed: int = 0, phase: float = 0.0) -> Iterator[float]:
    """The moments, ascending; endless except for a trace.

    `phase` (0 to 1) shifts a constant rate by a part of its interval: several load processes
    take turns.
    """
    match load:
        case Rate(arrivals="poisson"):
            return _poisson(load, random.Random(seed))
        case Rate():
            return (_when(n + phase, load) for n in itertools.count())
        case Bursts():
            return (n * load.every for n in itertools.count() for _ in range(load.size))
        case Replay():
            return iter(load.moments)


def joins(load: Closed) -> list[float]:
    """When each caller sends for the first time: with a ramp one after the other, the last one
    at its end."""
    steps = max(1, load.callers - 1)
    return [load.ramp * n / steps for n in range(load.callers)]


def thinks(load: Closed, *, seed: int = 0) -> Iterator[float]:
    """The pauses of a caller, in seconds; endless."""
    if not load.think_random:
        while True:
            yield load.think
    draw = random.Random(seed)
    while True:
        yield draw.expovariate(1 / load.think)


def _when(work: float, load: Rate) -> float:
    """When `work` requests are due at this rate: while it grows from 0 over `ramp` seconds,
    rate * t**2 / (2 * ramp) of them are due by t."""
    grown = load.rate * load.ramp / 2
    if work < grown:
        return float((2 * load.ramp * work / load.rate) ** 0.5)
    return load.ramp + (work - grown) / load.rate


def _poisson(load: Rate, draw: random.Random) -> Iterator[float]:
    """Independent arrivals: a Poisson process of rate 1, its time bent to the load's rate."""
    work = 0.0
    while True:
        work += draw.expovariate(1.0)
        yield _when(work, load)
