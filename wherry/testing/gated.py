"""How does a test control time, hold a running batch and see its requests?"""

from __future__ import annotations

import threading
from typing import Unpack

from wherry.core.api import Model, ModelSettings


class ManualClock:
    """A clock that moves only when `advance` is called. Calling it returns the time.

        clock = ManualClock()
        clock.advance(1.5)
        clock()  # -> 1.5

    For objects that take a clock as an argument. Threads that wait with a timeout use the
    machine's clock and are not affected.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self._now

    def advance(self, seconds: float) -> float:
        """Move the clock by `seconds`; return the new time."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards, not even by {-seconds} s")
        self._now += seconds
        return self._now

    def __repr__(self) -> str:
        return f"<ManualClock {self._now:g}>"


class GatedModel(Model):
    """A model that echoes text, reports when a batch starts, and then waits for the test.

        gated = GatedModel(max_batch_size=4)
        with wherry.Runtime(gated) as runtime, ThreadPoolExecutor() as threads:
            answer = threads.submit(runtime.infer, "gated", text="a")
            gated.wait_started()  # -> ['a']
            gated.let_finish()
            answer.result()  # -> 'a'

    `settings` are fields of ModelConfig. Its one instance is a thread of the test's process.
    """

    def __init__(self, name: str = "gated", /, **settings: Unpack[ModelSettings]) -> None:
        self._settings = {
            "name": name,
            "max_batch_size": 4,
            "isolation": "thread",
            "run_in_caller": False,
            **settings,
        }
        #: The rows of each batch that has started, in order.
        self.batches: list[list[str]] = []
        self._started = threading.Semaphore(0)
        self._may_finish = threading.Semaphore(0)
        self._seen = 0
        self._open = False

    def execute(self, text: list[str]) -> list[str]:
        self.batches.append(list(text))
        self._started.release()
        if not self._open:
            self._may_finish.acquire()
        return list(text)

    def wait_started(self, timeout: float = 10.0) -> list[str]:
        """Wait for the next batch to start; return its rows. TimeoutError after `timeout`
        seconds."""
        if not self._started.acquire(timeout=timeout):
            raise TimeoutError(f"no batch of model {self.name!r} started within {timeout:g} s")
        self._seen += 1
        return self.batches[self._seen - 1]

    def let_finish(self, batches: int = 1) -> None:
        """Let this many batches finish, including batches that have not started."""
        self._may_finish.release(batches)

    def open(self) -> None:
        """Let every batch finish from now on."""
        self._open = True
        self._may_finish.release()

    def unload(self) -> None:
        self.open()
