"""How are the facts of this machine found out? Blocks; at most a minute, for GPUs that hang."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final

from wherry import __version__
from wherry.core.api import Machine, gpu_count, try_gpus
from wherry.server.cli.doctor import findings
from wherry.server.cli.doctor.findings import Finding
from wherry.server.connections.limits import Limits

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
    """Everything, in the order in which it is told. `ports` by their flags."""
    yield from _programs()
    yield from _devices()
    yield from _limits()
    for flag, port in ports.items():
        yield findings.of_port(flag, port, _problem_of(port))


def _programs() -> Iterator[Finding]:
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield Finding("ok", "wherry", f"{__version__}, {system}")
    if sys.platform == "win32":
        remedy = "use Linux, or WSL: processes as workers need it"
        yield Finding("wrong", "system", "Windows is not supported", remedy)
    needed = _packages()
    for extra in ("", *sorted(needed.keys() - _OF_DEVELOPERS - {""})):
        there = {name: version for name in needed[extra] if (version := _version(name))}
        found = findings.of_extra(extra, set(needed[extra]) - set(there), there)
        if extra:
            yield found
        elif found.state != "ok":
            yield Finding("wrong", "packages", found.found, "pip install --force-reinstall wherry")


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
    yield from findings.of_gpus(try_gpus(count) if count else {}, hidden)
    if not _version("torch"):
        return
    try:
        completed = subprocess.run(
            [sys.executable, "-P", "-c", "import sys\n" + _TORCH],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT,
            check=True,
        )
        version, built_for, why = completed.stdout.rstrip("\n").split("\t")
    except (subprocess.SubprocessError, ValueError) as error:
        yield Finding("wrong", "torch", f"cannot be imported: {error}", "pip install torch")
        return
    yield findings.of_torch(version, built_for, why, count)


def _limits() -> Iterator[Finding]:
    machine = Machine()
    yield findings.of_memory(machine.memory_limit_bytes(), machine.available_bytes())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield findings.of_processors(cores or 1, _quota())
    if sys.platform != "win32":
        import resource

        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        soft, hard = (2**31 if one == resource.RLIM_INFINITY else one for one in limits)
        yield findings.of_open_files(soft, hard, Limits().max_connections)
    shared = Path("/dev/shm")
    use = shutil.disk_usage(shared) if shared.is_dir() else None
    size, free = (use.total, use.free) if use else (None, 0)
    yield from findings.of_shared_memory(size, free, _makes_anonymous_memory())


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
