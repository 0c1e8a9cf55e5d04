"""Why are batches as they are? `wherry explain MODEL`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
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
    """A line of a chart."""

    label: str
    value: float
    remark: str = ""
    #: A standard error of the value.
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars under a heading."""

    heading: str
    bars: list[Bar]
    unit: str = ""
    remark: str = ""

    def lines(self) -> Iterator[str]:
        """A remark that finds no room behind its bar is below it."""
        yield self.heading
        width, most = self._label_width(), self._most()
        indent = " " * (3 + width)
        for bar in self.bars:
            drawn = "█" * max(1, round(WIDTH * bar.value / most)) if bar.value else ""
            line = f"  {bar.label[:width]:>{width}} {bar.value:>9.4g} {self.unit:<2} {drawn}"
            remark = ", ".join(filter(None, (self._error(bar), bar.remark)))
            if len(line) + 2 + len(remark) <= COLUMNS:
                yield f"{line}  {remark}".rstrip()
            else:
                yield line.rstrip()
                yield from wrapped(indent + remark, indent)
        yield from wrapped(self.remark)

    def _most(self) -> float:
        """The value of the longest bar with its error."""
        return max([bar.value + bar.error for bar in self.bars], default=0.0) or 1.0

    def _label_width(self) -> int:
        """In characters; of longer labels the end is not shown."""
        return min(MOST_LABEL, max([LEAST_LABEL, *(len(bar.label) for bar in self.bars)]))

    def _error(self, bar: Bar) -> str:
        return f"±{bar.error:.2g} {self.unit}" if bar.error else ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows of cells under a heading; the first row has the columns' heads."""

    heading: str
    rows: list[list[str]]

    def lines(self) -> Iterator[str]:
        """The last column is wrapped, the others are as wide as they must be."""
        yield self.heading
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)][:-1]
        for *cells, last in self.rows:
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
    drawings: list[Chart | Listing] = [*charts(explained), *last_batches(explained)]
    for drawing in drawings:
        out += ["", *drawing.lines()]
    return out


def facts(explained: dict[str, Any]) -> list[str]:
    """The facts, each a sentence or a line."""
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


def charts(explained: dict[str, Any]) -> Iterator[Chart]:
    """The charts of what is known."""
    if "stages" in explained:
        if explained["stages"]:
            yield Chart("what its requests called, mean time of a call", _stages(explained), "ms")
        return
    if explained.get("curve"):
        remark = ""
        if explained.get("fixed_seconds") is not None:
            fixed, row = duration(explained["fixed_seconds"]), duration(explained["row_seconds"])
            remark = f"about {fixed} whatever the size, and {row} a row"
        bars = [_believed(point) for point in _some(explained["curve"])]
        yield Chart("how long a batch takes, and when its size was last run", bars, "ms", remark)
    if returned := explained.get("callers", {}).get("returned_within_seconds"):
        bars = [Bar(duration(age), 100 * share) for age, share in _some(_until_all(returned))]
        yield Chart("callers that send again, by the time since their answer", bars, "%")
    if explained["executions_by_batch_size"]:
        sizes = [(int(size), n) for size, n in explained["executions_by_batch_size"].items()]
        yield Chart(
            "batches run", [Bar(quantities.rows(size), float(n)) for size, n in _some(sizes)]
        )
    if explained["batches_cut_by_reason"]:
        reasons = explained["batches_cut_by_reason"].items()
        bars = [Bar(reason, float(n), REASONS.get(reason, "")) for reason, n in reasons]
        yield Chart("why they left", bars)
    if explained.get("requests_by_wait"):
        waits = [Bar(f"<= {1e3 * s:g} ms", float(n)) for s, n in explained["requests_by_wait"]]
        yield Chart("what requests waited", waits)


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


def last_batches(explained: dict[str, Any]) -> Iterator[Listing]:
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
    yield Listing(f"the last {len(last)} batches, the latest first, in ms", [heads, *rows])


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else number(1e3 * seconds)


def _stages(explained: dict[str, Any]) -> list[Bar]:
    return [
        Bar(
            stage["model"],
            stage["mean_total_ms"],
            f"{stage['calls']} calls, {stage['mean_queue_ms']:.3g} ms waiting"
            + (f", {stage['failed']} failed" if stage["failed"] else ""),
        )
        for stage in explained["stages"]
    ]


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
