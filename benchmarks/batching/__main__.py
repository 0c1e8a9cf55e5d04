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
from pathlib import Path
from typing import Any

from benchmarks.batching import lockin, recovery
from benchmarks.batching.judge import OURS, in_parallel, judged
from benchmarks.batching.scenarios import drawn
from benchmarks.batching.show import show
from benchmarks.batching.tables import line, report
from benchmarks.harness import facts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=0, help="200; lock-in: 100; shifts: 40")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each scenario: 1 to 4")
    parser.add_argument("--policy", action="append", metavar="MODULE:CLASS")
    parser.add_argument("--only", default="", help="scenarios whose description has this text")
    parser.add_argument("--references", type=Path, help="keep the elected pairs in this file")
    parser.add_argument("--json", type=Path, help="write the figures and the machine's facts here")
    parser.add_argument("--all", action="store_true", help="print each scenario")
    parser.add_argument(
        "--show", nargs="+", default=[], help="print the batches of these scenarios"
    )
    parser.add_argument("--lock-in", action="store_true", help="after another life")
    parser.add_argument("--shifts", action="store_true", help="after a shift of the device")
    options = parser.parse_args()
    policies = options.policy or [OURS]
    if options.show:
        numbers = [int(name.rpartition("/")[2]) for name in options.show]
        every = list(drawn(options.seed, max(numbers) + 1))
        print("\n\n".join(show(every[n], policy) for n in numbers for policy in policies))
        return
    rows: list[dict[str, Any]] = []
    if options.lock_in or options.shifts:
        for policy in policies:
            if options.lock_in:
                some = list(lockin.stationary(options.seed, options.count or 100))
                jobs = [(s, policy) for s in some if options.only in s.about]
                found = list(in_parallel(lockin.lock_in, jobs, "lives"))
                print(lockin.report(found, policy))
            else:
                some = list(recovery.shifting(options.seed, options.count or 40))
                jobs = [(s, policy) for s in some if options.only in s.about]
                found = list(in_parallel(recovery.recovery, jobs, "shifts"))
                print(recovery.report(found, policy))
            rows += [{"policy": policy, **row} for row in found]
    else:
        count = options.count or 200
        scenarios = [s for s in drawn(options.seed, count) if options.only in s.about]
        rows = judged(scenarios, policies, options.references, options.seeds)
        for policy in policies:
            if options.all:
                print("\n".join(line(row, policy) for row in rows))
            print(report(rows, policy), end="\n\n")
    if options.json:
        content = {**facts(), "seed": options.seed, "policies": policies, "rows": rows}
        options.json.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
