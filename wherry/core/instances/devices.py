"""Which devices are there, which of them work, and on which do a model's instances go?"""

from __future__ import annotations

import inspect
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from wherry.core.instances.device_use import GPU_LIBRARIES
from wherry.core.models.config import InstanceGroup
from wherry.core.models.model import Device, Model

log = logging.getLogger("wherry")

CPU = Device()

#: Seconds in which a GPU must have done something.
_GPU_PROBE_TIMEOUT = 60.0

#: Runs in a process of its own: a context of the driver takes memory, and a broken one may crash
#: its process. Prints the number of each device and what went wrong with it.
_TRY = """
import ctypes, sys
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    sys.exit(f"the driver's library cannot be loaded: {error}")
def failure(call, *arguments):
    status = getattr(cuda, call)(*arguments)
    return f"{call} returned {status}" if status else ""
count = ctypes.c_int()
why = failure("cuInit", 0) or failure("cuDeviceGetCount", ctypes.byref(count))
if why:
    sys.exit(why)
for number in range(count.value):
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    print(number, failure("cuDeviceGet", ctypes.byref(device), number)
        or failure("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        or failure("cuCtxSetCurrent", context)
        or failure("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(1 << 20))
        or failure("cuMemsetD8_v2", memory, ctypes.c_ubyte(0), ctypes.c_size_t(1 << 20))
        or failure("cuCtxSynchronize"))
"""


def gpu_count() -> int:
    """GPUs this process may use: the driver's device files, less what CUDA_VISIBLE_DEVICES hides.

    Reads the file system, not CUDA: no driver context is made and no library is loaded.
    """
    here = gpus_of_machine()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return here if visible is None or not here else _visible(visible, here, gpu_uuids())


def _visible(names: str, here: int, uuids: Sequence[str]) -> int:
    """How many of the GPUs here CUDA shows to a process with these CUDA_VISIBLE_DEVICES.

    The list ends at the first entry that names no GPU. A GPU that is named twice hides all of them.
    Of the parts of GPUs (MIG) a process sees one.
    """
    seen: set[int | str] = set()
    for name in map(str.strip, names.split(",")):
        if name.startswith("MIG-"):
            return len(seen) or 1
        number = re.match(r"[+-]?\d+", name)
        one: int | str | None = None
        if number is not None:
            one = int(number.group())
        elif name.startswith("GPU-"):  # or the beginning of one
            found = [place for place, uuid in enumerate(uuids) if uuid.startswith(name)]
            one = found[0] if len(found) == 1 else None if uuids else name
        if one is None or (isinstance(one, int) and not 0 <= one < here):
            break
        if one in seen:
            return 0
        seen.add(one)
    return min(len(seen), here)


def gpu_uuids(driver: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """The UUIDs of the machine's GPUs, as far as the driver shows them to a process."""
    texts = [file.read_text(errors="replace") for file in sorted(driver.glob("*/information"))]
    return re.findall(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)", "\n".join(texts), re.MULTILINE)


def gpus_of_machine(dev: Path = Path("/dev")) -> int:
    """Counts the driver's device files. Those of WSL and of Jetson do not show how many: 1."""
    numbered = len([path for path in dev.glob("nvidia*") if path.name[6:].isdigit()])
    return numbered or int((dev / "dxg").exists() or (dev / "nvhost-gpu").exists())


def or_on_cpu(groups: Sequence[InstanceGroup]) -> list[InstanceGroup]:
    """The same groups, those for GPUs on the CPU if this machine has no GPU: for files that were
    written for another machine."""
    if gpu_count():
        return list(groups)
    return [
        InstanceGroup(group.count, "cpu") if group.device.startswith("cuda") else group
        for group in groups
    ]


def try_gpus(count: int) -> dict[int, str]:
    """What is wrong with each of `count` GPUs; "" if it works. Blocks, seconds if they hang."""
    why, texts = "", ""
    try:
        tried = subprocess.run(
            [sys.executable, "-P", "-c", _TRY],
            capture_output=True,
            text=True,
            timeout=_GPU_PROBE_TIMEOUT,
            check=False,
        )
        texts, why = tried.stdout, tried.stderr.strip().rpartition("\n")[2]
        if tried.returncode and not why:
            why = f"the process that tried it ended with {tried.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"the process that tried it: {error}"
    lines = (line.partition(" ") for line in texts.splitlines())
    found = {int(number): output.strip() for number, _, output in lines}
    missing = why or "the driver has no such device"
    return {number: found.get(number, missing) for number in range(count)}


class Gpus:
    """The GPUs that work: tried once, when "auto" is used first. Safe from any thread."""

    def __init__(
        self,
        count: Callable[[], int] = gpu_count,
        attempt: Callable[[int], Mapping[int, str]] = try_gpus,
    ) -> None:
        self.count = count
        self._attempt = attempt
        self._lock = threading.Lock()
        self._usable: list[int] | None = None

    def usable(self) -> list[int]:
        """Their numbers. Logs once why others are not used."""
        with self._lock:
            if self._usable is None:
                count = self.count()
                tried = self._attempt(count) if count else {}
                self._usable = [number for number, why in tried.items() if not why]
                if wrong := {number: why for number, why in tried.items() if why}:
                    log.warning(
                        "GPU cannot be used, device=auto skips it",
                        extra={
                            "gpus": ",".join(map(str, wrong)),
                            "why": "; ".join(dict.fromkeys(wrong.values())),
                        },
                    )
            return self._usable

    def place(self, groups: Sequence[InstanceGroup], *, may_use: bool = True) -> list[Device]:
        """One device for each instance. "auto": `count` on every GPU that works, or on the CPU if
        there is no GPU or the model does not use one; "cuda": on every GPU, as in Triton."""
        devices: list[Device] = []
        for group in groups:
            kind, _, index = group.device.partition(":")
            if kind == "cuda" and not self.count():
                log.warning(
                    "no GPU here for a model: device=auto would use the CPU",
                    extra={"device": group.device},
                )
            where = [CPU]
            if kind == "cuda" and index:
                where = [Device("cuda", int(index))]
            elif kind == "cuda":
                where = [Device("cuda", number) for number in range(max(1, self.count()))]
            elif kind == "auto" and may_use:
                where = [Device("cuda", number, True) for number in self.usable()] or [CPU]
            devices += [device for device in where for _ in range(group.count)]
        return devices


def may_use_gpus(model: Model) -> bool:
    """Whether its `load` takes a device, something else than this process runs it, or a library is
    imported by which its code may use one."""
    if model.make_instance is not None or "torch" in sys.modules:
        return True
    if not GPU_LIBRARIES.isdisjoint(sys.modules):
        return True
    takes_device = bool(inspect.signature(model.load).parameters)
    return takes_device and getattr(type(model), "load", None) is not Model.load


def for_torch(device: Device, model: str) -> Device:
    """The same, or the CPU if this torch cannot use what "auto" has chosen."""
    if device.kind != "cuda" or not device.automatic:
        return device
    import torch

    try:
        torch.ones(1, device=str(device)).add_(1).item()
    except Exception as error:  # noqa: BLE001 - of many kinds: no CUDA in it, no memory, no kernel
        return cpu_instead(device, model, f"{type(error).__name__}: {error}")
    return device


def cpu_instead(device: Device, model: str, why: str) -> Device:
    """The CPU, with a warning, in place of a GPU that the model's library cannot use."""
    log.warning(
        "GPU cannot be used by the model's library, using the CPU",
        extra={"model": model, "device": str(device), "why": why.partition("\n")[0]},
    )
    return CPU
