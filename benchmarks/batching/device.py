"""How long does a batch take on a simulated device?

A device has a curve and a behaviour over it: noise, rare long batches, drift, a shift, stalls, or
a slow first batch of each size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import log, pi
from random import Random
from typing import Protocol

import numpy as np

from benchmarks.batching.curves import MS, drawn_curve, drawn_lengths, octaves

#: Besides noise, which every device has.
BEHAVIOURS = ("tails", "drift", "shift", "hiccups", "slow first")
#: Rows of the largest batch.
MOST_ROWS = 256
#: Share of the batches that take so many times as long.
TAIL_SHARE, TAIL = 0.05, (3.0, 5.0)
STALL, STALL_EVERY = 100 * MS, 200
#: Seconds of a batch of one row of a device that stalls: a run should see several stalls.
LEAST_STALLED = 1 * MS
SHIFT = 3.0
#: Tokens of the shortest and of the longest text.
TOKENS = (8, 512)
#: seconds(rows, tokens of the longest row, requests that have arrived so far)
BatchSeconds = Callable[[int, int, int], float]


class AnyCurve(Protocol):
    """How long a batch of so many rows takes, the longest of so many tokens. Asked once for each
    batch of a run."""

    def seconds(self, rows: int, longest: int = 1) -> float: ...


@dataclass(frozen=True)
class Scaled:
    """A curve so many times as slow."""

    curve: AnyCurve
    factor: float

    def seconds(self, rows: int, longest: int = 1) -> float:
        return self.factor * self.curve.seconds(rows, longest)

    def __str__(self) -> str:
        return f"{self.factor:.3g} * ({self.curve})"


@dataclass(frozen=True)
class Device:
    """A curve, and what the device does over it. The same seed gives the same durations."""

    curve: AnyCurve
    #: Sigma of the logarithm of each duration.
    noise: float = 0.02
    behaviour: str = "noise"
    #: shift: what durations are multiplied by from the middle of the run on; slow first: the
    #: seconds that the first batch of each size takes more.
    amount: float = 0.0
    #: Median tokens of the rows (0: all rows cost the same), and sigma of their logarithm.
    tokens: float = 0.0
    spread: float = 0.0
    kind: str = ""

    @property
    def about(self) -> str:
        text = f", {self.tokens:g} tokens sigma {self.spread:g}" if self.tokens else ""
        more = {
            "noise": "",
            "shift": f", shift x{self.amount:.2g}",
            "slow first": f", slow first +{self.amount / MS:.3g} ms",
        }.get(self.behaviour, f", {self.behaviour}")
        return f"{self.kind} {self.curve}{text}, noise {self.noise:.0%}{more}"

    def lengths(self, seed: str, count: int) -> list[int]:
        """Tokens of `count` rows."""
        drawn = generator(f"{seed} lengths").lognormal(log(self.tokens), self.spread, count)
        tokens: list[int] = np.clip(drawn, *TOKENS).astype(int).tolist()
        return tokens

    def usual(self, rows: int) -> float:
        """The mean seconds of a batch of so many rows, at the device's slowest."""
        if self.tokens:
            whole = len(self._sample) // rows * rows
            longest = np.array(self._sample[:whole]).reshape(-1, rows).max(axis=1)
            seconds = float(np.mean([self.curve.seconds(rows, int(n)) for n in longest]))
        else:
            seconds = self.curve.seconds(rows)
        if self.behaviour == "tails":
            return seconds * (1 + TAIL_SHARE * (sum(TAIL) / 2 - 1))
        if self.behaviour == "drift":
            return seconds * 2
        if self.behaviour == "shift":
            return seconds * max(1.0, self.amount)
        if self.behaviour == "hiccups":
            return seconds + STALL / STALL_EVERY
        return seconds

    @cached_property
    def _sample(self) -> list[int]:
        return self.lengths("capacity", 2048)

    def capacity(self, limit: int) -> float:
        """The best rows/s of one instance at any fixed size, in order of arrival."""
        sizes = (
            range(1, limit + 1) if not self.tokens else [2**n for n in range(9) if 2**n <= limit]
        )
        return max(rows / self.usual(rows) for rows in sizes)

    def run(self, seed: str, total: int) -> BatchSeconds:
        """The durations of the batches of one run of `total` requests, in order of start."""
        rng = generator(f"{seed} device")
        factors = rng.lognormal(0, self.noise, total)
        if self.behaviour == "tails":
            tails = rng.uniform(*TAIL, total)
            factors *= np.where(rng.random(total) < TAIL_SHARE, tails, 1.0)
        following: Callable[[], float] = iter(factors.tolist()).__next__
        undisturbed, amount = self.curve.seconds, self.amount

        def plain(rows: int, longest: int, arrived: int) -> float:
            return undisturbed(rows, longest) * following()

        if self.behaviour == "drift":
            path: list[float] = (1.5 - 0.5 * np.cos(np.linspace(0, 2 * pi, total + 1))).tolist()
            return lambda rows, longest, arrived: plain(rows, longest, arrived) * path[arrived]
        if self.behaviour == "shift":
            half = total // 2
            return lambda rows, longest, arrived: (
                plain(rows, longest, arrived) * (amount if arrived > half else 1.0)
            )
        if self.behaviour == "hiccups":
            return stalling(plain, int(rng.integers(STALL_EVERY)))
        if self.behaviour == "slow first":
            return slow_first(plain, amount)
        return plain


def stalling(seconds: BatchSeconds, batches: int) -> BatchSeconds:
    """A batch of STALL_EVERY takes STALL longer; `batches` are over since the last one."""

    def stalls(rows: int, longest: int, arrived: int) -> float:
        nonlocal batches
        batches += 1
        return seconds(rows, longest, arrived) + (0 if batches % STALL_EVERY else STALL)

    return stalls


def slow_first(seconds: BatchSeconds, longer: float) -> BatchSeconds:
    """The first batch of each size takes longer."""
    seen: set[int] = set()

    def compiles(rows: int, longest: int, arrived: int) -> float:
        extra = 0.0 if rows in seen else longer
        seen.add(rows)
        return seconds(rows, longest, arrived) + extra

    return compiles


def generator(seed: str) -> np.random.Generator:
    """A stream of random numbers of its own for each name."""
    return np.random.default_rng(list(seed.encode()))


def drawn_device(rng: Random, kind: str, behaviour: str) -> Device:
    """A device with a curve of this kind."""
    tokens, spread = drawn_lengths(rng) if kind == "text" else (0.0, 0.0)
    curve = drawn_curve(rng, kind, tokens)
    while behaviour == "hiccups" and curve.seconds(1, int(tokens)) < LEAST_STALLED:
        curve = drawn_curve(rng, kind, tokens)
    noise = octaves(rng, 0.02, 0.2) if rng.random() < 0.8 else octaves(rng, 0.2, 0.5)
    amount = 0.0
    if behaviour == "shift":
        amount = rng.choice([SHIFT, 1 / SHIFT])
    elif behaviour == "slow first":
        amount = curve.seconds(1, int(tokens)) * octaves(rng, 3, 30)
    return Device(curve, noise, behaviour, amount, tokens, spread, kind)
