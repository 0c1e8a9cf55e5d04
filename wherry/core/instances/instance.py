"""What must an instance be able to do, wherever its model lives?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from wherry.core.instances.linked_worker import LinkedWorker
from wherry.core.instances.stream_run import StreamRun
from wherry.core.models.model import Device
from wherry.core.scheduler.instance_table import BatchRun, BatchSlot
from wherry.core.values.errors import WherryError
from wherry.core.values.execution import Failure, Outcome
from wherry.core.values.request import Batch, Columns, InferRequest, InferResponse


class Loadable(ABC):
    """One loaded copy of a model, in this process or in a worker of its own.

    One thread calls `load`, serves it and calls `unload`, one after the other; all else is for any
    thread.
    """

    #: The process that the model is in; None: it is in this one.
    worker: LinkedWorker | None = None

    def __init__(self, name: str, device: Device) -> None:
        self.name = name
        #: Which of its model's instances it is; the one that takes its place is the same.
        self.number = int(name.rpartition("_")[2])
        self.device = device
        #: Whether what it has loaded uses its device, as far as that is known.
        self.uses_device = True
        #: Since when it works without a break (seconds of the runtime's clock).
        self.busy_since: float | None = None
        #: Batches that it has run to their end.
        self.good_batches = 0

    @abstractmethod
    def load(self) -> None:
        """Load the model and warm it up. Raises what goes wrong."""

    @abstractmethod
    def serve(self) -> None:
        """Block until `stop`. Raises WorkerDied if its worker has ended."""

    @abstractmethod
    def stop(self) -> None:
        """Have `serve` return, once no batch is left. Never blocks."""

    def abort(self, reason: str) -> bool:
        """Stop what runs now; False if that is impossible (a thread)."""
        if self.worker is None:
            return False
        self.worker.abort(reason)
        return True

    @abstractmethod
    def unload(self) -> None:
        """Unload the model and release everything."""

    def to_host(self) -> bool:
        """Free the device but keep the weights, while nothing runs. Blocks; any thread. False if
        that is impossible: it must be unloaded. Raises what goes wrong."""
        return False

    def to_device(self) -> None:
        """Undo `to_host`. Raises what goes wrong."""
        raise NotImplementedError

    def not_ready_reason(self) -> str:
        """Why the model itself reports that it is not ready; "" if it does not."""
        return ""

    @property
    def pid(self) -> int | None:
        """The worker's process id while it runs."""
        return None if self.worker is None else self.worker.pid

    @property
    def rss_bytes(self) -> int | None:
        """The worker's resident memory; 0 if it does not run, or the system does not report it."""
        return None if self.worker is None else self.worker.rss_bytes


class Answers(Protocol):
    """What an instance reports to its dispatcher. Any thread; nothing here waits for a model or a
    lock that is held while a model runs.

    A batch goes this way: the dispatcher calls `give(batches)`; just before a batch runs or is
    sent, the instance calls `prepared(batch)`; in the end it calls exactly one of `finished`,
    `streamed` and `crashed` for it, each of which gives it the next batch if one waits. Batches end
    in the order in which they came. Only if its worker has died does the instance call none of
    them: `serve` raises.
    """

    def now(self) -> float: ...

    def prepared(self, batch: Batch) -> Sequence[InferRequest]:
        """The requests of a batch that must run, with all their inputs: those settled meanwhile
        are left out, unless they are steps of sequences. If none is left, `finished` follows."""
        ...

    def finished(self, instance: Instance, runs: Sequence[BatchRun]) -> None:
        """Batches that do not stream have run: all whose end the instance has noticed at once, the
        oldest first."""
        ...

    def stream_run(self, instance: Instance, run: BatchRun) -> StreamRun:
        """Begin to run requests that stream. `streamed` ends it."""
        ...

    def streamed(self, run: StreamRun, outcomes: Sequence[Outcome | None]) -> None:
        """All responses of `run` were handed on. The outcome of each request is None or a
        Failure."""
        ...

    def crashed(self, instance: Instance, batch: Batch) -> None:
        """The server's own code raised while it ran `batch`: its requests fail. Call this in the
        `except` clause: the error is logged."""
        ...

    # Requests that have outlived their batch

    def answer(self, request: InferRequest, response: InferResponse) -> None:
        """Give a request its only response; a stream its end."""
        ...

    def respond(self, request: InferRequest, response: InferResponse) -> bool:
        """Hand on one response of a stream. False: its caller is gone, send no more."""
        ...

    def fail(self, request: InferRequest, error: WherryError) -> None: ...

    def failed(self, request: InferRequest, failure: Failure, instance: str) -> None:
        """`fail` for what the model itself has done wrong."""
        ...


class Instance(Loadable, BatchSlot):
    """An instance that runs batches. It reports their outcomes to `answers`."""

    #: Set before the first `give`.
    answers: Answers

    def __init__(self, name: str, device: Device) -> None:
        Loadable.__init__(self, name, device)
        BatchSlot.__init__(self)

    @abstractmethod
    def give(self, batches: Sequence[Batch]) -> None:
        """Run these batches, in this order, after earlier ones: in the thread of `serve`, or
        wherever the instance runs its batches. Any thread; never blocks."""

    def run_in_caller(self, columns: Columns) -> Columns | Failure | None:
        """Run one row in this thread, while the instance is idle and gets no batch. None: not
        possible now."""
        raise NotImplementedError

    def cancel(self, request: InferRequest) -> bool:
        """Notify the model that the caller of this request has left; False if it does not run it,
        or takes no such notice. Any thread."""
        return False

    def __repr__(self) -> str:
        state = f"running {self.batches[0].rows} rows" if self.batches else "idle"
        return f"<{type(self).__name__} {self.name} on {self.device}: {state}>"
