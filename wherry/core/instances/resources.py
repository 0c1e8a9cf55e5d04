"""How do the dispatchers of several models agree on what they share?

The shell around `core/scheduler/device_share.py`. A dispatcher asks under its own lock; it is told
of what was granted to it while no lock is held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Protocol

from wherry.core.models.config import ModelConfig
from wherry.core.scheduler.device_share import Claim, DeviceShare
from wherry.core.scheduler.policy import Scheduler
from wherry.core.values.errors import ConfigError


class ResourceRequester(Hashable, Protocol):
    """A dispatcher."""

    def granted(self) -> None:
        """What it has claimed is its own now: use it, or release it."""
        ...


class Resources:
    """What the models of one runtime share. Safe from any thread."""

    def __init__(self, limits: Mapping[str, int] | None, clock: Callable[[], float]) -> None:
        for name, count in (limits or {}).items():
            if type(count) is not int or count < 1:
                raise ConfigError(f"resources: {name!r} must be a whole number from 1 up")
        self._share = DeviceShare(limits)
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

    def acquire(self, requester: ResourceRequester, claim: Claim) -> bool:
        """Take what a batch needs. False if it is not free, or others are more urgent: `granted`
        is called as soon as it is the claimant's turn, in a thread that calls `pass_on`."""
        with self._lock:
            self._share.claim(requester, claim)
            # Another one that is granted here would have to be told, which its lock forbids now.
            return self._share.grant(self._clock(), requester) is not None

    def withdraw(self, requester: ResourceRequester) -> None:
        with self._lock:
            self._share.withdraw(requester)

    def release(self, needs: Mapping[str, int]) -> None:
        """A batch is over; `pass_on` must follow, outside of the dispatcher's lock."""
        with self._lock:
            self._share.release(needs)

    def pass_on(self) -> None:
        """Grant what is free to the claims that wait. Hold no dispatcher's lock."""
        while True:
            with self._lock:
                requester = self._share.grant(self._clock())
            if requester is None:
                return
            requester.granted()  # type: ignore[attr-defined] # claimants are dispatchers

    def __repr__(self) -> str:
        return f"<Resources: {self._share!r}>"


class NothingShared:
    """What a model has to ask for that shares nothing: every batch may run."""

    #: Does it limit anything? `Dispatcher.run_in_caller` asks this first: a call that does nothing
    #: takes 1 % of its time.
    limits = False

    def may_run(self, scheduler: Scheduler, now: float) -> bool:
        """Under the dispatcher's lock: may a batch run? If not, the claimant's `granted` will be
        called."""
        return True

    def may_run_in_caller(self, now: float) -> bool:
        """Under the dispatcher's lock: may one row run at once? If so, `returned` must
        follow."""
        return True

    def granted(self) -> None:
        """Under the dispatcher's lock: what was claimed for a batch is there."""

    def began(self) -> None:
        """Under the dispatcher's lock: a batch that `may_run` begins."""

    def ended(self) -> None:
        """A batch is over; `pass_on` must follow."""

    def returned(self) -> None:
        """A row that ran in its caller's thread is over. Hold no lock."""

    def nothing_to_run(self) -> None:
        """Under the dispatcher's lock: give back what was claimed; `pass_on` must follow."""

    def pass_on(self) -> None:
        """Tell other models what they may use now. Hold no lock."""


class ModelShare(NothingShared):
    """What one model has claimed of what it shares with others, and what was granted to it."""

    limits = True

    def __init__(
        self, resources: Resources, config: ModelConfig, requester: ResourceRequester
    ) -> None:
        self._resources = resources
        self._needs = config.resources or {}
        self._priority = config.resource_priority
        self._requester = requester
        #: Batches that may run and have not begun.
        self._grants = 0
        resources.admit(config.name, self._needs)

    def may_run(self, scheduler: Scheduler, now: float) -> bool:
        if not self._grants and scheduler.queued_requests:
            since, seconds = scheduler.head() or (now, 0.0)
            self._grants += self._acquire(since, seconds)
        return self._grants > 0

    def may_run_in_caller(self, now: float) -> bool:
        if self._acquire(now, 0.0):
            return True
        self._resources.withdraw(self._requester)  # it does not wait for it
        return False

    def granted(self) -> None:
        self._grants += 1

    def began(self) -> None:
        self._grants -= 1

    def ended(self) -> None:
        self._resources.release(self._needs)

    def returned(self) -> None:
        self.ended()
        self.pass_on()

    def nothing_to_run(self) -> None:
        self._resources.withdraw(self._requester)
        while self._grants:
            self._grants -= 1
            self._resources.release(self._needs)

    def pass_on(self) -> None:
        self._resources.pass_on()

    def _acquire(self, since: float, seconds: float) -> bool:
        claim = Claim(self._needs, since, seconds, self._priority)
        return self._resources.acquire(self._requester, claim)


def share_of(
    resources: Resources | None, config: ModelConfig, requester: ResourceRequester
) -> NothingShared:
    """A model's part in what several share; ConfigError if it needs more than there is."""
    if resources is None or not config.resources:
        return NothingShared()
    return ModelShare(resources, config, requester)
