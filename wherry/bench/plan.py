"""What is the load, and when is each request meant to start? (Pure.)

The values travel to load processes and into the report. An open load's moments, in seconds from the
beginning, do not depend on the answers: latency counts from them, so that a server that stalls is
charged for the requests that it kept from being sent on time.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Literal

import msgspec

from wherry.core.api import ConfigError


class Closed(msgspec.Struct, frozen=True, kw_only=True, tag="closed"):
    """Callers that wait for their answer, think, and send again."""

    callers: int
    #: Seconds between an answer and the next request.
    think: float = 0.0
    #: Seconds over which the callers join one by one; 0: all at once.
    ramp: float = 0.0
    #: Requests of each caller; None: no limit.
    loops: int | None = None


class Rate(msgspec.Struct, frozen=True, kw_only=True, tag="rate"):
    """Requests that start at their moments, however long the answers take."""

    rate: float
    arrivals: Literal["constant", "poisson"] = "poisson"
    #: Seconds over which the rate grows from 0; 0: at once.
    ramp: float = 0.0


Load = Closed | Rate


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement; it ends at the first of its limits. Times are seconds."""

    load: Load
    duration: float | None = None
    requests: int | None = None
    #: The first seconds, which are not measured.
    warmup: float = 0.0
    #: A request fails when its answer has not ended by then.
    timeout: float = 30.0
    #: Maximum number of connections; an open load waits for a free one when all are busy.
    connections: int = 1000
    seed: int = 0

    def check(self) -> Plan:
        """Return this plan. ConfigError, with the remedy, if it cannot be run or does not end."""
        positive = {"duration": self.duration, "requests": self.requests, "timeout": self.timeout}
        match self.load:
            case Closed():
                positive |= {"callers": self.load.callers, "loops": self.load.loops}
            case Rate():
                positive |= {"rate": self.load.rate}
        for name, value in positive.items():
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name} must be above 0, not {value:g}")
        if self.warmup < 0 or (self.duration is not None and self.warmup >= self.duration):
            raise ConfigError(
                f"a warm-up of {self.warmup:g} s leaves nothing to measure in a duration of"
                f" {self.duration or 0:g} s"
            )
        if not (self.duration or self.requests or getattr(self.load, "loops", None)):
            raise ConfigError("set an end: a duration or a number of requests")
        return self

    def share(self, part: int, parts: int) -> Plan | None:
        """The part of one of several load processes; None if nothing is left for it."""
        requests = self.requests
        if requests is not None:
            requests = requests // parts + (part < requests % parts)
            if requests == 0:
                return None
        load = _share(self.load, part, parts)
        if load is None:
            return None
        return msgspec.structs.replace(
            self,
            load=load,
            requests=requests,
            connections=max(1, self.connections // parts),
            seed=self.seed + part,
        )


def _share(load: Load, part: int, parts: int) -> Load | None:
    replace = msgspec.structs.replace
    match load:
        case Closed():
            callers = load.callers // parts + (part < load.callers % parts)
            return replace(load, callers=callers) if callers else None
        case Rate():
            return replace(load, rate=load.rate / parts)


def describe(load: Load) -> str:
    match load:
        case Closed():
            words = f"{load.callers} caller{'s' if load.callers != 1 else ''}"
            if load.think:
                words += f", thinking {load.think:g} s"
            if load.ramp:
                words += f", joining over {load.ramp:g} s"
            return words
        case Rate():
            words = f"{load.rate:g} requests/s, {load.arrivals}"
            return words + (f", growing over {load.ramp:g} s" if load.ramp else "")


def moments(load: Rate, *, seed: int = 0, phase: float = 0.0) -> Iterator[float]:
    """The moments, ascending and endless.

    `phase` (0 to 1) shifts a constant rate by a part of its interval: several load processes
    take turns.
    """
    if load.arrivals == "constant":
        return (_when(n + phase, load) for n in itertools.count())
    return _poisson(load, random.Random(seed))


def joins(load: Closed) -> list[float]:
    """When each caller sends for the first time: with a ramp one after the other, the last one
    at its end."""
    steps = max(1, load.callers - 1)
    return [load.ramp * n / steps for n in range(load.callers)]


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
