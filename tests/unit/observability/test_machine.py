"""observability/machine.py: what /proc says of the machine."""

import sys
from pathlib import Path

import pytest

from wherry.observability.machine import Machine, Use


def write(proc: Path, busy: int, idle: int) -> None:
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle - 1} 1 0 0 0 99 99\ncpu0 1 1 1 1 1 1 1 1\n")


def test_utilization_is_of_the_time_since_the_last_question(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    write(tmp_path, 30, 70)
    assert machine.use().cpu_utilization == pytest.approx(0.3)
    write(tmp_path, 90, 110)
    assert machine.use().cpu_utilization == pytest.approx(0.6)
    assert machine.use().cpu_utilization == 0.0
    write(tmp_path, 80, 200)  # the kernel's counters may go back a little
    assert machine.use().cpu_utilization == 0.0


def test_memory_is_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable:   40 kB\n")
    assert Machine(tmp_path).use() == Use(None, 102_400, 61_440)
    assert Machine(tmp_path).available_bytes() == 40_960


def test_where_nothing_is_known_nothing_is_said(tmp_path: Path) -> None:
    assert Machine(tmp_path / "nowhere").use() == Use()
    (tmp_path / "stat").write_text("cpu x\n")
    (tmp_path / "meminfo").write_text("MemTotal: lots\nnonsense\n")
    assert Machine(tmp_path).use() == Use()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_this_machine_is_known() -> None:
    use = Machine().use()
    assert use.cpu_utilization is not None
    assert 0 <= use.cpu_utilization <= 1
    assert use.memory_total_bytes is not None
    assert use.memory_used_bytes is not None
    assert 0 < use.memory_used_bytes < use.memory_total_bytes
