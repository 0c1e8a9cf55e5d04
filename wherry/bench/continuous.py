"""Was a run a measurement, did it meet its objective, and how is that told to continuous
integration: as JUnit's XML, as a page of Markdown? (Pure.)
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Final

import numpy as np

from wherry.bench.figures import MeasuredWindow, Table
from wherry.bench.plan import is_open
from wherry.bench.report import Point, Report, number
from wherry.bench.search import Objective

#: A run that brought only failures for this share of its time, up to its end, lost its target.
SILENT: Final = 0.1
#: Where more than this share of the answers is wrong, the rest is no measurement.
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
    """A test case for each point; a threshold that it misses is its failure, a point that is no
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
    """A text that stays within its cell, and is no HTML."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return " ".join(text.split())


def _xml(text: str) -> str:
    return text.translate(_NO_XML).encode(errors="replace").decode()
