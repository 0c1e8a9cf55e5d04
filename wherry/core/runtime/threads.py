"""How is a blocking call run beside the calling thread or event loop, and waited for?

All threads are daemons: a model that never finishes loading must not keep a stopped program alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

T = TypeVar("T")

THREAD_INTERVAL: Final = 0.05
"""Seconds after which a thread that could not be started is tried again."""


class ThreadGroup:
    """Threads that end by themselves, each with one call. Any thread may start and join them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, call: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=call, name=name, daemon=True)
        with self._lock:  # join() joins what is listed, and nothing that has not begun
            thread.start()
            self._threads = [*(t for t in self._threads if t.is_alive()), thread]

    def join(self, left: Callable[[], float]) -> None:
        """Wait for those that were started, for as many more seconds as `left()` returns."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(left())


class ThreadPool:
    """Runs calls in the order of their coming, at most `most` at a time. Without calls there are no
    threads. Safe from any thread."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = 0
        self._threads = ThreadGroup()

    def run(self, call: Callable[[], None]) -> None:
        """Have `call` run. RuntimeError if the system gives no thread, and none runs here."""
        with self._lock:
            self._waiting.append(call)
            if self._running == self._most:
                return
            self._running += 1
        try:
            self._threads.start(self._work, self._name)
        except RuntimeError:
            with self._lock:
                self._running -= 1
                if self._running:
                    return  # another thread runs it
                self._waiting.remove(call)
            raise

    def join(self, left: Callable[[], float]) -> None:
        """As ThreadGroup.join."""
        self._threads.join(left)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                call = self._waiting.popleft()
            call()


def side_by_side(call: Callable[[T], None], things: Iterable[T], most: int, name: str) -> None:
    """`call` each of the things, at most `most` at a time. Blocks until all are done; then the
    first error is raised. An interrupt ends it at once."""
    waiting = deque(things)
    errors: list[BaseException] = []

    def work() -> None:
        while True:
            try:
                thing = waiting.popleft()
            except IndexError:
                return
            try:
                call(thing)
            except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
                errors.append(error)
                if not isinstance(error, Exception):
                    waiting.clear()

    if len(waiting) == 1:
        call(waiting.popleft())
        return
    threads = [
        threading.Thread(target=work, name=f"{name}-{number}", daemon=True)
        for number in range(min(most, len(waiting)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def in_thread(call: Callable[[], T], name: str, *, start_timeout: float = 0.0) -> asyncio.Future[T]:
    """Run a blocking call in a thread of its own; the running event loop can await its result.
    If the future is cancelled the thread goes on. RuntimeError if no thread can be started; with
    `start_timeout` (seconds) it is retried, as others end; then the future has the error.
    """
    loop = asyncio.get_running_loop()
    gives_up_at = loop.time() + start_timeout
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = call()
        except BaseException as raised:  # noqa: BLE001 - carried over to the loop
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing awaits it
            loop.call_soon_threadsafe(settle, result, error)

    def begin() -> None:
        threading.Thread(target=run, name=name, daemon=True).start()

    def begin_with_retries() -> None:
        try:
            begin()
        except RuntimeError as refused:
            if loop.time() < gives_up_at:
                loop.call_later(THREAD_INTERVAL, begin_with_retries)
            else:
                settle(None, refused)

    if start_timeout:
        begin_with_retries()
    else:
        begin()
    return future
