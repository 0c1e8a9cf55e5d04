"""What do all instances have in common whose model lives in a worker process?"""

from __future__ import annotations

import os
import subprocess
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wherry.instances.reading import OFTEN, Reading
from wherry.instances.serving import ServedInstance
from wherry.instances.worker_process import Connects, StubProcess
from wherry.models.model import Device
from wherry.values.errors import WorkerDied
from wherry.values.request import Batch, InferRequest, Reader
from wherry.workers.process import Bell

#: Most characters and bytes of a batch that the giving thread sends, an event loop, too.
SMALL_BYTES = 16 << 10


class WorkerInstance(ServedInstance):
    """An inbox with a bell, and a process that any thread may kill.

    A small batch is sent to the worker by the very thread that gives it. The serving thread need
    not wake up for that: it sleeps on until the answer is there. If one event loop often waits for
    such answers, it reads them itself, in the place of the serving thread, which sleeps on even
    then. Whatever is not a small answer is the serving thread's.
    """

    def __init__(self, name: str, device: Device) -> None:
        super().__init__(name, device)
        self._inbox: deque[Batch | None] = deque()
        self._bell: Bell | None = Bell()
        #: For the bell and the process, which other threads use while this one closes them.
        self._lock = threading.Lock()
        #: Held by a thread that sends to the worker, and by an event loop from
        #: when it reads an answer until it has given the next batch.
        self._sending = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._aborted = ""
        self._thread = 0
        #: Which event loop should have the serving thread's place, which one has it, and how often
        #: one took its turn.
        self._reading = Reading()
        self._reader: Reader | None = None
        self._turns = 0
        #: How the worker died in such a turn.
        self._death: WorkerDied | None = None

    # Any thread

    def stop(self) -> None:
        self._inbox.append(None)
        self._hand_back()

    def give(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._give(batch)

    def _give(self, batch: Batch) -> None:
        # It must not block: not on the lock, and not on room in the socket.
        if not self._sending.acquire(blocking=False):
            self._inbox.append(batch)
            self._hand_back()
            return
        begun = False
        try:
            self._inbox.append(batch)  # first: its answer may come at once
            if self.answers is not None and is_small(batch.requests):
                self.begun_at = self.answers.now()
                self._read_by(self._reading.chosen(batch.requests, self.begun_at))
                begun = self._begin(batch.requests)
        except Exception:  # noqa: BLE001, S110 - the serving thread meets it, too, and tells
            pass
        finally:
            if not begun:
                self.begun_at = None
                self._hand_back()
            self._sending.release()

    def _read_by(self, reader: Reader | None) -> None:
        """Choose what reads the answer to the next message. None: the serving thread."""
        if reader is self._reader:
            return
        if self._reader is not None:
            self._hand_back()
        if reader is not None and reader.watch(self._connected().fileno(), self._take_turn):
            self._reader = reader

    def _take_turn(self) -> None:
        """In the event loop that reads: the worker has said something."""
        with self._sending:
            if self._reader is None:
                return
            self._turns += 1
            assert self.answers is not None
            try:
                if not self._inbox or not self._has_arrived():
                    self._reading.failed(self.answers.now())
                    self._hand_back()
                elif (batch := self._inbox.popleft()) is not None:
                    self.run(batch)
            except WorkerDied as died:
                self._death = died
                self._hand_back()

    def _has_arrived(self) -> bool:
        """Is the whole answer here, so that `execute` need not wait, nor take long?

        False: it may be anything, and the serving thread is to see to it.
        """
        return False

    @abstractmethod
    def _connected(self) -> Connects:
        """The way to the worker, which is there."""

    def _hand_back(self) -> None:
        """From now on the serving thread reads; it wakes up."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.forget(self._connected().fileno())
        if threading.get_ident() != self._thread:
            self._ring()

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

    def _is_given(self) -> bool:
        """Is something in the inbox, and for this thread to see to?"""
        if self._death is not None:
            raise self._death
        if not self._inbox:
            return False
        with self._sending:  # the giving thread may be about to send it
            return self._reader is None and bool(self._inbox)

    def _park(self, worker: StubProcess[Any]) -> bool:
        """Sleep until something happens: is it something for this thread to receive?"""
        turns, receives = self._turns, self._reader is None
        told = worker.park(None if receives else OFTEN, receives=receives)
        if receives:
            return told and self._reader is None and turns == self._turns
        if told or turns == self._turns:  # the worker is dead, or nothing was read in this time
            with self._sending:
                self._hand_back()
        return False

    def _watch(self, worker: StubProcess[Any]) -> None:
        """From now on the bell wakes the thread that waits for this worker, and `abort` kills it.
        Under the lock."""
        assert self._bell is not None
        self._thread = threading.get_ident()
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
        self, worker: StubProcess[Any], error: Exception, *, reached: bool = True
    ) -> WorkerDied:
        """See to it that the worker is gone, and say how it went."""
        how, cause = worker.end(error)
        if self._aborted:
            how, cause = f"was stopped: {self._aborted}", "hang"
        died = WorkerDied(f"worker {self.name} (pid {worker.process.pid}) {how}")
        died.reached, died.cause = reached, cause
        return died


def is_small(requests: Sequence[InferRequest]) -> bool:
    """Whether each request has a caller, and all fit into one message that costs little."""
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
        elif isinstance(row, list) and row and type(row[0]) is bytes:
            size += _rows_size(row)
        else:
            return SMALL_BYTES + 1  # JSON may hold anything
    return size
