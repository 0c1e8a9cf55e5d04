"""What does a look at this machine find, and is it good enough for a server? `wherry doctor`.

Functions called `of_` are pure: facts in, findings out. The others block; at most a minute, for
GPUs that hang.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

from wherry import __version__
from wherry.core.api import ConfigError, Machine, gpu_count, try_gpus
from wherry.llm.api import is_checkpoint
from wherry.server.cli.show import as_json, print_line, printable
from wherry.server.connections.limits import Limits
from wherry.server.targets import PACKAGES

FAILED = 1
MARKS = {"ok": "ok   ", "note": "note ", "wrong": "WRONG"}


def doctor(args: argparse.Namespace) -> int:
    """Look at the machine, print a line for each finding; 1 if something is wrong."""
    found = list(look({"--port": args.port, "--grpc-port": args.grpc_port}))
    for target in args.target:
        found += look_at_target(target)
    if args.gpu:
        found += look_at_gpus()
    if args.json:
        for finding in found:
            print_line(as_json(asdict(finding), None))
    else:
        width = max(len(finding.topic) for finding in found)
        for finding in found:
            line = f"{MARKS[finding.state]}  {finding.topic:<{width}}  {finding.found}"
            print_line(printable(line))
            if finding.remedy:
                print_line(f"{'':{width + 9}}{finding.remedy}")
    return FAILED if any(finding.state == "wrong" for finding in found) else 0


State = Literal["ok", "note", "wrong"]

MIB: Final = 2**20
#: Bytes of memory below which a server has room for few requests.
LITTLE_MEMORY: Final = 512 * MIB
#: Bytes of /dev/shm that clients' shared memory regions are likely to need.
LITTLE_SHARED: Final = 128 * MIB
#: Files that a process may have open, below which connections are refused early.
FEW_FILES: Final = 1024


@dataclass(frozen=True, slots=True)
class Finding:
    #: "wrong": a server would not start, or not work as documented; "note": worth knowing.
    state: State
    topic: str
    found: str
    remedy: str = ""


def of_extra(name: str, missing: Collection[str], versions: Mapping[str, str]) -> Finding:
    """An extra of the package, by the packages that are missing of it, and those that are there."""
    if missing:
        text = f"not installed: {', '.join(sorted(missing))}"
        return Finding("note", f"extra {name}", text, f"pip install 'wherry[{name}]'")
    text = ", ".join(f"{package} {version}" for package, version in versions.items())
    return Finding("ok", f"extra {name}", text)


def of_module(module: str, where: str, is_there: bool, version: str) -> Finding:
    if is_there:
        return Finding("ok", f"import {module}", version or "installed")
    remedy = f"{sys.executable} -m pip install {PACKAGES.get(module, module)}"
    return Finding("wrong", f"import {module}", f"not installed; {where} needs it", remedy)


def of_gpus(devices: Mapping[int, str], hidden: bool) -> Iterator[Finding]:
    """GPUs by number, and what went wrong with each; "" for one that works."""
    if not devices:
        text = "none: CUDA_VISIBLE_DEVICES hides them" if hidden else "none"
        yield Finding("ok", "GPU", f"{text}; models run on the CPU")
    for number, why in devices.items():
        if why:
            remedy = "look at nvidia-smi and dmesg; device=auto leaves it out"
            yield Finding("wrong", f"GPU {number}", why, remedy)
        else:
            yield Finding("ok", f"GPU {number}", "computes")


def of_torch(version: str, built_for: str, why_not: str, gpus: int) -> Finding:
    """PyTorch: its version, the CUDA that it was built for ("": none), and why it cannot use a GPU
    ("": it can)."""
    if built_for and not why_not:
        return Finding("ok", "torch", f"{version}, uses GPUs by CUDA {built_for}")
    if gpus == 0:
        return Finding("ok", "torch", f"{version}, on the CPU")
    why = why_not or "it was built without CUDA"
    remedy = "install the build for this driver: pytorch.org/get-started/locally"
    return Finding("wrong", "torch", f"{version} cannot use the GPU: {why}", remedy)


def of_memory(limit: int | None, available: int | None) -> Finding:
    if limit is None or available is None:
        return Finding("note", "memory", "its limit is not known on this system")
    text = f"{available // MIB:,} MiB of {limit // MIB:,} MiB are free"
    if min(limit, available) < LITTLE_MEMORY:
        return Finding("wrong", "memory", text, "free some, raise the limit, or --max-queue-bytes")
    return Finding("ok", "memory", text)


def of_processors(usable: int, quota: float | None) -> Finding:
    """Cores that the process may run on, and how many of them its control group pays for."""
    if quota is None or quota >= usable:
        return Finding("ok", "processors", f"{usable}")
    text = f"{usable}, of which the control group gives the time of {quota:g}"
    remedy = "set OMP_NUM_THREADS to that, or models' threads wait for each other"
    return Finding("note", "processors", text, remedy)


def of_open_files(soft: int, hard: int, connections: int) -> Finding:
    """Limits of open files, and the connections that a server takes by default."""
    text = f"{soft:,} now, {hard:,} at most"
    if hard < max(FEW_FILES, connections):
        remedy = (
            f"raise it for {connections:,} connections: ulimit -n, LimitNOFILE=, --max-connections"
        )
        return Finding("wrong" if hard < FEW_FILES else "note", "open files", text, remedy)
    return Finding("ok", "open files", text)


def of_shared_memory(size: int | None, free: int, anonymous: bool) -> Iterator[Finding]:
    """/dev/shm, and whether a process can make anonymous memory that its children share."""
    if not anonymous:
        remedy = "allow memfd_create, or use --isolation thread"
        yield Finding("wrong", "workers' memory", "memfd_create is refused", remedy)
    else:
        yield Finding("ok", "workers' memory", "anonymous shared memory works")
    if size is None:
        yield Finding("note", "/dev/shm", "is not there: clients' shared memory cannot be used")
    elif free < LITTLE_SHARED:
        text = f"{free // MIB:,} MiB of {size // MIB:,} MiB are free"
        remedy = "only for --allow-client-shm: docker run --shm-size=1g, or an emptyDir of Memory"
        yield Finding("note", "/dev/shm", text, remedy)
    else:
        yield Finding("ok", "/dev/shm", f"{free // MIB:,} MiB of {size // MIB:,} MiB are free")


def of_port(flag: str, port: int, problem: str) -> Finding:
    """Whether a port can be listened on; `problem` is the system's word, "" if it can."""
    if problem:
        return Finding("note", f"{flag} {port}", problem, f"choose another: {flag} {port + 10}")
    return Finding("ok", f"{flag} {port}", "is free")


