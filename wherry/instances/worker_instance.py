"""What do all instances have in common whose model lives in a worker process?"""

from __future__ import annotations

import os
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wherry.errors import WorkerDied
from wherry.instances.instance import Instance
from wherry.instances.worker_process import Bell, WorkerProcess
from wherry.model import Device
from wherry.request import Batch, InferRequest

#: Characters and bytes of a batch that is sent by whoever gives it, be it an event loop.
SMALL_BYTES = 16 << 10


class WorkerInstance(Instance):
    """An inbox with a bell, and a process that any thread may kill.

    A small batch is sent to the worker by the very thread that gives it. The serving thread need
    not wake up for that: it sleeps on until the answer is there.
    """

    def __init__(self, name: str, device: Device) -> None:
        super().__init__(name, device)
        self._inbox: deque[Batch | None] = deque()
        self._bell: Bell | None = Bell()
        #: For the bell and the process, which other threads use while this one closes them.
        self._lock = threading.Lock()
        #: Held by who sends to the worker where several threads may.
        self._sending = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._aborted = ""

    # Any thread

    def give(self, batch: Batch | None) -> None:
        # Whoever gives must not wait: not for the lock, and not for room in the socket.
        if batch is None or not self._sending.acquire(blocking=False):
            self._inbox.append(batch)
            self._ring()
            return
        begun = False
        try:
            self._inbox.append(batch)  # first: its answer may come at once
            if self.answers is not None and is_small(batch.requests):
                self.begun_at = self.answers.now()
                begun = self._begin(batch.requests)
        except Exception:  # noqa: BLE001, S110 - the serving thread meets it, too, and tells
            pass
        finally:
            if not begun:
                self.begun_at = None
                self._ring()
            self._sending.release()

    def _begin(self, requests: Sequence[InferRequest]) -> bool:
        """Send a batch to the idle worker without waiting for anything.

        False: nothing was sent. Then the serving thread sends it, and sees what was wrong.
        """
        return False

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

    def _taken(self, *, answered: bool) -> Batch | None:
        """What lies in the inbox. If the worker has not answered it yet, whoever gives it may be
        about to send it."""
        if not answered:
            with self._sending:
                pass
        return self._inbox.popleft()

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


def is_small(requests: Sequence[InferRequest]) -> bool:
    """Does somebody wait for each of these, and do they fit into one message that costs little?"""
    size = 0
    for request in requests:
        if request.reply.settled:
            return False
        for column in request.inputs.values():
            size += _rows_size(column) if isinstance(column, list) else column.nbytes
            if size > SMALL_BYTES:
                return False
    return bool(requests)


def _rows_size(rows: Sequence[Any]) -> int:
    """About how many bytes. Each row and element counts for some more: it takes its time."""
    size = 64 * len(rows)
    if size > SMALL_BYTES:
        return size
    for row in rows:
        if type(row) is str or type(row) is bytes:
            size += len(row)
        elif isinstance(row, np.ndarray):
            size += row.nbytes
        elif type(row) is list and row and type(row[0]) is bytes:
            size += _rows_size(row)
        else:
            return SMALL_BYTES + 1  # JSON may hold anything
    return size
