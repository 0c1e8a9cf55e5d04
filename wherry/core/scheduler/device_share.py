"""Several models share a device: whose batch runs next?

Each batch needs a number of some named resources, which are limited. The model whose oldest
request has waited longest is next, measured in batches of its own: a slow model does not hold up a
quick one for long, and many quick batches do not starve a slow model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from wherry.core.models.config import ModelConfig
from wherry.core.scheduler.policy import Scheduler

T = TypeVar("T")

#: Seconds assumed for a batch whose time is not known: a model's first, or a stream.
UNKNOWN = 0.1


@dataclass(frozen=True, slots=True)
class Claim:
    needs: Mapping[str, int]
    since: float
    #: Predicted time of the batch; 0: not known.
    seconds: float
    #: With 2 it counts as waiting half as long as with 1 (Triton's rate limiter).
    priority: int = 1

    def urgency(self, now: float) -> float:
        return (now - self.since) / ((self.seconds or UNKNOWN) * self.priority)


class DeviceShare(Generic[T]):
    """Grants claims so that no more is in use than `limits` allow. Pure.

    A resource without a limit has the largest need of any model as its limit, so that one batch
    at a time runs of the models that need most of it.
    """

    def __init__(self, limits: Mapping[str, int] | None = None) -> None:
        self.limits: Counter[str] = Counter(limits or {})
        self.used: Counter[str] = Counter()
        self._fixed = frozenset(self.limits)
        self._claims: dict[T, Claim] = {}

    def admit(self, needs: Mapping[str, int]) -> str:
        """Register the needs of a model. Returns the first resource that can never satisfy them,
        or ""."""
        for name, count in needs.items():
            if count > self.limits[name]:
                if name in self._fixed:
                    return name
                self.limits[name] = count
        return ""

    def claim(self, model: T, claim: Claim) -> None:
        """Set what this model claims; an earlier claim of it is replaced."""
        self._claims[model] = claim

    def withdraw(self, model: T) -> None:
        self._claims.pop(model, None)

    def grant(self, now: float, model: T | None = None) -> T | None:
        """Take the needs of the batch that runs next; `release` must follow. Returns its model.

        With `model` only its own claim is granted. None: no batch may run. What the most urgent
        claim lacks is kept for it: a less urgent one does not get it meanwhile.
        """
        spoken_for = self.used.copy()
        for other, claim in sorted(self._claims.items(), key=lambda item: -item[1].urgency(now)):
            spoken_for.update(claim.needs)
            fits = all(spoken_for[name] <= self.limits[name] for name in claim.needs)
            if fits and model in (None, other):
                del self._claims[other]
                self.used.update(claim.needs)
                return other
        return None

    def release(self, needs: Mapping[str, int]) -> None:
        """Return the needs of a granted batch."""
        self.used.subtract(needs)

    def __repr__(self) -> str:
        in_use = ", ".join(f"{name} {self.used[name]}/{n}" for name, n in self.limits.items())
        return f"<DeviceShare: {in_use or 'nothing shared'}, {len(self._claims)} waiting>"


#: Called without a lock when what a model has claimed is its own: it uses that, or releases it.
Granted = Callable[[], None]


class SharedResources(Protocol):
    """What the models of one runtime share, behind its lock (`instances/resources.py`)."""

    def acquire(self, granted: Granted, claim: Claim) -> bool: ...
    def withdraw(self, granted: Granted) -> None: ...
    def release(self, needs: Mapping[str, int]) -> None: ...


class ModelShare:
    """What one model has claimed of what it shares with others, and what was granted to it.

    `Resources.pass_on` must follow whatever gives something back, once no dispatcher's lock is
    held.
    """

    def __init__(self, resources: SharedResources, config: ModelConfig, granted: Granted) -> None:
        self._resources = resources
        self._needs = config.resources or {}
        self._priority = config.resource_priority
        self._granted = granted
        #: Batches that may run and have not begun.
        self._grants = 0

    def may_run(self, scheduler: Scheduler, now: float) -> bool:
        """May a batch run? If not, `granted` will be called."""
        if not self._grants and scheduler.queue.queued_requests:
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
        self._grants += 1

    def began(self) -> None:
        self._grants -= 1

    def ended(self) -> None:
        self._resources.release(self._needs)

    def nothing_to_run(self) -> None:
        self._resources.withdraw(self._granted)
        while self._grants:
            self._grants -= 1
            self._resources.release(self._needs)

    def _acquire(self, since: float, seconds: float) -> bool:
        claim = Claim(self._needs, since, seconds, self._priority)
        return self._resources.acquire(self._granted, claim)
