"""How close does the batcher that tunes itself come to the best pair of a sweep? In simulation.

    python -m benchmarks.batching [--curves gpu,linear] [--instances 1,2,4,8]
    python -m benchmarks.batching --held-out 101,102     # curves that nobody has tuned on
    python -m benchmarks.batching --pairs benchmarks/results/batching.json    # without the sweep

Simulated seconds: the figures depend on no machine. All scenarios take two cores ten minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.batching.scenarios import Pair, good, held_out, judge, summary, tuned
from benchmarks.batching.simulator import CURVES
from benchmarks.harness import facts, report


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--curves", default=",".join(CURVES))
    parser.add_argument("--instances", default="1,2,4,8")
    parser.add_argument("--held-out", default="", help="seeds to draw curves and arrivals from")
    parser.add_argument("--pairs", type=Path, help="take the elected pairs from a former --json")
    parser.add_argument("--json", type=Path, help="write the figures and the machine's facts here")
    options = parser.parse_args()
    if options.held_out:
        scenarios = [s for seed in options.held_out.split(",") for s in held_out(int(seed))]
    else:
        instances = [int(k) for k in options.instances.split(",")]
        scenarios = list(tuned(options.curves.split(","), instances))
    pairs = elected(options.pairs) if options.pairs else {}
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(2) as pool:
        for row in pool.map(judge, [(s, pairs.get(s.key)) for s in scenarios]):
            rows.append(row)
            print(f"{len(rows)} of {len(scenarios)}", end="\r", file=sys.stderr)
    title = "the batcher that tunes itself, against the best pair of a sweep"
    report(title, [shown(row) for row in rows], None)
    for k in sorted({row["instances"] for row in rows}):
        some = [row for row in rows if row["instances"] == k]
        print(f"{k} instances: ours {summary(some)}")
        print(f"{k} instances: greedy {summary(some, 'greedy')}")
    print(f"all: ours {summary(rows)}")
    if options.json:
        report_json = {**facts(), "title": title, "rows": rows}
        options.json.write_text(json.dumps(report_json, indent=1))


def shown(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "what": row["what"],
        "pair": f"{row['size']}, {row['delay_ms']} ms",
        "rows/s": f"{row['rate']:.0f}",
        "p95 ms": f"{row['p95_ms']:.1f}",
        "ours %, p95 %": f"{row['ours_rate_%']:+.1f} {row['ours_p95_%']:+.1f}",
        "greedy %, p95 %": f"{row['greedy_rate_%']:+.1f} {row['greedy_p95_%']:+.1f}",
        "": "" if good(row) else "<--",
    }


def elected(path: Path) -> dict[str, Pair]:
    rows = json.loads(path.read_text())["rows"]
    return {row["what"]: (row["size"], row["delay_ms"] / 1e3) for row in rows}


if __name__ == "__main__":
    main()
