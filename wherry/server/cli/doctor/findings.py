"""What does a look at the machine find, and is it good enough? (Pure: facts in, findings out.)"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

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
    """One thing that was looked at."""

    #: "wrong": a server would not start, or not do what it says; "note": worth knowing.
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
