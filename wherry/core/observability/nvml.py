"""What do the GPUs of this machine do? Asked of the driver's own library, NVML, if it is there."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

LIBRARY: Final = "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU at one moment; None for what it does not tell."""

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
    """The library, ready to be asked; None where there is no driver."""
    try:
        nvml = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    return nvml if nvml.nvmlInit_v2() == 0 else None


def gpus(nvml: Any = None) -> Iterator[GpuUse]:
    """Every GPU now; none without a driver."""
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
    """What the function fills in; None if this GPU does not tell it."""
    return answer if function(device, ctypes.byref(answer)) == 0 else None
