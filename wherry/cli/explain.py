"""Why are batches as they are? `wherry explain MODEL`."""

from __future__ import annotations

import argparse
from typing import Any

from wherry.cli.call import with_client
from wherry.cli.show import as_json, print_line
from wherry.client import Client

#: Characters of the longest bar.
WIDTH = 40

REASONS = {
    "full": "max_batch_size was reached",
    "idle": "an instance was free, and nobody worth waiting for was on the way",
    "waited": "after a wait for callers that had just been answered",
    "part": "a part of the queue: a batch costs next to nothing by itself here",
    "preferred": "a preferred size was reached",
    "delay": "max_queue_delay was over",
    "deadline": "waiting would have made a request late",
}


def explain(args: argparse.Namespace) -> int:
    """Print what the model's batcher has learnt, the sizes it chose and why."""

    def run(client: Client) -> None:
        told = client.batching(args.model)
        if args.json:
            print_line(as_json(told, most=1_000_000))
        else:
            for line in lines(told):
                print_line(line)

    return with_client(args, run)


def lines(told: dict[str, Any]) -> list[str]:
    """The server's answer for people."""
    out = [
        f"model {told['name']} version {told['version']}: {told['policy']} batching,"
        f" max_batch_size {told['max_batch_size']}, {told['queued_requests']} requests waiting"
    ]
    if told.get("rows_at_most", told["max_batch_size"]) < told["max_batch_size"]:
        out.append(f"memory did not suffice for more than {told['rows_at_most']} rows")
    if told.get("max_queue_delay_seconds") is not None:
        out.append(f"a batch that is not full waits {1e3 * told['max_queue_delay_seconds']:g} ms")
    if told.get("batch_seconds"):
        out += ["", "how long a batch takes (learnt)"]
        out += _bars([(f"{size} rows", 1e3 * s) for size, s in _some(told["batch_seconds"])], "ms")
        if told["fixed_seconds"] is not None:
            out.append(f"  of which {1e3 * told['fixed_seconds']:.3g} ms whatever the size")
    if told.get("returned_within_seconds"):
        age, share = told["returned_within_seconds"][-1]
        age = next(a for a, s in told["returned_within_seconds"] if s > 0.95 * share)
        out += ["", f"{100 * share:.0f} % of callers come straight back, within {1e3 * age:.3g} ms"]
    if told["executions_by_batch_size"]:
        out += ["", "batches run"]
        sizes = [[int(size), count] for size, count in told["executions_by_batch_size"].items()]
        out += _bars([(f"{size} rows", float(count)) for size, count in _some(sizes)], "")
    if told["batches_cut_by_reason"]:
        out += ["", "why they left"]
        for reason, count in told["batches_cut_by_reason"].items():
            out.append(f"  {reason:<10} {count:>8}  {REASONS.get(reason, '')}")
    return out


def _some(points: list[Any], most: int = 16) -> list[Any]:
    """At most so many of many points, evenly spread, with both ends."""
    if len(points) <= most:
        return points
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def _bars(rows: list[tuple[str, float]], unit: str) -> list[str]:
    most = max(value for _, value in rows) or 1.0
    return [
        f"  {label:>10} {value:>9.4g} {unit:<2} {'█' * max(1, round(WIDTH * value / most))}"
        for label, value in rows
    ]
