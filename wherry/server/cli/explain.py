"""Why are batches as they are? `wherry explain MODEL`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from textwrap import wrap
from typing import Any, NamedTuple

from wherry.core.api import duration, number, quantities
from wherry.server.cli.call import client_of
from wherry.server.cli.show import as_json, print_line

#: Characters of a line, and of the longest bar.
COLUMNS, WIDTH = 80, 26
#: Characters of the labels of bars.
LEAST_LABEL, MOST_LABEL = 10, 32


class Bar(NamedTuple):
    label: str
    value: float
    remark: str = ""
    error: float = 0.0


def chart(heading: str, bars: list[Bar], unit: str = "") -> Iterator[str]:
    """Bars under a heading, in proportion; of long labels the end is not shown."""
    yield heading
    width = min(MOST_LABEL, max(LEAST_LABEL, *(len(bar.label) for bar in bars)))
    most = max(bar.value + bar.error for bar in bars) or 1.0
    for bar in bars:
        drawn = "█" * max(1, round(WIDTH * bar.value / most)) if bar.value else ""
        error = f"±{bar.error:.2g} {unit}" if bar.error else ""
        remark = ", ".join(filter(None, (error, bar.remark)))
        line = f"  {bar.label[:width]:>{width}} {bar.value:>9.4g} {unit:<2} {drawn}"
        yield from wrapped(f"{line}  {remark}".rstrip(), " " * (3 + width))


def table(heading: str, rows: list[list[str]]) -> Iterator[str]:
    """Rows of cells under a heading, the first with the columns' heads. The last column is
    wrapped."""
    yield heading
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    for *cells, last in rows:
        line = " ".join([f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)])
        yield from wrapped(f"{line}  {last}", " " * (2 + len(line)))


def wrapped(text: str, indent: str = "") -> list[str]:
    """Lines of at most `COLUMNS`, all but the first with this indent; none for no text."""
    return wrap(text, COLUMNS, subsequent_indent=indent, break_on_hyphens=False)


#: Of the last batches, those that a terminal shows.
SHOWN = 16

REASONS = {
    "full": "max_batch_size was reached",
    "idle": "an instance was free, and waiting for more requests would not have paid",
    "waited": "after a wait for callers that had just been answered",
    "part": "a part of the queue: it fills a step of the device, or small batches cost no more",
    "slots": "enough of the sequences had a step",
    "preferred": "a preferred size was reached",
    "delay": "max_queue_delay was over",
    "no_arrivals_expected": "before max_queue_delay was over: no more requests were expected",
    "mixed": "before max_queue_delay was over: a request arrived that could not join",
    "deadline": "waiting would have made a request late",
}


def explain(args: argparse.Namespace) -> int:
    """Print what the model's batcher has learnt, the sizes it chose and why."""
    with client_of(args) as client:
        explained = client.batching(args.model)
    print_line(as_json(explained, None) if args.json else "\n".join(lines(explained)))
    return 0


def lines(explained: dict[str, Any]) -> list[str]:
    """The server's answer for people, in lines of 80 columns."""
    out = [line for fact in facts(explained) for line in wrapped(fact)]
    for drawing in (*charts(explained), last_batches(explained)):
        if drawn := list(drawing):
            out += ["", *drawn]
    return out


def facts(explained: dict[str, Any]) -> list[str]:
    if "stages" in explained:
        calls = "the calls of its latest request" if explained["latest"] else "no request yet"
        tree = [line for span in explained["latest"][:1] for line in _tree(span)]
        return [f"pipeline {explained['name']} version {explained['version']}: {calls}", *tree]
    policy = (
        explained["policy"] if ":" in explained["policy"] else f"{explained['policy']} batching"
    )
    out = [
        f"model {explained['name']} version {explained['version']}: {policy},"
        f" max_batch_size {explained['max_batch_size']}, "
        f"{explained['queued_requests']} requests waiting"
    ]
    out += explained.get("in_words", ())
    if "active_requests" in explained:
        most = f", of at most {explained['most_active_requests']} in an instance"
        out.append(f"{explained['active_requests']} requests are in its steps{most}.")
    if explained.get("predicted_first_response_seconds"):
        wait = duration(explained["predicted_first_response_seconds"])
        out.append(f"A request that arrives now will have its first response in about {wait}.")
    if explained.get("curve") and explained.get("fixed_seconds") is not None:
        fixed, row = duration(explained["fixed_seconds"]), duration(explained["row_seconds"])
        out.append(f"A batch takes about {fixed} whatever its size, and {row} a row.")
    if explained.get("max_batch_rows", explained["max_batch_size"]) < explained["max_batch_size"]:
        out.append(f"There was not enough memory for more than {explained['max_batch_rows']} rows.")
    if explained.get("predicted_wait_seconds"):
        wait = duration(explained["predicted_wait_seconds"])
        out.append(f"A request that arrives now will wait about {wait}.")
    if explained.get("rejected_predicted_late"):
        out.append(
            f"{explained['rejected_predicted_late']} requests were rejected: predicted late."
        )
    return out


