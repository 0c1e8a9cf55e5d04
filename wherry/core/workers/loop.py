"""Which event loop owns the sockets of worker processes, and how do other threads reach it?"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from wherry.core.values.errors import ConfigError

#: Calls in one turn: threads that answer each with the next one would keep the loop from all else,
#: such as noticing that a client has left.
MOST_CALLS: Final = 256


class LoopCalls:
    """Hands calls to one event loop from any thread, with one wake-up for all that come in a turn.

    What a reader of a file hands in is called at the end of that reader's turn, without a wake-up.
    Construct it in the loop's own thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        #: The loop's thread.
        self.thread = threading.get_ident()
        #: Called after the calls of a turn. For the loop's thread.
        self.after: list[Callable[[], None]] = []
        self._calls: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._awake = False

    @property
    def is_closed(self) -> bool:
        return self.loop.is_closed()

    def call(self, callback: Callable[[Any], None], argument: Any) -> None:
        """Have `callback(argument)` called in the loop, after what was handed in before. Any
        thread. Without effect once the loop is closed."""
        self._calls.append((callback, argument))
        if not self._awake:
            self._awake = True
            try:
                self.loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # it is closed
                self._calls.clear()
                self._awake = False

    def add_reader(self, file: int, read: Callable[[], object]) -> None:
        """Call `read` whenever `file` can be read. In the loop's thread, as `remove_reader`."""
        self.loop.add_reader(file, self._turn, read)

    def remove_reader(self, file: int) -> None:
        self.loop.remove_reader(file)

    def add_writer(self, file: int, write: Callable[[], None]) -> None:
        """Call `write` whenever `file` can be written to. In the loop's thread."""
        self.loop.add_writer(file, write)

    def remove_writer(self, file: int) -> None:
        self.loop.remove_writer(file)

    def _turn(self, read: Callable[[], object]) -> None:
        self._awake = True  # what is handed in meanwhile needs no wake-up
        try:
            read()
        finally:
            self._awake = (
                False  # before the look, so that what is handed in after it wakes the loop
            )
            if self._calls:
                self._drain()

    def _drain(self) -> None:
        # First, so that what is handed in after the last popleft() wakes the loop again.
        self._awake = False
        calls = self._calls
        try:
            for _ in range(MOST_CALLS):
                if not calls:
                    break
                callback, argument = calls.popleft()
                callback(argument)
        finally:
            if calls and not self._awake:  # too many, or one raised: the others are called, too
                self.loop.call_soon(self._drain)
        for call in self.after:
            call()


class WorkerLoop:
    """The event loop that owns the sockets of a runtime's worker processes: that of `use`, or that
    of a thread of its own, which starts on the first `calls`. Any thread."""

    def __init__(self, thread_name: str = "wherry-workers") -> None:
        self._thread_name = thread_name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._calls: LoopCalls | None = None

    def use(self, calls: LoopCalls) -> None:
        """Take this loop for workers that are started from now on. It must not block, and must not
        end before they have."""
        with self._lock:
            if self._calls is None:
                self._calls = calls

    def calls(self) -> LoopCalls:
        with self._lock:
            if self._calls is None:
                started: Future[LoopCalls] = Future()
                here = threading.get_native_id()
                self._thread = threading.Thread(
                    target=self._run, args=(started, here), name=self._thread_name, daemon=True
                )
                self._thread.start()
                self._calls = started.result()
            return self._calls

    def close(self) -> None:
        """End the thread. The workers have ended."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None and self._calls is not None:
                self._calls.loop.call_soon_threadsafe(self._calls.loop.stop)
                thread.join()

    def _run(self, started: Future[LoopCalls], starter: int) -> None:
        if threading.get_native_id() == starter:  # this is a greenlet, and would stop all others
            started.set_exception(
                ConfigError(
                    "worker processes need a thread of the system, and this program's are green"
                    " (monkey patching by gevent or eventlet): use isolation='thread', or have"
                    " `wherry serve` run the models and call that"
                )
            )
            return
        loop = new_event_loop()
        try:
            started.set_result(LoopCalls(loop))
            loop.run_forever()
        finally:
            loop.close()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
