"""How is a worker process started and watched, and how is its end noticed?

A worker is spawned (never forked) and connected by a unix socketpair and a pipe for what it
prints. One poll watches all of it together with a bell, so that a message, a line of the log, a
new batch and a death are each seen at once, and an idle worker costs nothing.

The socket's end is the sign of a death; the worker's pidfd is another, since a process that the
model has forked may hold the socket open.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from wherry.workers.log import LogPump
from wherry.workers.process import Bell, await_end, end_of, pidfd_of

log = logging.getLogger("wherry")


class Connects(Protocol):
    """Our end of the socketpair, whatever the messages on it look like."""

    def fileno(self) -> int: ...
    def receive(self) -> Any: ...
    def close(self) -> None: ...


C = TypeVar("C", bound=Connects)

#: Makes a connection of our end of the socketpair. It calls `wait(events)` where it would block.
Connect = Callable[[socket.socket, Callable[[int], None]], C]


class StubProcess(Generic[C]):
    """A worker process and everything that connects it with this one.

    `command` is started with the descriptor of its end of the socketpair and our process id as
    its last two arguments.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        model: str,
        instance: str,
        connect: Connect[C],
    ) -> None:
        ours, theirs = socket.socketpair()
        try:
            log_file, their_log = os.pipe()
        except OSError:
            ours.close()
            theirs.close()
            raise
        with theirs:
            try:
                self.process = _spawn(command, environment, theirs, their_log)
            except BaseException:
                ours.close()
                os.close(log_file)
                raise
            finally:
                os.close(their_log)
        ours.setblocking(False)
        self.connection = connect(ours, self._wait)
        self._log = LogPump(log_file, model, instance)
        self._bell: Bell | None = None
        self._exit = pidfd_of(self.process.pid)
        #: What to watch while it works, while it does not, and before it gets work.
        self._busy, self._idle, self._end = select.poll(), select.poll(), select.poll()
        #: The same as while it does not work, where an event loop receives.
        self._apart = select.poll()
        for poll in (self._busy, self._idle):
            poll.register(ours, select.POLLIN)
        for poll in (self._busy, self._idle, self._apart):
            poll.register(log_file, select.POLLIN)
        if self._exit is not None:
            for poll in (self._busy, self._idle, self._apart, self._end):
                poll.register(self._exit, select.POLLIN)

    def answer_to(self, bell: Bell) -> None:
        """From now on `park` ends when this bell rings."""
        self._bell = bell
        for poll in (self._idle, self._apart):
            poll.register(bell, select.POLLIN)

    def park(self, seconds: float | None = None, *, receives: bool = True) -> bool:
        """Sleep until something happens: is it something to receive, or the worker's end? If
        not, the bell has rung, or it has printed, or the time is over. Without `receives` what
        there is to receive wakes the event loop."""
        told = False
        poll = self._idle if receives else self._apart
        for file, _ in poll.poll(None if seconds is None else seconds * 1000):
            if file == self._log.file:
                self._pump()
            elif self._bell is not None and file == self._bell.fileno():
                self._bell.silence()
            else:
                told = True
        return told

    def exited(self) -> bool:
        """Has the process ended? A glance at its pidfd; without one the socket will tell."""
        return bool(self._end.poll(0))

    def end(self, error: Exception) -> tuple[str, str]:
        """How it ended, as a text and as one word. Kills it if it did not end."""
        return end_of(self.process, error)

    def close(self) -> None:
        await_end(self.process)
        self.connection.close()
        self._log.close()
        if self._exit is not None:
            os.close(self._exit)

    def _wait(self, events: int) -> None:
        """Sleep until the socket is ready. What it prints meanwhile is logged, so that neither
        waits for the other for ever."""
        connection = self.connection.fileno()
        if events != select.POLLIN:
            self._busy.modify(connection, events)
        try:
            while True:
                ready = dict(self._busy.poll())
                if self._log.file in ready:
                    self._pump()
                if connection in ready:
                    return
                if self._exit in ready:
                    raise EOFError
        finally:
            if events != select.POLLIN:
                self._busy.modify(connection, select.POLLIN)

    def _pump(self) -> None:
        if not self._log.pump():  # it closed its output, and goes on
            for poll in (self._busy, self._idle, self._apart):
                poll.unregister(self._log.file)


def seconds_until(moment: float | None) -> float | None:
    """What is left of the time until then; None: as long as it takes."""
    return None if moment is None else moment - time.monotonic()


def _spawn(
    command: Sequence[str], environment: Mapping[str, str], end: socket.socket, log_file: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*command, str(end.fileno()), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=log_file,
        stderr=log_file,
        pass_fds=[end.fileno()],
        env=dict(environment),
    )
