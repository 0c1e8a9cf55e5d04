"""What does a process of this machine cost, and which one listens on a port? (Linux only.)"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

PROC = Path("/proc")


def process_tree(pid: int) -> list[int]:
    """A process and its living descendants; those that are gone are left out."""
    tree = [pid]
    for parent in tree:
        with contextlib.suppress(OSError):
            for task in (PROC / str(parent) / "task").iterdir():
                with contextlib.suppress(OSError):  # a thread that has just ended
                    tree += [int(child) for child in (task / "children").read_text().split()]
    return tree


def cpu_seconds(pid: int) -> float | None:
    """User and system time of a process and its descendants so far; None if it is gone.

    From the scheduler's own clock (nanoseconds) where it is there, else in ticks of 10 ms.
    """
    total = 0.0
    for member in process_tree(pid):
        used = _precise(member) or _ticks(member)
        if used is None and member == pid:
            return None
        total += used or 0.0
    return total


def _precise(pid: int) -> float | None:
    total = 0
    try:
        for task in (PROC / str(pid) / "task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return total / 1e9


def _ticks(pid: int) -> float | None:
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


def listener(port: int) -> int | None:
    """The process that listens on this TCP port of this machine, if it may be seen."""
    inodes = set(_listening_inodes(port))
    if not inodes:
        return None
    # Workers may inherit the socket: the first of the family has them all below it.
    holders = [f for f in PROC.glob("[0-9]*") if not inodes.isdisjoint(_open_files(f))]
    return min((int(folder.name) for folder in holders), default=None)


def _open_files(process: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):  # of another user, or ended
        for name in os.listdir(process / "fd"):
            with contextlib.suppress(OSError):  # closed in the meantime
                yield os.readlink(process / "fd" / name)


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                yield f"socket:[{fields[9]}]"


def is_here(host: str) -> bool:
    """Whether it is a loopback address."""
    return host in ("localhost", "::1") or host.startswith("127.")


def facts() -> dict[str, Any]:
    """The machine and the versions, so that a figure can be placed later."""
    versions = {}
    for package in ("wherry", "numpy", "uvloop", "httptools"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        for line in (PROC / "cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()
