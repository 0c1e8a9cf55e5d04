"""When do requests arrive, with how many rows, and by when must they be answered?

Everything random is drawn before the run, from the seed: policies are compared under the same
arrivals of strangers, the same pauses of callers (in order of their answers) and the same sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from random import Random

import numpy as np

from benchmarks.batching.curves import MS, octaves
from benchmarks.batching.device import Device, generator

CALLER_KINDS = ("closed", "think", "poisson", "bursts", "mix", "ramp", "sizes", "deadlines")
MOST_CALLERS = 256
#: Of requests with several rows: their share, and their rows.
LARGE_SHARE, LARGE_ROWS = 0.1, (2, 16)
MEAN_ROWS = 1 - LARGE_SHARE + LARGE_SHARE * sum(LARGE_ROWS) / 2
#: Capacity used at the ends and in the middle of a ramp.
RAMP = (0.1, 0.9)


@dataclass(frozen=True)
class Arrivals:
    """Callers who send again after each answer, strangers at `rate`/s, or both."""

    callers: int = 0
    #: Seconds between an answer and the next request: log-normal around this ...
    back: float = 0.25 * MS
    sigma: float = 0.4
    #: ... and the mean of a further exponential pause.
    think: float = 0.0
    #: Seconds over which they first send.
    spread: float = 2 * MS
    #: Strangers' requests a second, on the whole.
    rate: float = 0.0
    #: Mean seconds of a burst, and between two.
    on: float = 0.0
    off: float = 0.0
    ramp: bool = False
    #: A tenth of the requests have 2 to 16 rows.
    mixed_rows: bool = False
    #: Seconds after its arrival in which a request must be answered.
    within: float = 0.0
    kind: str = ""
    about: str = ""


@dataclass(frozen=True)
class Load:
    """What the callers of one run do, drawn beforehand."""

    total: int
    #: When each caller first sends, and the pauses before all further requests.
    first: list[float]
    pauses: list[float]
    strangers: list[float]
    #: By the number of the arrival; no rows: one each.
    rows: list[int] | None
    lengths: list[int] | None
    within: float


def load(arrivals: Arrivals, device: Device, seed: str, total: int) -> Load:
    """The load of one run of `total` requests."""
    rng = generator(f"{seed} callers")
    first: list[float] = []
    pauses: list[float] = []
    if arrivals.callers:
        first = np.sort(rng.random(arrivals.callers) * arrivals.spread).tolist()[:total]
        away = arrivals.back * rng.lognormal(0, arrivals.sigma, total)
        if arrivals.think:
            away += rng.exponential(arrivals.think, total)
        pauses = away.tolist()
    rows = None
    if arrivals.mixed_rows:
        rng = generator(f"{seed} rows")
        low, high = LARGE_ROWS
        large = rng.integers(low, high + 1, total)
        rows = np.where(rng.random(total) < LARGE_SHARE, large, 1).tolist()
    return Load(
        total=total,
        first=first,
        pauses=pauses,
        strangers=strangers(arrivals, seed, total) if arrivals.rate else [],
        rows=rows,
        lengths=device.lengths(seed, total) if device.tokens else None,
        within=arrivals.within,
    )


def strangers(arrivals: Arrivals, seed: str, total: int) -> list[float]:
    """When strangers arrive."""
    rng = generator(f"{seed} strangers")
    gaps = rng.exponential(1.0, total)
    if arrivals.ramp:
        low, high = RAMP
        mean = (low + high) / 2
        span = total / arrivals.rate
        moments = np.linspace(0, span, 4001)
        rate = arrivals.rate / mean * (high - (high - low) * np.abs(2 * moments / span - 1))
        steps = np.diff(moments) * (rate[1:] + rate[:-1]) / 2
        due = np.concatenate([[0.0], np.cumsum(steps)])
        sums = np.cumsum(gaps)
        when = np.interp(sums, due, moments)
        # The last ones, if fewer than expected came in time, come at the rate of the end.
        when += np.maximum(0.0, sums - due[-1]) / rate[-1]
    elif arrivals.on:
        hot_share = arrivals.on / (arrivals.on + arrivals.off)
        hot = np.cumsum(gaps / (arrivals.rate / hot_share))
        bursts = int(hot[-1] / arrivals.on * 2) + 20
        ends = np.cumsum(rng.exponential(arrivals.on, bursts))
        pauses = np.concatenate([[0.0], np.cumsum(rng.exponential(arrivals.off, bursts))])
        when = hot + pauses[np.searchsorted(ends, hot)]
    else:
        when = np.cumsum(gaps / arrivals.rate)
    found: list[float] = when.tolist()
    return found


def drawn_callers(
    rng: Random, kind: str, device: Device, limit: int, instances: int
) -> tuple[Arrivals, float]:
    """Callers of this kind, and the share of the capacity that strangers use."""
    capacity = instances * device.capacity(limit)
    n = round(octaves(rng, 1, MOST_CALLERS))
    back, sigma = octaves(rng, 0.2, 20), round(rng.uniform(0.1, 0.6), 2)
    share = round(rng.uniform(0.1, 0.98), 2)
    about = f"closed {n}, back in {back:g} ms sigma {sigma:g}"
    # Their first requests come at any time of a round: a pair that holds them together only as long
    # as they are together must not win by luck.
    spread = back * MS + device.usual(min(limit, ceil(n / instances)))
    closed = Arrivals(n, back * MS, sigma, spread=spread, kind=kind, about=about)
    opened = Arrivals(rate=share * capacity, kind=kind, about=f"poisson {share:.0%}")
    if kind == "closed":
        return closed, 0.0
    if kind == "think":
        think = octaves(rng, 1, 100)
        about = f"{closed.about}, think {think:g} ms"
        return replace(closed, about=about, think=think * MS), 0.0
    if kind == "poisson":
        return opened, share
    if kind == "bursts":
        share = round(rng.uniform(0.1, 0.7), 2)
        on, ratio = octaves(rng, 5, 500), round(rng.uniform(0.2, 0.7), 2)
        about = f"bursts {share:.0%}, {on:g} ms of them {ratio:.0%} of the time"
        off = on * (1 / ratio - 1)
        rate = share * capacity
        return replace(opened, about=about, rate=rate, on=on * MS, off=off * MS), share
    if kind == "mix":
        share = round(rng.uniform(0.05, 0.6), 2)
        about = f"{closed.about}, and poisson {share:.0%}"
        return replace(closed, about=about, rate=share * capacity), share
    if kind == "ramp":
        share = sum(RAMP) / 2
        about = f"ramp {RAMP[0]:.0%} to {RAMP[1]:.0%}"
        return replace(opened, about=about, rate=share * capacity, ramp=True), RAMP[1]
    is_open = rng.random() < 0.5
    base, share = (opened, share) if is_open else (closed, 0.0)
    if kind == "sizes":
        about = f"{base.about}, sizes 1 to {LARGE_ROWS[1]}"
        return replace(base, about=about, mixed_rows=True, rate=base.rate / MEAN_ROWS), share
    rows = min(limit, -(-n // instances)) if not is_open else max(1, limit // 4)
    within = 2 * device.usual(rows) * octaves(rng, 1, 10)
    about = f"{base.about}, deadline {within * 1e3:.3g} ms"
    return replace(base, about=about, within=within), share
