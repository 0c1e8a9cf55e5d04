"""How does what this process has started end with it?"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from glob import iglob
from pathlib import Path

#: Seconds between SIGTERM and SIGKILL.
_LAST_SECONDS = 0.5
_LOOK = 0.005


def end_descendants() -> None:
    """End what this process, and that in turn, has started, by SIGTERM and then SIGKILL. What is in
    a session of its own stays, and so does all of it where there is no Linux."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        ends_at = time.monotonic() + _LAST_SECONDS
        running = [*_descendants(os.getpid())]
        for pid in running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        while running and time.monotonic() < ends_at:
            time.sleep(_LOOK)
            running = [*_descendants(os.getpid())]


def _descendants(pid: int) -> Iterator[int]:
    for file in iglob(f"/proc/{pid}/task/*/children"):
        with contextlib.suppress(OSError):  # it has just ended
            for child in map(int, Path(file).read_text().split()):
                yield from _descendants(child)
                if _is_to_end(child):
                    yield child


def _is_to_end(pid: int) -> bool:
    """Not a zombie, nor what takes a model's shared memory away once all others have ended."""
    with contextlib.suppress(OSError):
        state, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        tracker = b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return state != "Z" and os.getsid(pid) == os.getsid(0) and not tracker
    return False
