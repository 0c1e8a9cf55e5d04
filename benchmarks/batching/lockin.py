"""Does what a policy has learnt elsewhere hold it back?

A policy first lives in another world, then in a scenario's, and is compared with the same policy
from an empty state there, on the same seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import median
from typing import Any

import numpy as np

from benchmarks.batching.callers import Arrivals, drawn_callers, load
from benchmarks.batching.curves import CURVE_KINDS, MS, octaves
from benchmarks.batching.device import BatchSeconds, Device, Scaled, drawn_device
from benchmarks.batching.judge import made, percent
from benchmarks.batching.play import Trace, play
from benchmarks.batching.scenarios import SEEDS, Scenario, drawn

STATIONARY = ("closed", "think", "poisson", "mix")
#: The run is so many times as long as usual, and its last third counts.
LENGTH = 3
#: Requests of the moving window, and how near it must come.
WINDOW, CLOSE = 500, 0.05
#: Seconds between two worlds.
BETWEEN = 1.0
#: What is compared with an empty start; the last is how near two such starts come.
LIVES = ("another world", "slow start", "empty, with other noise")


@dataclass(frozen=True)
class Phase:
    """A part of a policy's life before the scenario."""

    device: Device
    arrivals: Arrivals
    total: int
    #: The first batches with more rows than this take longer.
    slow_batches: int = 0
    above: int = 0
    longer: float = 0.0

    @property
    def about(self) -> str:
        about = f"{self.device.about}; {self.arrivals.about}"
        if self.slow_batches:
            about += f"; first {self.slow_batches} of more than {self.above} rows"
            about += f" +{self.longer * 1e3:.3g} ms"
        return about


def stationary(seed: int, count: int) -> Iterator[Scenario]:
    """The first stationary scenarios of this seed."""
    for scenario in drawn(seed, 100 * count):
        changes = scenario.device.behaviour in ("drift", "shift")
        if scenario.arrivals.kind in STATIONARY and not changes:
            yield scenario
            count -= 1
            if not count:
                return


