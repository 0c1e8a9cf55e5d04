"""Where is work on a large request done, so that the event loop goes on meanwhile?

In a few threads that exist only while there is such work. The interpreter lets one thread run at a
time, so the work itself must be done in slices of at most a few milliseconds, with `give_way`
between them: one call into C holds up every thread for as long as it takes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import numpy as np

from wherry.core.api import Buffer, Column, Columns, ServerBusy, WherryError, bytes_of

#: Above this many bytes of JSON or strings, or elements, work is for another thread; below,
#: the way there and back costs more than the work holds up the loop (2 ms at worst).
LARGE_BYTES: Final = 2**16
LARGE_ELEMENTS: Final = 2**13
LARGE_ROWS: Final = 512
#: Most work between two calls of `give_way`.
SLICE_BYTES: Final = 2**17
SLICE_ELEMENTS: Final = 2**15
#: Seconds; only a real pause lets a thread that waits for the interpreter have it.
_PAUSE: Final = 50e-6

MAX_BYTES: Final = 256 * 2**20
THREADS: Final = 2
RETRY_AFTER: Final = 1.0


def held_bytes(columns: Columns) -> int:
    """`bytes_of`, in slices: looking at each of many strings takes long, too."""
    return sum(_held_bytes(column) for column in columns.values())


def _held_bytes(value: Column) -> int:
    if not isinstance(value, list):
        return value.nbytes
    if len(value) <= LARGE_ROWS and value and isinstance(value[0], list):
        return sum(map(_held_bytes, value))
    size = 0
    for start in range(0, len(value), SLICE_ELEMENTS):
        size += bytes_of({"": value[start : start + SLICE_ELEMENTS]})
        give_way()
    return size


class Port(Protocol):
    """Calls a function in the event loop, from any thread (a LoopPort)."""

    def call(self, callback: Callable[[Any], None], argument: Any) -> None: ...


class SoonPort:
    """A Port of any event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call(self, callback: Callable[[Any], None], argument: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: no callback can run
            self._loop.call_soon_threadsafe(callback, argument)


def give_way() -> None:
    """Let other threads run, the event loop's above all. Does nothing in a loop's own thread."""
    if asyncio._get_running_loop() is None:
        time.sleep(_PAUSE)


def join_in_slices(parts: Sequence[Buffer]) -> Buffer:
    """Join the parts to one buffer. A large one is a memoryview: `bytes` are joined in one call."""
    if len(parts) == 1:
        return parts[0]
    size = sum(len(part) for part in parts)
    if size <= SLICE_BYTES:
        return b"".join(parts)
    joined = np.empty(size, np.uint8)
    position = copied = 0
    for part in parts:
        # numpy lets other threads run meanwhile.
        joined[position : position + len(part)] = np.frombuffer(part, np.uint8)
        position += len(part)
        if position - copied > SLICE_BYTES:
            copied = position
            give_way()
    return joined.data


class Job:
    """Work that waits or runs. `cancel` belongs to the loop's thread, as `done` does."""

    __slots__ = ("_done", "_offload", "_port", "nbytes", "work")

    def __init__(
        self,
        offload: Offload,
        work: Callable[[], Any],
        nbytes: int,
        port: Port,
        done: Callable[[Any], None],
    ) -> None:
        self._offload = offload
        self.work: Callable[[], Any] | None = work
        self.nbytes = nbytes
        self._port = port
        self._done: Callable[[Any], None] | None = done

    def cancel(self) -> None:
        """Withdraw the work: it is not begun unless it runs already, and `done` is not called."""
        self._done = None
        self._offload.withdraw(self)

    def run(self) -> None:
        """Do the work, in a thread of the offload, and hand the outcome to the loop."""
        outcome: Any
        try:
            assert self.work is not None
            outcome = self.work()
        except WherryError as error:
            outcome = error.with_traceback(None)  # whose frames hold the body
        except Exception as error:  # noqa: BLE001 - carried over to the loop
            outcome = error
        self.work = None  # and with it the request's body
        self._port.call(self._end, outcome)
        del outcome  # no cycle for the collector: this frame is in an error's traceback

    def _end(self, outcome: Any) -> None:
        done, self._done = self._done, None
        self._offload.release(self.nbytes)
        if done is not None:
            done(outcome)


class Offload:
    """Does work in at most `threads` threads, oldest first; `max_bytes` bounds what waits and runs.

    `done(outcome)` is called in the loop behind `port`; an exception that the work raised is an
    outcome, too. Answers keep their order on a connection, since that is the transport's affair.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, threads: int = THREADS) -> None:
        self.max_bytes = max_bytes
        self._most_threads = threads
        self._lock = threading.Lock()
        self._waiting: deque[Job] = deque()
        self._threads = 0
        self._bytes = 0

    @property
    def bytes_in_work(self) -> int:
        """The bytes of work that waits, runs, or whose outcome is not yet delivered."""
        return self._bytes

    def submit(
        self,
        work: Callable[[], Any],
        nbytes: int,
        port: Port,
        done: Callable[[Any], None],
    ) -> Job:
        """Run `work()`, then call `done` with the result. ServerBusy if the system gives no
        thread, or beyond the bound; the first job is always taken, and so is one that has no bytes
        yet, as it writes an answer."""
        job = Job(self, work, nbytes, port, done)
        with self._lock:
            self._check(nbytes)
            self._bytes += nbytes
            self._waiting.append(job)
            if self._threads == self._most_threads:
                return job
            self._threads += 1
        try:
            threading.Thread(target=self._work, name="wherry-offload", daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._threads -= 1
                if self._threads:
                    return job  # another thread does it
            self.withdraw(job)
            raise ServerBusy(f"{error}; retry later", RETRY_AFTER) from None
        return job

    def take(self, nbytes: int) -> None:
        """Count more bytes of work that runs, until `release`. ServerBusy beyond the bound."""
        with self._lock:
            self._check(nbytes)
            self._bytes += nbytes

    def _check(self, nbytes: int) -> None:
        if nbytes and self._bytes and self._bytes + nbytes > self.max_bytes:
            raise ServerBusy(
                f"large bodies of {self._bytes} bytes are being read or written, and the limit"
                f" is {self.max_bytes}; retry later, or send less at a time",
                RETRY_AFTER,
            )

    def withdraw(self, job: Job) -> None:
        """Forget `job`, unless it has begun. Called by the job."""
        with self._lock:
            if job in self._waiting:
                self._waiting.remove(job)
                self._bytes -= job.nbytes
                job.work = None

    def release(self, nbytes: int) -> None:
        """Give back the bytes of a job that is over (called by the job), or those of `take`."""
        with self._lock:
            self._bytes -= nbytes

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                job = self._waiting.popleft()
            job.run()
            del job
