"""Does each fresh start end with full batches on the real server?

    python -m benchmarks.full_batches [--over http,grpc] [--callers 1,16] [--runs 20] [--json PATH]
    python -m benchmarks.full_batches --stuck --runs 5
    python -m benchmarks.full_batches --tree OLD    # another working tree, in turns with this one

A simulated device (5 ms and 0.2 ms a row, at most 32 rows) in a process that is started for each
run and called for 2 s: over HTTP (wrk) and gRPC (h2load), where a worker process runs the model,
and in its own process by tasks of one event loop and by threads. Figures are of the second before
the last 0.1 s. A full batch has all callers, or 32 rows. "filled" is the mean size of a batch in
full ones, "full" the share of full ones, "of ideal" the rows/s against a device that pauses for
nobody. A run that is filled to less than 90 % is bad. The JSON has each run, the bad ones and the
slowest of each line with what the batcher had learnt. All of it takes 25 minutes.

`--stuck`: the first twelve batches of more than 4 rows take 60 ms longer, as if they compiled; then
16, 4, 16, 64 and 16 callers follow, 3 s each.

"foreign" is how many cores other processes took: repeat what was measured above 0.3 or so.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import harness
from benchmarks.full_batches.ways import OVER, Look, Phase, run

CALLERS = (1, 2, 4, 10, 16, 33, 64, 128)
#: Of a run: what wrk can be asked for, a second to settle and one to look at.
SECONDS = 2
#: The phases of a run of `--stuck`.
STUCK = tuple(Phase(callers, 3) for callers in (16, 4, 16, 64, 16))
MOST_ROWS = 32
#: A run with smaller batches on average, in full ones, is bad.
GOOD = 0.9

Record = dict[str, Any]


def best_size(callers: int) -> int:
    return min(callers, MOST_ROWS)


def ideal(callers: int) -> float:
    """Rows/s of a device that has the next best batch when one ends."""
    rows = best_size(callers)
    return rows / (0.005 + 0.0002 * rows)


def measured(phase: Phase, first: Look, last: Look) -> Record:
    """What batches a phase had between two looks at them, and before."""
    (began, before), (ended, after) = first, last
    sizes_before, sizes_then = _sizes(before), _sizes(after)
    sizes = {
        size: count - sizes_before.get(size, 0)
        for size, count in sizes_then.items()
        if count > sizes_before.get(size, 0)
    }
    rows, batches = sum(n * count for n, count in sizes.items()), max(1, sum(sizes.values()))
    best, rate = best_size(phase.callers), rows / (ended - began)
    return {
        "callers": phase.callers,
        "rate": round(rate, 1),
        "of_ideal": round(rate / ideal(phase.callers), 4),
        "filled": round(rows / batches / best, 4),
        "full": round(sizes.get(best, 0) / batches, 4),
        "batches_by_size": sizes,
        "batches_by_size_before": sizes_before,
        "learnt": after,
    }


def _sizes(batching: dict[str, Any]) -> dict[int, int]:
    return {int(size): count for size, count in batching["executions_by_batch_size"].items()}


def in_short(records: Sequence[Record]) -> list[Record]:
    """One line of the table for each tree, way and number of callers."""
    lines: dict[str, list[Record]] = {}
    for record in records:
        lines.setdefault(record["what"], []).append(record)
    rows = []
    for what, same in lines.items():
        filled, shares = [one["filled"] for one in same], [one["of_ideal"] for one in same]
        rows.append({
            "what": what,
            "runs": len(same),
            "bad": sum(share < GOOD for share in filled),
            "filled %": round(100 * median(filled), 1),
            "least %": round(100 * min(filled), 1),
            "full %": round(100 * median(one["full"] for one in same), 1),
            "rows/s": round(median(one["rate"] for one in same)),
            "of ideal %": round(100 * median(shares), 1),
            "least rows/s": round(min(one["rate"] for one in same)),
            "foreign": round(median(one["foreign"] for one in same), 2),
        })  # fmt: skip
    return rows


def keep_the_worst(records: Sequence[Record]) -> None:
    """Drop batches and what was learnt in all runs but the bad ones, and the slowest of each line:
    of that one, if it is good, the decisions are dropped."""
    slowest: dict[str, Record] = {}
    for record in records:
        known = slowest.setdefault(record["what"], record)
        if record["rate"] < known["rate"]:
            slowest[record["what"]] = record
    for record in records:
        if record["filled"] >= GOOD:
            record["learnt"].pop("last_batches", None)
            if record is not slowest[record["what"]]:
                del record["learnt"], record["batches_by_size"], record["batches_by_size_before"]


def show_bad(records: Sequence[Record]) -> None:
    """Print the bad runs with what the batcher said of itself at their end."""
    for record in records:
        if record["filled"] < GOOD:
            learnt = record["learnt"]
            said = learnt.get("in_words") or [f"seconds by size: {learnt['batch_seconds']}"]
            print(
                f"\n{record['what']}, run {record['run']}: {record['filled']:.0%} filled,"
                f" {record['rate']:.0f} rows/s",
                f"batches by size: {record['batches_by_size']}",
                f"until then: {record['batches_by_size_before']}",
                *said,
                sep="\n  ",
            )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--callers", help=f"numbers of them [{','.join(map(str, CALLERS))}]")
    parser.add_argument(
        "--over",
        default="http,grpc,tasks,threads",
        help=f"ways to call, of {', '.join(OVER)} [%(default)s]",
    )
    parser.add_argument("--runs", type=int, default=20, help="fresh starts of each [%(default)s]")
    parser.add_argument("--stuck", action="store_true", help="slow first batches, changing callers")
    parser.add_argument("--tree", type=Path, action="append", default=[], metavar="PATH",
                        help="another working tree of wherry; may be repeated")  # fmt: skip
    parser.add_argument("--json", type=Path, help="write each run and the machine's facts here")
    options = parser.parse_args()
    options.over = options.over.split(",")
    if unknown := set(options.over) - set(OVER):
        parser.error(f"--over {','.join(sorted(unknown))}: there are {', '.join(OVER)}")
    options.callers = [int(n) for n in options.callers.split(",")] if options.callers else CALLERS
    return options


def one_round(options: argparse.Namespace, trees: Sequence[Path]) -> Iterator[Record]:
    """Run each line of the table once: the trees next to each other, so that a noisy moment meets
    all of them."""
    loads: list[tuple[str, Sequence[Phase]]] = [("slow_start", STUCK)]
    if not options.stuck:
        loads = [("device", (Phase(callers, SECONDS),)) for callers in options.callers]
    for over, (model, phases), tree in product(options.over, loads, trees):
        seen = run(tree, over, model, phases)
        for place, (phase, looks) in enumerate(zip(phases, seen.looks, strict=True), 1):
            what = f"{over}, {phase.callers} callers"
            what = f"{tree.name}: {what}" if len(trees) > 1 else what
            what = f"{what} (phase {place})" if options.stuck else what
            yield {"what": what, "foreign": round(seen.foreign, 2), **measured(phase, *looks)}


def main() -> None:
    options = parsed()
    trees = [harness.ROOT, *(tree.resolve() for tree in options.tree)]
    records: list[Record] = []
    for number in range(1, options.runs + 1):
        print(f"run {number} of {options.runs}", file=sys.stderr)
        records += [{"run": number, **record} for record in one_round(options, trees)]
    title = "a device of 5 ms + 0.2 ms a row, at most 32 rows, from fresh starts"
    if options.stuck:
        title += ", its first batches slow"
    harness.report(title, in_short(records), None)
    show_bad(records)
    if options.json is not None:
        keep_the_worst(records)
        figures = {"title": title, "rows": in_short(records), "runs": records}
        versions = {tree.name: harness.commit(tree) for tree in trees}
        told = {**harness.facts(), "trees": versions, **figures}
        options.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