def another_world(scenario: Scenario) -> list[Phase]:
    """Another curve, 0.1 to 10 times as fast, slow first batches and other callers."""
    rng = Random(f"{scenario.name} another world")
    device = drawn_device(rng, rng.choice(CURVE_KINDS), "slow first")
    rows = max(1, scenario.limit // 4)
    pace = octaves(rng, 0.1, 10) * scenario.device.usual(rows) / device.usual(rows)
    device = replace(device, curve=Scaled(device.curve, pace), amount=device.amount * pace)
    kind = rng.choice(STATIONARY)
    arrivals, _ = drawn_callers(rng, kind, device, scenario.limit, scenario.instances)
    return [Phase(device, arrivals, round(octaves(rng, 300, 3000)))]


def slow_start(scenario: Scenario) -> list[Phase]:
    """The scenario itself with slow first batches above some rows, then fewer callers, in a loop,
    who do not need such batches."""
    rng = Random(f"{scenario.name} slow start")
    device, arrivals = scenario.device, scenario.arrivals
    n = arrivals.callers or scenario.limit
    above = round(octaves(rng, 1, max(2, min(n, scenario.limit) // 2)))
    longer = device.usual(above) * octaves(rng, 2, 20)
    slow = rng.choice([1, 3, 12, 40])
    phases = [Phase(device, arrivals, rng.randint(300, 1500), slow, above, longer)]
    for _ in range(rng.randint(1, 2)):
        fewer = round(octaves(rng, 1, max(2, n // 2)))
        about = f"closed {fewer}, back in {arrivals.back / MS:g} ms"
        loop = Arrivals(fewer, arrivals.back, arrivals.sigma, spread=arrivals.spread, about=about)
        phases.append(Phase(device, loop, rng.randint(300, 1500)))
    return phases


def slowed(seconds: BatchSeconds, phase: Phase) -> BatchSeconds:
    """With the slow first batches of a phase."""
    left = phase.slow_batches

    def slow(rows: int, longest: int, arrived: int) -> float:
        nonlocal left
        extra = 0.0
        if left and rows > phase.above:
            left -= 1
            extra = phase.longer
        return seconds(rows, longest, arrived) + extra

    return slow


def lived(
    scenario: Scenario, policy: str, before: Sequence[Phase], noise: object = SEEDS[0]
) -> Trace:
    """The run of a scenario after these phases; its times begin at 0."""
    seed = SEEDS[0]
    scheduler = made(policy, scenario)
    now = 0.0
    for number, phase in enumerate(before):
        name = f"{scenario.name} life {number}"
        drawn_load = load(phase.arrivals, phase.device, name, phase.total)
        seconds = slowed(phase.device.run(name, phase.total), phase)
        trace = play(scheduler, seconds, drawn_load, scenario.instances, now)
        now = trace.ended[-1] + BETWEEN
    total = LENGTH * scenario.total
    seconds = scenario.batch_seconds(noise, total)
    trace = play(scheduler, seconds, scenario.load(seed, total), scenario.instances, now)
    trace.arrived = [at - now for at in trace.arrived]
    trace.ended = [at - now for at in trace.ended]
    return trace


def last_third(trace: Trace, closed: bool) -> tuple[float, float, float]:
    """Rows a second, p95 and mean seconds of the last third (the last callers of a loop, who have
    less company than usual, aside)."""
    arrived, ended, rows = map(np.array, (trace.arrived, trace.ended, trace.rows))
    count = len(ended)
    since, until = ended[2 * count // 3], ended[(19 * count) // 20 if closed else -1]
    some = (ended > since) & (ended <= until)
    taken = (ended - arrived)[some]
    rate = rows[some].sum() / (until - since)
    return float(rate), float(np.quantile(taken, 0.95, method="lower")), float(taken.mean())


def settled(trace: Trace, rate: float, mean: float, closed: bool) -> tuple[float, int]:
    """From when on (seconds and batches) the first moving window is as good as this."""
    arrived, ended, rows = map(np.array, (trace.arrived, trace.ended, trace.rows))
    if closed:
        sums = np.cumsum(rows)
        spans = np.maximum(ended[WINDOW:] - ended[:-WINDOW], 1e-12)
        good = (sums[WINDOW:] - sums[:-WINDOW]) / spans >= (1 - CLOSE) * rate
    else:
        sums = np.concatenate([[0.0], np.cumsum(ended - arrived)])
        good = (sums[WINDOW:] - sums[:-WINDOW]) / WINDOW <= (1 + CLOSE) * mean
    first = int(np.argmax(good)) if good.any() else len(ended) - 1
    begin = trace.batches[0][0]
    moment = float(ended[first])
    return moment, sum(start - begin < moment for start, *_ in trace.batches)


def lock_in(job: tuple[Scenario, str]) -> dict[str, Any]:
    """How both lives compare with an empty start: percent, and seconds and batches to settle."""
    scenario, policy = job
    rate, p95, mean = last_third(lived(scenario, policy, []), scenario.closed)

    def compared(trace: Trace, before: Sequence[Phase]) -> dict[str, Any]:
        after = last_third(trace, scenario.closed)
        seconds, batches = settled(trace, rate, mean, scenario.closed)
        phases = [phase.about for phase in before]
        return {
            "rate": percent(after[0], rate),
            "p95": percent(after[1], p95),
            "seconds": round(seconds, 3),
            "batches": batches,
            "before": phases,
        }

    start = slow_start(scenario)
    other = another_world(scenario)
    return {
        "name": scenario.name,
        "about": scenario.about,
        "another world": compared(lived(scenario, policy, other), other),
        "slow start": compared(lived(scenario, policy, start), start),
        # How near two runs of the same policy come.
        "empty, with other noise": compared(lived(scenario, policy, [], "again"), []),
    }


def report(rows: Sequence[dict[str, Any]], policy: str) -> str:
    lines = [f"{policy}: the last third of a run after another life, against an empty state"]
    for life in LIVES:
        some = [{"about": row["about"], **row[life]} for row in rows]
        near = [row["rate"] >= -5 and row["p95"] <= 5 for row in some]
        lines.append(
            f"{life}: {len(some)} scenarios,"
            f" both within 5 % {percent_of(near)}, throughput within 5 %"
            f" {percent_of([row['rate'] >= -5 for row in some])},"
            f" worst throughput {min(row['rate'] for row in some):+.1f} %,"
            f" worst p95 {max(row['p95'] for row in some):+.1f} %;"
            " a window is within 5 % after"
            f" {quantiles([row['batches'] for row in some])} batches,"
            f" {quantiles([row['seconds'] for row in some])} s (median, 90 %, worst)"
        )
        some.sort(key=lambda row: min(row["rate"], -row["p95"] / 2))
        lines += [
            f"  {row['rate']:+6.1f} % p95 {row['p95']:+7.1f} %  {row['about']}; before:"
            f" {' | '.join(row['before'])}"
            for row in (some[:5] if some[0]["before"] else [])
        ]
    return "\n".join(lines)


def percent_of(some: Sequence[bool]) -> str:
    return f"{100 * sum(some) / len(some):.1f} %"


def quantiles(values: Sequence[float]) -> str:
    order = sorted(values)
    return f"{median(order):.3g}, {order[9 * len(order) // 10]:.3g}, {order[-1]:.3g}"
