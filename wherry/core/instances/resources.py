"""How do the dispatchers of several models agree on what they share?

The shell around `core/scheduler/device_share.py`. A dispatcher asks under its own lock; it is told
of what was granted to it while no lock is held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from wherry.core.models.config import ModelConfig
from wherry.core.scheduler.device_share import Claim, DeviceShare
from wherry.core.scheduler.policy import Scheduler
from wherry.core.values.errors import ConfigError

#: Called without a lock when what a model has claimed is its own: it uses that, or releases it.
Granted = Callable[[], None]


class Resources:
    """What the models of one runtime share. Safe from any thread."""

    def __init__(self, limits: Mapping[str, int] | None, clock: Callable[[], float]) -> None:
        for name, count in (limits or {}).items():
            if type(count) is not int or count < 1:
                raise ConfigError(f"resources: {name!r} must be a whole number from 1 up")
        self._share: DeviceShare[Granted] = DeviceShare(limits)
        self._clock = clock
        self._lock = threading.Lock()

    def admit(self, model: str, needs: Mapping[str, int]) -> None:
        """A model is loaded that needs these for each batch."""
        with self._lock:
            lacking = self._share.admit(needs)
            if lacking:
                raise ConfigError(
                    f"model {model!r}: resources: a batch needs {needs[lacking]} of {lacking!r},"
                    f" and there are {self._share.limits[lacking]}; raise the limit or need less"
                )

    def acquire(self, granted: Granted, claim: Claim) -> bool:
        """Take what a batch needs. False if it is not free, or others are more urgent: `granted`
        is called as soon as it is its turn, in a thread that calls `pass_on`."""
        with self._lock:
            self._share.claim(granted, claim)
            # Another one that is granted here would have to be told, which its lock forbids now.
            return self._share.grant(self._clock(), granted) is not None

    def withdraw(self, granted: Granted) -> None:
        with self._lock:
            self._share.withdraw(granted)

    def release(self, needs: Mapping[str, int]) -> None:
        """A batch is over; `pass_on` must follow, outside of the dispatcher's lock."""
        with self._lock:
            self._share.release(needs)

    def pass_on(self) -> None:
        """Grant what is free to the claims that wait. Hold no dispatcher's lock."""
        while True:
            with self._lock:
                granted = self._share.grant(self._clock())
            if granted is None:
                return
            granted()

    def __repr__(self) -> str:
        return f"<Resources: {self._share!r}>"


class ModelShare:
    """What one model has claimed of what it shares with others, and what was granted to it. Raises
    ConfigError if it needs more than there is.

    `pass_on` must follow whatever gives something back, once no dispatcher's lock is held.
    """

    def __init__(self, resources: Resources, config: ModelConfig, granted: Granted) -> None:
        self._resources = resources
        self._needs = config.resources or {}
        self._priority = config.resource_priority
        self._granted = granted
        #: Batches that may run and have not begun.
        self._grants = 0
        resources.admit(config.name, self._needs)

    def may_run(self, scheduler: Scheduler, now: float) -> bool:
        """May a batch run? If not, `granted` will be called."""
        if not self._grants and scheduler.queued_requests:
            since, seconds = scheduler.head() or (now, 0.0)
            self._grants += self._acquire(since, seconds)
        return self._grants > 0

    def may_run_in_caller(self, now: float) -> bool:
        """May one row run at once? If so, `ended` must follow."""
        if self._acquire(now, 0.0):
            return True
        self._resources.withdraw(self._granted)  # it does not wait for it
        return False

    def granted(self) -> None:
        """What was claimed for a batch is there."""
        self._grants += 1

    def began(self) -> None:
        """A batch that `may_run` begins."""
        self._grants -= 1

    def ended(self) -> None:
        """A batch or a row is over."""
        self._resources.release(self._needs)

    def nothing_to_run(self) -> None:
        """Give back what was claimed."""
        self._resources.withdraw(self._granted)
        while self._grants:
            self._grants -= 1
            self._resources.release(self._needs)

    def pass_on(self) -> None:
        """Tell other models what they may use now. Hold no lock."""
        self._resources.pass_on()

    def _acquire(self, since: float, seconds: float) -> bool:
        claim = Claim(self._needs, since, seconds, self._priority)
        return self._resources.acquire(self._granted, claim)
