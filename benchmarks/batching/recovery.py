"""How soon is a policy at its best again when a device has become three times as slow, or fast?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.batching.device import SHIFT, Scaled
from benchmarks.batching.judge import made
from benchmarks.batching.lockin import quantiles
from benchmarks.batching.play import Trace, play
from benchmarks.batching.scenarios import SEEDS, Scenario, drawn
from benchmarks.batching.sweep import best_pair, run_pair

#: Of the best throughput after the shift.
REACHED = 0.9
#: Batches of the moving window, for each instance.
WINDOW = 8
#: The goal: batches or seconds, whichever is later.
BATCHES, SECONDS = 50, 2.0


def shifting(seed: int, count: int) -> Iterator[Scenario]:
    """Loops of callers on a device that shifts, in both directions by turns."""
    found = 0
    for scenario in drawn(seed, 100 * count):
        if scenario.arrivals.kind == "closed" and scenario.device.behaviour == "noise":
            amount = SHIFT if found % 2 else 1 / SHIFT
            device = replace(scenario.device, behaviour="shift", amount=amount)
            yield replace(scenario, device=device)
            found += 1
            if found == count:
                return


def recovery(job: tuple[Scenario, str]) -> dict[str, Any]:
    """Batches and seconds after the shift until a moving window reaches the best."""
    scenario, policy = job
    seed = SEEDS[0]
    curve = Scaled(scenario.device.curve, scenario.device.amount)
    after = replace(scenario, device=replace(scenario.device, behaviour="noise", curve=curve))
    best = run_pair(after, best_pair(after), seed).rate
    scheduler = made(policy, scenario)
    load = scenario.load(seed)
    trace = play(scheduler, scenario.batch_seconds(seed), load, scenario.instances)
    batches, seconds, finally_ = reached(trace, scenario, REACHED * best)
    return {
        "about": scenario.about,
        "direction": "slower" if scenario.device.amount > 1 else "faster",
        "batches": batches,
        "seconds": round(seconds, 3),
        "reached": finally_,
    }


def reached(trace: Trace, scenario: Scenario, rate: float) -> tuple[int, float, bool]:
    """When the first window of batches that start after the shift has this rate."""
    at = np.sort(np.array(trace.arrived))[scenario.total // 2]
    batches = sorted(
        (start + took, batch.rows) for start, took, batch in trace.batches if start > at
    )
    ends = np.array([at] + [end for end, _ in batches])
    sums = np.cumsum([0] + [rows for _, rows in batches])
    window = min(WINDOW * scenario.instances, len(batches) // 2)
    good = (sums[window:] - sums[:-window]) / (ends[window:] - ends[:-window]) >= rate
    first = int(np.argmax(good)) if good.any() else len(batches)
    return first, float(ends[first] - at), bool(good.any())


def report(rows: Sequence[dict[str, Any]], policy: str) -> str:
    lines = [
        f"{policy}: after a shift, until {REACHED:.0%} of the best throughput (median, 90 %, worst)"
    ]
    for direction in ("slower", "faster"):
        some = [row for row in rows if row["direction"] == direction]
        good = [
            row["reached"] and (row["batches"] <= BATCHES or row["seconds"] <= SECONDS)
            for row in some
        ]
        lines.append(
            f"{SHIFT:g}x {direction}: {quantiles([row['batches'] for row in some])} batches,"
            f" {quantiles([row['seconds'] for row in some])} s;"
            f" within {BATCHES} batches or {SECONDS:g} s {sum(good)} of {len(some)}"
        )
        lines += [
            f"  {row['batches']} batches, {row['seconds']:g} s"
            f"{'' if row['reached'] else ' (never)'}: {row['about']}"
            for row, fine in zip(some, good, strict=True)
            if not fine
        ]
    return "\n".join(lines)
