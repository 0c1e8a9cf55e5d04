"""What do all instances have in common, whether they run batches or steps?"""

from __future__ import annotations

from abc import ABC, abstractmethod

from wherry.core.instances.linked_worker import LinkedWorker
from wherry.core.models.model import Device


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
        """Block until it is told to stop. Raises WorkerDied if its worker has ended."""

    def abort(self, reason: str) -> bool:
        """Stop what runs now; False if that is impossible (a thread)."""
        if self.worker is None:
            return False
        self.worker.abort(reason)
        return True

    @abstractmethod
    def unload(self) -> None:
        """Unload the model and give everything back."""

    def not_ready_reason(self) -> str:
        """Why the model itself says that it is not ready; "" if it does not."""
        return ""

    @property
    def pid(self) -> int | None:
        """The worker's process id while it runs."""
        return None if self.worker is None else self.worker.pid

    @property
    def rss_bytes(self) -> int | None:
        """The worker's resident memory; 0 if it does not run, or the system does not say."""
        return None if self.worker is None else self.worker.rss_bytes
