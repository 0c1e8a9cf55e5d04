"""How is a report told to continuous integration: as JUnit's XML, as a page of Markdown? (Pure.)"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Final

from wherry.bench.plan import is_open
from wherry.bench.report import Point, Report, number
from wherry.bench.search import Objective
from wherry.bench.verdict import missed, no_measurement

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
