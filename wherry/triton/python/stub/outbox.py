"""How do the threads of a worker share the sending end of its connection?"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any, Callable  # noqa: UP035 - for Python 3.8

from . import pb_utils, wire
from .forks import Forks
from .wire import Channel, Outgoing, SlabViews


class Outbox:
    """The sending end. The second element of each message reports the parts of the slab that were
    released, and the measurements made, since the previous message."""

    def __init__(self, channel: Channel, memory: Any, views: SlabViews, forks: Forks) -> None:
        self._channel = channel
        #: The shared memory, of which the second half is for sending; the arrays over what was
        #: received in it.
        self._memory = memory
        self._arena = wire.Arena(len(memory) // 2, len(memory))
        self._views = views
        self._forks = forks
        self._lock = threading.Lock()
        #: From destructors, which may run during a send and must not wait for the lock.
        self._late: deque[list[Any]] = deque()
        self._measured: list[list[Any]] = []

    def send(self, message: list[Any]) -> None:
        """Send a message without tensors. Blocks while the connection is full. ValueError if it is
        too large."""
        self.send_with_tensors(lambda _: message, in_slab=False)

    def send_with_tensors(
        self, build: Callable[[Outgoing], list[Any]], *, in_slab: bool = True
    ) -> None:
        """Send the message that `build` returns, with the tensors that it adds to its argument:
        into the slab if `in_slab`."""
        if self._forks.forked:
            raise pb_utils.TritonModelException(
                "a process that the model has forked cannot send responses: do it in the model's"
                " own process"
            )
        with self._lock:
            tensors = Outgoing(self._memory, self._arena if in_slab else None)
            try:
                message = build(tensors)
            except BaseException:
                tensors.give_up()
                raise
            self._send(message, tensors)
        if self._late:
            self._send_late()

    def post(self, message: list[Any]) -> None:
        """Send a message from a destructor, which may interrupt a send of this thread."""
        if self._forks.forked:  # the object belongs to the parent
            return
        self._late.append(message)
        self._send_late()

    def measure(self, measurement: list[Any]) -> None:
        """Send a measurement now, so that a scrape during execute() includes it."""
        if self._forks.forked:
            self._forks.ask("measure", measurement)
            return

        def build(_: Outgoing) -> list[Any]:
            self._measured.append(measurement)
            return ["measured"]

        self.send_with_tensors(build, in_slab=False)

    def was_released(self, offsets: list[int]) -> None:
        """Note that the server has no use any more for the tensors at these offsets of the slab."""
        for offset in offsets:
            self._arena.release(offset)

    def _send_late(self) -> None:
        while self._late and self._lock.acquire(blocking=False):
            try:
                while self._late:
                    self._send(self._late.popleft(), Outgoing())
            finally:
                self._lock.release()

    def _send(self, message: list[Any], tensors: Outgoing) -> None:
        """Send, under the lock."""
        released = self._views.take_released()
        measured, self._measured = self._measured, []
        message.insert(1, [released, measured])
        try:
            self._channel.send(message, tensors)
        except (OSError, EOFError):
            os._exit(1)  # the server has ended
        except (ValueError, TypeError):
            self._views.put_back(released)
            self._measured += measured
            tensors.give_up()
            raise
        finally:
            if tensors.file is not None:
                tensors.close()
