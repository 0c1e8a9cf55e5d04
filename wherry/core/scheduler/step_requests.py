"""Which requests are active in a model that works in steps, and which wait?

There is no batch to wait for: a request joins as soon as an instance has room (`max_batch_size`),
and waits in the queue before that. A request that would wait too long for its first response is
refused when it comes.

Events go in with their time, and what is to be done comes out as `StepActs`. Pure: no lock, clock
or thread is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device
from wherry.core.observability.statistics import ResponseCount
from wherry.core.scheduler.overload import FirstResponses, late, refusal, too_slow
from wherry.core.scheduler.queue import RequestQueue
from wherry.core.values.errors import QueueFull, Unsupported, WherryError
from wherry.core.values.load import Load
from wherry.core.values.request import InferRequest


class StepSlot(Protocol):
    """One instance, as far as it matters for which request is active where."""

    device: Device
    uses_device: bool
    #: Since when its step runs (seconds of the runtime's clock).
    busy_since: float | None


SlotT = TypeVar("SlotT", bound=StepSlot)


@dataclass(slots=True)
class Active(Generic[SlotT]):
    """One request while it is active, as number `key` of `instance`."""

    request: InferRequest
    instance: SlotT
    key: int
    joined_at: float
    #: Whether it is alone there, as a worker has died with it, until its first response.
    on_trial: bool
    #: Its responses, counted by the code that carries out its join.
    count: ResponseCount = field(init=False)
    last_at: float | None = None


@dataclass(slots=True)
class StepActs(Generic[SlotT]):
    """What is to be done after an event. The instance gets what leaves and joins, in this order,
    before the next event; requests fail once no lock is held."""

    leave: Active[SlotT] | None = None
    join: list[Active[SlotT]] = field(default_factory=list)
    fail: list[tuple[InferRequest, WherryError]] = field(default_factory=list)
    overdue: list[SlotT] = field(default_factory=list)
    #: When `tick` is due; inf: at no moment.
    wake_at: float = inf


class StepRequests(Generic[SlotT]):
    """The queue and the active requests of one model, on each instance at most `most_on` of its
    device."""

    def __init__(self, config: ModelConfig, most_on: Callable[[Device], int]) -> None:
        self._config = config
        self._longest = config.max_queue_wait or None
        self._most_on = most_on
        self.most = most_on(Device())
        self.queue = RequestQueue()
        self.first = FirstResponses()
        #: Nothing more joins: those that are active are to end.
        self.is_held = False
        self._by_instance: dict[SlotT, dict[int, Active[SlotT]]] = {}
        self._by_request: dict[InferRequest, Active[SlotT]] = {}
        self._keys = count(1)

    def __repr__(self) -> str:
        return f"<StepRequests: {len(self._by_request)} active, {len(self.queue.waiting())} wait>"

    # Requests

    def arrived(self, requests: Sequence[InferRequest], now: float) -> StepActs[SlotT]:
        acts: StepActs[SlotT] = StepActs()
        for request in requests:
            if request.reply.settled:
                continue  # its caller has just left
            request.enqueued_at = now
            if (error := self._refusal(request, now)) is not None:
                acts.fail.append((request, error))
                continue
            self.first.arrived(request, request.cost, now)
            self.queue.push(request)
            self._assign(acts, now)  # whether there is room decides about the next one
        self._assign(acts, now)
        return acts

    def _refusal(self, request: InferRequest, now: float) -> WherryError | None:
        name, queued = self._config.name, self.queue.queued_requests
        left = None if request.deadline is None else request.deadline - now
        if request.rows != 1:
            return Unsupported(
                f"model {name!r} works in steps: send each of the {request.rows} rows as a"
                " request of its own"
            )
        if left is not None and left <= 0:
            return late(name, now - request.enqueued_at)
        seconds = self.first.predicted_seconds(request.cost)
        if self._has_room() and not queued:
            return None
        if self.queue.is_full(self._config.max_queue_size, request):
            return QueueFull(name, queued, seconds or 1.0)
        return refusal(
            name,
            seconds,
            left=left,
            longest=self._longest,
            turns=queued,
            within=self.first.turns.within(self._longest or inf),
            what="its first response",
        )

    def left(self, request: InferRequest, now: float) -> StepActs[SlotT]:
        """A request has its outcome, or its caller is gone, wherever it is."""
        self.first.left(request)
        self.queue.remove(request)
        acts = StepActs(leave=self._leave(request))
        self._assign(acts, now)
        return acts

    def tick(self, now: float) -> StepActs[SlotT]:
        acts: StepActs[SlotT] = StepActs()
        for request in self.queue.expire(now):
            acts.fail.append((request, late(self._config.name, now - request.enqueued_at)))
        if (limit := self._config.execution_timeout) is not None:
            for instance in self._by_instance:
                since = instance.busy_since
                if since is not None and since + limit <= now:
                    acts.overdue.append(instance)
                    instance.busy_since = None  # not again at the next tick
        acts.wake_at = self._next_moment()
        return acts

    def slow(self) -> list[tuple[InferRequest, WherryError]]:
        """After a first response: forget and return those that would wait too long for theirs."""
        if self._longest is None:
            return []
        abandoned = self.queue.cut(self.first.turns.within(self._longest))
        return [(one, too_slow(self._config.name, self._longest)) for one in abandoned]

    # Steps

    def stepped(
        self, instance: SlotT, keys: Sequence[int], now: float
    ) -> list[Active[SlotT] | None]:
        """A step of the instance has ended. Returns its requests by their keys; None: gone."""
        active = self._by_instance.get(instance, {})
        instance.busy_since = now if active else None
        return [active.get(key) for key in keys]

    def responded(
        self, active: Active[SlotT], now: float
    ) -> tuple[float, bool, StepActs[SlotT] | None]:
        """Responses of a request have come: the seconds since the last ones, whether they are its
        first, and what is to be done."""
        request = active.request
        since = request.enqueued_at if active.last_at is None else active.last_at
        active.last_at = now
        is_first = self.first.responded(request, now)
        if not active.on_trial:
            return now - since, is_first, None
        active.on_trial = False
        acts: StepActs[SlotT] = StepActs()
        self._assign(acts, now)
        return now - since, is_first, acts

    def finished(self, active: Active[SlotT], now: float) -> StepActs[SlotT]:
        self.first.left(active.request)
        if self._leave(active.request) is not None and not self._by_instance[active.instance]:
            active.instance.busy_since = None
        acts: StepActs[SlotT] = StepActs()
        self._assign(acts, now)
        return acts

    def is_active(self, active: Active[SlotT]) -> bool:
        return active.request in self._by_request

    # Instances

    def came_up(self, instance: SlotT, now: float) -> None:
        """An instance is loaded. `arrived` follows, with nothing."""
        if not self._by_instance:
            self.first.can_run(now)
        self._by_instance[instance] = {}
        self.most = self._most_on(instance.device if instance.uses_device else Device())

    def active_on(self, instance: SlotT) -> list[Active[SlotT]]:
        return list(self._by_instance.get(instance, {}).values())

    def gone(
        self, instance: SlotT, failed: Mapping[InferRequest, WherryError] | None = None
    ) -> list[Active[SlotT]]:
        """An instance has ended. Returns its requests that have `failed`; the others wait again."""
        gone = self._by_instance.pop(instance, {}).values()
        ended: list[Active[SlotT]] = []
        for active in gone:
            del self._by_request[active.request]
            if active.request in (failed or {}):
                ended.append(active)
            elif not active.request.reply.settled:
                self.queue.push(active.request)
        return ended

    # What is shown

    @property
    def all_active(self) -> list[Active[SlotT]]:
        return list(self._by_request.values())

    def is_quiet(self) -> bool:
        return not self.queue.queued_requests and not self._by_request

    def load(self, *, ready: bool) -> Load:
        instances, waiting = self._by_instance, len(self.first)
        one = self.first.mean_seconds
        return Load(
            ready=bool(instances) and ready,
            instances=len(instances),
            busy=sum([instance.busy_since is not None for instance in instances]),
            queued_rows=waiting,
            running_rows=max(0, len(self._by_request) + self.queue.queued_rows - waiting),
            full_rows=self.most,
            one_seconds=one,
            full_seconds=one * self.most,
            joins=True,
        )

    def explain(self) -> dict[str, Any]:
        return {
            "policy": "steps: a request joins as soon as an instance has room",
            "active_requests": len(self._by_request),
            "predicted_first_response_seconds": self.first.predicted_seconds(),
        }

    # Parts

    def _assign(self, acts: StepActs[SlotT], now: float) -> None:
        """Let those that wait join where there is room, the emptiest instance first."""
        while self.queue.queued_requests and self._has_room():
            lane = next(iter(self.queue.lanes(now)), None)
            instance = None if lane is None else self._place_for(lane.head)
            if lane is None or instance is None:
                break
            for request in self.queue.take(lane, 1):
                key, on_trial = next(self._keys), request.attempts > 0
                active = Active(request, instance, key, now, on_trial)
                self._by_instance[instance][key] = self._by_request[request] = active
                if instance.busy_since is None:
                    instance.busy_since = now
                acts.join.append(active)
        acts.wake_at = self._next_moment()

    def _has_room(self) -> bool:
        return not self.is_held and any(
            len(active) < self.most for active in self._by_instance.values()
        )

    def _place_for(self, request: InferRequest) -> SlotT | None:
        most = 1 if request.attempts else self.most
        free = {
            instance: len(active)
            for instance, active in self._by_instance.items()
            if len(active) < most
            and not (len(active) == 1 and next(iter(active.values())).on_trial)
        }
        return min(free, key=free.__getitem__, default=None)

    def _leave(self, request: InferRequest) -> Active[SlotT] | None:
        active = self._by_request.pop(request, None)
        if active is not None:
            self._by_instance[active.instance].pop(active.key, None)
        return active

    def _next_moment(self) -> float:
        moments = [] if self.queue.next_deadline is None else [self.queue.next_deadline]
        if (limit := self._config.execution_timeout) is not None:
            began = [i.busy_since for i in self._by_instance if i.busy_since is not None]
            moments += [since + limit for since in began]
        return min(moments, default=inf)
