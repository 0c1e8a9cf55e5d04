"""bench/continuous.py: a report for continuous integration."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import msgspec

from tests.unit.bench.reports import point
from tests.unit.bench.reports import report as report_of
from wherry.bench.continuous import CORRECTED, junit, notes, summary
from wherry.bench.plan import Rate
from wherry.bench.search import Objective


def test_a_point_that_misses_a_threshold_is_a_failure() -> None:
    report = report_of(point(rate=100, callers=1), point(rate=900, callers=4))
    suite = ET.fromstring(junit(report, Objective({}, 1.0, rate=500)))[0]
    assert suite.attrib | {"tests": "2", "failures": "1", "errors": "0"} == suite.attrib
    first, second = suite.findall("testcase")
    failure = first.find("failure")
    assert failure is not None
    assert failure.attrib["message"].endswith("asked for 500")
    assert second.find("failure") is None
    assert "p99 ms: " in (second.findtext("system-out") or "")


def test_a_point_without_a_measurement_is_an_error() -> None:
    lost = msgspec.structs.replace(point(), stopped="the server has\0 gone <away>")
    suite = ET.fromstring(junit(report_of(lost), Objective({})))[0]
    error = suite.find("testcase/error")
    assert error is not None
    assert error.attrib["message"] == "the server has gone <away>"


def test_the_page_has_a_row_for_each_point_and_no_markup_of_others() -> None:
    strange = point(rate=100, model="<b>|x")
    page = summary(report_of(strange), Objective({"p95": 1e-9}, 1.0))
    row = next(line for line in page.splitlines() if "&lt;b>\\|x" in line)
    assert "p95 is" in row
    assert "<b>" not in page


def test_an_open_load_says_that_waiting_counts() -> None:
    open_load = msgspec.structs.replace(point(), load=Rate(rate=10.0))
    assert CORRECTED in notes(report_of(open_load))
    assert CORRECTED not in notes(report_of(point()))
