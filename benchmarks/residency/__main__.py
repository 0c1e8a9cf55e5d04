"""How many swaps does the policy of residency need, and how long does a model wait for its turn?

    python -m benchmarks.residency [--first 1000] [--count 50] [--json FILE]

20 models of which 5 fit, ten minutes, by seeds from `--first` on. Virtual time: the figures depend
on no machine, only on the seeds. Beside wherry's policy the same one that knows when each model is
asked next (foresight; Belady: only that counts, not what a swap costs), LRU by request and a
keep-alive of 30 s. One model loads at a time, and batches of others run meanwhile.

Ratios are of sums over all seeds: swaps to those of the two that know the future, and to the loads
that Belady's rule needs for the same batches in the same order. Useful: the time in which a batch
ran, of all in which one ran or could have. Answers that are not there at the end count as long as
they have waited. A wait is until a model begins to wake: in swaps of the slowest model, and as a
share of the bound that wherry.core.residency.policy states.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import report
from benchmarks.residency.rivals import KeepAlive, LastUsed, belady, clairvoyant, fewest_loads
from benchmarks.residency.simulator import Policy, Run, Viewer, bound, honest
from benchmarks.residency.traces import SECONDS, Scenario, drawn
from wherry.core.residency.policy import DeviceTurns


class Rival(NamedTuple):
    what: str
    make: Callable[[int], Policy]
    viewer: Viewer = honest


RIVALS = (
    Rival("wherry", DeviceTurns),
    Rival("foresight", DeviceTurns, clairvoyant),
    Rival("Belady", DeviceTurns, belady),
    Rival("LRU", LastUsed),
    Rival("keep-alive", KeepAlive),
)


class Figures(NamedTuple):
    swaps: int
    swap_seconds: float
    #: Loads of Belady for the same batches in the same order.
    least: int
    served: float
    useful: float
    mean_answer: float
    longest: float
    #: The longest wait, in swaps of the slowest model, and as a share of its bound.
    in_swaps: float
    of_bound: float


def played(scenario: Scenario, rival: Rival) -> Figures:
    run = Run(
        scenario.specs,
        rival.make(scenario.budget),
        rival.viewer,
        scenario.budget,
        sleeps_unasked=rival.make is KeepAlive,
    )
    run.play(scenario.arrivals, SECONDS)
    specs = {spec.name: spec for spec in scenario.specs}
    waits = [*run.waits, *run.still_waiting()]
    longest_batch = max(spec.seconds(spec.most) for spec in scenario.specs)
    left = [
        SECONDS - one.time for model in run.models.values() for one in model.queue
    ]  # not answered at the end: as long as they have waited
    answers = [*run.answer_seconds, *left]
    return Figures(
        run.wakes,
        run.swap_seconds,
        fewest_loads(run.order, {n: s.footprint for n, s in specs.items()}, scenario.budget),
        run.served / len(scenario.arrivals),
        run.busy_seconds / max(1e-9, run.busy_seconds + run.idle_with_work),
        sum(answers) / len(answers),
        max(wait.seconds for wait in waits),
        max(wait.seconds for wait in waits) / max(s.wake + s.sleep for s in scenario.specs),
        max(wait.seconds / bound(wait, specs, longest_batch) for wait in waits),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--count", type=int, default=50, help="how many seeds")
    parser.add_argument("--each", action="store_true", help="print a line for each seed")
    parser.add_argument("--json", type=Path, help="write the figures and the machine's facts here")
    options = parser.parse_args()
    found: dict[str, list[Figures]] = {rival.what: [] for rival in RIVALS}
    for seed in range(options.first, options.first + options.count):
        scenario = drawn(seed)
        for rival in RIVALS:
            found[rival.what].append(played(scenario, rival))
        if options.each:
            swaps = [found[rival.what][-1].swaps for rival in RIVALS]
            print(seed, scenario.what, len(scenario.arrivals), swaps, found["wherry"][-1])
    report(
        f"20 models of which 5 fit, ten minutes, {options.count} seeds",
        [summary(what, found) for what in found],
        options.json,
    )


def summary(what: str, found: dict[str, list[Figures]]) -> dict[str, Any]:
    figures, foresight, fewest = found[what], found["foresight"], found["Belady"]
    swaps = sum(f.swaps for f in figures)
    return {
        "what": what,
        "swaps": swaps,
        "of foresight": swaps / sum(f.swaps for f in foresight),
        "of Belady": swaps / sum(f.swaps for f in fewest),
        "worst seed": max(f.swaps / b.swaps for f, b in zip(figures, fewest, strict=True)),
        "same order": swaps / sum(f.least for f in figures),
        "swap s": sum(f.swap_seconds for f in figures) / len(figures),
        "useful %": 100 * min(f.useful for f in figures),
        "served %": 100 * statistics.mean(f.served for f in figures),
        "answer s": statistics.mean(f.mean_answer for f in figures),
        "longest s": max(f.longest for f in figures),
        "in swaps": max(f.in_swaps for f in figures),
        "of bound": max(f.of_bound for f in figures),
    }


if __name__ == "__main__":
    main()