#: Extras for development, which no server needs.
_OF_DEVELOPERS: Final = frozenset(("dev", "test", "docs", "fuzz", "release", "demo", "ocr"))
#: An import of torch takes seconds, and may take its process along.
_TORCH: Final = """
import torch
why = ""
if torch.version.cuda:
    try:
        torch.zeros(1, device="cuda")
    except Exception as error:
        why = str(error).splitlines()[0]
print(torch.__version__, torch.version.cuda or "", why, sep="\\t")
"""
_PROBE_TIMEOUT: Final = 60.0


def look(ports: dict[str, int]) -> Iterator[Finding]:
    """Everything, in the order in which it is printed. `ports` by their flags."""
    yield from _programs()
    yield from _devices()
    yield from _limits()
    for flag, port in ports.items():
        yield of_port(flag, port, _problem_of(port))


def _programs() -> Iterator[Finding]:
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield Finding("ok", "wherry", f"{__version__}, {system}")
    if sys.platform == "win32":
        remedy = "use Linux, or WSL: processes as workers need it"
        yield Finding("wrong", "system", "Windows is not supported", remedy)
    needed = _packages()
    absent = []
    for extra in ("", *sorted(needed.keys() - _OF_DEVELOPERS - {""})):
        there = {name: version for name in needed[extra] if (version := _version(name))}
        found = of_extra(extra, set(needed[extra]) - set(there), there)
        if not there and extra:
            absent.append(extra)
        elif extra:
            yield found
        elif found.state != "ok":
            remedy = f"pip install -U {' '.join(needed[extra])}"
            yield Finding("wrong", "packages", found.found, remedy)
    if absent:
        remedy = "wherry doctor app.py lists what app.py needs; pip install 'wherry[EXTRA]'"
        yield Finding("ok", "other extras", f"not installed: {', '.join(absent)}", remedy)


