"""How does a test control time, hold a running batch and see its requests?"""

from __future__ import annotations

import threading
from typing import Unpack

from wherry.core.api import Model, ModelSettings


class ManualClock:
    """A clock that stands still until `advance`. Calling it gives the time.

        clock = ManualClock()
        clock.advance(1.5)
        clock()  # -> 1.5

    For objects that take a clock as an argument and read it, such as schedulers. A thread that
    waits with a timeout uses the machine's clock and is not affected.
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
    """An echo of text that says when a batch has started and then waits for the test.

        gated = GatedModel(max_batch_size=4)
        with wherry.Runtime(gated) as runtime, ThreadPoolExecutor() as threads:
            answer = threads.submit(runtime.infer, "gated", text="a")
            gated.wait_started()  # -> ['a']
            gated.let_finish()
            answer.result()  # -> 'a'

    The settings are fields of ModelConfig. It has one instance, a thread, so that the test and
    the model share their gates.
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
        """Wait until the next batch has started and return its rows. TimeoutError after `timeout`
        seconds."""
        if not self._started.acquire(timeout=timeout):
            raise TimeoutError(f"no batch of model {self.name!r} started within {timeout:g} s")
        self._seen += 1
        return self.batches[self._seen - 1]

    def let_finish(self, batches: int = 1) -> None:
        """Let this number of batches finish, including ones that have not started yet."""
        self._may_finish.release(batches)

    def open(self) -> None:
        """Let every batch pass from now on, including a waiting one."""
        self._open = True
        self._may_finish.release()

    def unload(self) -> None:
        self.open()
