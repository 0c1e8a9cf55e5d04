"""Why are batches as they are? As lines for a terminal and as a page."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

import wherry
from tests.fakes import Gate, gated
from wherry.cli import main
from wherry.cli.explain import REASONS, WIDTH, charts, lines, page
from wherry.frontends.v2 import describe
from wherry.observability.metrics import CUT_REASONS
from wherry.runtime.runtime import Runtime

TOLD: dict[str, Any] = {
    "name": "bert",
    "version": "3",
    "policy": "self-tuning",
    "max_batch_size": 32,
    "max_batch_rows": 16,
    "queued_requests": 4,
    "predicted_wait_seconds": 0.25,
    "rejected_predicted_late": 7,
    "batch_seconds": [[1, 0.005], [2, 0.006], [16, 0.02]],
    "fixed_seconds": 0.004,
    "row_seconds": 0.001,
    "returned_within_seconds": [[0.0003, 0.4], [0.0005, 0.8]],
    "executions_by_batch_size": {"1": 10, "16": 30},
    "batches_cut_by_reason": {"full": 30, "idle": 10, "part": 0},
    "requests_by_wait": [[0.0005, 490]],
}


def test_what_was_learnt_is_drawn_as_bars_in_proportion() -> None:
    out = lines(TOLD)
    assert out[:4] == [
        "model bert version 3: self-tuning batching, max_batch_size 32, 4 requests waiting",
        "there was not enough memory for more than 16 rows",
        "a request that arrives now will wait about 250 ms",
        "7 requests were rejected: predicted late",
    ]
    lengths = {line.split("█")[0].split()[0]: line.count("█") for line in out if "█" in line}
    assert lengths["16"] == 40
    assert lengths["full"] == 40
    assert lengths["idle"] == 13
    assert lengths["0.5"] == 40
    assert lengths["<="] == 40
    (part,) = [line for line in out if line.startswith("        part")]
    assert "█" not in part
    assert REASONS["part"] in part
    assert "  about 4 ms whatever the size, and 1 ms a row" in out


def test_every_reason_of_every_policy_has_its_words() -> None:
    assert set(REASONS) == set(CUT_REASONS)


def test_a_page_holds_the_same_and_fetches_nothing() -> None:
    told = {**TOLD, "name": "<script>alert(1)</script>"}
    html = page(told)
    assert "<script>" not in html
    assert "http" not in html
    assert html.count("<svg") == len(list(charts(told))) == 5
    tree = ET.fromstring(html.partition("\n")[2].replace('<meta charset="utf-8">', ""))
    bars = tree.findall(".//rect")
    assert len(bars) == 3 + 2 + 2 + 3 + 1
    assert [float(bar.get("width", "")) for bar in bars[:3]] == [90.0, 108.0, 360.0]


@pytest.mark.parametrize("calls", [0, 40])
@pytest.mark.parametrize("settings", [{}, {"max_queue_delay": 0.001}, {"max_batch_size": 1}])
def test_whatever_a_server_tells_can_be_shown(settings: dict[str, Any], calls: int) -> None:
    gate = Gate()
    gate.open(1000)
    with Runtime(gated(gate, **settings)) as runtime:
        assert len(list(runtime.map("gated", ["x"] * calls))) == calls
        told = describe.batching(runtime.model("gated"))
        waited = sum(count for _, count in told["requests_by_wait"])
        assert waited == calls
        shown = "\n".join(lines(told))
        assert ("why they left" in shown) == (calls > 0)
        assert page(told).startswith("<!doctype html>")


def test_the_command_prints_or_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @wherry.model(max_batch_size=8)
    def echo(text: list[str]) -> list[str]:
        return text

    with wherry.Server(echo, port=0) as server:
        assert main(["explain", "echo", "--url", server.url]) == 0
        assert "model echo version 1: self-tuning" in capsys.readouterr().out
        file = tmp_path / "echo.html"
        assert main(["explain", "echo", "--url", server.url, "--html", str(file)]) == 0
        assert "model echo version 1" in file.read_text()
        assert main(["explain", "nobody", "--url", server.url, "--html", str(file)]) != 0
        assert main(["explain", "echo", "--url", server.url, "--html", str(tmp_path)]) == 2
        assert capsys.readouterr().err.endswith(f"wherry: --html {tmp_path}: Is a directory\n")


def test_of_a_pipeline_the_calls_of_its_latest_request_are_a_tree() -> None:
    call = {"rows": 1, "queue_ms": 1.0}
    told: dict[str, Any] = {
        "name": "chain",
        "version": "1",
        "stages": [
            {
                "model": "stage", "calls": 2, "failed": 1, "rows": 2, "mean_total_ms": 4.0,
                "mean_queue_ms": 1.0,
            }
        ],
        "latest": [
            {
                **call, "model": "chain", "start_ms": 0.0, "total_ms": 9.0, "error": "ModelFailed",
                "calls": [{**call, "model": "stage", "start_ms": 2.0, "total_ms": 4.0}],
                "calls_left_out": 1,
            }
        ],
    }  # fmt: skip
    assert lines(told) == [
        "pipeline chain version 1: the calls of its latest request",
        "  chain: from 0 ms, took 9 ms, 1 ms of it waiting, ModelFailed",
        "    stage: from 2 ms, took 4 ms, 1 ms of it waiting",
        "    and 1 more",
        "",
        "what its requests called, mean time of a call",
        f"       stage         4 ms {'█' * WIDTH}  2 calls, 1 ms of it waiting, 1 failed",
    ]
    assert "the calls of its latest" in page(told)
