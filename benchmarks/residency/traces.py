"""Models and requests, drawn from a seed."""

from __future__ import annotations

import random
from math import exp, log
from typing import NamedTuple

from benchmarks.residency.simulator import Arrival, Spec

MODELS, FIT = 20, 5
SECONDS = 600.0
GIB = 1 << 30


class Scenario(NamedTuple):
    what: str
    specs: list[Spec]
    budget: int
    arrivals: list[Arrival]


def drawn(seed: int) -> Scenario:
    """20 models of which about 5 fit, loads of 0.2 to 20 s, ten minutes of requests: models by
    Zipf's law, each of them asked evenly or in bursts."""
    rng = random.Random(seed)

    def between(least: float, most: float) -> float:
        return exp(rng.uniform(log(least), log(most)))

    specs = [
        Spec(
            f"m{number}",
            footprint=int(between(0.5, 8) * GIB),
            wake=between(0.2, 20),
            sleep=between(0.05, 0.5),
            fixed=between(0.002, 0.05),
            each=between(0.001, 0.02),
        )
        for number in range(MODELS)
    ]
    budget = int(sum(spec.footprint for spec in specs) * FIT / MODELS)
    budget = max(budget, *(spec.footprint for spec in specs))
    rate, steep = between(0.1, 10), rng.uniform(0.8, 1.4)
    weights = [(rank + 1) ** -steep for rank in range(MODELS)]
    rng.shuffle(weights)
    arrivals = []
    for spec, weight in zip(specs, weights, strict=True):
        mean = rate * weight / sum(weights)
        bursts = rng.random() < 0.5
        arrivals += _bursts(rng, spec, mean) if bursts else _even(rng, spec, mean, 0.0, SECONDS)
    return Scenario(f"{rate:.1f}/s, Zipf {steep:.1f}", specs, budget, sorted(arrivals))


def _even(rng: random.Random, spec: Spec, rate: float, start: float, end: float) -> list[Arrival]:
    found, now = [], start
    while (now := now + rng.expovariate(rate)) < end:
        found.append(Arrival(now, spec.name))
    return found


def _bursts(rng: random.Random, spec: Spec, mean: float) -> list[Arrival]:
    """A tenth to a third of the time so much faster, in stretches of about 5 to 30 s."""
    share, length = rng.uniform(0.1, 0.33), rng.uniform(5, 30)
    found, now = list[Arrival](), rng.expovariate(share / length / (1 - share))
    while now < SECONDS:
        end = now + rng.expovariate(1 / length)
        found += _even(rng, spec, mean / share, now, min(end, SECONDS))
        now = end + rng.expovariate(share / length / (1 - share))
    return found
