"""Which requests are active on which instance of a model that works in steps?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from wherry.core.instances.step_instance import StepInstance
from wherry.core.models.model import Device
from wherry.core.observability.statistics import ResponseCount
from wherry.core.values.request import InferRequest


@dataclass(slots=True)
class Active:
    """One request while it is active, as number `key` of `instance`."""

    request: InferRequest
    instance: StepInstance
    key: int
    joined_at: float
    count: ResponseCount
    #: When its last response came; None: none has come.
    last_at: float | None = None


class ActiveRequests:
    """The active requests of one model, on each instance at most as many as `most` says of its
    device. Pure; the runner's lock is held.

    A request with which a worker has died is on trial: it is alone on its instance until its first
    response.
    """

    def __init__(self, most: Callable[[Device], int]) -> None:
        self._most_on = most
        self.most = most(Device())
        self._by_instance: dict[StepInstance, dict[int, Active]] = {}
        self._by_request: dict[InferRequest, Active] = {}
        self._on_trial: set[InferRequest] = set()
        self._keys = count(1)

    def __len__(self) -> int:
        return len(self._by_request)

    def add_instance(self, instance: StepInstance) -> None:
        self._by_instance[instance] = {}
        self.most = self._most_on(instance.device if instance.uses_device else Device())

    def remove_instance(self, instance: StepInstance) -> list[Active]:
        """The instance is gone. Returns what was active on it."""
        gone = list(self._by_instance.pop(instance, {}).values())
        for active in gone:
            del self._by_request[active.request]
            self._on_trial.discard(active.request)
        return gone

    def has_room(self) -> bool:
        return any(len(active) < self.most for active in self._by_instance.values())

    def place_for(self, request: InferRequest) -> StepInstance | None:
        """The emptiest instance that has room for it, if one has."""
        most = 1 if request.attempts else self.most
        free = self._by_instance
        if self._on_trial:
            trials = {self._by_request[one].instance for one in self._on_trial}
            free = {instance: active for instance, active in free.items() if instance not in trials}
        instance = min(free, key=lambda one: len(free[one]), default=None)
        return None if instance is None or len(free[instance]) >= most else instance

    def join(
        self, request: InferRequest, instance: StepInstance, now: float, count: ResponseCount
    ) -> Active:
        active = Active(request, instance, next(self._keys), now, count)
        self._by_instance[instance][active.key] = self._by_request[request] = active
        if request.attempts:
            self._on_trial.add(request)
        if request.trace is not None:
            request.trace.enters(request, now, instance)
        return active

    def leave(self, request: InferRequest) -> Active | None:
        """It is active no more; None if it was not."""
        active = self._by_request.pop(request, None)
        if active is not None:
            self._by_instance[active.instance].pop(active.key, None)
            self._on_trial.discard(request)
        return active

    def passed_trial(self, request: InferRequest) -> bool:
        """Its first response has come. Was it on trial?"""
        on_trial = request in self._on_trial
        self._on_trial.discard(request)
        return on_trial

    def find(self, request: InferRequest) -> Active | None:
        return self._by_request.get(request)

    def at(self, instance: StepInstance, key: int) -> Active | None:
        return self._by_instance.get(instance, {}).get(key)

    def on(self, instance: StepInstance) -> list[Active]:
        return list(self._by_instance.get(instance, {}).values())

    def all(self) -> list[Active]:
        return list(self._by_request.values())

    @property
    def instances(self) -> list[StepInstance]:
        return list(self._by_instance)
