"""core/observability/machine.py: what /proc says of the machine."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import pytest

from wherry.core.observability.machine import GpuUse, Machine, Use, gpus
from wherry.core.observability.triton_metrics import gpu_metrics


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
    assert Machine(tmp_path).use() == Use(None, 102_400, 61_440, 102_400, 61_440)
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
    assert use.limit_bytes is not None
    assert 0 < use.limit_bytes <= use.memory_total_bytes
    assert use.limit_used_bytes is not None
    assert 0 < use.limit_used_bytes <= use.limit_bytes


def limited(tmp_path: Path, memory: int, groups: str, **limits: object) -> int | None:
    """The limit where /proc and /sys/fs/cgroup say so: `limits` by file, "__" for a slash."""
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text(f"MemTotal: {memory // 1024} kB\n")
    (tmp_path / "self/cgroup").write_text(groups)
    for name, limit in limits.items():
        path = tmp_path / "cgroups" / name.replace("__", "/").replace("_max", ".max")
        path = path.with_name(path.name.replace("memory_limit", "memory.limit"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{limit}\n")
    return Machine(tmp_path, tmp_path / "cgroups").memory_limit_bytes()


GIB = 2**30


def test_without_a_control_group_the_limit_is_the_memory(tmp_path: Path) -> None:
    assert limited(tmp_path, 8 * GIB, "") == 8 * GIB


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    assert limited(tmp_path, 8 * GIB, "0::/\n", memory_max=2 * GIB) == 2 * GIB


def test_the_least_limit_of_the_groups_around_counts(tmp_path: Path) -> None:
    given = {"a__b__memory_max": "max", "a__memory_max": GIB, "memory_max": 4 * GIB}
    assert limited(tmp_path, 8 * GIB, "0::/a/b\n", **given) == GIB


def test_version_1_says_it_in_another_file(tmp_path: Path) -> None:
    groups = "9:cpu,cpuacct:/x\n4:memory:/job/1\n0::/\n"
    given = {
        "memory__job__1__memory_limit_in_bytes": 3 * GIB,
        "memory__memory_limit_in_bytes": 9223372036854771712,  # none, as version 1 says it
    }
    assert limited(tmp_path, 8 * GIB, groups, **given) == 3 * GIB


def test_a_limit_above_the_memory_is_none(tmp_path: Path) -> None:
    assert limited(tmp_path, GIB, "0::/\n", memory_max=4 * GIB) == GIB


def test_where_nothing_is_known_there_is_no_limit(tmp_path: Path) -> None:
    assert Machine(tmp_path / "no", tmp_path / "no").memory_limit_bytes() is None


@pytest.mark.parametrize(
    ("group", "usage", "row"),
    [
        ("0::/a/b\n", "cgroups/a/memory.current", "inactive_file"),
        ("4:memory:/a/b\n", "cgroups/memory/a/memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_what_is_used_is_that_of_the_group_with_the_least_limit_without_idle_files(
    group: str, usage: str, row: str, tmp_path: Path
) -> None:
    at = (tmp_path / usage).parent
    limit = "memory.max" if group.startswith("0") else "memory.limit_in_bytes"
    limited(tmp_path, 8 * GIB, group)
    (at / "b").mkdir(parents=True)
    (at / "b" / limit).write_text(f"{4 * GIB}\n")
    (at / limit).write_text(f"{2 * GIB}\n")
    machine = Machine(tmp_path, tmp_path / "cgroups")
    assert (machine.use().limit_bytes, machine.use().limit_used_bytes) == (2 * GIB, None)

    (tmp_path / usage).write_text(f"{3 * 10**8}\n")
    (at / "memory.stat").write_text(f"anon 5\n{row} {10**8}\nslab 7\n")
    assert machine.use().limit_used_bytes == 2 * 10**8
    (at / "memory.stat").write_text(f"{row} {4 * 10**8}\n")  # read a moment later
    assert machine.use().limit_used_bytes == 0


UNKNOWN = 3  # NVML_ERROR_NOT_SUPPORTED


class Nvml:
    """Two GPUs; the second does not tell its power."""

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, device: Any) -> int:
        device._obj.value = index + 1
        return 0

    def nvmlDeviceGetUUID(self, device: ctypes.c_void_p, name: Any, size: Any) -> int:
        name.value = f"GPU-{device.value}".encode()
        return 0

    def nvmlDeviceGetUtilizationRates(self, device: Any, rates: Any) -> int:
        rates._obj.gpu = 25
        return 0

    def nvmlDeviceGetMemoryInfo(self, device: Any, memory: Any) -> int:
        memory._obj.total, memory._obj.used = 1000, 400
        return 0

    def nvmlDeviceGetPowerUsage(self, device: Any, power: Any) -> int:
        power._obj.value = 70_500
        return 0 if device.value == 1 else UNKNOWN

    nvmlDeviceGetEnforcedPowerLimit = nvmlDeviceGetPowerUsage
    nvmlDeviceGetTotalEnergyConsumption = nvmlDeviceGetPowerUsage


def test_each_gpu_is_told_with_what_it_knows() -> None:
    first, second = gpus(Nvml())
    assert first == GpuUse("GPU-1", 0.25, 1000, 400, 70.5, 70.5, 70.5)
    assert second == GpuUse("GPU-2", 0.25, 1000, 400, None, None, None)


def test_a_value_that_is_not_known_has_no_sample() -> None:
    families = {family.name: family for family in gpu_metrics(gpus(Nvml()))}
    power = families["nv_gpu_power_usage"].samples
    assert [(sample.labels["gpu_uuid"], sample.value) for sample in power] == [("GPU-1", 70.5)]
    assert len(families["nv_gpu_memory_used_bytes"].samples) == 2


def test_without_a_driver_there_is_none() -> None:
    assert not any(family.samples for family in gpu_metrics([]))
