"""How much CPU and memory does the server's machine use, and what do its GPUs do?

From /proc, without waiting: CPU use is measured since the previous read. Only Linux is supported;
elsewhere values are None. GPUs are read through NVML, the driver's own library, if it is there.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

LIBRARY: Final = "libnvidia-ml.so.1"


def cache_folder() -> Path:
    """The folder of this user's caches, shared by all servers."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wherry"


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU at one moment; None for what it does not report."""

    uuid: str
    #: 0 to 1.
    utilization: float | None
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    power_watts: float | None
    power_limit_watts: float | None
    #: Since the driver was loaded.
    energy_joules: float | None


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


@cache
def library() -> Any:
    """The initialized library; None where there is no driver."""
    try:
        nvml = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    return nvml if nvml.nvmlInit_v2() == 0 else None


def gpus(nvml: Any = None) -> Iterator[GpuUse]:
    nvml = nvml or library()
    count = ctypes.c_uint()
    if nvml is None or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return
    for index in range(count.value):
        device = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0:
            yield _use(nvml, device)


def _use(nvml: Any, device: ctypes.c_void_p) -> GpuUse:
    name = ctypes.create_string_buffer(96)
    nvml.nvmlDeviceGetUUID(device, name, ctypes.c_uint(len(name)))
    rates = _query(nvml.nvmlDeviceGetUtilizationRates, device, _Utilization())
    memory = _query(nvml.nvmlDeviceGetMemoryInfo, device, _Memory())
    power = _query(nvml.nvmlDeviceGetPowerUsage, device, ctypes.c_uint())
    limit = _query(nvml.nvmlDeviceGetEnforcedPowerLimit, device, ctypes.c_uint())
    energy = _query(nvml.nvmlDeviceGetTotalEnergyConsumption, device, ctypes.c_ulonglong())
    return GpuUse(
        name.value.decode(),
        None if rates is None else rates.gpu / 100,
        None if memory is None else memory.total,
        None if memory is None else memory.used,
        None if power is None else power.value / 1000,
        None if limit is None else limit.value / 1000,
        None if energy is None else energy.value / 1000,
    )


def _query(function: Any, device: ctypes.c_void_p, answer: Any) -> Any:
    """What the function fills in; None if this GPU does not report it."""
    return answer if function(device, ctypes.byref(answer)) == 0 else None


#: Of control groups: the files with the limit and what is used, and the row of memory.stat with
#: pages of files that are not in use.
_V1: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2: Final = ("memory.max", "memory.current", "inactive_file")


@dataclass(frozen=True, slots=True)
class Use:
    """The machine's usage; None where unknown."""

    #: 0 to 1 over all processors, since the previous read (at first: since the machine's start).
    cpu_utilization: float | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    #: What this process and its children may use: the least limit of their control groups, else
    #: the machine's memory; and how much of it is used by all processes that share it.
    limit_bytes: int | None = None
    limit_used_bytes: int | None = None


class MemoryGroup(NamedTuple):
    """A control group with a limit of its memory."""

    limit: int
    folder: Path
    #: As in `_V1` and `_V2`.
    usage: str
    inactive: str


class Machine:
    """Reads the machine's usage from files: not for an event loop. For one reader, as CPU use is
    measured since the previous read."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._cgroups = cgroups
        self._busy, self._total = 0, 0

    def use(self) -> Use:
        total, available = self._memory()
        used = None if total is None or available is None else total - available
        limit, limit_used = total, used
        group = min(self._groups(), default=None)
        if group is not None and (total is None or group.limit < total):
            limit, limit_used = group.limit, _used(group)
        return Use(self._cpu_utilization(), total, used, limit, limit_used)

    def available_bytes(self) -> int | None:
        """Memory that programs may still allocate, including caches of files; None: unknown."""
        return self._memory()[1]

    def memory_limit_bytes(self) -> int | None:
        """The memory limit of this process and its children: the machine's memory or a control
        group's limit; None: unknown."""
        total = self._memory()[0]
        limits = [group.limit for group in self._groups()]
        return min(limits if total is None else [*limits, total], default=None)

    def _groups(self) -> Iterator[MemoryGroup]:
        """This process's control groups and their parents that have a limit (v1 and v2)."""
        for line in self._lines("self/cgroup"):
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers and "memory" not in controllers.split(","):
                continue
            root = self._cgroups / "memory" if controllers else self._cgroups
            file, *usage = _V1 if controllers else _V2
            group = PurePosixPath(path)
            # In a container the group's own directory may be the root, whatever its path.
            for folder in (group, *group.parents):
                at = root / str(folder).lstrip("/")
                text = _text(at / file).strip()
                if text.isdigit():
                    yield MemoryGroup(int(text), at, *usage)

    def _cpu_utilization(self) -> float | None:
        # cpu  user nice system idle iowait irq softirq steal guest guest_nice: guest is in user.
        line = self._lines("stat")[:1]
        try:
            ticks = [int(number) for number in line[0].split()[1:9]]
            total, idle = sum(ticks), ticks[3] + ticks[4]
        except (IndexError, ValueError):
            return None
        busy = total - idle
        busy_since, total_since = busy - self._busy, total - self._total
        self._busy, self._total = busy, total
        if total_since <= 0:
            return 0.0
        return min(1.0, max(0.0, busy_since / total_since))

    def _memory(self) -> tuple[int | None, int | None]:
        found: dict[str, int] = {}
        for line in self._lines("meminfo"):
            name, _, rest = line.partition(":")
            number = rest.split()
            if number and number[0].isdigit():
                found[name] = int(number[0]) * 1024
        return found.get("MemTotal"), found.get("MemAvailable")

    def _lines(self, file: str) -> list[str]:
        return _text(self._proc / file).splitlines()


def _used(group: MemoryGroup) -> int | None:
    """As Kubernetes counts it: without pages of files that are not in use."""
    try:
        rows = dict(line.split() for line in _text(group.folder / "memory.stat").splitlines())
        usage = int(_text(group.folder / group.usage))
        return max(0, usage - int(rows[group.inactive]))
    except (ValueError, KeyError):
        return None


def _text(path: Path) -> str:
    """A file's text; "" if it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
