"""Why are batches as they are? `wherry explain MODEL`, as text or as one page."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from wherry.cli.call import client_of
from wherry.cli.show import as_json, print_line
from wherry.values.errors import ConfigError

#: Characters of the longest bar.
WIDTH = 40

STYLE = """
body { font: 15px system-ui, sans-serif; max-width: 720px; margin: 2em auto; padding: 0 1em;
       color: CanvasText; background: Canvas; color-scheme: light dark; }
h2 { font-size: 1em; margin: 2em 0 .5em; }
svg text { font-size: 12px; fill: currentColor; }
svg rect { fill: #3b7dd8; }
"""

#: Pixels: of a bar's row, of the labels before it, and of the longest bar.
ROW, LABELS, BARS = 20, 90, 360

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


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars under a heading: label, value, remark."""

    heading: str
    bars: list[tuple[str, float, str]]
    unit: str = ""
    remark: str = ""


def explain(args: argparse.Namespace) -> int:
    """Print what the model's batcher has learnt, the sizes it chose and why."""
    with client_of(args) as client:
        told = client.batching(args.model)
    if args.html:
        try:
            Path(args.html).write_text(page(told), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--html {args.html}: {error.strerror}") from None
    else:
        print_line(as_json(told, None) if args.json else "\n".join(lines(told)))
    return 0


def lines(told: dict[str, Any]) -> list[str]:
    """The server's answer for people."""
    out = facts(told)
    for chart in charts(told):
        out += ["", chart.heading]
        most = max(value for _, value, _ in chart.bars) or 1.0
        for label, value, remark in chart.bars:
            bar = "█" * max(1, round(WIDTH * value / most)) if value else ""
            out.append(f"  {label:>10} {value:>9.4g} {chart.unit:<2} {bar}  {remark}".rstrip())
        if chart.remark:
            out.append(f"  {chart.remark}")
    return out


def page(told: dict[str, Any]) -> str:
    """The server's answer as an HTML page that fetches nothing: each chart is SVG in it."""
    said = facts(told)
    title = escape(said[0].partition(":")[0])
    paragraphs = "\n".join(f"<p>{escape(fact)}</p>" for fact in said)
    drawn = "\n".join(map(_section, charts(told)))
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>{STYLE}</style>\n{paragraphs}\n{drawn}\n</html>\n"
    )


def _section(chart: Chart) -> str:
    """One chart with its heading."""
    most = max(value for _, value, _ in chart.bars) or 1.0
    rows = []
    for number, (label, value, remark) in enumerate(chart.bars):
        y, width = number * ROW, BARS * value / most
        shown = f"{value:.4g} {chart.unit}".strip()
        rows.append(
            f'<text x="{LABELS - 8}" y="{y + 14}" text-anchor="end">{escape(label)}</text>'
            f'<rect x="{LABELS}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}"/>'
            f'<text x="{LABELS + width + 6:.1f}" y="{y + 14}">{escape(shown)}'
            f"<title>{escape(remark)}</title></text>"
        )
    height = ROW * len(chart.bars)
    remark = f"\n<p>{escape(chart.remark)}</p>" if chart.remark else ""
    return (
        f"<h2>{escape(chart.heading)}</h2>\n"
        f'<svg width="{LABELS + BARS + 120}" height="{height}" role="img"'
        f' aria-label="{escape(chart.heading)}">{"".join(rows)}</svg>{remark}'
    )


def facts(told: dict[str, Any]) -> list[str]:
    """The facts, each a line."""
    if "stages" in told:
        calls = "the calls of its latest request" if told["latest"] else "no request yet"
        tree = [line for span in told["latest"][:1] for line in _tree(span)]
        return [f"pipeline {told['name']} version {told['version']}: {calls}", *tree]
    out = [
        f"model {told['name']} version {told['version']}: {told['policy']} batching,"
        f" max_batch_size {told['max_batch_size']}, {told['queued_requests']} requests waiting"
    ]
    if told.get("max_batch_rows", told["max_batch_size"]) < told["max_batch_size"]:
        out.append(f"there was not enough memory for more than {told['max_batch_rows']} rows")
    if told.get("max_queue_delay_seconds") is not None:
        out.append(
            f"a batch that is not full waits {1e3 * told['max_queue_delay_seconds']:g} ms at most"
        )
    if told.get("predicted_wait_seconds"):
        wait = 1e3 * told["predicted_wait_seconds"]
        out.append(f"a request that arrives now will wait about {wait:.3g} ms")
    if told.get("rejected_predicted_late"):
        out.append(f"{told['rejected_predicted_late']} requests were rejected: predicted late")
    return out


def charts(told: dict[str, Any]) -> Iterator[Chart]:
    """The charts of what is known."""
    if "stages" in told:
        if told["stages"]:
            yield Chart("what its requests called, mean time of a call", _stages(told), "ms")
        return
    if told.get("batch_seconds"):
        remark = ""
        if told["fixed_seconds"] is not None:
            fixed, row = 1e3 * told["fixed_seconds"], 1e3 * told["row_seconds"]
            remark = f"about {fixed:.3g} ms whatever the size, and {row:.3g} ms a row"
        points = [(_rows(size), 1e3 * s, "") for size, s in _some(told["batch_seconds"])]
        yield Chart("how long a batch takes (learnt)", points, "ms", remark)
    if told.get("returned_within_seconds"):
        shares = [
            (f"{1e3 * age:.3g} ms", 100 * share, "")
            for age, share in told["returned_within_seconds"]
        ]
        yield Chart("callers that send again, by the time since their answer", shares, "%")
    if told["executions_by_batch_size"]:
        sizes = [(int(size), n) for size, n in told["executions_by_batch_size"].items()]
        yield Chart("batches run", [(_rows(size), float(n), "") for size, n in _some(sizes)])
    if told["batches_cut_by_reason"]:
        reasons = told["batches_cut_by_reason"].items()
        bars = [(reason, float(n), REASONS.get(reason, "")) for reason, n in reasons]
        yield Chart("why they left", bars)
    if told.get("requests_by_wait"):
        waits = [(f"<= {1e3 * s:g} ms", float(n), "") for s, n in told["requests_by_wait"]]
        yield Chart("what requests waited", waits)


def _stages(told: dict[str, Any]) -> list[tuple[str, float, str]]:
    return [
        (
            stage["model"],
            stage["mean_total_ms"],
            f"{stage['calls']} calls, {stage['mean_queue_ms']:.3g} ms of it waiting"
            + (f", {stage['failed']} failed" if stage["failed"] else ""),
        )
        for stage in told["stages"]
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


def _rows(size: int) -> str:
    return f"{size} rows" if size > 1 else "1 row"


def _some(points: list[Any], most: int = 16) -> list[Any]:
    """At most `most` of the points, evenly spread, with both ends."""
    if len(points) <= most:
        return points
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]
