"""Why are batches as they are? `wherry explain MODEL`, as text or as one page."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from wherry.cli.call import client_of
from wherry.cli.show import as_json, print_line
from wherry.values.errors import ConfigError
from wherry.values.quantities import duration, number, rows

#: Characters of a line, and of the longest bar.
COLUMNS, WIDTH = 80, 26
#: Of the last batches, those that a terminal shows.
SHOWN = 16
#: Characters of a remark that a page shows beside its bar, and not only when one points to it.
SHORT = 20
#: Characters of the labels of bars.
LEAST_LABEL, MOST_LABEL = 10, 32

STYLE = """
body { font: 15px system-ui, sans-serif; max-width: 720px; margin: 2em auto; padding: 0 1em;
       color: CanvasText; background: Canvas; color-scheme: light dark; }
h2 { font-size: 1em; margin: 2em 0 .5em; }
svg text { font-size: 12px; fill: currentColor; }
svg rect { fill: #3b7dd8; }
svg path { stroke: currentColor; stroke-width: 1.5; }
table { border-spacing: 1em .2em; margin-left: -1em; }
th, td { text-align: right; font-weight: normal; white-space: nowrap; }
th { opacity: .6; }
th:last-child, td:last-child { text-align: left; }
"""

#: Pixels: of a bar's row, of a label's character, of the longest bar, and for what is behind it.
ROW, LETTER, BARS, BEHIND = 20, 7, 360, 220

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

    @property
    def most(self) -> float:
        """The end of the axis: 0 to this."""
        return max([bar.value + bar.error for bar in self.bars], default=0.0) or 1.0

    @property
    def label_width(self) -> int:
        """Characters of the labels; of longer ones the end is not shown."""
        return min(MOST_LABEL, max([LEAST_LABEL, *(len(bar.label) for bar in self.bars)]))


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
    """The server's answer for people, in lines of `COLUMNS`."""
    out = [line for fact in facts(told) for line in _wrapped(fact, "")]
    for chart in charts(told):
        out += ["", chart.heading]
        for bar in chart.bars:
            out += _bar_lines(chart, bar)
        if chart.remark:
            out += _wrapped(chart.remark, "  ")
    if last := told.get("last_batches"):
        shown = last[: -SHOWN - 1 : -1]
        out += ["", f"the last {len(shown)} batches, the latest first, in ms"]
        out += _table_lines(_table(shown))
    return out


def _bar_lines(chart: Chart, bar: Bar) -> list[str]:
    """The bar, and its remark behind or below it."""
    drawn = "█" * max(1, round(WIDTH * bar.value / chart.most)) if bar.value else ""
    width = chart.label_width
    line = f"  {bar.label[:width]:>{width}} {bar.value:>9.4g} {chart.unit:<2} {drawn}".rstrip()
    remark = ", ".join(filter(None, (_error(chart, bar), bar.remark)))
    if len(line) + 2 + len(remark) <= COLUMNS:
        return [f"{line}  {remark}".rstrip()]
    indent = " " * (3 + width)
    return [line, *_wrapped(indent + remark, indent)]


def _table_lines(table: list[list[str]]) -> Iterator[str]:
    """All columns but the last are as wide as they must be; the last one is wrapped."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)][:-1]
    for *cells, last in table:
        line = " ".join([f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)])
        yield from _wrapped(f"{line}  {last}", " " * (2 + len(line)))


def _error(chart: Chart, bar: Bar) -> str:
    return f"±{bar.error:.2g} {chart.unit}" if bar.error else ""


def _wrapped(text: str, indent: str) -> list[str]:
    return wrap(text, COLUMNS, subsequent_indent=indent, break_on_hyphens=False) or [text]


def _table(last: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The cells of these batches, below their heads."""
    several = len({batch["instance"] for batch in last}) > 1
    cells = [
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
    return [["ago", "rows", "queued", "waited", "took", "predicted", "left"], *cells]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else number(1e3 * seconds)


def page(told: dict[str, Any]) -> str:
    """The server's answer as an HTML page that fetches nothing: each chart is SVG in it."""
    said = facts(told)
    title = escape(said[0].partition(":")[0])
    paragraphs = "\n".join(f"<p>{escape(fact)}</p>" for fact in said)
    drawn = "\n".join(map(_section, charts(told)))
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>{STYLE}</style>\n{paragraphs}\n{drawn}\n{_batches(told)}</html>\n"
    )


def _section(chart: Chart) -> str:
    """One chart with its heading."""
    scale, left = BARS / chart.most, 20 + LETTER * chart.label_width
    drawn = []
    for place, bar in enumerate(chart.bars):
        y, width = place * ROW, scale * bar.value
        end = left + width + scale * bar.error
        shown = f"{bar.value:.4g} {_error(chart, bar) or chart.unit}".strip()
        if bar.remark and len(bar.remark) <= SHORT:
            shown += f", {bar.remark}"
        drawn.append(
            f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">'
            f"{escape(bar.label[: chart.label_width])}</text>"
            f'<rect x="{left}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}"/>'
            f'<text x="{end + 6:.1f}" y="{y + 14}">{escape(shown)}'
            f"<title>{escape(bar.remark)}</title></text>"
        )
        if bar.error:
            start = left + max(0.0, width - scale * bar.error)
            drawn.append(f'<path d="M{start:.1f} {y + ROW // 2}H{end:.1f}"/>')
    height = ROW * len(chart.bars)
    remark = f"\n<p>{escape(chart.remark)}</p>" if chart.remark else ""
    return (
        f"<h2>{escape(chart.heading)}</h2>\n"
        f'<svg width="{left + BARS + BEHIND}" height="{height}" role="img"'
        f' aria-label="{escape(chart.heading)}">{"".join(drawn)}</svg>{remark}'
    )


def _batches(told: dict[str, Any]) -> str:
    """The last batches as a table."""
    last = told.get("last_batches", ())
    if not last:
        return ""
    heads, *batches = _table(last[::-1])
    table = "\n".join(
        f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"
        for kind, cells in (("th", heads), *(("td", cells) for cells in batches))
    )
    heading = f"the last {len(last)} batches, the latest first, in ms"
    return f"<h2>{heading}</h2>\n<table>\n{table}\n</table>\n"


def facts(told: dict[str, Any]) -> list[str]:
    """The facts, each a sentence or a line."""
    if "stages" in told:
        calls = "the calls of its latest request" if told["latest"] else "no request yet"
        tree = [line for span in told["latest"][:1] for line in _tree(span)]
        return [f"pipeline {told['name']} version {told['version']}: {calls}", *tree]
    policy = told["policy"] if ":" in told["policy"] else f"{told['policy']} batching"
    out = [
        f"model {told['name']} version {told['version']}: {policy},"
        f" max_batch_size {told['max_batch_size']}, {told['queued_requests']} requests waiting"
    ]
    out += told.get("in_words", ())
    if told.get("max_batch_rows", told["max_batch_size"]) < told["max_batch_size"]:
        out.append(f"There was not enough memory for more than {told['max_batch_rows']} rows.")
    if told.get("predicted_wait_seconds"):
        wait = duration(told["predicted_wait_seconds"])
        out.append(f"A request that arrives now will wait about {wait}.")
    if told.get("rejected_predicted_late"):
        out.append(f"{told['rejected_predicted_late']} requests were rejected: predicted late.")
    return out


def charts(told: dict[str, Any]) -> Iterator[Chart]:
    """The charts of what is known."""
    if "stages" in told:
        if told["stages"]:
            yield Chart("what its requests called, mean time of a call", _stages(told), "ms")
        return
    if told.get("curve"):
        remark = ""
        if told.get("fixed_seconds") is not None:
            fixed, row = duration(told["fixed_seconds"]), duration(told["row_seconds"])
            remark = f"about {fixed} whatever the size, and {row} a row"
        bars = [_believed(point) for point in _some(told["curve"])]
        yield Chart("how long a batch takes, and when its size was last run", bars, "ms", remark)
    if returned := told.get("callers", {}).get("returned_within_seconds"):
        bars = [Bar(duration(age), 100 * share) for age, share in _some(_until_all(returned))]
        yield Chart("callers that send again, by the time since their answer", bars, "%")
    if told["executions_by_batch_size"]:
        sizes = [(int(size), n) for size, n in told["executions_by_batch_size"].items()]
        yield Chart("batches run", [Bar(rows(size), float(n)) for size, n in _some(sizes)])
    if told["batches_cut_by_reason"]:
        reasons = told["batches_cut_by_reason"].items()
        bars = [Bar(reason, float(n), REASONS.get(reason, "")) for reason, n in reasons]
        yield Chart("why they left", bars)
    if told.get("requests_by_wait"):
        waits = [Bar(f"<= {1e3 * s:g} ms", float(n)) for s, n in told["requests_by_wait"]]
        yield Chart("what requests waited", waits)


def _until_all(returned: list[list[float]]) -> list[list[float]]:
    """Ages and shares, up to the first age with the last share."""
    last = next(i for i, (_, share) in enumerate(returned) if share == returned[-1][1])
    return returned[: last + 1]


def _believed(point: dict[str, Any]) -> Bar:
    """What is believed of one size."""
    ago = point["age_batches"]
    last = "the last batch" if not ago else "1 batch ago" if ago == 1 else f"{ago} batches ago"
    return Bar(rows(point["rows"]), 1e3 * point["seconds"], last, 1e3 * point["error_seconds"])


def _stages(told: dict[str, Any]) -> list[Bar]:
    return [
        Bar(
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


def _some(points: list[Any], most: int = 16) -> list[Any]:
    """At most `most` of the points, evenly spread, with both ends."""
    if len(points) <= most:
        return points
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]
