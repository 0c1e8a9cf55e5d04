"""Is nothing lost while processes and links of a server die? In short; the long form is
`python -m benchmarks.faults`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.harness import ROOT

pytestmark = pytest.mark.full


@pytest.mark.parametrize("server", ["fronts", "pool"])
def test_nothing_is_lost_that_could_be_saved(server: str) -> None:
    command = [sys.executable, "-m", "benchmarks.faults", "--seconds", "20", "--seed", "11"]
    done = subprocess.run(
        [*command, "--only", server], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
