"""Is each GPU ready, and what will it give? `wherry doctor --gpu`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from wherry.cli.doctor.findings import Finding

FIELDS: Final = (
    "index", "name", "driver_version", "memory.total", "memory.free", "power.limit",
    "power.max_limit", "clocks.max.sm", "pcie.link.width.current", "pcie.link.width.max",
    "ecc.mode.current", "ecc.errors.uncorrected.volatile.total", "mig.mode.current",
)  # fmt: skip
#: Share of the memory that is free on a GPU which nobody else uses.
MOSTLY_FREE: Final = 0.95
#: GB/s from pinned memory, below which the link to the GPU is not what PCIe 4 x16 gives.
SLOW_COPY: Final = 15.0
_PATIENCE: Final = 60.0
_TORCH: Final = """
import json, time
import torch
count = torch.cuda.device_count()
built = torch.cuda.get_arch_list() if count else []
pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
apart = [f"{a}-{b}" for a, b in pairs if not torch.cuda.can_device_access_peer(a, b)]
host = torch.empty(1 << 26, dtype=torch.uint8).pin_memory() if count else None
found = []
for number in range(count):
    there = host.to(number)
    torch.cuda.synchronize(number)
    began = time.perf_counter()
    for _ in range(8):
        there.copy_(host, non_blocking=True)
    torch.cuda.synchronize(number)
    copied = 8 * host.nbytes / (time.perf_counter() - began) / 1e9
    found.append({"capability": torch.cuda.get_device_capability(number), "pinned_gb_s": copied})
print(json.dumps({"built": built, "apart": apart, "gpus": found}))
"""


def look_at_gpus() -> Iterator[Finding]:
    """What nvidia-smi and torch, each in a process of its own, say of the GPUs. Blocks."""
    command = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    told, why = _output(command)
    if why:
        yield Finding("note", "GPU driver", why, "install NVIDIA's driver, if there is a GPU")
        return
    for line in told.splitlines():
        yield from of_driver(dict(zip(FIELDS, map(str.strip, line.split(",")), strict=True)))
    told, why = _output([sys.executable, "-P", "-c", _TORCH])
    if why:
        yield Finding("note", "GPU with torch", why, "install the build of torch for this driver")
        return
    yield from of_torch(json.loads(told))


def of_driver(gpu: Mapping[str, str]) -> Iterator[Finding]:
    """A GPU by the answers to FIELDS; "[N/A]" and the like for what it does not tell."""
    topic = f"GPU {gpu['index']}"
    name = f"{gpu['name']}, driver {gpu['driver_version']}, at most {gpu['clocks.max.sm']} MHz"
    yield Finding("ok", topic, name)
    free, total = (_number(gpu[f"memory.{one}"]) for one in ("free", "total"))
    if free is not None and total:
        used = free < MOSTLY_FREE * total
        remedy = "other programs use it: nvidia-smi names them" if used else ""
        told = f"{free:,.0f} of {total:,.0f} MiB are free"
        yield Finding("note" if used else "ok", f"{topic} memory", told, remedy)
    for what, now, most, unit, remedy in (
        ("power", "power.limit", "power.max_limit", "W", "nvidia-smi -pl raises the limit"),
        ("link", "pcie.link.width.current", "pcie.link.width.max", "lanes", "look at its slot"),
    ):
        value, bound = _number(gpu[now]), _number(gpu[most])
        if value is not None and bound is not None:
            less, told = value < bound, f"{value:g} of {bound:g} {unit}"
            yield Finding("note" if less else "ok", f"{topic} {what}", told, remedy * less)
    if errors := _number(gpu["ecc.errors.uncorrected.volatile.total"]):
        told, remedy = f"{errors:g} uncorrected errors", "reset or replace it"
        yield Finding("wrong", f"{topic} ECC", told, remedy)
    else:
        yield Finding("ok", f"{topic} ECC", gpu["ecc.mode.current"])
    if gpu["mig.mode.current"] == "Enabled":
        remedy = "CUDA_VISIBLE_DEVICES=MIG-UUID chooses one; a process has one at most"
        yield Finding("note", f"{topic} MIG", "on: it is cut into instances", remedy)


def of_torch(told: Mapping[str, Any]) -> Iterator[Finding]:
    """What torch can do with each GPU, and whether they reach each other's memory."""
    for number, gpu in enumerate(told["gpus"]):
        topic, capability = f"GPU {number} with torch", tuple(gpu["capability"])
        if runs(capability, told["built"]):
            rate = gpu["pinned_gb_s"]
            slow = rate < SLOW_COPY
            remedy = "look at its slot, and at other programs" if slow else ""
            said = f"has kernels for it; {rate:.1f} GB/s from pinned memory"
            yield Finding("note" if slow else "ok", topic, said, remedy)
        else:
            said = f"no kernels for {capability[0]}.{capability[1]}: {', '.join(told['built'])}"
            yield Finding("wrong", topic, said, "install a newer build of torch")
    if told["apart"]:
        said = f"not between {', '.join(told['apart'])}"
        yield Finding("note", "GPU peer access", said, "copies between them go by the host")
    elif len(told["gpus"]) > 1:
        yield Finding("ok", "GPU peer access", "between all")


def runs(capability: tuple[int, ...], built: Sequence[str]) -> bool:
    """Whether what torch was `built` for ("sm_90", "compute_90") has kernels for a GPU: of its
    major version, or as PTX for any later GPU."""
    for name in built:
        kind, _, version = name.partition("_")
        digits = "".join(filter(str.isdigit, version))
        of = (int(digits[:-1]), int(digits[-1]))
        if of <= capability and (kind == "compute" or of[0] == capability[0]):
            return True
    return False


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _output(command: Sequence[str]) -> tuple[str, str]:
    """What a command prints, and why it has not."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    if done.returncode:
        return "", (done.stderr or done.stdout).strip().rpartition("\n")[2] or "it failed"
    return done.stdout, ""
