"""Which scenarios is a batching policy judged by, and what does the best fixed pair reach in each?"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.batching.simulator import CURVES, MS, Arrivals, Result, capacity, simulate
from wherry.scheduler.dynamic_batcher import DynamicBatcher
from wherry.scheduler.policy import Scheduler
from wherry.scheduler.self_tuning_batcher import SelfTuningBatcher

LIMIT = 256
GRID = [(1, 0.0)] + [
    (b, d)
    for b in (2, 4, 8, 10, 16, 32, 64, 128, 256)
    for d in (0, 2 * MS, 5 * MS, 10 * MS, 20 * MS)
]
ARRIVALS: dict[str, Callable[[float], Arrivals]] = {
    **{f"closed {n}": (lambda cap, n=n: Arrivals(callers=n)) for n in (1, 2, 4, 10, 64, 256)},
    "closed 64 think 20ms": lambda cap: Arrivals(callers=64, think=20 * MS),
    "closed 16 back 1ms": lambda cap: Arrivals(callers=16, back=1 * MS),
    "closed 16 back 2ms": lambda cap: Arrivals(callers=16, back=2 * MS),
    **{
        f"poisson {round(100 * x)}%": (lambda cap, x=x: Arrivals(rate=x * cap))
        for x in (0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
    },
    "bursts 20%": lambda cap: Arrivals(rate=0.2 * cap, on=0.05, off=0.15),
    "bursts 50%": lambda cap: Arrivals(rate=0.5 * cap, on=0.05, off=0.15),
}


def mixed(rng: random.Random) -> int:
    return 16 if rng.random() < 0.1 else 1


def total(name: str) -> int:
    if "256" in name or "9" in name or "bursts" in name:
        return 12000
    return 5000


def run(make: Callable[[], Scheduler], curve: str, name: str, k: int, seed: int) -> Result:
    cost = CURVES[curve]
    arrivals = ARRIVALS[name](capacity(cost, LIMIT) * k)
    return simulate(make(), cost, arrivals, total=total(name), seed=seed, instances=k)


def mean(make: Callable[[], Scheduler], curve: str, name: str, k: int) -> tuple[float, float]:
    results = [run(make, curve, name, k, seed) for seed in (2, 3)]
    return sum(r.rate for r in results) / 2, sum(r.p95 for r in results) / 2


def best_pair(curve: str, name: str, k: int) -> tuple[int, float]:
    """Among the pairs within 2 % of the best rate the one with the least p95, on seed 1."""
    tried = {
        (b, d): run(
            lambda b=b, d=d: DynamicBatcher(max_batch_size=b, max_queue_delay=d), curve, name, k, 1
        )
        for b, d in GRID
    }
    top = max(r.rate for r in tried.values())
    good = {pair: r for pair, r in tried.items() if r.rate >= 0.98 * top}
    return min(good, key=lambda pair: good[pair].p95)


def scenario(
    job: tuple[str, str, int, tuple[int, float] | None],
) -> tuple[str, tuple[int, float], list[float]]:
    curve, name, k, pair = job
    b, d = pair = pair or best_pair(curve, name, k)
    best = mean(lambda: DynamicBatcher(max_batch_size=b, max_queue_delay=d), curve, name, k)
    ours = mean(lambda: SelfTuningBatcher(max_batch_size=LIMIT, instances=k), curve, name, k)
    greedy = mean(lambda: DynamicBatcher(max_batch_size=LIMIT), curve, name, k)
    row = [*best]
    for rate, p95 in (ours, greedy):
        row += [100 * (rate / best[0] - 1), 100 * (p95 / best[1] - 1)]
    return f"{curve}|{name}|{k}", pair, row


if __name__ == "__main__":
    cache = Path("/tmp/pairs.json")
    pairs = json.loads(cache.read_text()) if cache.exists() else {}
    curves = sys.argv[1].split(",")
    instances = [int(x) for x in (sys.argv[2] if len(sys.argv) > 2 else "1").split(",")]
    jobs = [
        (c, n, k, tuple(pairs[f"{c}|{n}|{k}"]) if f"{c}|{n}|{k}" in pairs else None)
        for c in curves
        for k in instances
        for n in ARRIVALS
    ]
    good = 0
    with ProcessPoolExecutor(2) as pool:
        for key, pair, row in pool.map(scenario, jobs):
            pairs[key] = pair
            ok = row[2] >= -2 and row[3] <= 2
            good += ok
            print(
                f"{key:34s} {pair!s:12s} best {row[0]:8.0f}/s {row[1] * 1e3:7.1f} ms  ours {row[2]:+6.1f}% {row[3]:+6.1f}%  greedy {row[4]:+6.1f}% {row[5]:+6.1f}% {'' if ok else '<--'}",
                flush=True,
            )
    cache.write_text(json.dumps(pairs))
    print(good, "of", len(jobs))
