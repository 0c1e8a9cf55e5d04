"""What do all instances have in common whose model lives in a worker process?"""

from __future__ import annotations

import os
import subprocess
import threading
from collections import deque
from pathlib import Path
from typing import Any

from wherry.errors import WorkerDied
from wherry.instances.instance import Instance
from wherry.instances.worker_process import Bell, WorkerProcess
from wherry.model import Device
from wherry.request import Batch


class WorkerInstance(Instance):
    """An inbox with a bell, and a process that any thread may kill."""

    def __init__(self, name: str, device: Device) -> None:
        super().__init__(name, device)
        self._inbox: deque[Batch | None] = deque()
        self._bell: Bell | None = Bell()
        #: For the bell and the process, which other threads use while this one closes them.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._aborted = ""

    # Any thread

    def give(self, batch: Batch | None) -> None:
        self._inbox.append(batch)
        self._ring()

    def abort(self, reason: str) -> bool:
        with self._lock:
            self._aborted = self._aborted or reason
            if self._process is not None:
                self._process.kill()
        return True

    @property
    def pid(self) -> int | None:
        """The worker's process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def rss_bytes(self) -> int:
        """The worker's resident memory; 0 if it does not run, or the system does not say."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _ring(self) -> None:
        with self._lock:
            if self._bell is not None:
                self._bell.ring()

    # The serving thread

    def _watch(self, worker: WorkerProcess[Any]) -> None:
        """From now on the bell wakes whoever waits for this worker, and `abort` kills it.
        Under the lock."""
        assert self._bell is not None
        worker.answer_to(self._bell)
        self._process = worker.process
        if self._aborted:
            self._process.kill()

    def _forget_worker(self) -> None:
        """It is closed, and nothing wakes this instance any more."""
        with self._lock:
            self._process = None
            if self._bell is not None:
                self._bell.close()
                self._bell = None

    def _death_of(
        self, worker: WorkerProcess[Any], error: Exception, *, reached: bool = True
    ) -> WorkerDied:
        """See to it that the worker is gone, and say how it went."""
        how = worker.end(error)
        if self._aborted:
            how = f"was stopped: {self._aborted}"
        died = WorkerDied(f"worker {self.name} (pid {worker.process.pid}) {how}")
        died.reached = reached
        return died