def look_at_target(target: str) -> Iterator[Finding]:
    """The packages that a target needs; nothing of it is imported."""
    from wherry.server.cli.needs import engine_of, is_installed, modules_of

    try:
        if is_checkpoint(target):
            yield Finding("ok", "engine", engine_of(target))
        else:
            for module, where in modules_of(target).items():
                version = _version(PACKAGES.get(module, module))
                yield of_module(module, where, is_installed(module), version)
    except ConfigError as error:
        yield Finding("wrong", "target", str(error))


def _packages() -> dict[str, list[str]]:
    """The packages that wherry needs, by extra; without one: always."""
    found: dict[str, list[str]] = {"": []}
    with suppress(metadata.PackageNotFoundError):
        for line in metadata.requires("wherry") or ():
            extra = re.search(r"extra\s*==\s*[\"']([\w-]+)", line)
            name = re.match(r"[\w.-]+", line)
            if name is not None and "sys_platform" not in line:
                found.setdefault(extra[1] if extra else "", []).append(name[0])
    return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _devices() -> Iterator[Finding]:
    count = gpu_count()
    hidden = "CUDA_VISIBLE_DEVICES" in os.environ
    yield from of_gpus(try_gpus(count) if count else {}, hidden)
    if not _version("torch"):
        return
    output, failed = _output([sys.executable, "-P", "-c", _TORCH])
    found = output.strip("\n").rpartition("\n")[2].split("\t")
    if failed or len(found) != 3:
        text = f"cannot be imported: {failed or output}"
        yield Finding("wrong", "torch", text, "pip install torch")
    else:
        version, built_for, why = found
        yield of_torch(version, built_for, why, count)


def _limits() -> Iterator[Finding]:
    machine = Machine()
    yield of_memory(machine.memory_limit_bytes(), machine.available_bytes())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield of_processors(cores or 1, _quota())
    if sys.platform != "win32":
        import resource

        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        soft, hard = (2**31 if one == resource.RLIM_INFINITY else one for one in limits)
        yield of_open_files(soft, hard, Limits().max_connections)
    shared = Path("/dev/shm")
    use = shutil.disk_usage(shared) if shared.is_dir() else None
    size, free = (use.total, use.free) if use else (None, 0)
    yield from of_shared_memory(size, free, _makes_anonymous_memory())


