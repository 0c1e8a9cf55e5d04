"""How does a policy compare with the best fixed pair, and with greedy, in each scenario?

A pair is elected on two seeds, and measured on others, where greedy and the policies run too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from importlib import import_module
from os import cpu_count
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from benchmarks.batching.play import Figures, figures, play
from benchmarks.batching.scenarios import SEEDS, Scenario
from benchmarks.batching.sweep import best_pair, run_pair
from wherry.core.scheduler.policy import Scheduler

Job = TypeVar("Job")
Answer = TypeVar("Answer")
#: What the scenarios and the reference are: figures from before a change of it are not used.
EDITION = 8
PAIR, GREEDY = "pair", "greedy"
#: The pair itself under the same arrivals with other noise: how near two equal policies come.
AGAIN = "again"
OURS = "wherry.core.scheduler.self_tuning_batcher:SelfTuningBatcher"


def made(policy: str, scenario: Scenario) -> Scheduler:
    """A new policy object, from `module:Class`."""
    module, _, name = policy.partition(":")
    make: Callable[..., Scheduler] = getattr(import_module(module), name)
    return make(max_batch_size=scenario.limit, instances=scenario.instances)


def run_policy(job: tuple[Scenario, str, int]) -> list[Figures]:
    """The figures of a policy, for each of so many seeds."""
    scenario, policy, seeds = job
    return [
        figures(
            play(
                made(policy, scenario),
                scenario.batch_seconds(seed),
                scenario.load(seed),
                scenario.instances,
            ),
            scenario.closed,
        )
        for seed in SEEDS[:seeds]
    ]


def reference(scenario: Scenario) -> dict[str, Any]:
    """The elected pair, and what it and greedy reach."""
    pair = best_pair(scenario)
    return {
        "about": scenario.about,
        "edition": EDITION,
        "elected": pair,
        PAIR: [asdict(run_pair(scenario, pair, seed)) for seed in SEEDS],
        AGAIN: [asdict(run_pair(scenario, pair, seed, f"{seed} again")) for seed in SEEDS],
        GREEDY: [asdict(run_pair(scenario, (scenario.limit, 0.0), seed)) for seed in SEEDS],
    }


def references(scenarios: Sequence[Scenario], path: Path | None) -> dict[str, dict[str, Any]]:
    """The reference of each scenario by its name: from this file, as far as they are there."""
    known: dict[str, dict[str, Any]] = {}
    if path is not None and path.exists():
        known = json.loads(path.read_text())
    missing = [
        s
        for s in scenarios
        if (known.get(s.name, {}).get("about"), known.get(s.name, {}).get("edition"))
        != (s.about, EDITION)
    ]
    for scenario, found in zip(missing, in_parallel(reference, missing, "sweeps"), strict=True):
        known[scenario.name] = found
    if path is not None and missing:
        path.write_text(json.dumps(known, indent=0))
    return known


def in_parallel(work: Callable[[Job], Answer], jobs: Sequence[Job], what: str) -> Iterator[Answer]:
    """The answers in the order of the jobs, from all cores."""
    if not jobs:
        return
    with ProcessPoolExecutor(cpu_count()) as pool:
        for number, answer in enumerate(pool.map(work, jobs), start=1):
            print(f"{what}: {number} of {len(jobs)} ", end="\r", file=sys.stderr)
            yield answer
    print(file=sys.stderr)


def judged(
    scenarios: Sequence[Scenario], policies: Sequence[str], path: Path | None, seeds: int
) -> list[dict[str, Any]]:
    """A row for each scenario: its kinds, the pair, and how each policy compares, by its name."""
    known = references(scenarios, path)
    jobs = [(s, p, seeds) for s in scenarios for p in policies]
    found = iter(list(in_parallel(run_policy, jobs, "policies")))
    rows = []
    for s in scenarios:
        best = known[s.name]
        pair, greedy, again = (
            [Figures(**f) for f in best[what][:seeds]] for what in (PAIR, GREEDY, AGAIN)
        )
        row: dict[str, Any] = {
            "name": s.name,
            "about": s.about,
            "instances": s.instances,
            "curve": s.device.kind,
            "callers": s.arrivals.kind,
            "behaviour": s.device.behaviour,
            "pair": f"{best['elected'][0]}, {best['elected'][1] * 1e3:g} ms",
            "rate": round(fmean(f.rate for f in pair), 1),
            "p95 ms": round(1e3 * fmean(f.p95 for f in pair), 3),
            GREEDY: compared(greedy, pair, greedy),
            AGAIN: compared(again, pair, greedy),
        }
        for policy in policies:
            row[policy] = compared(next(found), pair, greedy)
        rows.append(row)
    return rows


def compared(
    ours: Sequence[Figures], pair: Sequence[Figures], greedy: Sequence[Figures]
) -> dict[str, Any]:
    """Percent against the pair; of the cold start, against greedy for each seed."""

    def against(field: str) -> float:
        values = [fmean(getattr(f, field) for f in some) for some in (ours, pair)]
        return percent(*values)

    return {
        "rate": against("rate"),
        "p95": against("p95"),
        "mean": against("mean"),
        "late": round(100 * (fmean(f.late for f in ours) - fmean(f.late for f in pair)), 2),
        "cold rate": [percent(a.cold_rate, b.cold_rate) for a, b in zip(ours, greedy, strict=True)],
        "cold mean": [percent(a.cold_mean, b.cold_mean) for a, b in zip(ours, greedy, strict=True)],
    }


def percent(value: float, base: float) -> float:
    if not base:
        return 100.0 if value else 0.0
    return round(100 * (value / base - 1), 1) + 0.0
