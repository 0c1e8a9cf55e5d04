"""How do the threads of a worker share the sending end of its connection?"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any, Callable  # noqa: UP035 - for Python 3.8

from . import pb_utils, wire
from .wire import Channel, Outgoing


class Outbox:
    """The sending end. The second element of each message reports the parts of the slab that were
    released, and the measurements made, since the previous message."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._process = os.getpid()
        self._lock = threading.Lock()
        #: From destructors, which may run during a send and must not wait for the lock.
        self._late: deque[list[Any]] = deque()
        self._slab: Any = None
        self._arena: Any = None
        #: An entry for each released part of the slab.
        self._released: deque[int] = deque()
        self._measured: list[list[Any]] = []

    def use(self, slab: Any) -> None:
        """Set the shared memory: the second half is for sending."""
        self._slab = slab
        self._arena = wire.Arena(len(slab) // 2, len(slab))

    def check_process(self) -> None:
        if os.getpid() != self._process:
            raise pb_utils.TritonModelException(
                "a process that the model has forked cannot reach the server: call other models,"
                " send responses, log and measure in the model's own process"
            )

    def send(self, message: list[Any]) -> None:
        """Send a message without tensors. Blocks while the connection is full. ValueError if it is
        too large."""
        self.send_with_tensors(lambda _: message, in_slab=False)

    def send_with_tensors(
        self, build: Callable[[Outgoing], list[Any]], *, in_slab: bool = True
    ) -> None:
        """Send the message that `build` returns, with the tensors that it adds to its argument:
        into the slab if `in_slab`."""
        self.check_process()
        with self._lock:
            tensors = Outgoing(self._slab, self._arena if in_slab else None)
            self._send(build(tensors), tensors)
        self._send_late()

    def post(self, message: list[Any]) -> None:
        """Send a message from a destructor, which may interrupt a send of this thread."""
        if os.getpid() != self._process:  # in a forked child: the object belongs to the parent
            return
        self._late.append(message)
        self._send_late()

    def measure(self, measurement: list[Any]) -> None:
        """Send a measurement now, so that a scrape during execute() includes it."""

        def build(_: Outgoing) -> list[Any]:
            self._measured.append(measurement)
            return ["measured"]

        self.send_with_tensors(build, in_slab=False)

    def release(self) -> None:
        """Note that a part of the slab is free. Called from destructors: does nothing else."""
        self._released.append(1)

    def sent_was_read(self, count: int) -> None:
        """Note that the server has read the tensors of this many messages."""
        self._arena.release(count)

    def _send_late(self) -> None:
        while self._late and self._lock.acquire(blocking=False):
            try:
                while self._late:
                    self._send(self._late.popleft(), None)
            finally:
                self._lock.release()

    def _send(self, message: list[Any], tensors: Outgoing | None) -> None:
        """Send, under the lock."""
        released = len(self._released)
        for _ in range(released):
            self._released.popleft()
        measured, self._measured = self._measured, []
        try:
            if tensors is not None and tensors.in_slab:
                self._arena.hold()
            self._channel.send([message[0], [released, measured], *message[1:]], tensors)
        except (OSError, EOFError):
            os._exit(1)  # the server has ended
        except ValueError:
            self._released.extend([1] * released)
            self._measured += measured
            if tensors is not None and tensors.in_slab:
                self._arena.release()
            raise
        finally:
            if tensors is not None:
                tensors.close()
