"""Is each GPU ready, and what will it give? `wherry doctor --gpu`."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from wherry.server.cli.doctor.findings import Finding

FIELDS: Final = (
    "index", "name", "driver_version", "memory.total", "memory.free", "power.limit",
    "power.max_limit", "clocks.max.sm", "pcie.link.width.current", "pcie.link.width.max",
    "ecc.mode.current", "ecc.errors.uncorrected.volatile.total", "mig.mode.current",
)  # fmt: skip
#: In place of a value, of a GPU that does not answer any more.
_LOST: Final = re.compile(r"requires reset|is lost", re.IGNORECASE)
#: Share of the memory that is free on a GPU which nobody else uses.
MOSTLY_FREE: Final = 0.95
#: GB/s from pinned memory, below which the link to the GPU is not what PCIe 4 x16 gives.
SLOW_COPY: Final = 15.0
#: The oldest driver that each major version of CUDA runs with, by NVIDIA's release notes.
OLDEST_DRIVERS: Final = {11: (450, 80), 12: (525, 60), 13: (580, 0)}
_PROBE_TIMEOUT: Final = 60.0
_TORCH: Final = """
import json, os, shutil, sysconfig, time
from importlib.util import find_spec
import torch
print(json.dumps({
    "cuda": torch.version.cuda or "",
    "triton": find_spec("triton") is not None,
    "compiler": os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or "",
    "headers": os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")),
}), flush=True)
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
    fields = list(FIELDS)
    told, why = _query(fields)
    while unknown := re.search(r'Field "([\w.]+)" is not a valid field', why):  # an older driver
        if unknown[1] not in fields:
            break
        fields.remove(unknown[1])
        told, why = _query(fields)
    if why:
        yield Finding("note", "GPU driver", why, "install NVIDIA's driver, if there is a GPU")
        return
    driver = ""
    for line in filter(None, map(str.strip, told.splitlines())):
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(fields):  # a warning
            yield Finding("note", "GPU driver", line, "look at what nvidia-smi says")
            continue
        gpu = dict.fromkeys(FIELDS, "") | dict(zip(fields, values, strict=True))
        driver = gpu["driver_version"]
        yield from of_driver(gpu)
    told, why = _output([sys.executable, "-P", "-c", _TORCH])
    about, *found = [json.loads(line) for line in told.splitlines() if line.startswith("{")] or [{}]
    works = found and found[0]["gpus"]  # an old driver does, with NVIDIA's package for that
    yield from of_versions(about, "" if works else driver)
    if why:
        yield Finding("note", "GPU with torch", why, "install the build of torch for this driver")
    elif found:
        yield from of_torch(found[0])


def _query(fields: Sequence[str]) -> tuple[str, str]:
    return _output(
        ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    )


def of_versions(about: Mapping[str, Any], driver: str) -> Iterator[Finding]:
    """Whether a driver ("": any) is new enough for torch's CUDA, and Triton can start kernels."""
    major, _, _ = about.get("cuda", "").partition(".")
    least = OLDEST_DRIVERS.get(int(major)) if major.isdigit() else None
    version = tuple(map(int, re.findall(r"\d+", driver)[:2]))
    if least and version and version < least:
        said = f"{driver} is too old for CUDA {about['cuda']}, which torch was built for"
        remedy = f"install driver {least[0]} or later, or a build of torch for an older CUDA"
        yield Finding("wrong", "GPU driver", said, remedy)
    if not about.get("triton"):
        return
    lacks = "no C compiler" if not about["compiler"] else "" if about["headers"] else "no Python.h"
    if lacks:
        said = f"finds {lacks}: its kernels, and torch.compile, cannot be started"
        remedy = "install gcc and Python's headers (python3-dev); CC names another compiler"
        yield Finding("note", "GPU with Triton", said, remedy)
    else:
        yield Finding("ok", "GPU with Triton", f"compiles by {about['compiler']}")


def of_driver(gpu: Mapping[str, str]) -> Iterator[Finding]:
    """A GPU by the answers to FIELDS; "[N/A]", "" and the like for what it does not tell."""
    topic = f"GPU {gpu['index']}"
    name = f"{gpu['name']}, driver {gpu['driver_version']}"
    if (clock := _number(gpu["clocks.max.sm"])) is not None:
        name += f", at most {clock:g} MHz"
    if lost := next((one for one in gpu.values() if _LOST.search(one)), ""):
        yield Finding("wrong", topic, f"{name}: {lost}", "reset it, or restart the machine")
    else:
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
    elif gpu["ecc.mode.current"] in ("Enabled", "Disabled"):
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
        if len(digits) < 2:
            continue  # not one of CUDA's
        of = (int(digits[:-1]), int(digits[-1]))
        if of <= capability and (kind == "compute" or of[0] == capability[0]):
            return True
    return False


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _output(command: Sequence[str]) -> tuple[str, str]:
    """What a command prints, and why it has not."""
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace",
            timeout=_PROBE_TIMEOUT, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    if done.returncode:
        return done.stdout, (done.stderr or done.stdout).strip().rpartition("\n")[2] or "it failed"
    return done.stdout, ""
