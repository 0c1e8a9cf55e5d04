"""What must a load meet, which load is tried next to find the highest that does, was a run a
measurement, and how is that told to continuous integration: as JUnit XML, as Markdown? (Pure.)

The search doubles the load until the target is missed, then halves the gap between the highest load
that met it and the lowest that did not, until they are close.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from wherry.bench.figures import Figures, MeasuredWindow, Table
from wherry.bench.plan import is_open
from wherry.bench.report import Point, Report, number


@dataclass(frozen=True, slots=True)
class Objective:
    """Limits that a load must meet: seconds of the latency by quantile; `errors` is the share that
    may fail; `rate` are the requests/s at least, and `first_token` the seconds that 95 of 100
    streams may take to their first piece."""

    limits: dict[str, float]
    errors: float = 0.01
    rate: float = 0.0
    first_token: float | None = None

    def met(self, measured: Figures) -> bool:
        """An open load must be kept up with, too: `Search` looks after that."""
        if measured.latency is None or measured.error_share > self.errors:
            return False
        if measured.requests_per_second < self.rate or self.late_streams(measured):
            return False
        return all(getattr(measured.latency, name) <= limit for name, limit in self.limits.items())

    def late_streams(self, measured: Figures) -> bool:
        """Whether first pieces come too late, or what was measured is not streams."""
        if self.first_token is None:
            return False
        return measured.first_token is None or measured.first_token.p95 > self.first_token

    def __str__(self) -> str:
        limits = [f"{name} <= {1e3 * limit:g} ms" for name, limit in self.limits.items()]
        if self.first_token is not None:
            limits.append(f"first token p95 <= {1e3 * self.first_token:g} ms")
        if self.rate:
            limits.append(f"requests/s >= {self.rate:g}")
        return ", ".join([*limits, f"errors <= {100 * self.errors:g} %"])


@dataclass(slots=True)
class Search:
    """Ask `next()` for a load, `tell` it how that went, until there is no next.

    Callers are whole numbers; a rate is found to within `precision` of itself, if it is not below
    `least`: a run would have no request.
    """

    whole: bool
    start: float = 1.0
    least: float = 0.1
    most: float = 65536.0
    precision: float = 0.05
    _good: float | None = None
    _bad: float | None = None
    _tried: dict[float, bool] = field(default_factory=dict)

    @property
    def found(self) -> float | None:
        """The highest load that met the target, so far."""
        return self._good

    def next(self) -> float | None:
        """The next load, or None: it is found."""
        if self._good is None and self._bad is None:
            return self.start
        if self._bad is None:
            assert self._good is not None
            return min(2 * self._good, self.most) if self._good < self.most else None
        if self._good is None:
            smaller = self._between(0.0, self._bad)
            return smaller if self.least <= smaller < self._bad else None
        middle = self._between(self._good, self._bad)
        close = self._bad - self._good <= max(1.0 * self.whole, self.precision * self._bad)
        return None if close or middle in self._tried else middle

    def tell(self, load: float, met: bool) -> None:
        """Record whether `load` met the target. If a lower load fails where a higher one did not,
        the lower one counts."""
        self._tried[load] = met
        if met:
            self._good = max(load, self._good or 0.0)
        else:
            self._bad = min(load, self._bad or load)
            if self._good is not None and self._good >= self._bad:
                below = [one for one, fine in self._tried.items() if fine and one < self._bad]
                self._good = max(below, default=None)

    def _between(self, low: float, high: float) -> float:
        middle = (low + high) / 2
        return float(max(1, int(middle))) if self.whole else float(f"{middle:.3g}")


#: A run that brought only failures for this share of its time, up to its end, lost its target.
SILENT: Final = 0.1
#: Where more than this share of the answers is wrong, the rest is not a measurement.
MOST_WRONG: Final = 0.5
#: What a target under too much load says: that, too, is measured.
REFUSALS: Final = frozenset({
    "HTTP 429", "HTTP 503", "HTTP 504", "timeout", "gRPC RESOURCE_EXHAUSTED", "gRPC UNAVAILABLE",
    "gRPC DEADLINE_EXCEEDED", "QueueFull", "DeadlineExceeded",
})  # fmt: skip


def silence(table: Table, seen: MeasuredWindow) -> float:
    """Seconds at the end of a run in which requests failed and none was answered, or 0."""
    answered = table.ended[table.outcome == 0]
    last = max(float(answered.max(initial=seen.begin)), seen.begin)
    failed = table.ended[table.outcome != 0]
    end = max(float(failed.max(initial=0.0)), seen.stop)
    quiet = end - last
    return quiet if bool(np.any(failed > last)) and quiet > SILENT * (end - seen.begin) else 0.0


def target_lost(point: Point) -> str:
    """Why the target can be taken for gone, or "". Too high a load is no reason."""
    told = point.figures
    if point.stopped:
        return point.stopped
    if not told.ok:
        kinds = ", ".join(told.errors) or "not one request ended in the measured time"
        return f"not one request was answered: {kinds}"
    if point.silent_end and any("connect" in kind for kind in told.errors):
        return _silent(point)
    return ""


def no_measurement(point: Point) -> str:
    """Why the figures say nothing of the target, or ""."""
    told = point.figures
    if lost := target_lost(point):
        return lost
    if point.silent_end:
        return _silent(point)
    wrong = {kind: count for kind, count in told.errors.items() if kind not in REFUSALS}
    share = sum(wrong.values()) / max(1, told.ok + told.failed)
    if share > MOST_WRONG:
        return f"{100 * share:.0f} % failed: {', '.join(wrong)}"
    return ""


def _silent(point: Point) -> str:
    kinds = ", ".join(point.figures.errors)
    return f"no answer in the last {number(point.silent_end)} s, only {kinds}"


def missed(point: Point, objective: Objective) -> list[str]:
    """The limits that the point does not meet, as text."""
    told = point.figures
    found = []
    for name, limit in objective.limits.items():
        if told.latency is not None and (reached := getattr(told.latency, name)) > limit:
            found.append(f"{name} is {1e3 * reached:.3g} ms, asked for {1e3 * limit:g} ms")
    if objective.late_streams(told):
        most = 1e3 * (objective.first_token or 0.0)
        spread = told.first_token
        reached = (
            "is not known: nothing streamed"
            if spread is None
            else (f"is {1e3 * spread.p95:.3g} ms")
        )
        found.append(f"p95 of the first token {reached}, asked for {most:g} ms")
    if told.requests_per_second < objective.rate:
        reached = number(told.requests_per_second)
        found.append(f"requests/s is {reached}, asked for {objective.rate:g}")
    if told.error_share > objective.errors:
        share, most = 100 * told.error_share, 100 * objective.errors
        found.append(f"{share:.2g} % of the requests failed, asked for {most:g} %")
    return found


#: Characters that XML 1.0 cannot hold: control characters but tab and line breaks.
_NO_XML: Final = dict.fromkeys(c for c in range(32) if c not in (9, 10, 13))

#: A page's columns: name, text of a point, and whether some point must have it for it to be shown.
_COLUMNS: Final[tuple[tuple[str, Callable[[Point], str]], ...]] = (
    ("requests/s", lambda p: number(p.figures.requests_per_second)),
    ("p50 ms", lambda p: _ms(p, "p50")),
    ("p95 ms", lambda p: _ms(p, "p95")),
    ("p99 ms", lambda p: _ms(p, "p99")),
    ("failed", lambda p: f"{p.figures.failed:,}"),
)

CORRECTED: Final = (
    "latency counts from the moment at which a request was due, its wait for a connection included:"
    " no coordinated omission"
)


def junit(report: Report, objective: Objective) -> str:
    """A test case for each point; a threshold that it misses is its failure, a point that is not a
    measurement an error. The format is Jenkins' and the Surefire schema's common part."""
    suite = ET.Element("testsuite", name="wherry bench", timestamp=report.started)
    failures = errors = 0
    for point in report.points:
        case = ET.SubElement(
            suite,
            "testcase",
            classname=_xml(f"wherry.bench.{report.target.model or report.target.protocol}"),
            name=_xml(f"{point.label or 'load'}, run {point.repeat + 1}"),
            time=f"{point.figures.seconds:.3f}",
        )
        if wrong := no_measurement(point):
            errors += 1
            ET.SubElement(case, "error", message=_xml(wrong), type="NotMeasured")
        elif found := missed(point, objective):
            failures += 1
            text = _xml("; ".join(found))
            ET.SubElement(case, "failure", message=text, type="ThresholdMissed")
        told = (f"{name}: {text(point)}" for name, text in _COLUMNS)
        ET.SubElement(case, "system-out").text = "\n".join(told)
    suite.set("tests", str(len(report.points)))
    suite.set("failures", str(failures))
    suite.set("errors", str(errors))
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def summary(report: Report, objective: Objective) -> str:
    """Headline, table and verdicts, as GitHub shows them on the page of a workflow's run."""
    names = ["point", *(name for name, _ in _COLUMNS), "verdict"]
    lines = [
        f"### wherry bench: {_cell(report.target.model or report.target.url)}",
        "",
        f"| {' | '.join(names)} |",
        f"|{'---|' * len(names)}",
    ]
    for point in report.points:
        cells = [point.label or "load", *(text(point) for _, text in _COLUMNS)]
        cells.append(_verdict(point, objective))
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    lines += ["", *(f"- {_cell(note)}" for note in notes(report)), ""]
    return "\n".join(lines)


def notes(report: Report) -> list[str]:
    """What must be known to believe the figures, each once."""
    found = dict.fromkeys(note for point in report.points for note in point.notes)
    if any(is_open(point.load) for point in report.points):
        found[CORRECTED] = None
    return list(found)


def _verdict(point: Point, objective: Objective) -> str:
    if wrong := no_measurement(point):
        return f"not measured: {wrong}"
    return "; ".join(missed(point, objective)) or "met"


def _ms(point: Point, quantile: str) -> str:
    told = point.figures.latency
    return "" if told is None else number(1e3 * getattr(told, quantile))


def _cell(text: str) -> str:
    """A text that stays within its cell, and is not HTML."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return " ".join(text.split())


def _xml(text: str) -> str:
    return text.translate(_NO_XML).encode(errors="replace").decode()
