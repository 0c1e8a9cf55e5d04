"""What must an instance be able to do, wherever its model lives?"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from wherry.instances.executable import Execution, Failure, Outcome
from wherry.models.model import Device
from wherry.values.errors import WherryError
from wherry.values.request import Batch, Columns, InferRequest, InferResponse

log = logging.getLogger("wherry")

#: Called for each response of a stream: which request of the batch, and its rows. False: this
#: caller is gone, spare yourself the rest.
Respond = Callable[[int, Columns], bool]


class Answers(Protocol):
    """Whom an instance tells what comes of a request whose batch may long be over. Any thread."""

    def now(self) -> float:
        """The runtime's clock."""
        ...

    def answer(self, request: InferRequest, response: InferResponse) -> None:
        """Its only response; of a stream, its end."""
        ...

    def respond(self, request: InferRequest, response: InferResponse) -> bool:
        """One response of a stream. False: its caller is gone, spare yourself the rest."""
        ...

    def fail(self, request: InferRequest, error: WherryError) -> None: ...

    def failed(self, request: InferRequest, failure: Failure, instance: str) -> None:
        """`fail` for what the model itself has done wrong."""
        ...

    def run(self, instance: Instance, batch: Batch) -> None:
        """Run what the instance was given, and give it what is next. Raises WorkerDied.

        Only for the thread that serves it at this moment.
        """
        ...


class Instance(ABC):
    """One loaded copy of a model, served by one thread of this process.

    Everything but `give` and `abort` is called by that thread (or, for a local call that runs in
    its caller's thread, by that one, while the serving thread waits).
    """

    #: May `execute` run in another thread than the one that called `load`?
    runs_in_caller = False

    #: Does `execute` also take requests that stream, and may requests outlive their batch? The
    #: outcome of one that does is None: `answers` is told of it later.
    outlives_batch = False

    def __init__(self, name: str, device: Device) -> None:
        self.name = name
        self.device = device
        self.answers: Answers | None = None
        #: What it runs at the moment, and since when (seconds of the runtime's clock).
        self.batch: Batch | None = None
        self.busy_since: float | None = None
        self.good_batches = 0
        #: When `give` itself began the batch that `wait` returned last (seconds of the runtime's
        #: clock): then `execute` is to get all of its requests, and only its answer is awaited.
        self.begun_at: float | None = None

    @property
    def number(self) -> int:
        """Which of its model's instances it is; the one that takes its place is the same."""
        return int(self.name.rpartition("_")[2])

    @abstractmethod
    def load(self) -> None:
        """Load the model and warm it up. Raises what goes wrong."""

    @abstractmethod
    def give(self, batch: Batch | None) -> None:
        """Wake the serving thread with a batch, or with None to stop. Any thread."""

    @abstractmethod
    def wait(self) -> Batch | None:
        """Wait for `give`. Raises WorkerDied if the worker ends meanwhile."""

    @abstractmethod
    def execute(self, requests: Sequence[InferRequest]) -> Execution:
        """Run a batch. Raises WorkerDied only; what the model raises is an outcome."""

    @abstractmethod
    def stream(self, requests: Sequence[InferRequest], respond: Respond) -> list[Outcome | None]:
        """Run a generator model to its end. The outcome of each request is None or a Failure."""

    @abstractmethod
    def abort(self, reason: str) -> bool:
        """Stop what runs now, from another thread; False if that is impossible (a thread)."""

    @abstractmethod
    def unload(self) -> None:
        """Unload the model and give everything back."""

    @property
    def open_requests(self) -> Collection[InferRequest]:
        """Requests that have outlived their batch, or still may. Any thread."""
        return ()

    def cancel(self, request: InferRequest) -> None:  # noqa: B027 - most have nothing to tell
        """Nobody waits for this request any more, should it be here. Any thread."""

    def not_ready_reason(self) -> str:
        """Why the model itself says that it is not ready; "" if it does not. Any thread."""
        return ""

    def unload_quietly(self) -> None:
        """`unload` at the end of an instance's life: what it raises is logged."""
        try:
            self.unload()
        except Exception:  # the user's code: anything may come
            log.exception("unload failed", extra={"instance": self.name})

    def __repr__(self) -> str:
        state = "idle" if self.batch is None else f"running {self.batch.rows} rows"
        return f"<{type(self).__name__} {self.name} on {self.device}: {state}>"
