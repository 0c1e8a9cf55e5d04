"""Which devices are there, and on which of them do a model's instances go?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from wherry.config import InstanceGroup
from wherry.model import Device

CPU = Device()


def gpu_count() -> int:
    """GPUs this process may use: the driver's device files, less what CUDA_VISIBLE_DEVICES hides.

    Asks the file system, not CUDA: no driver context is made and no library is loaded.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    return len([path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()])


def place(groups: Sequence[InstanceGroup]) -> list[Device]:
    """One device for each instance. "auto" and "cuda": `count` on every GPU ("auto" without a
    GPU: on the CPU), as Triton does it."""
    gpus = gpu_count()
    devices: list[Device] = []
    for group in groups:
        kind, _, index = group.device.partition(":")
        if kind == "cuda" and index:
            where = [Device("cuda", int(index))]
        elif kind == "cuda" or (kind == "auto" and gpus):
            where = [Device("cuda", i) for i in range(max(1, gpus))]
        else:
            where = [CPU]
        devices += [device for device in where for _ in range(group.count)]
    return devices
