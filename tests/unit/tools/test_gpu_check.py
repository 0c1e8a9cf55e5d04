"""tools.gpu_check: the dry run, what becomes of parts that fail, and how goals are told."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools.gpu_check import __main__ as check
from tools.gpu_check import finding, report
from tools.gpu_check.parts import PARTS

ROOT = Path(__file__).parents[3]


def dry_run(out: Path, parts: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tools.gpu_check", "--cpu", "--seconds", "900"]
    done = subprocess.run(
        [*command, "--out", str(out), "--parts", parts],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    document: dict[str, Any] = json.loads((out / "gpu.json").read_text())
    ends = {one["part"]: one["end"] for one in document["parts"]}
    failed = [one for one in document["findings"] if "failed" in one["figures"]]
    assert (ends, failed) == (dict.fromkeys(parts.split(","), "done"), []), (
        done.stderr + (out / "log.txt").read_text()[-5000:]
    )
    assert done.stdout == (out / "gpu.md").read_text() + "\n"
    assert "A dry run on a CPU" in done.stdout
    return document


def measured(document: dict[str, Any]) -> set[str]:
    return {goal.key for goal, share in report.goals(document["findings"]) if share is not None}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_engine_and_the_machine_are_measured_in_a_dry_run(tmp_path: Path) -> None:
    document = dry_run(tmp_path, "machine,decode")
    assert measured(document) == {"decode_1", "decode_256", "prompts"}
    what = {one["what"] for one in document["findings"]}
    assert {"doctor: torch", "on the device", "start of a kernel"} <= what


@pytest.mark.full
@pytest.mark.timeout(900)
def test_all_other_parts_run_dry(tmp_path: Path) -> None:
    others = [name for name in PARTS if name not in ("machine", "decode")]
    document = dry_run(tmp_path, ",".join(others))
    found = {one["what"]: one["figures"] for one in document["findings"]}
    assert found["48 rows that do not fit at once"]["answered"] == 48
    assert found["an assertion on the device"]["answers_again_after_s"] is not None
    assert found["pytest -m gpu"]["rc"] == 0
    assert found["S3: copies of one photo's way through the chain"]["to_host"] == 0
    assert measured(document) >= {"texts", "batches", "images", "chain", "continuous", "fronts_2"}


@pytest.mark.slow
def test_copies_between_host_and_device_are_counted_by_their_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As torch's profiler names them with CUDA; a CPU has none."""
    torch = pytest.importorskip("torch")
    names = ["Memcpy HtoD (Pageable -> Device)", "aten::copy_", "Memcpy DtoH (Device -> Pinned)"]
    names += ["Memcpy HtoD (Pinned -> Device)", "Memset (Device)", "Memcpy DtoD (Device -> Device)"]
    called: list[int] = []
    profile = SimpleNamespace(events=lambda: [SimpleNamespace(name=name) for name in names])
    monkeypatch.setattr(finding, "SMALL", True)
    with monkeypatch.context() as faked:
        faked.setattr(torch.profiler, "profile", lambda: contextlib.nullcontext(profile))
        found = finding.copies(lambda: called.append(1))
    assert found == {"to_device": 2, "to_host": 1, "on_device": 1}
    assert called == [1]
    assert set(finding.copies(lambda: torch.ones(1).clone()).values()) == {0}


def test_a_part_that_hangs_or_fails_is_recorded_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = {"machine": "import time; time.sleep(60)", "faults": "1 / 0", "texts": "pass"}
    started = subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        return started(
            [sys.executable, "-c", programs[options["env"]["GPU_CHECK_PART"]]], **options
        )

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(check, "_output", lambda *_: "")
    monkeypatch.setattr(check, "LEAST", 0.0)
    monkeypatch.setitem(PARTS, "machine", (lambda: None, 1))
    arguments = ["--out", str(tmp_path), "--parts", "machine,faults,texts"]
    assert check.main(arguments) == 1
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert [one["end"] for one in document["parts"]] == [
        "ended after its 1 seconds", "failed: it ended with 1", "done",
    ]  # fmt: skip
    assert "ZeroDivisionError" in (tmp_path / "log.txt").read_text()
    assert document["command"] == "sh tools/gpu_check/run.sh --parts machine,faults,texts"
    assert "| faults | 0 | failed" in capsys.readouterr().out


def test_what_no_time_is_left_for_is_left_out(tmp_path: Path) -> None:
    assert check.main(["--out", str(tmp_path), "--parts", "decode", "--seconds", "1"]) == 1
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert document["parts"] == [{"part": "decode", "seconds": 0, "end": "left out: no time"}]


def share_of(**shares: float) -> dict[str, Any]:
    return {"part": "decode", "what": "a | b", "figures": {"step_ms": 1.23456}, "goals": shares}


def document(*findings: dict[str, Any], dry: bool = False) -> dict[str, Any]:
    return {
        "command": "sh tools/gpu_check/run.sh", "dry_run": dry, "date": "2026-11-28",
        "commit": "abc1234", "machine": {"GPU": "NVIDIA H100"}, "findings": list(findings),
        "parts": [{"part": "decode", "seconds": 60, "end": "done"}],
    }  # fmt: skip


def test_a_goal_is_reached_by_the_least_share_that_was_found() -> None:
    told = report.table(document(share_of(continuous=4.0), share_of(continuous=2.9, decode_1=0.75)))
    lines = {
        goal.key: next(x for x in told.splitlines() if goal.what in x) for goal in report.GOALS
    }
    assert lines["continuous"].endswith("| 3 | 2.90 | missed |")
    assert lines["decode_1"].endswith("| 0.75 | 0.75 | reached |")
    assert lines["prompts"].endswith("| 0.5 |  | not measured |")
    assert "| decode: a / b | step_ms 1.235, continuous 4 |" in told


def test_the_page_tells_the_run_that_is_kept_or_that_there_is_none(tmp_path: Path) -> None:
    """benchmarks/results/gpu.json is newer: python -m tools.gpu_check --page"""
    assert report.page() == report.PAGE.read_text()
    assert report.NOT_YET in report.page(tmp_path / "none.json")
    (tmp_path / "gpu.json").write_text(json.dumps(document(share_of())))
    page = report.page(tmp_path / "gpu.json")
    assert "NVIDIA H100" in page
    assert report.NOT_YET not in page


def test_the_page_names_each_part_and_its_seconds() -> None:
    text = report.PAGE.read_text()
    for name, (_, seconds) in PARTS.items():
        assert f"| {name} | {seconds} |" in text
