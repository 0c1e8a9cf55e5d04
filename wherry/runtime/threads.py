"""How is a blocking call run beside the calling thread, and waited for at the end?

All threads are daemons: a model that never finishes loading must not keep a program alive that was
told to stop.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


class ThreadGroup:
    """Threads that end by themselves, each with one call. Any thread may start and join them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, call: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=call, name=name, daemon=True)
        with self._lock:
            self._threads = [*(t for t in self._threads if t.is_alive()), thread]
            thread.start()  # under the lock: join() joins what is listed

    def join(self, left: Callable[[], float]) -> None:
        """Wait for those that were started; `left()` says for how many seconds more."""
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
        with self._lock:
            self._waiting.append(call)
            if self._running == self._most:
                return
            self._running += 1
        self._threads.start(self._work, self._name)

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
