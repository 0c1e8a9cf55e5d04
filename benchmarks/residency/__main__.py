"""How many swaps does the policy of residency need, and how long does a model wait for its turn?

    python -m benchmarks.residency [--first 1000] [--count 50] [--json FILE]

20 models of which 5 fit, ten minutes, by seeds from `--first` on. Virtual time: the figures depend
on no machine, only on the seeds. Beside wherry's policy the same one that knows when each model is
asked next (with and without counting what a swap costs), LRU by request and a fixed keep-alive.
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
    Rival("clairvoyant", DeviceTurns, clairvoyant),
    Rival("clairvoyant, swaps cost nothing", DeviceTurns, belady),
    Rival("LRU by request", LastUsed),
    Rival("keep-alive 30 s", KeepAlive),
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
    #: The longest wait over its bound.
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
        [summary(what, figures, found["clairvoyant"]) for what, figures in found.items()],
        options.json,
    )


def summary(what: str, figures: list[Figures], best: list[Figures]) -> dict[str, Any]:
    ratios = [f.swaps / max(1, b.swaps) for f, b in zip(figures, best, strict=True)]
    seconds = sum(f.swap_seconds for f in figures) / sum(b.swap_seconds for b in best)
    return {
        "what": what,
        "swaps": sum(f.swaps for f in figures),
        "of clairvoyant's": sum(f.swaps for f in figures) / sum(b.swaps for b in best),
        "worst seed": max(ratios),
        "of Belady, same order": sum(f.swaps for f in figures) / sum(f.least for f in figures),
        "swap seconds of clairvoyant's": seconds,
        "useful %": 100 * min(f.useful for f in figures),
        "served %": 100 * statistics.mean(f.served for f in figures),
        "mean answer s": statistics.mean(f.mean_answer for f in figures),
        "longest wait s": max(f.longest for f in figures),
        "of its bound": max(f.of_bound for f in figures),
    }


if __name__ == "__main__":
    main()
