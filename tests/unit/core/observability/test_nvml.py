"""core/observability/nvml.py, with a library of our own in the driver's place."""

from __future__ import annotations

import ctypes
from typing import Any

from wherry.core.observability.nvml import GpuUse, gpus
from wherry.core.observability.triton_metrics import gpu_metrics

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
