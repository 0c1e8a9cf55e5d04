"""The comparison with other servers runs: here wherry beside the least server, for a moment."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness import ROOT


@pytest.mark.full
@pytest.mark.skipif(shutil.which("wrk") is None, reason="needs wrk")
def test_wherry_is_measured_beside_the_least_server(tmp_path: Path) -> None:
    result = tmp_path / "peers.json"
    subprocess.run(
        [
            sys.executable, "-m", "benchmarks.peers", "--minimal", "--cells=hello/single/json/1",
            "--rounds=2", f"--json={result}", f"--markdown={tmp_path / 'peers.md'}",
        ],
        cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    (cell,) = json.loads(result.read_text())["cells"]
    for peer in ("wherry", "minimal"):
        runs = cell["peers"][peer]["runs"]
        assert len(runs) == 2
        assert all(run["cpu_us"] > 1 and run["requests"] > 0 for run in runs)
        assert all(run["errors"] == 0 for run in runs)
    assert "hello/single/json/1" in (tmp_path / "peers.md").read_text()
