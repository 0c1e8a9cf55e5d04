"""Does one loaded version take requests, and if not, why?"""

from __future__ import annotations

import threading
from enum import Enum


class ModelState(Enum):
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class Readiness:
    """What a runner tells requests that come to it, from its load to its end. Any thread.

    Whether callers find the runner's version at all is in the runtime's Lifecycle.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.state = ModelState.LOADING
        #: Why it is not ready, for people; "" if it is.
        self.reason = "loading"
        #: May requests be queued? Also while it loads: they wait until it is ready.
        self.takes_requests = True
        self._closing = False

    def loaded(self) -> None:
        """Its first load has succeeded."""
        self._go(ModelState.READY, "", {ModelState.LOADING})

    def failed(self, reason: str) -> None:
        """It cannot be loaded, or none of its instances can be started again."""
        self._go(ModelState.UNAVAILABLE, reason, set(ModelState) - {ModelState.UNLOADING})

    def is_back(self) -> None:
        """An instance was started again."""
        if not self._closing:
            self._go(ModelState.READY, "", {ModelState.UNAVAILABLE})

    def unloading(self) -> None:
        """It takes no more requests."""
        self._go(ModelState.UNLOADING, "unloading", set(ModelState))

    def closing(self) -> None:
        """It is being closed: it will not be ready again."""
        self._closing = True
        self._go(ModelState.UNLOADING, "unloading", set(ModelState) - {ModelState.UNAVAILABLE})

    def unloaded(self) -> None:
        self._go(ModelState.UNAVAILABLE, "unloaded", set(ModelState))

    def _go(self, state: ModelState, reason: str, of: set[ModelState]) -> None:
        with self._lock:
            if self.state in of:
                self.state, self.reason = state, reason
                self.takes_requests = state in (ModelState.LOADING, ModelState.READY)
