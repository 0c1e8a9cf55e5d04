"""How well are rows spread over replicas? In simulation.

    python -m benchmarks.pool --seed 7 [--only TEXT] [--json F]

Simulated seconds: the figures depend on no machine, only on the seed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import facts
from benchmarks.pool.prompts import prompts
from benchmarks.pool.simulator import MS, Case, Device, central, simulate
from benchmarks.pool.ways import WAYS

BATCHES = Device()
#: One row at a time, of which nobody knows how long it takes.
ROWS = Device(each=5 * MS, by_row=0.0, full=1, noise=0.5)


def cases() -> Iterator[tuple[str, Case]]:
    """All that is simulated, and what it is called."""
    for owners in (2, 8, 32, 100):
        for fronts in (1, 4, 16):
            for load in (0.5, 0.8):
                name = f"{owners} replicas, {fronts} fronts, load {load:.0%}"
                rows = max(10_000, 500 * owners)
                yield name, Case([BATCHES] * owners, load, fronts, rows=rows)
    for fronts in (1, 4):
        of = f"{fronts} fronts, load 70%"
        for owners in (2, 8):
            for factor in (2, 5):
                devices = [BATCHES] * (owners - 1) + [BATCHES.slower(factor)]
                yield (
                    f"one of {owners} replicas {factor} times slower, {of}",
                    Case(devices, 0.7, fronts),
                )
        mixed = [BATCHES.slower(factor) for factor in (1, 1, 1, 1.5, 1.5, 2, 2, 3)]
        yield f"8 replicas of four speeds, {of}", Case(mixed, 0.7, fronts)
        yield f"links of 1 ms, 8 replicas, {of}", Case([BATCHES] * 8, 0.7, fronts, delay=MS)
        stops = Case([BATCHES] * 8, 0.6, fronts, rows=60_000, stops=3)
        yield f"one of 8 replicas stops, {fronts} fronts, load 60%", stops
        yield f"no batches, 8 replicas, {of}", Case([ROWS] * 8, 0.7, fronts)
        steps = Case([BATCHES] * 8, 0.7, fronts, sequences=500, skew=0.6)
        yield f"rows are steps of 500 unequal sequences, 8 replicas, {of}", steps


def rows_of(seed: int, only: str) -> Iterator[dict[str, Any]]:
    for name, case in cases():
        if only not in name:
            continue
        best = central(case, seed)
        yield {"case": name, "way": "central queue", **best.figures}
        for way, make in WAYS.items():
            if case.sequences and way != "predicted":
                continue
            found = simulate(case, make, seed)
            after = {"sent_after_it_stopped": found.late} if case.stops is not None else {}
            yield {"case": name, "way": way, **found.figures, **after}
        if case.sequences:
            found = simulate(replace(case, sequences=0), WAYS["predicted"], seed)
            yield {"case": name, "way": "predicted, as rows of their own", **found.figures}
    for skew in (0.0, 1.0, 2.0):
        for rate in (20, 60, 120):
            name = f"{rate} prompts/s, beginnings with shares k^-{skew:g}"
            if only in name:
                for way, figures in prompts(rate, seed=seed, skew=skew).items():
                    yield {"case": name, "way": way, **figures}


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("case", "way", "mean ms", "p50", "p99", "mean / central", "p99 / central", "more")
    best: dict[str, Any] = {}
    for row in rows:
        if row["way"] == "central queue":
            best = row
        beside = []
        if best.get("case") == row["case"]:
            beside = [f"{row[key] / best[key]:.2f}" for key in ("mean", "p99")]
        more = ""
        if "hits" in row:
            more = f"{row['hits']:.0%} cached"
        elif "sent_after_it_stopped" in row:
            more = f"{row['sent_after_it_stopped']} rows sent after it stopped"
        figures = [f"{row[key] / MS:.1f}" for key in ("mean", "p50", "p99")]
        table.add_row(row["case"], row["way"], *figures, *(beside or ["", ""]), more)
    Console(width=160).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--json", type=Path, help="write the figures and the machine's facts here")
    options = parser.parse_args()
    rows = list(rows_of(options.seed, options.only))
    show(rows)
    if options.json:
        content = {**facts(), "seed": options.seed, "rows": rows}
        options.json.write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
