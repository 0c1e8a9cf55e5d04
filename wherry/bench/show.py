"""How does a report look in a terminal: while it is made, and at its end? (rich lives here.)"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from wherry.bench.compare import Change
from wherry.bench.figures import Spread
from wherry.bench.load import LoadProgress
from wherry.bench.plan import Plan, Rate, describe
from wherry.bench.report import Point, Report, SearchResult, number, shown

#: Width of a table that goes to a file or a pipe.
PIPED_WIDTH = 200
#: Columns that a narrow terminal does without.
FIRST_TO_GO = (
    "max ms", "first p99", "client cores", "compute ms", "server cores", "queue ms", "p99 ms",
    "tokens/s of one", "between ms", "rows/s", "batch",
)  # fmt: skip

STYLES = {"better": "green", "worse": "red"}


def ms(seconds: float | None) -> str:
    return "" if seconds is None else number(1e3 * seconds)


def table_of(points: list[Point], width: int = PIPED_WIDTH) -> Table:
    """A line for each point, with the columns that have a value; those of least interest are left
    out until the rest fits."""
    settings = dict.fromkeys(name for point in points for name in point.settings)
    cells = {
        name: [shown(point.settings.get(name, "")) for point in points] for name in settings
    } | {
        name: [text(point) for point in points]
        for name, text, has in COLUMNS
        if any(has(point) for point in points)
    }
    for name in FIRST_TO_GO:
        if sum(max(map(len, [head, *column])) + 2 for head, column in cells.items()) <= width:
            break
        cells.pop(name, None)
    table = Table(box=None, pad_edge=False)
    for name in cells:
        table.add_column(name, justify="right", no_wrap=True)
    for row in zip(*cells.values(), strict=True):
        table.add_row(*row)
    return table


def _quantile(
    name: str, quantile: str, text: Callable[[float], str] = ms
) -> Callable[[Point], str]:
    def value(point: Point) -> str:
        spread: Spread | None = getattr(point.figures, name)
        return "" if spread is None else text(getattr(spread, quantile))

    return value


def _streams(point: Point) -> bool:
    return point.figures.first_token is not None


#: Each column: its name, its text for a point, and whether a point has something to show in it.
COLUMNS: Final[tuple[tuple[str, Callable[[Point], str], Callable[[Point], object]], ...]] = (
    ("repeat", lambda p: str(p.repeat + 1), lambda p: p.repeat),
    ("requests/s", lambda p: number(p.figures.requests_per_second), lambda p: True),
    ("rows/s", lambda p: number(p.figures.rows_per_second), lambda p: p.rows > 1),
    ("tokens/s", lambda p: number(p.figures.tokens_out_per_second),
     lambda p: p.figures.tokens_out_per_second),
    *((f"{q} ms", _quantile("latency", q), lambda p: True) for q in ("p50", "p95", "p99", "max")),
    ("first ms", _quantile("first_token", "p50"), _streams),
    ("first p99", _quantile("first_token", "p99"), _streams),
    ("between ms", _quantile("inter_token", "p50"), _streams),
    ("tokens/s of one", _quantile("tokens_per_second_of_a_stream", "p50", number), _streams),
    ("failed", lambda p: f"{p.figures.failed:,}", lambda p: p.figures.failed),
    ("queue ms", lambda p: ms(p.server.queue) if p.server else "", lambda p: p.server),
    ("compute ms", lambda p: ms(p.server.compute_infer) if p.server else "", lambda p: p.server),
    ("batch", lambda p: number(p.server.mean_batch_size) if p.server else "", lambda p: p.server),
    ("server cores", lambda p: "" if p.server_cores is None else f"{p.server_cores:.2f}",
     lambda p: p.server_cores is not None),
    ("client cores", lambda p: f"{p.client.cores:.2f}", lambda p: True),
)  # fmt: skip


CORRECTED: Final = (
    "latency counts from the moment at which a request was due, its wait for a connection included:"
    " no coordinated omission"
)


def headline(report: Report) -> str:
    target = report.target
    model = f" model {target.model}" if target.model else ""
    inputs = f"; inputs: {target.inputs}" if target.inputs else ""
    return f"{target.url}{model} ({target.protocol}{inputs})"


def print_report(report: Report, out: Console | None = None) -> None:
    out = out or console(sys.stdout)
    out.print(headline(report), soft_wrap=True)
    if report.points:
        out.print(table_of(report.points, out.width))
    texts: dict[str, list[str]] = {}
    for point in report.points:
        for note in point.notes:
            texts.setdefault(note, []).append(point.label)
    if any(isinstance(point.load, Rate) for point in report.points):
        texts[CORRECTED] = []
    for note, labels in texts.items():
        where = f" [{'; '.join(labels)}]" if len(report.points) > 1 and any(labels) else ""
        out.print(Text(f"! {note}{where}"), soft_wrap=True)
    samples = {kind: text for point in report.points for kind, text in point.samples.items()}
    for kind, text in list(samples.items())[:10]:
        if text:
            out.print(Text(f"  {kind}: {text}"), soft_wrap=True)
    for search in report.searches:
        out.print(Text(search_line(search)), soft_wrap=True)


def search_line(search: SearchResult) -> str:
    where = "".join(f", {name} {shown(value)}" for name, value in search.settings.items())
    if search.found is None:
        return f"no load that was tried meets {search.objective}{where}"
    unit = "callers" if search.by == "callers" else "requests/s"
    return f"the highest load that meets {search.objective}{where}: {search.found:g} {unit}"


def print_changes(
    changes: list[Change],
    unmatched: list[str],
    out: Console | None = None,
    *,
    in_turns: bool = False,
) -> None:
    """The changes side by side, each with its interval and verdict."""
    out = out or console(sys.stdout)
    table = Table(box=None, pad_edge=False)
    for name in ("point", "", "A", "B", "change", "95 % interval", ""):
        table.add_column(name, justify="left" if name in ("point", "") else "right", no_wrap=True)
    last = None
    for change in changes:
        interval = "too little data"
        if change.interval is not None:
            interval = " .. ".join(f"{100 * end:+.1f}" for end in change.interval)
        table.add_row(
            change.point if change.point != last else "",
            change.metric,
            number(change.before),
            number(change.after),
            f"{100 * change.share:+.1f} %",
            interval,
            Text(change.verdict, style=STYLES.get(change.verdict, "dim")),
        )
        last = change.point
    out.print(table)
    for line in unmatched:
        out.print(Text(f"! {line}"), soft_wrap=True)
    if not in_turns and changes:
        out.print(
            Text(
                "! recorded one after the other: what else changed on the machine is allowed for by"
                " wide intervals, above all below --repeat 3; `--compare` of two targets measures"
                " them in turns and sees smaller changes"
            ),
            soft_wrap=True,
        )


def console(file: Any) -> Console:
    """Wide enough for the table where it is not a terminal; NO_COLOR is honoured."""
    made = Console(file=file, highlight=False)
    return made if made.is_terminal else Console(file=file, highlight=False, width=PIPED_WIDTH)


class Display:
    """Progress on stderr: on a terminal a table with a line that is kept up to date, else a line
    for each point when it is done."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = console(sys.stderr)
        self._quiet = quiet
        self._live: Live | None = None
        self._points: list[Point] = []
        self._last: tuple[float, int] = (0.0, 0)

    def __enter__(self) -> Display:
        if self._console.is_terminal and not self._quiet:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, text: str) -> None:
        if self._live is not None:
            self._live.update(self._with(Text(text, style="dim")), refresh=True)
        elif not self._quiet:
            self._console.print(Text(text), soft_wrap=True)

    def begin(self, plan: Plan, label: str) -> Callable[[LoadProgress], None]:
        """Begin a run. Returns the function to call with its progress."""
        began: float | None = None
        recent: list[float] = []

        def on_progress(progress: LoadProgress) -> None:
            nonlocal began
            if self._live is None:
                return
            now = time.perf_counter()
            if began is None:
                if not (progress.answered or progress.in_flight):
                    return  # it connects
                began, self._last = now - 0.25, (now - 0.25, 0)  # a report every 0.25 s
            passed = now - self._last[0]
            if passed < 0.2 or (progress.answered == self._last[1] and passed < 1.0):
                return  # nothing new is known
            rate = (progress.answered - self._last[1]) / passed
            self._last = (now, progress.answered)
            recent[:] = (recent + progress.recent)[-2000:]
            self._live.update(self._with(_line(plan, label, now - began, progress, rate, recent)))
            self._live.refresh()

        return on_progress

    def done(self, point: Point) -> None:
        self._points.append(point)
        if self._live is not None:
            self._live.update(self._with(Text("")), refresh=True)
        elif not self._quiet:
            figures, rate = point.figures, number(point.figures.requests_per_second)
            p95 = f", p95 {ms(figures.latency.p95)} ms" if figures.latency else ""
            failed = f", {figures.failed} failed" if figures.failed else ""
            self._console.print(
                Text(f"{point.label}: {rate} requests/s{p95}{failed}"),
                soft_wrap=True,
            )

    def _with(self, line: Text) -> Group:
        width = self._console.width
        return Group(table_of(self._points, width), line) if self._points else Group(line)


def _line(
    plan: Plan, label: str, seconds: float, progress: LoadProgress, rate: float, recent: list[float]
) -> Text:
    share = 0.0
    if plan.duration:
        share = seconds / plan.duration
    elif plan.requests:
        share = progress.answered / plan.requests
    bar = "━" * round(12 * min(1.0, share))
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{label or describe(plan.load)}  ", style="bold")
    text.append(bar, style="green")
    text.append("━" * (12 - len(bar)), style="dim")
    end = f" / {plan.duration:g}" if plan.duration else ""
    text.append(f"  {seconds:.1f}{end} s  {number(rate)}/s")
    if recent:
        ordered = sorted(recent)
        p50, p95 = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.95))
        text.append(f"  p50 {ms(p50)}  p95 {ms(p95)} ms")
    text.append(f"  in flight {progress.in_flight}")
    if progress.failed:
        text.append(f"  failed {progress.failed:,}", style="bold red")
    if plan.duration and seconds > plan.duration:
        text.append(f"  waiting for the last answers, at most {plan.timeout:g} s", style="dim")
    return text