def _quota(cgroup: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores' worth of time that the control group gives; None: no limit."""
    try:
        quota, period = map(int, (cgroup / "cpu.max").read_text().split())
    except (OSError, ValueError):
        return None
    return quota / period


def _makes_anonymous_memory() -> bool:
    if not hasattr(os, "memfd_create"):
        return True  # workers share files instead
    try:
        os.close(os.memfd_create("wherry-doctor"))
    except OSError:
        return False
    return True


def _problem_of(port: int) -> str:
    """Why the port cannot be listened on, or ""."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
            tried.listen()
        except OSError as error:
            return f"cannot be listened on: {error.strerror}"
    return ""


# --gpu

FIELDS: Final = (
    "index", "name", "driver_version", "memory.total", "memory.free", "power.limit",
    "power.max_limit", "clocks.max.sm", "pcie.link.width.current", "pcie.link.width.max",
    "ecc.mode.current", "ecc.errors.uncorrected.volatile.total", "mig.mode.current",
)  # fmt: skip
#: In place of a value, of a GPU that does not answer any more.
_LOST: Final = re.compile(r"requires reset|is lost", re.IGNORECASE)
#: Share of the memory that is free on a GPU which no other process uses.
MOSTLY_FREE: Final = 0.95
#: GB/s from pinned memory, below which the link to the GPU is not what PCIe 4 x16 gives.
SLOW_COPY: Final = 15.0
#: The oldest driver that each major version of CUDA runs with, by NVIDIA's release notes.
OLDEST_DRIVERS: Final = {11: (450, 80), 12: (525, 60), 13: (580, 0)}
_GPU_PROBE: Final = """
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
    """What nvidia-smi and torch, each in a process of its own, report of the GPUs. Blocks."""
    fields = list(FIELDS)
    output, why = _query(fields)
    while unknown := re.search(r'Field "([\w.]+)" is not a valid field', why):  # an older driver
        if unknown[1] not in fields:
            break
        fields.remove(unknown[1])
        output, why = _query(fields)
    if why:
        yield Finding("note", "GPU driver", why, "install NVIDIA's driver, if there is a GPU")
        return
    driver = ""
    for line in filter(None, map(str.strip, output.splitlines())):
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(fields):  # a warning
            yield Finding("note", "GPU driver", line, "look at the output of nvidia-smi")
            continue
        gpu = dict.fromkeys(FIELDS, "") | dict(zip(fields, values, strict=True))
        driver = gpu["driver_version"]
        yield from of_driver(gpu)
    output, why = _output([sys.executable, "-P", "-c", _GPU_PROBE])
    about, *found = map(json.loads, re.findall(r"^\{.*", output, re.MULTILINE) or ["{}"])
    works = found and found[0]["gpus"]  # an old driver does, with NVIDIA's package for that
    yield from of_versions(about, "" if works else driver)
    if why:
        yield Finding("note", "GPU with torch", why, "install the build of torch for this driver")
    elif found:
        yield from of_torch_gpus(found[0])


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
        text = f"{driver} is too old for CUDA {about['cuda']}, which torch was built for"
        remedy = f"install driver {least[0]} or later, or a build of torch for an older CUDA"
        yield Finding("wrong", "GPU driver", text, remedy)
    if not about.get("triton"):
        return
    lacks = "no C compiler" if not about["compiler"] else "" if about["headers"] else "no Python.h"
    if lacks:
        text = f"finds {lacks}: its kernels, and torch.compile, cannot be started"
        remedy = "install gcc and Python's headers (python3-dev); CC names another compiler"
        yield Finding("note", "GPU with Triton", text, remedy)
    else:
        yield Finding("ok", "GPU with Triton", f"compiles by {about['compiler']}")


def of_driver(gpu: Mapping[str, str]) -> Iterator[Finding]:
    """A GPU by the answers to FIELDS; "[N/A]", "" and the like for what it does not report."""
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
        text = f"{free:,.0f} of {total:,.0f} MiB are free"
        yield Finding("note" if used else "ok", f"{topic} memory", text, remedy)
    for what, now, most, unit, remedy in (
        ("power", "power.limit", "power.max_limit", "W", "nvidia-smi -pl raises the limit"),
        ("link", "pcie.link.width.current", "pcie.link.width.max", "lanes", "look at its slot"),
    ):
        value, bound = _number(gpu[now]), _number(gpu[most])
        if value is not None and bound is not None:
            less, text = value < bound, f"{value:g} of {bound:g} {unit}"
            yield Finding("note" if less else "ok", f"{topic} {what}", text, remedy * less)
    if errors := _number(gpu["ecc.errors.uncorrected.volatile.total"]):
        text, remedy = f"{errors:g} uncorrected errors", "reset or replace it"
        yield Finding("wrong", f"{topic} ECC", text, remedy)
    elif gpu["ecc.mode.current"] in ("Enabled", "Disabled"):
        yield Finding("ok", f"{topic} ECC", gpu["ecc.mode.current"])
    if gpu["mig.mode.current"] == "Enabled":
        remedy = "CUDA_VISIBLE_DEVICES=MIG-UUID chooses one; a process has one at most"
        yield Finding("note", f"{topic} MIG", "on: it is cut into instances", remedy)


def of_torch_gpus(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """What torch can do with each GPU, and whether they reach each other's memory."""
    for number, gpu in enumerate(facts["gpus"]):
        topic, capability = f"GPU {number} with torch", tuple(gpu["capability"])
        if runs(capability, facts["built"]):
            rate = gpu["pinned_gb_s"]
            slow = rate < SLOW_COPY
            remedy = "look at its slot, and at other programs" if slow else ""
            text = f"has kernels for it; {rate:.1f} GB/s from pinned memory"
            yield Finding("note" if slow else "ok", topic, text, remedy)
        else:
            text = f"no kernels for {capability[0]}.{capability[1]}: {', '.join(facts['built'])}"
            yield Finding("wrong", topic, text, "install a newer build of torch")
    if facts["apart"]:
        text = f"not between {', '.join(facts['apart'])}"
        yield Finding("note", "GPU peer access", text, "copies between them go by the host")
    elif len(facts["gpus"]) > 1:
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
