"""How close does the self-tuning batcher come to the best pair of a sweep? In simulation.

    python -m benchmarks.batching --seed 7 [--count 200] [--references F] [--json F]
    python -m benchmarks.batching --seed 7 --policy module:Class --policy other:Class
    python -m benchmarks.batching --seed 7 --only "k=2 limit 16" [--all]
    python -m benchmarks.batching --seed 7 --show 7/13
    python -m benchmarks.batching --lock-in --seed 7 [--count 100]
    python -m benchmarks.batching --shifts --seed 7 [--count 40]

Simulated seconds: the figures depend on no machine, only on the seed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.batching import lockin, recovery
from benchmarks.batching.judge import OURS, in_parallel, judged
from benchmarks.batching.scenarios import Scenario, drawn
from benchmarks.batching.show import show
from benchmarks.batching.tables import Row, beside, line, report
from benchmarks.harness import facts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, help="scenarios: 200; lock-in: 100; shifts: 40")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each scenario: 1 to 4")
    parser.add_argument("--policy", action="append", metavar="MODULE:CLASS")
    parser.add_argument("--only", default="", help="scenarios whose description has this text")
    parser.add_argument("--all", action="store_true", help="print a line for each scenario")
    parser.add_argument("--references", type=Path, help="keep the elected pairs in this file")
    parser.add_argument("--json", type=Path, help="write the figures and the machine's facts here")
    parser.add_argument("--show", nargs="+", help="print the batches of these scenarios")
    parser.add_argument("--lock-in", action="store_true", help="after another life")
    parser.add_argument("--shifts", action="store_true", help="after a shift of the device")
    options = parser.parse_args()
    options.policy = options.policy or [OURS]
    if options.show:
        timelines(options)
        return
    if options.lock_in:
        chosen = lockin.stationary(options.seed, options.count or 100)
        rows = learnt(options, chosen, lockin.lock_in, lockin.report)
    elif options.shifts:
        chosen = recovery.shifting(options.seed, options.count or 40)
        rows = learnt(options, chosen, recovery.recovery, recovery.report)
    else:
        rows = against_the_best_pair(options)
    if options.json:
        content = {**facts(), "seed": options.seed, "policies": options.policy, "rows": rows}
        options.json.write_text(json.dumps(content) + "\n")


def timelines(options: argparse.Namespace) -> None:
    numbers = [int(name.rpartition("/")[2]) for name in options.show]
    scenarios = list(drawn(options.seed, max(numbers) + 1))
    print("\n\n".join(show(scenarios[n], policy) for n in numbers for policy in options.policy))


def learnt(
    options: argparse.Namespace,
    scenarios: Iterable[Scenario],
    judge: Callable[[tuple[Scenario, str]], Row],
    report: Callable[[Sequence[Row], str], str],
) -> list[Row]:
    """Compare each policy with itself in another state."""
    chosen = [scenario for scenario in scenarios if options.only in scenario.about]
    rows = []
    for policy in options.policy:
        found = list(in_parallel(judge, [(s, policy) for s in chosen], "scenarios"))
        print(report(found, policy))
        rows += [{"policy": policy, **row} for row in found]
    return rows


def against_the_best_pair(options: argparse.Namespace) -> list[Row]:
    scenarios = [s for s in drawn(options.seed, options.count or 200) if options.only in s.about]
    rows = judged(scenarios, options.policy, options.references, options.seeds)
    for policy in options.policy:
        if options.all:
            print("\n".join(line(row, policy) for row in rows))
        print(report(rows, policy), end="\n\n")
    if len(options.policy) > 1:
        print(beside(rows, options.policy))
    return rows


if __name__ == "__main__":
    main()
