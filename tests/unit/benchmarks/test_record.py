"""benchmarks.record and benchmarks.pages: what is kept, whence it comes, where it is shown."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pages
from benchmarks.harness import ROOT
from benchmarks.record.__main__ import (
    RESULTS,
    SUMMARY,
    Recording,
    chosen,
    kept,
    kept_alone,
    lines_of,
)
from benchmarks.record.plan import ENTRIES, GPU, Entry, lacking

FILES = sorted(path for path in RESULTS.glob("*.json") if path.name != GPU)
RECORDED = RESULTS / SUMMARY


def content(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_results_says_where_it_comes_from(path: Path) -> None:
    record = content(path)
    assert record["command"].startswith("python -m benchmarks.")
    assert "/work" not in record["command"]
    assert "/tmp" not in record["command"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:]+\+00:00", record["when"])
    assert re.match(r"[0-9a-f]{7}", record["commit"])
    assert record["system"]
    assert record["processor"]
    assert record["cores"] > 0
    assert record["python"]
    assert record["versions"].keys() >= {"wherry", "numpy", "msgspec"}


def test_each_file_of_results_is_written_by_an_entry_and_no_two_by_the_same_name() -> None:
    names = [entry.name for entry in ENTRIES]
    assert len(names) == len(set(names))
    assert {path.stem for path in FILES} <= {*names, RECORDED.stem}


@pytest.mark.skipif(not RECORDED.exists(), reason="python -m benchmarks.record has not run yet")
def test_results_are_of_one_commit_but_those_recorded_alone_and_what_is_missing_is_named() -> None:
    whole = content(RECORDED)
    there = {path.stem: content(path) for path in FILES if path != RECORDED}
    alone = whole.get("alone", {})
    for name, record in there.items():
        assert record["commit"] == alone.get(name, whole["commit"])
        assert "dirty" not in record["commit"]
    assert {*there, *whole["missing"]} == {entry.name for entry in ENTRIES}
    assert {entry.told for entry in ENTRIES if entry.name in there} == {
        record["command"] for record in there.values()
    }


def test_the_pages_show_the_figures_of_the_files() -> None:
    assert [str(path.relative_to(ROOT)) for path in pages.stale()] == [], (
        "run: python -m benchmarks.pages"
    )


def test_a_figure_that_differs_from_its_file_is_seen() -> None:
    block = pages.BLOCK.search((pages.DOCS / "internals" / "llm-engine.md").read_text("utf-8"))
    assert block is not None
    changed = re.sub(r"\d(?=[^|]*\|\n)", "7777", block[0], count=1)
    assert changed != block[0]
    assert pages.BLOCK.sub(pages.filled, changed) == block[0]


def test_the_flags_of_every_entry_are_known_to_its_command() -> None:
    for entry in ENTRIES:
        module, *flags = entry.run_by("python", {}, Path("x.json"), short=True)[2:]
        place = ROOT / module.replace(".", "/")
        source = place / "__main__.py" if place.is_dir() else place.with_suffix(".py")
        text = source.read_text() + (ROOT / "benchmarks" / "harness.py").read_text()
        for flag in flags:
            assert not flag.startswith("--") or f'"{flag}"' in text, (entry.name, flag)


def test_what_an_entry_needs_is_named_with_how_to_get_it() -> None:
    told = lacking(Entry("peers", "benchmarks.peers", 1, ("mosec",)), {"mosec": "/no/such/python"})
    assert "mosec" in told
    assert "pip install mosec" in told
    assert not lacking(Entry("peers", "benchmarks.peers", 1, ("mosec",)), {"mosec": sys.executable})


def test_an_unknown_entry_is_refused() -> None:
    with pytest.raises(SystemExit, match="no entry nothing"):
        chosen("nothing", "")
    assert [entry.name for entry in chosen("batching", "")] == ["batching"]
    assert "batching" not in [entry.name for entry in chosen("", "batching")]


@pytest.mark.slow
def test_an_entry_that_fails_or_has_no_time_is_missing_and_says_why(tmp_path: Path) -> None:
    def recording(seconds: float) -> Recording:
        return Recording(tmp_path, {}, short=False, until=time.monotonic() + seconds)

    broken = Entry("broken", "benchmarks.batching --seed none", 1)
    late = Entry("late", "benchmarks.batching --seed 7", 1)
    run = recording(600.0)
    run.all([broken], again=False)
    assert "it ended with 2" in run.missing["broken"]
    assert "--seed" in run.missing["broken"]
    run = recording(0.5)
    run.all([late], again=False)
    assert "it was ended after 0 s" in run.missing["late"]
    run = recording(-1.0)
    run.all([late], again=False)
    assert run.missing == {"late": "no time was left"}


def test_results_that_no_entry_writes_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, folder = tmp_path / "results", tmp_path / "folder"
    results.mkdir()
    folder.mkdir()
    (results / "old.json").write_text("{}")
    (results / GPU).write_text("{}")
    (folder / "batching.json").write_text(
        json.dumps({"commit": "x-dirty", "seconds": 2, "rows": [1]})
    )
    monkeypatch.setattr("benchmarks.record.__main__.RESULTS", results)
    missing: dict[str, str] = {}
    kept(folder, "abc1234", missing, 0.25)
    assert sorted(path.name for path in results.iterdir()) == ["batching.json", GPU, SUMMARY]
    assert content(results / "batching.json")["commit"] == "abc1234"
    whole = content(results / SUMMARY)
    assert (whole["commit"], whole["foreign"], whole["seconds"]) == (
        "abc1234",
        0.25,
        {"batching": 2},
    )
    assert "peers" in whole["missing"]


def test_entries_that_are_recorded_alone_leave_the_others_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, folder = tmp_path / "results", tmp_path / "folder"
    results.mkdir()
    folder.mkdir()
    (results / "peers.json").write_text("{}")
    (results / SUMMARY).write_text(
        json.dumps({"commit": "old", "seconds": {"peers": 5}, "missing": {"batching": "no time"}})
    )
    (folder / "batching.json").write_text(
        json.dumps({"commit": "x-dirty", "seconds": 2, "rows": [1]})
    )
    monkeypatch.setattr("benchmarks.record.__main__.RESULTS", results)
    kept_alone(folder, "abc1234", chosen("batching,llm", ""))
    assert content(results / "batching.json")["commit"] == "abc1234"
    assert content(results / "peers.json") == {}
    assert content(results / SUMMARY) == {
        "commit": "old",
        "seconds": {"peers": 5, "batching": 2},
        "missing": {},
        "alone": {"batching": "abc1234"},
    }


def test_a_row_is_a_line() -> None:
    record = {"seed": 7, "rows": [{"a": 1}, {"a": 2}], "none": []}
    text = lines_of(record)
    assert json.loads(text) == record
    assert '\n  {"a": 2}\n' in text
