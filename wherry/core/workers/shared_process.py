"""How do several instances live in one worker process, and which of them has ended it?

The process is started for the first instance and ends with the last. Each has sockets and memory of
its own there, handed over by a control socket, and a socket that only ends: when the instance has
left, or the process has ended. One thread here starts the process and watches it: not the thread of
an instance, as the kernel ends a worker with the thread that has started it.

A byte of shared memory for each instance shows whether it runs its model's code. If one runs when
the process ends, that one is to blame, and no other. If several do, each may be: for a while they
run one at a time in the next process, so that its end has one cause.
"""

from __future__ import annotations

import logging
import mmap
import os
import select
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from types import ModuleType
from typing import Final

from wherry.core.workers.encoding import Garbage
from wherry.core.workers.process import (
    LAST_SECONDS,
    Bell,
    WorkerProcess,
    resident_bytes,
    socket_pairs,
    start_worker,
)
from wherry.core.workers.shared_memory import memory_file

log = logging.getLogger("wherry")

#: What is sent with an instance's descriptors: the place of its byte, and its name.
JOIN: Final = struct.Struct("<I252s")
#: Instances in one process, at most.
MOST: Final = 4096
#: Seconds for which instances run one at a time after a death that several may have caused.
TURNS: Final = 60.0
#: An instance that alone has ended it this often within this number of seconds is left out.
MOST_DEATHS: Final = 3
DEATHS_WITHIN: Final = 600.0


class SharedWorker:
    """The worker process that instances on one device share, and the next one when that has ended.
    Any thread."""

    def __init__(self, device: str) -> None:
        self._name = f"shared-{device}"
        self._lock = threading.Lock()
        self._process: SharedProcess | None = None
        self._turns_until = 0.0
        #: When instances have ended it, by their names.
        self._deaths: dict[str, deque[float]] = {}

    def start_worker(
        self,
        command: list[str],
        environment: Mapping[str, str],
        model: str,
        instance: str,
        memory: int,
        module: ModuleType | None,
    ) -> tuple[WorkerProcess | ProcessShare, socket.socket, socket.socket]:
        """Add an instance. As `process.start_worker`, which is used for an instance that has ended
        the process too often. `module`, of the model: another one of the same name, as after a
        reload, needs another process."""
        if self._is_left_out(instance):
            log.warning(
                "instance has ended the shared worker too often, and has one of its own now",
                extra={"model": model, "instance": instance},
            )
            return start_worker(command, environment, model, instance, memory)
        with self._lock:
            now = time.monotonic()
            joined = self._process and self._process.join(instance, memory, module)
            if not joined:
                turns = max(0.0, self._turns_until - now)
                self._process = SharedProcess(self._name, environment, turns, self._ended)
                joined = self._process.join(instance, memory, module)
                assert joined is not None
            return joined

    def _is_left_out(self, instance: str) -> bool:
        with self._lock:
            since = time.monotonic() - DEATHS_WITHIN
            return sum(at > since for at in self._deaths.get(instance, ())) >= MOST_DEATHS

    def _ended(self, suspects: list[str]) -> None:
        with self._lock:
            now = time.monotonic()
            if len(suspects) > 1:
                self._turns_until = now + TURNS
            elif suspects:
                self._deaths.setdefault(suspects[0], deque(maxlen=MOST_DEATHS)).append(now)


