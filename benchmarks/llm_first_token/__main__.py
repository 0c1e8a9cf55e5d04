"""How large a share of a step should prompts have: when does the first token come, and the next?

    python -m benchmarks.llm_first_token [--seed 1] [--requests 80] [--held-out] [--json F]

The engine's scheduler in simulated seconds, with Poisson arrivals at 50, 70 and 90 % of what the
machine can do (measured with prompts first): the figures depend on no machine, only on the seed.
`first` is the 95th percentile of the time to the first token, against prompts first (share 1);
`gap` the 99th of the time between two tokens, against decode first (share 0: one token a step).
The share was chosen on the CPU and the GPU with seed 1; `--held-out` has two other machines.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

from benchmarks.harness import facts
from benchmarks.llm_first_token.simulator import (
    CPU,
    GPU,
    LINEAR,
    ROOF,
    FormerScheduler,
    SharedScheduler,
    SimulatedMachine,
    Traffic,
    play,
)
from wherry.llm.engine.scheduler import PROMPT_SHARE, TokenScheduler

Make = Callable[[SimulatedMachine], TokenScheduler]

LOADS = (0.5, 0.7, 0.9)
TRAFFIC = [Traffic(kind, bursts) for kind in ("short", "shared", "mixed", "long")
           for bursts in (False, True)]  # fmt: skip
SHARES = (0.0, 1 / 3, 1 / 2, PROMPT_SHARE, 0.8, 1.0)
FIRST_GOAL, GAP_GOAL = 1.2, 1.5


def rules() -> dict[str, Make]:
    def shared(share: float) -> Make:
        return lambda machine: SharedScheduler(machine, share)

    made = {f"{share:.2f}": shared(share) for share in SHARES}
    return {**made, "before": lambda machine: FormerScheduler(machine, 0.0)}


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def capacity(machine: SimulatedMachine, traffic: Traffic, seed: int, requests: int) -> float:
    """Requests a second if all come at once and prompts are first."""
    arrivals = traffic.arrivals(seed, 2 * requests, 0.0)
    return len(arrivals) / play(SharedScheduler(machine, 1.0), machine, arrivals).ended


def ratios(
    machine: SimulatedMachine, traffic: Traffic, load: float, *, seed: int, requests: int
) -> list[dict[str, Any]]:
    """A row for each rule."""
    rate = load * capacity(machine, traffic, seed, requests)
    played = {}
    for name, make in rules().items():
        first: list[float] = []
        gaps: list[float] = []
        for run in range(2):
            arrivals = traffic.arrivals(100 * seed + run, requests, rate)
            one = play(make(machine), machine, arrivals)
            first += one.first
            gaps += one.gaps
        played[name] = percentile(first, 0.95), percentile(gaps, 0.99)
    return [
        {
            "machine": machine.name,
            "traffic": traffic.name,
            "load": load,
            "share": name,
            "first_s": round(first, 4),
            "gap_s": round(gap, 4),
            "first": round(first / played["1.00"][0], 3),
            "gap": round(gap / played["0.00"][1], 3),
        }
        for name, (first, gap) in played.items()
    ]


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By machine and rule: geometric means, the worst, and how often each goal was met."""
    made = []
    for machine in dict.fromkeys(row["machine"] for row in rows):
        for share in dict.fromkeys(row["share"] for row in rows):
            some = [r for r in rows if (r["machine"], r["share"]) == (machine, share)]
            first = [row["first"] for row in some]
            gap = [row["gap"] for row in some]
            in_time, in_bounds = [f <= FIRST_GOAL for f in first], [g <= GAP_GOAL for g in gap]
            made.append(
                {
                    "machine": machine,
                    "share": share,
                    "first": round(_mean(first), 2),
                    "worst first": round(max(first), 2),
                    "gap": round(_mean(gap), 2),
                    "worst gap": round(max(gap), 2),
                    "product": round(_mean(first) * _mean(gap), 2),
                    "first in time": f"{sum(in_time)}/{len(some)}",
                    "gap in bounds": f"{sum(in_bounds)}/{len(some)}",
                    "both": f"{sum(map(int.__mul__, in_time, in_bounds))}/{len(some)}",
                }
            )
    return made


def _mean(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=80, help="in each of two runs")
    parser.add_argument("--held-out", action="store_true", help="the machines not chosen on")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for machine in (LINEAR, ROOF) if options.held_out else (CPU, GPU):
        for traffic in TRAFFIC:
            for load in LOADS:
                new = ratios(machine, traffic, load, seed=options.seed, requests=options.requests)
                rows += new
                told = "  ".join(f"{r['share']}: {r['first']:.2f} {r['gap']:.2f}" for r in new)
                print(f"{machine.name:6s} {traffic.name:15s} {load:.0%}  {told}", flush=True)
    means = summary(rows)
    for row in means:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if options.json is not None:
        document = {**facts(), "seed": options.seed, "summary": means, "rows": rows}
        options.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
