"""How do the threads of a worker share the reading end of its connection?

A thread that waits for a message reads on behalf of all others. There is no reader thread, so a
model without threads needs none. A running event loop also reads when the connection is readable.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Callable  # noqa: UP035 - for Python 3.8

from .wire import Channel, Incoming


class Inbox:
    """The reading end. `take` is called with each message, under this object's lock."""

    def __init__(self, channel: Channel, take: Callable[[list[Any], Incoming], None]) -> None:
        self._channel = channel
        self._take = take
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._reading = False
        #: Number of threads waiting for another thread's reading.
        self._waiting = 0
        #: Event loops that read, with their number of `watch` calls.
        self._watchers: dict[int, int] = {}

    def wait_for(self, done: Callable[[], object]) -> None:
        """Block until `done()`; read if no other thread does."""
        lock = self._lock
        with lock:
            while not done():
                if self._reading:
                    self._waiting += 1
                    self._changed.wait()
                    self._waiting -= 1
                    continue
                self._reading = True
                lock.release()
                try:
                    messages = self._receive()
                finally:
                    lock.acquire()
                    self._reading = False
                    if self._waiting:
                        self._changed.notify_all()
                for message, incoming in messages:
                    self._take(message, incoming)

    def pump(self) -> None:
        """Process the messages that have arrived. Does not block."""
        with self._lock:
            if self._reading:
                return  # another thread reads
            while self._channel.readable():
                for message, incoming in self._receive():
                    self._take(message, incoming)
            self._changed.notify_all()

    def watch(self, loop: Any) -> None:
        """Have an event loop read, until `unwatch` is called as often."""
        count = self._watchers.get(id(loop), 0)
        self._watchers[id(loop)] = count + 1
        if not count:
            loop.add_reader(self._channel.fileno(), self.pump)
        self.pump()

    def unwatch(self, loop: Any) -> None:
        self._watchers[id(loop)] -= 1
        if not self._watchers[id(loop)]:
            del self._watchers[id(loop)]
            loop.remove_reader(self._channel.fileno())

    def _receive(self) -> list[tuple[list[Any], Incoming]]:
        try:
            return self._channel.receive()
        except (OSError, EOFError):
            os._exit(1)  # the server has ended
