"""Are batches as full with two fronts as with one process?"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.full_batches.__main__ import measured
from benchmarks.full_batches.ways import Phase, run
from benchmarks.harness import ROOT

CALLERS = (1, 16, 64, 128)
#: Fresh starts of each take seconds.
MOST_ROUNDS = 5


def batches(rounds: int, seconds: float) -> Iterator[dict[str, Any]]:
    """The share of full batches, and rows/s, from fresh starts."""
    phases = [Phase(callers, max(2, round(seconds))) for callers in CALLERS]
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for _ in range(min(rounds, MOST_ROUNDS)):
        for over in ("http", "fronts"):
            seen = run(ROOT, over, "device", phases)
            for phase, looks in zip(phases, seen.looks, strict=True):
                record = {**measured(phase, *looks), "foreign": seen.foreign}
                found.setdefault((phase.callers, over), []).append(record)
    for (callers, over), records in sorted(found.items()):
        yield {
            "what": f"{callers} callers, {'one process' if over == 'http' else '2 fronts'}",
            "filled %": round(100 * median(one["filled"] for one in records), 1),
            "least %": round(100 * min(one["filled"] for one in records), 1),
            "rows/s": round(median(one["rate"] for one in records)),
            "of ideal %": round(100 * median(one["of_ideal"] for one in records), 1),
            "foreign": round(median(one["foreign"] for one in records), 2),
        }
