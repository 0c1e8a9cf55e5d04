"""What does a test leave behind?

A snapshot names everything this process holds outside of its own memory: threads, child
processes, open files (by what they point to) and files in /dev/shm. `left_behind` says what is
there now and was not before, after giving it a moment to end.

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
from pathlib import Path

PROC = Path("/proc")
_SHARED_MEMORY = "shared memory "


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the process holds, as text that a developer can act on."""

    held: Counter[str]

    def beyond(self, earlier: "Snapshot") -> list[str]:
        """What is here and was not in `earlier`, sorted."""
        return sorted((self.held - earlier.held).elements())


def snapshot() -> Snapshot:
    """Take stock now. Outside of Linux only threads are seen."""
    return Snapshot(Counter([*_threads(), *_children(), *_open_files(), *_shared_memory()]))


def left_behind(before: Snapshot, *, grace: float = 10.0) -> list[str]:
    """What was not there `before`, once nothing is, or `grace` seconds have passed.

    A thread that has been told to stop, or a killed child, may need a moment.
    """
    until = time.monotonic() + grace
    pause = 0.001
    while True:
        extra = [one for one in snapshot().beyond(before) if not _is_a_strangers(one)]
        if not extra or time.monotonic() >= until:
            return extra
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _threads() -> Iterator[str]:
    for thread in threading.enumerate():
        yield f"thread {thread.name} ({thread.ident})"


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


def _child_ids() -> Iterator[str]:
    for task in (PROC / "self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread ended while we were looking
            yield from task.read_text().split()


def _open_files() -> Iterator[str]:
    folder = PROC / "self" / "fd"
    if not folder.exists():
        return
    for name in os.listdir(folder):
        try:
            target = os.readlink(folder / name)
        except OSError:
            continue  # the descriptor that listed the folder
        # Pipes, sockets and memfds carry their own number; an epoll does not, hence the count.
        yield f"open file {target}"


def _shared_memory() -> Iterator[str]:
    folder = Path("/dev/shm")
    if folder.is_dir():
        for name in os.listdir(folder):
            # Of a real Triton beside us: nothing here makes such names.
            if not name.startswith("triton_python_backend_shm_region"):
                yield f"{_SHARED_MEMORY}{folder / name}"


def _is_a_strangers(held: str) -> bool:
    """Shared memory that a process uses which no test has started: of a program beside us."""
    if not held.startswith(_SHARED_MEMORY):
        return False
    path = held.removeprefix(_SHARED_MEMORY)
    for maps in PROC.glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # it ended while we were looking, or is not ours to read
            if path in maps.read_text() and not _descends_from_us(int(maps.parent.name)):
                return True
    return False


def _descends_from_us(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            pid = int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return False
