"""What is kept of a measurement, and the page made of it."""

import re
from pathlib import Path

import msgspec
import pytest

from tests.unit.bench.reports import answer, point, report
from wherry.bench import report as reports
from wherry.bench.figures import OK, Recorder, Table
from wherry.core.values.errors import ConfigError


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    before = report(point(callers=1), point(callers=2, max_batch_size=8))
    (tmp_path / "r.json").write_bytes(reports.encode(before))
    assert reports.read(str(tmp_path / "r.json")) == before


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"{", "not one of wherry bench"),
        (b"[]", "not one of wherry bench"),
        (b'{"schema": 99}', "schema 99; this wherry reads schema 1"),
        (b'{"schema": 1}', "not one of wherry bench"),
    ],
)
def test_another_file_is_no_report(tmp_path: Path, content: bytes, wrong: str) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=wrong):
        reports.read(str(path))
    with pytest.raises(ConfigError, match="No such file"):
        reports.read(str(tmp_path / "gone.json"))


def test_jsonl_has_a_line_for_each_request_from_the_runs_beginning() -> None:
    recorder = Recorder()
    recorder.add(100.0, 100.1, 100.5, OK, 2, answer(100.2, 3, 4))
    recorder.add(101.0, 101.0, 102.0, "timeout", 2, answer(101.0))
    lines = [
        msgspec.json.decode(line)
        for line in reports.jsonl(Table.of(recorder), 100.0, {"callers": 7})
    ]
    assert lines[0] == {
        "callers": 7, "intended": 0, "sent": 0.1, "first": 0.2, "ended": 0.5, "latency": 0.5,
        "outcome": "ok", "rows": 2, "tokens_in": 3, "tokens_out": 4,
    }  # fmt: skip
    assert lines[1]["outcome"] == "timeout"


def test_numbers_have_the_digits_that_count() -> None:
    shown = [reports.number(value) for value in (0, 0.001234, 1.0, 12.345, 123.45, 12345.6)]
    assert shown == ["0", "0.00123", "1", "12.3", "123", "12,346"]


def test_the_page_is_one_file_that_asks_nobody_else() -> None:
    page = reports.page(report(point(callers=1), point(callers=2)))
    links = re.findall(r"""(?:src|href)=["']([^"']+)|url\(([^)]+)\)|import\s""", page)
    assert [link for link in links if not str(link[0]).startswith("data:")] == []
    assert re.findall(r"https?://(?!www\.w3\.org|x\b)", page) == []
    (data,) = re.findall(r'id="report">(.*?)</script>', page)
    assert msgspec.json.decode(data, type=reports.Report).points[1].settings == {"callers": 2}


def test_what_a_server_says_cannot_end_the_pages_script() -> None:
    evil = point()
    evil.samples = {"HTTP 500": "</script><script>alert(1)</script><!--"}
    page = reports.page(report(evil))
    assert "<script>alert" not in page
    assert page.count("</script>") == 2
    (data,) = re.findall(r'id="report">(.*?)</script>', page)
    assert msgspec.json.decode(data)["points"][0]["samples"] == evil.samples