class SharedProcess:
    """One worker process for several instances. Any thread."""

    def __init__(
        self,
        name: str,
        environment: Mapping[str, str],
        turns: float,
        ended: Callable[[list[str]], None],
    ) -> None:
        """`turns`: seconds for which its instances run one at a time. `ended` is called with the
        names of those that may be to blame for its end."""
        self._ended = ended
        #: How it has ended, as a text and as one word, once it is `over`.
        self.how = ("", "")
        self.over = threading.Event()
        self._lock = threading.Lock()
        self._takes_more = True
        self._shares: dict[int, ProcessShare] = {}
        self._modules: dict[str, ModuleType] = {}
        self._killed_by: ProcessShare | None = None
        with ExitStack() as undo, ExitStack() as theirs:
            file = memory_file("wherry-running", MOST)
            theirs.callback(os.close, file)
            self._running = mmap.mmap(file, MOST)
            undo.callback(self._running.close)
            self._control, control = socket.socketpair()
            undo.callback(self._control.close)
            theirs.callback(control.close)
            command = [sys.executable, "-P", "-m", "wherry.core.instances.shared_worker"]

            def start() -> WorkerProcess:
                files = [control.fileno(), file]
                return WorkerProcess([*command, name, str(turns)], environment, "", name, files)

            started: Future[WorkerProcess] = Future()
            threading.Thread(
                target=self._watch, args=(start, started), name=f"wherry-{name}", daemon=True
            ).start()
            self._process = started.result()
            undo.pop_all()
        self.pid = self._process.pid

    def join(
        self, instance: str, memory: int, module: ModuleType | None
    ) -> tuple[ProcessShare, socket.socket, socket.socket] | None:
        """A share for an instance, and its sockets, to receive from and to send to, which do not
        block. None: it is ending, or is full, or has another module of this name."""
        with self._lock:
            name = "" if module is None else module.__name__
            place = next((n for n in range(MOST) if n not in self._shares), None)
            if not self._takes_more or place is None:
                return None
            if module is not None and self._modules.get(name, module) is not module:
                return None
            with socket_pairs(3) as ((target, source, life), files):
                share = ProcessShare(self, place, instance, life)
                self._running[place] = 0
                message = JOIN.pack(place, instance.encode()[:252])
                with suppress(ConnectionError):  # it has just ended: so do the sockets
                    socket.send_fds(self._control, [message], [*files, memory])
            self._shares[place] = share
            if module is not None:
                self._modules[name] = module
            return share, source, target

    def leave(self, share: ProcessShare) -> None:
        """An instance has left, or the process has ended. Blocks for its end after the last."""
        with self._lock:
            self._shares.pop(share.place, None)
            is_last = not self._shares
            if is_last and self._takes_more:
                self._takes_more = False
                self._control.shutdown(socket.SHUT_RDWR)
        if is_last:
            self.over.wait()

    def kill(self, share: ProcessShare) -> None:
        with self._lock:
            if self._takes_more and self._killed_by is None:
                self._killed_by = share
        self._process.kill()

    def loaded(self, share: ProcessShare, before: int) -> None:
        """An instance is loaded. It holds what the process has grown by since it had `before`
        bytes, without what the others hold that were loaded meanwhile."""
        now = resident_bytes(self.pid)
        with self._lock:
            others = sum(one.held_bytes for one in self._shares.values())
            share.held_bytes = max(0, min(now - before, now - others))

    @property
    def rss_bytes(self) -> int:
        """An equal part for each instance."""
        return resident_bytes(self.pid) // max(1, len(self._shares))

    # Its thread

    def _watch(self, start: Callable[[], WorkerProcess], started: Future[WorkerProcess]) -> None:
        try:
            process = start()
        except BaseException as error:  # noqa: BLE001 - for waiting callers
            started.set_exception(error)
            return
        started.set_result(process)
        with suppress(EOFError):
            process.wait_for(self._control.fileno(), select.POLLIN)
        how = process.end(EOFError("it has ended"))
        with self._lock:
            self._takes_more = False
            shares = list(self._shares.values())
            suspects = [one for one in shares if self._running[one.place]]
            if self._killed_by is not None:
                suspects = [self._killed_by]
            for one in shares:
                one.was_running = bool(self._running[one.place])
                one.is_innocent = bool(suspects) and one not in suspects
                one.was_alone = len(suspects) < 2
            self._running.close()
            self._control.close()
        process.close()
        if len(suspects) == 1 and how[1] == "SIGKILL" and self._killed_by is None:
            suspects = []  # a kill from outside, mostly for lack of memory, blames no instance
        self._ended([one.instance for one in suspects])
        self.how = how
        self.over.set()
        for one in shares:
            one.shut()


class ProcessShare:
    """An instance's share of a worker process, used as a `WorkerProcess`. All but `kill` and `ring`
    is for the thread that watches it."""

    #: Of its end, once `end` has returned: whether this instance ran its model's code, whether
    #: another one is to blame, and whether no further one may be.
    was_running = True
    is_innocent = False
    was_alone = True

    def __init__(
        self, process: SharedProcess, place: int, instance: str, life: socket.socket
    ) -> None:
        self.place = place
        self.instance = instance
        self._process = process
        self._life = life
        #: What the process has grown by in its load, and what it had before.
        self.held_bytes = 0
        self._before = resident_bytes(process.pid)
        self._bell = Bell()
        #: For `shut`, which another thread calls.
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(life, select.POLLIN)
        self._poll.register(self._bell, select.POLLIN)

    # Any thread

    def kill(self) -> None:
        """End the process: this instance is to blame."""
        self._process.kill(self)

    def ring(self) -> None:
        self._bell.ring()

    def wait_for(self, file: int, events: int) -> None:
        """Sleep until `file` is ready. Raises EOFError at the end."""
        poll = select.poll()
        poll.register(file, events)
        poll.register(self._life, select.POLLIN)
        if file not in [ready for ready, _ in poll.poll()]:
            raise EOFError

    wait_in_caller = wait_for

    def shut(self) -> None:
        """The process has ended, though a fork of it may hold its sockets open."""
        with self._lock, suppress(OSError):  # it may be closed
            self._life.shutdown(socket.SHUT_RDWR)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return not self._process.over.is_set()

    @property
    def rss_bytes(self) -> int:
        return self._process.rss_bytes if self.is_running else 0

    def loaded(self) -> None:
        self._process.loaded(self, self._before)

    # The thread that watches it

    def has_ended(self) -> bool:
        poll = select.poll()
        poll.register(self._life, select.POLLIN)
        return bool(poll.poll(0))

    def watch(self, seconds: float | None = None) -> bool:
        """As that of a `WorkerProcess`, whose output is logged elsewhere."""
        left = None if seconds is None else 1000 * max(0.0, seconds)
        ready = [file for file, _ in self._poll.poll(left)]
        if self._life.fileno() in ready:
            self._poll.unregister(self._life)
            return True
        if self._bell.file in ready:
            self._bell.silence()
        return False

    def end(self, error: Exception) -> tuple[str, str]:
        if isinstance(error, Garbage):
            self.kill()
        if not self._process.over.wait(LAST_SECONDS):
            self.kill()
            self._process.over.wait()
        if isinstance(error, Garbage):
            return f"wrote garbage to its connection, and was killed ({error})", "garbage"
        how, cause = self._process.how
        if self.is_innocent:
            return f"{how} while another instance in it ran", "neighbour"
        return how, cause

    def wait(self) -> None:
        """Wait until the instance has left, which is near; end the process if it does not."""
        poll = select.poll()
        poll.register(self._life, select.POLLIN)
        if not poll.poll(1000 * LAST_SECONDS):
            log.warning(
                "shared worker killed: an instance did not leave it",
                extra={"pid": self.pid, "instance": self.instance},
            )
            self.kill()
            self._process.over.wait()

    def close(self) -> None:
        self._process.leave(self)
        with self._lock:
            self._life.close()
        self._bell.close()
