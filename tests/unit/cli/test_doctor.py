"""`wherry doctor`: what is found, and when it is wrong."""

from __future__ import annotations

import json
import socket

import pytest

from wherry.cli import main
from wherry.cli.doctor import command, findings
from wherry.cli.doctor.findings import MIB, Finding


@pytest.mark.parametrize(
    ("finding", "state", "told"),
    [
        (findings.of_extra("onnx", [], {"onnxruntime": "1.2"}), "ok", "onnxruntime 1.2"),
        (findings.of_extra("onnx", ["onnxruntime"], {}), "note", "not installed: onnxruntime"),
        (findings.of_torch("2.13", "", "", 0), "ok", "on the CPU"),
        (findings.of_torch("2.13", "", "", 1), "wrong", "built without CUDA"),
        (findings.of_torch("2.13", "12.8", "driver too old", 1), "wrong", "driver too old"),
        (findings.of_torch("2.13", "12.8", "", 1), "ok", "CUDA 12.8"),
        (findings.of_memory(8192 * MIB, 4096 * MIB), "ok", "4,096 MiB of 8,192 MiB"),
        (findings.of_memory(256 * MIB, 200 * MIB), "wrong", "200 MiB of 256 MiB"),
        (findings.of_memory(None, None), "note", "not known"),
        (findings.of_processors(8, None), "ok", "8"),
        (findings.of_processors(8, 2.5), "note", "the time of 2.5"),
        (findings.of_open_files(1024, 20_000, 4096), "ok", "20,000 at most"),
        (findings.of_open_files(1024, 2048, 4096), "note", "2,048 at most"),
        (findings.of_open_files(256, 256, 4096), "wrong", "256 at most"),
        (findings.of_port("--port", 8000, ""), "ok", "is free"),
        (findings.of_port("--port", 8000, "in use"), "note", "in use"),
    ],
)
def test_each_fact_is_judged(finding: Finding, state: str, told: str) -> None:
    assert finding.state == state
    assert told in finding.found
    assert bool(finding.remedy) == (state != "ok") or "not known" in told


def test_gpus_are_told_one_by_one() -> None:
    assert [one.state for one in findings.of_gpus({0: "", 1: "cuInit says 3"}, False)] == [
        "ok",
        "wrong",
    ]
    (none,) = findings.of_gpus({}, hidden=True)
    assert "CUDA_VISIBLE_DEVICES" in none.found


def test_shared_memory_of_a_container_is_noticed() -> None:
    refused, small = findings.of_shared_memory(64 * MIB, 60 * MIB, anonymous=False)
    assert (refused.state, small.state) == ("wrong", "note")
    assert "--shm-size" in small.remedy


@pytest.mark.slow
def test_the_command_looks_at_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        main(["doctor", "--json", "--port", str(port)])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"wherry", "memory", "open files"} <= {one["topic"] for one in found}
    (ours,) = [one for one in found if one["topic"] == f"--port {port}"]
    assert ours["state"] == "note"


def test_one_wrong_thing_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Finding("ok", "a", "b"), Finding("wrong", "memory", "none\x1b[2J", "buy some")]
    monkeypatch.setattr(command, "look", lambda ports: iter(found))
    assert main(["doctor"]) == 1
    told = capsys.readouterr().out
    assert "WRONG  memory" in told
    assert "buy some" in told
    assert "\x1b" not in told
