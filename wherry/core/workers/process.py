"""How is a worker process started and watched, and how is its end noticed?

A worker is spawned (never forked) with a pipe for what it prints and the descriptors that it is to
have. One thread of this process watches it: it logs what the worker prints and sees it end, by the
worker's pidfd, since a process that the model has forked may hold every other descriptor open.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from glob import iglob
from pathlib import Path

from wherry.core.workers.encoding import Garbage
from wherry.core.workers.log import LogPump

#: Seconds between SIGTERM and SIGKILL.
_TERM_SECONDS = 0.5
_LOOK = 0.005


log = logging.getLogger("wherry")
#: Seconds between a worker's closing its sockets and its end, after which it is killed.
LAST_SECONDS = 5.0
#: The exit status of a worker whose device cannot be used any more in its process.
DEVICE_LOST = 86


class ProcessGroup:
    """The group that a worker leads. It is ended by `close`, and killed when this process ends,
    however.

    Of two sockets that are connected, the kernel has each signal the group when the other closes:
    nothing needs to run here for that, and a reused process id is not hit. What a process of the
    group has put into a session of its own lives on.
    """

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._ends = socket.socketpair() if sys.platform == "linux" else ()
        for end in self._ends:
            with contextlib.suppress(OSError):  # a sandbox without: they end by `close` alone
                fcntl.fcntl(end, fcntl.F_SETOWN, -leader)
                fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
                fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)

    def close(self) -> None:
        """End what is left of it. Its leader has ended, and been waited for."""
        # Not all at once: multiprocessing's tracker, which ignores SIGTERM, takes shared memory
        # away and ends once no process uses that.
        ends_at = time.monotonic() + _TERM_SECONDS
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._leader, signal.SIGTERM)
            while time.monotonic() < ends_at:
                os.killpg(self._leader, 0)
                time.sleep(_LOOK)
        if not self._ends:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._leader, signal.SIGKILL)
        for end in self._ends:
            end.shutdown(socket.SHUT_RDWR)  # a fork of this process may hold it open
            end.close()


class WorkerProcess:
    """A worker process. All but `kill` and `ring` is for the thread that watches it.

    `command` is started with the descriptors `files` and our process id as its last arguments.
    """

    # What differs where several instances share it (`ProcessShare`).
    was_running = True
    is_innocent = False
    was_alone = True

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        model: str,
        instance: str,
        files: Sequence[int],
    ) -> None:
        self._bell = Bell()
        with contextlib.ExitStack() as undo:
            undo.callback(self._bell.close)
            log_file, their_log = os.pipe()
            undo.callback(os.close, log_file)
            try:
                self._process = subprocess.Popen(
                    [*command, *map(str, files), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=their_log,
                    stderr=their_log,
                    pass_fds=files,
                    env=dict(environment),
                    start_new_session=True,
                )
            finally:
                os.close(their_log)
            undo.pop_all()
        self.pid = self._process.pid
        self._group = ProcessGroup(self.pid)
        self._log = LogPump(log_file, model, instance)
        self._pidfd = pidfd_of(self.pid)
        self._poll = select.poll()
        for file in (log_file, self._bell.file, self._pidfd):
            if file is not None:
                self._poll.register(file, select.POLLIN)

    # Any thread

    def kill(self) -> None:
        self._process.kill()

    def ring(self) -> None:
        """Have `watch` return."""
        self._bell.ring()

    def wait_in_caller(self, file: int, events: int) -> None:
        """Sleep until `file` is ready, while another thread watches the process. Raises EOFError
        at its end."""
        poll = select.poll()
        poll.register(file, events)
        if self._pidfd is not None:
            poll.register(self._pidfd, select.POLLIN)
        if file not in [ready for ready, _ in poll.poll()]:
            raise EOFError

    def loaded(self) -> None:
        """Its instance is loaded."""

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    @property
    def rss_bytes(self) -> int:
        return resident_bytes(self.pid)

    held_bytes = rss_bytes

    # The thread that watches it

    def has_ended(self) -> bool:
        """Can it be waited for without blocking?"""
        return self._process.poll() is not None

    def watch(self, seconds: float | None = None) -> bool:
        """Log what it prints until `ring`, its end, or `seconds` have passed. Is this its end,
        which was not reported before?"""
        ends_at = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if ends_at is None else max(0.0, 1000 * (ends_at - time.monotonic()))
            ready = [file for file, _ in self._poll.poll(left)]
            if self._log.file in ready:
                self._pump()
            if self._pidfd in ready:
                self._poll.unregister(self._pidfd)
                return True
            if self._bell.file in ready:
                self._bell.silence()
                return False
            if ends_at is not None and time.monotonic() >= ends_at:
                return False

    def wait_for(self, file: int, events: int) -> None:
        """Sleep until `file` is ready, and log what it prints meanwhile, so that neither waits for
        the other for ever. Raises EOFError at its end."""
        self._poll.register(file, events)
        try:
            while True:
                ready = [one for one, _ in self._poll.poll()]
                if self._log.file in ready:
                    self._pump()
                if file in ready:
                    return
                if self._pidfd in ready:
                    raise EOFError
        finally:
            self._poll.unregister(file)

    def end(self, error: Exception) -> tuple[str, str]:
        """How it ended, as a text and as one word. Kills it if it did not end. `error` is what
        showed its end."""
        process = self._process
        if isinstance(error, Garbage):
            process.kill()
            process.wait()
            return f"wrote garbage to its connection, and was killed ({error})", "garbage"
        try:
            return _how(process.wait(LAST_SECONDS))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"closed its connection, and was killed ({type(error).__name__})", "exit"

    def wait(self) -> None:
        """Wait for its end, which is near; kill it if that does not come."""
        await_end(self._process)

    def close(self) -> None:
        """Release everything, and kill what it has started. It has ended."""
        self._group.close()
        self._log.close()
        self._bell.close()
        if self._pidfd is not None:
            os.close(self._pidfd)

    def _pump(self) -> None:
        if not self._log.pump():  # it closed its output, and goes on
            self._poll.unregister(self._log.file)


def start_worker(
    command: Sequence[str], environment: Mapping[str, str], model: str, instance: str, memory: int
) -> tuple[WorkerProcess, socket.socket, socket.socket]:
    """Start a worker, connected with this process by a socket for each direction: those to receive
    from and to send to, which do not block. Its arguments after `command` are the descriptors of
    its ends, in the same order, that of the memory that it shares, and our process id."""
    with socket_pairs(2) as ((target, source), ends):
        process = WorkerProcess(command, environment, model, instance, [*ends, memory])
    return process, source, target


@contextlib.contextmanager
def socket_pairs(count: int) -> Iterator[tuple[list[socket.socket], list[int]]]:
    """Our ends, which do not block, and the descriptors of theirs, which are closed afterwards. An
    error closes ours, too."""
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
        ours, ends = [], []
        for _ in range(count):
            our_end, their_end = socket.socketpair()
            undo.callback(our_end.close)
            theirs.callback(their_end.close)
            our_end.setblocking(False)
            ours.append(our_end)
            ends.append(their_end.fileno())
        yield ours, ends
        undo.pop_all()


class Bell:
    """Wakes a thread that sleeps in poll(): an eventfd, or a pipe if the system has none."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.file = self._out = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        else:
            self.file, self._out = os.pipe()
            os.set_blocking(self.file, False)
            os.set_blocking(self._out, False)
        #: Other threads ring while one closes it.
        self._lock = threading.Lock()
        self._closed = False

    def fileno(self) -> int:
        return self.file

    def ring(self) -> None:
        with self._lock:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):  # it rings already
                    os.write(self._out, b"\1\0\0\0\0\0\0\0")

    def silence(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.file, 4096)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for file in {self.file, self._out}:
                os.close(file)


def pidfd_of(pid: int) -> int | None:
    """A descriptor that is readable once the process has ended; None if the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or an old or a sandboxed one
        return None


def resident_bytes(pid: int) -> int:
    """A process's resident memory; 0 if it has ended, or the system does not report it."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def await_end(process: subprocess.Popen[bytes]) -> None:
    try:
        # The pidfd may signal the end a moment before the process can be waited for.
        process.wait(LAST_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        if process.wait() == -signal.SIGKILL:  # else it has ended just now
            log.warning("worker killed: it did not end", extra={"pid": process.pid})


def _how(status: int) -> tuple[str, str]:
    if status == DEVICE_LOST:
        return "ended as its device could not be used any more", "device"
    if status >= 0:
        return f"ended with exit status {status}", "exit"
    name = f"signal {-status}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-status).name
    return f"was killed by {name}", name


def end_descendants() -> None:
    """End all descendants of this process, by SIGTERM and then SIGKILL. Those in a session of their
    own stay, and all of them where the system is not Linux."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        ends_at = time.monotonic() + _TERM_SECONDS
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