def charts(explained: dict[str, Any]) -> Iterator[Iterator[str]]:
    if "stages" in explained:
        if explained["stages"]:
            stages = [_stage(one) for one in explained["stages"]]
            yield chart("what its requests called, mean time of a call", stages, "ms")
        return
    if explained.get("curve"):
        bars = [_believed(point) for point in _some(explained["curve"])]
        yield chart("how long a batch takes, and when its size was last run", bars, "ms")
    if returned := explained.get("callers", {}).get("returned_within_seconds"):
        bars = [Bar(duration(age), 100 * share) for age, share in _some(_until_all(returned))]
        yield chart("callers that send again, by the time since their answer", bars, "%")
    if sizes := explained["executions_by_batch_size"]:
        counts = [(quantities.rows(int(size)), float(n)) for size, n in sizes.items()]
        yield chart("batches run", [Bar(*one) for one in _some(counts)])
    if reasons := explained["batches_cut_by_reason"]:
        bars = [Bar(one, float(n), REASONS.get(one, "")) for one, n in reasons.items()]
        yield chart("why they left", bars)
    if waits := explained.get("requests_by_wait"):
        yield chart("what requests waited", [Bar(f"<= {1e3 * s:g} ms", float(n)) for s, n in waits])


def _until_all(returned: list[list[float]]) -> list[list[float]]:
    """Ages and shares, up to the first age with the last share."""
    last = next(i for i, (_, share) in enumerate(returned) if share == returned[-1][1])
    return returned[: last + 1]


def _believed(point: dict[str, Any]) -> Bar:
    ago = point["age_batches"]
    last = "the last batch" if not ago else "1 batch ago" if ago == 1 else f"{ago} batches ago"
    return Bar(
        quantities.rows(point["rows"]), 1e3 * point["seconds"], last, 1e3 * point["error_seconds"]
    )


def last_batches(explained: dict[str, Any]) -> Iterator[str]:
    last = explained.get("last_batches", [])[::-1][:SHOWN]
    if not last:
        return
    several = len({batch["instance"] for batch in last}) > 1
    rows = [
        [
            duration(batch["left_seconds_ago"]),
            number(batch["rows"]),
            number(batch["rows_left_queued"]),
            number(1e3 * batch["longest_wait_seconds"]),
            "runs" if batch["runs"] else _ms(batch["seconds"]),
            _ms(batch["expected_seconds"]),
            batch["why"] + (f" (instance {batch['instance']})" if several else ""),
        ]
        for batch in last
    ]
    heads = ["ago", "rows", "queued", "waited", "took", "predicted", "left"]
    yield from table(f"the last {len(last)} batches, the latest first, in ms", [heads, *rows])


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else number(1e3 * seconds)


def _stage(stage: dict[str, Any]) -> Bar:
    failed = f", {stage['failed']} failed" if stage["failed"] else ""
    remark = f"{stage['calls']} calls, {stage['mean_queue_ms']:.3g} ms waiting{failed}"
    return Bar(stage["model"], stage["mean_total_ms"], remark)


def _tree(span: dict[str, Any], indent: str = "  ") -> Iterator[str]:
    """A request's calls, each under the one that made it."""
    failed = f", {span['error']}" if "error" in span else ""
    yield (
        f"{indent}{span['model']}: from {span['start_ms']:.4g} ms, took {span['total_ms']:.4g} ms,"
        f" {span['queue_ms']:.4g} ms of it waiting{failed}"
    )
    for call in span.get("calls", ()):
        yield from _tree(call, indent + "  ")
    if "calls_left_out" in span:
        yield f"{indent}  and {span['calls_left_out']} more"


def _some(points: list[Any], most: int = 16) -> list[Any]:
    """At most `most` of the points, evenly spread, with both ends."""
    if len(points) <= most:
        return points
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]
