"""What does a test leave behind?

A snapshot names everything this process holds outside of its own memory: threads, child
processes, open files (by what they point to) and files in /dev/shm. `left_behind` says what is
there now and was not before, after giving it a moment to end.

/dev/shm belongs to the whole machine: other programs, and the tests beside these, make files there
at any moment. Counted is a file that this process or a descendant has mapped or open, and one
whose name ends in this process's id, as tests name theirs. A file that a process made, closed and
did not remove has no owner that could be asked, hence the name.

Something that a library makes once for the whole process (gevent's hub, for one) is not a leak:
make it in a session fixture, which runs before the first snapshot is taken.
"""

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from os import listdir, readlink  # before blockbuster wraps them: they are called for each test
from pathlib import Path

PROC = Path("/proc")
_SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the process holds, as text that a developer can act on."""

    held: Counter[str]
    #: The files in /dev/shm, whoever made them.
    shared_memory: frozenset[str]

    def beyond(self, earlier: "Snapshot") -> list[str]:
        """What is here and was not in `earlier`, sorted."""
        made = self.shared_memory - earlier.shared_memory
        return sorted([*(self.held - earlier.held).elements(), *_used_here(made)])


def snapshot() -> Snapshot:
    """Take stock now. Outside of Linux only threads are seen."""
    return Snapshot(Counter([*_threads(), *_children(), *_open_files()]), _shared_memory())


def left_behind(before: Snapshot, *, grace: float = 10.0) -> list[str]:
    """What was not there `before`, once nothing is, or `grace` seconds have passed.

    A thread that has been told to stop, or a killed child, may need a moment.
    """
    until = time.monotonic() + grace
    pause = 0.001
    while True:
        extra = snapshot().beyond(before)
        if not extra or time.monotonic() >= until:
            return extra
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _threads() -> Iterator[str]:
    names = [f"{thread.name} ({thread.ident})" for thread in threading.enumerate()]
    # A loop's own threads become more with what runs at once, and end with the loop.
    own = [name for name in names if name.startswith("asyncio_")]
    yield from (f"thread {name}" for name in names if name not in own)
    yield from ["threads of event loops"] * bool(own)


def _children() -> Iterator[str]:
    """Children of this process, those included that ended and were not waited for."""
    for pid in _child_ids():
        try:
            # pid (name) state parent ...; the name may hold spaces and parentheses
            state = (PROC / pid / "stat").read_text().rpartition(")")[2].split()[0]
            command = (PROC / pid / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue  # it ended while we were looking
        ended = " (ended, never waited for)" if state == "Z" else ""
        yield f"child {pid}{ended} {command[:200]}".rstrip()


def _child_ids(of: str = "self") -> Iterator[str]:
    # Twice a test: os and open take a third of the time that pathlib takes.
    folder = f"{PROC}/{of}/task"
    try:
        tasks = listdir(folder)
    except OSError:
        return  # no Linux, or it ended while we were looking
    for task in tasks:
        with contextlib.suppress(OSError), open(f"{folder}/{task}/children") as children:
            yield from children.read().split()


def _descendant_ids(of: str = "self") -> Iterator[str]:
    for child in _child_ids(of):
        yield child
        yield from _descendant_ids(child)


def _open_files() -> Iterator[str]:
    # Pipes, sockets and memfds carry their own number; an epoll does not, hence the count.
    for target in _open_targets("self"):
        if not target.startswith("/dev/nvidia"):  # the driver keeps those it has once opened
            yield f"open file {target}"


def _open_targets(pid: str) -> Iterator[str]:
    folder = f"{PROC}/{pid}/fd"
    try:
        names = listdir(folder)
    except OSError:
        return  # no Linux, or it ended while we were looking
    for name in names:
        with contextlib.suppress(OSError):  # the descriptor that listed the folder
            yield readlink(f"{folder}/{name}")


def _shared_memory() -> frozenset[str]:
    try:
        return frozenset(f"{_SHARED_MEMORY}/{name}" for name in listdir(_SHARED_MEMORY))
    except OSError:
        return frozenset()


def _used_here(paths: frozenset[str]) -> Iterator[str]:
    if not paths:
        return  # by far the most cases, and the tables below may be long
    used: set[str] = set()
    for pid in ("self", *_descendant_ids()):
        used.update(_mapped_targets(pid), _open_targets(pid))
    for path in paths:
        if path in used or path.endswith(f"-{os.getpid()}"):
            yield f"shared memory {path}"


def _mapped_targets(pid: str) -> Iterator[str]:
    try:
        lines = (PROC / pid / "maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return  # it ended while we were looking
    for line in lines:
        # range permissions offset device inode path; the path may hold spaces
        at = line.find(_SHARED_MEMORY)
        if at >= 0:
            yield line[at:]
