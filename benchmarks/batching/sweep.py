"""Which fixed pair of a size and a delay is the best in a scenario, and what does it reach?

All pairs run a short stretch first, the best dozen the whole: a hundred take half a second.
"""

from __future__ import annotations

from statistics import fmean

from benchmarks.batching.callers import Load
from benchmarks.batching.curves import MS
from benchmarks.batching.pairs import Pair, run
from benchmarks.batching.play import Figures, figures
from benchmarks.batching.scenarios import ELECTION_SEEDS, Scenario

DELAYS = (0.0, 0.5 * MS, 1 * MS, 2 * MS, 5 * MS, 10 * MS, 20 * MS, 50 * MS)
#: Pairs are compared on so many requests first, and the best of them on the whole run.
SHORT, FINALISTS = 1500, 12
#: Pairs within this share of the best throughput are as good; the least p95 decides.
ALIKE = 0.02


def run_pair(scenario: Scenario, pair: Pair, seed: int, noise: object = None) -> Figures:
    """What a fixed pair reaches; with another seed for the device's noise, if it is given."""
    return measured(scenario, pair, scenario.load(seed), seed if noise is None else noise)


def measured(scenario: Scenario, pair: Pair, load: Load, seed: object) -> Figures:
    seconds = scenario.batch_seconds(seed, load.total)
    return figures(run(pair, seconds, load, scenario.instances), scenario.closed)


def best_pair(scenario: Scenario) -> Pair:
    """The pair with the least p95 of those within 2 % of the best throughput."""
    pairs = [(1, 0.0)]
    pairs += [(size, delay) for size in sizes(scenario) for delay in DELAYS]
    roughly = rated(scenario, pairs, SHORT)
    top = max(rate for rate, _ in roughly.values())

    def badness(pair: Pair) -> tuple[float, float]:
        """Too slow first, then by p95: short runs are too rough for the exact rule."""
        rate, p95 = roughly[pair]
        return max(0.0, 1 - 2 * ALIKE - rate / top), p95

    finalists = sorted(pairs, key=badness)[:FINALISTS]
    finalists += sorted(pairs, key=lambda pair: -roughly[pair][0])[:2]
    exactly = rated(scenario, finalists, scenario.total)
    top = max(rate for rate, _ in exactly.values())
    good = {pair: p95 for pair, (rate, p95) in exactly.items() if rate >= (1 - ALIKE) * top}
    return min(good, key=lambda pair: good[pair])


def rated(scenario: Scenario, pairs: list[Pair], total: int) -> dict[Pair, tuple[float, float]]:
    """Throughput and p95 of these pairs, means over the seeds of the election."""
    loads = {seed: scenario.load(seed, total) for seed in ELECTION_SEEDS}
    found = {}
    for pair in pairs:
        some = [measured(scenario, pair, drawn, seed) for seed, drawn in loads.items()]
        found[pair] = fmean(f.rate for f in some), fmean(f.p95 for f in some)
    return found


def sizes(scenario: Scenario) -> list[int]:
    """Powers of two, the limit, the callers, a group of them, ends of steps."""
    limit, n = scenario.limit, scenario.arrivals.callers
    some = {2**power for power in range(1, 9)} | {limit, n, n // scenario.instances}
    some.add(-(-n // scenario.instances))
    seconds = scenario.device.curve.seconds
    rises = [rows for rows in range(2, limit) if seconds(rows + 1) > seconds(rows)]
    if len(rises) < limit / 2:  # the ends of steps
        some.update(rises[:2] + rises[len(rises) // 2 : len(rises) // 2 + 1] + rises[-1:])
    return sorted(size for size in some if 1 < size <= limit)
