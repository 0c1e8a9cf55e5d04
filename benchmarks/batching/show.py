"""What does a policy do in one scenario? The batches of a stretch of its run, one a line."""

from __future__ import annotations

from benchmarks.batching.judge import made
from benchmarks.batching.play import figures, play
from benchmarks.batching.scenarios import SEEDS, Scenario

#: Batches that are shown at the beginning of the run, and from its middle.
SHOWN = 40


def show(scenario: Scenario, policy: str) -> str:
    """Start, rows and duration of each batch, how long its requests waited, how many others ran."""
    seed = SEEDS[0]
    load = scenario.load(seed)
    scheduler = made(policy, scenario)
    trace = play(scheduler, scenario.batch_seconds(seed), load, scenario.instances)
    found = figures(trace, scenario.closed)
    batches = trace.batches
    middle = max(SHOWN, len(batches) // 2)
    lines = [
        scenario.about,
        f"{policy}: {found.rate:.1f} rows/s, p95 {found.p95 * 1e3:.2f} ms,"
        f" mean {found.mean * 1e3:.2f} ms, {len(batches)} batches",
        f"{'batch':>6}{'start ms':>11}{'rows':>6}{'took ms':>9}{'oldest waited':>15}"
        f"{'newest':>9}{'running':>9}  reason",
    ]
    for first in (0, middle):
        for number in range(first, min(first + SHOWN, len(batches))):
            start, took, batch = batches[number]
            waited = [start - request.enqueued_at for request in batch.requests]
            running = sum(s <= start < s + t for s, t, _ in batches[max(0, number - 64) : number])
            lines.append(
                f"{number:>6}{start * 1e3:>11.2f}{batch.rows:>6}{took * 1e3:>9.2f}"
                f"{max(waited) * 1e3:>15.2f}{min(waited) * 1e3:>9.2f}{running:>9}  {batch.reason}"
            )
        lines.append("   ...")
    return "\n".join(lines)
