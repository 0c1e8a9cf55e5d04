"""A device in virtual time: models wake, sleep and run batches as a policy says.

One batch runs at a time, that of the ready model whose oldest request has waited longest; streams
run beside it. Loads take no time from batches of other models.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Protocol

from wherry.core.residency.policy import ArrivalRate, ModelView, State, Swaps


class Spec(NamedTuple):
    """A model; seconds and bytes."""

    name: str
    footprint: int
    wake: float
    sleep: float = 0.1
    #: Of a batch, and for each request of it.
    fixed: float = 0.005
    each: float = 0.005
    most: int = 16
    always: bool = False
    priority: int = 1

    def seconds(self, requests: int) -> float:
        return self.fixed + self.each * requests


class Arrival(NamedTuple):
    time: float
    model: str
    #: Of a stream, which keeps its model awake but takes no time of the device.
    stream: float = 0.0


class Policy(Protocol):
    def decide(self, models: Sequence[ModelView], now: float) -> Swaps: ...


#: Makes a view of what a run knows of a model.
Viewer = Callable[["Run", "Model", float], ModelView]


@dataclass(slots=True)
class Model:
    spec: Spec
    footprint: int
    state: State = "asleep"
    queue: deque[Arrival] = field(default_factory=deque)
    running: int = 0
    #: When what runs has ended.
    ends: float = -inf
    since: float = 0.0
    arrivals: ArrivalRate = field(default_factory=lambda: ArrivalRate(0.0))
    #: Moments of its requests, for those who know the future.
    future: Sequence[float] = ()
    #: Counts what was begun, so that an event of something given up says nothing.
    epoch: int = 0


class Wait(NamedTuple):
    """From the first request to a model that is not ready until it begins to wake."""

    model: str
    since: float
    seconds: float
    #: Those that waited or woke when it began to.
    before: tuple[str, ...]


def honest(run: Run, model: Model, now: float) -> ModelView:
    """What a server knows."""
    spec = model.spec
    queued = len(model.queue)
    work = spec.seconds(queued) if queued else 0.0
    return ModelView(
        name=spec.name,
        footprint=model.footprint,
        state=model.state,
        wake_seconds=spec.wake,
        sleep_seconds=spec.sleep,
        queued=queued,
        oldest_wait=now - model.queue[0].time if queued else 0.0,
        work_seconds=work + max(0.0, model.ends - now),
        arrival_rate=model.arrivals.rate(now),
        last_arrival=now - model.arrivals.last_at,
        running=model.running > 0,
        last_ran=max(0.0, now - model.ends),
        always=spec.always,
        priority=spec.priority,
        awake_since=model.since,
    )


class Run:
    """Plays a trace; what came of it is in its attributes."""

    def __init__(
        self,
        specs: Sequence[Spec],
        policy: Policy,
        viewer: Viewer = honest,
        budget: float = inf,
        *,
        sleeps_unasked: bool = False,
    ) -> None:
        #: Models may sleep though nobody needs their room: it is asked whenever one is idle.
        self.sleeps_unasked = sleeps_unasked
        self.policy, self.viewer, self.budget = policy, viewer, budget
        self.models = {spec.name: Model(spec, spec.footprint) for spec in specs}
        self.now = 0.0
        self._events: list[tuple[float, int, str, str, int]] = []
        self._count = 0
        self._looks = inf
        self._device_free = True
        #: When the first request waited that the model's next wake is for, and who was before it.
        self._waiting: dict[str, tuple[float, tuple[str, ...]]] = {}
        self.last = Swaps()
        # What came of it
        self.wakes = 0
        self.swap_seconds = 0.0
        self.served = 0
        self.answer_seconds: list[float] = []
        self.waits: list[Wait] = []
        self.order: list[str] = []
        self.busy_seconds = self.idle_in_swaps = self.idle_with_work = 0.0

    # Time

    def play(self, arrivals: Sequence[Arrival], until: float) -> None:
        """Until then, and further if something waits or runs, but not for long."""
        moments: dict[str, list[float]] = {}
        for arrival in arrivals:
            moments.setdefault(arrival.model, []).append(arrival.time)
        for name, times in moments.items():
            self.models[name].future = times
        for arrival in arrivals:
            while (at := self._next()) <= arrival.time:
                self._step(at)
            self.pass_time(arrival.time)
            self.arrive(arrival)
        while (at := self._next()) <= until:
            self._step(at)
        self.pass_time(until)

    def run_until(self, until: float) -> None:
        while (at := self._next()) <= until:
            self._step(at)
        self.pass_time(until)

    def _next(self) -> float:
        return min(self._events[0][0] if self._events else inf, self._looks)

    def _step(self, at: float) -> None:
        self.pass_time(at)
        if self._looks <= at:
            self._looks = inf
        else:
            _, _, kind, name, epoch = heapq.heappop(self._events)
            model = self.models[name]
            if kind in ("woke", "slept") and epoch != model.epoch:
                return
            getattr(self, f"_{kind}")(model)
            if kind in ("ended", "finished") and model.state == "ready" and not self._idle(model):
                return
        self.decide()

    def _idle(self, model: Model) -> bool:
        """Whether it has no more requests while others wait, or may sleep though nobody does."""
        return not model.queue and (bool(self._waiting) or self.sleeps_unasked)

    def pass_time(self, until: float) -> None:
        seconds, self.now = until - self.now, max(self.now, until)
        if not self._device_free:
            self.busy_seconds += seconds
        elif any(model.queue for model in self.models.values()):
            if any(model.state in ("waking", "stopping") for model in self.models.values()):
                self.idle_in_swaps += seconds
            else:
                self.idle_with_work += seconds

    def _at(self, seconds: float, kind: str, model: Model) -> None:
        self._count += 1
        event = (self.now + seconds, self._count, kind, model.spec.name, model.epoch)
        heapq.heappush(self._events, event)

    # Events

    def arrive(self, arrival: Arrival) -> None:
        model = self.models[arrival.model]
        model.arrivals.arrived(self.now)
        model.queue.append(arrival)
        if model.state == "ready":
            self._dispatch()
        elif model.state != "waking":
            self._note_wait(model)
            self.decide()

    def leave(self, name: str) -> None:
        """All that wait there are gone."""
        self.models[name].queue.clear()
        self._waiting.pop(name, None)
        self.decide()

    def _woke(self, model: Model) -> None:
        model.state, model.since = "ready", self.now
        self._dispatch()

    def fail_wake(self, name: str) -> None:
        model = self.models[name]
        if model.state == "waking":
            model.state = "asleep"
            model.epoch += 1
            if model.queue:
                self._note_wait(model)
            self.decide()

    def _slept(self, model: Model) -> None:
        model.state = "asleep"

    def _ended(self, model: Model) -> None:
        self._device_free = True
        self._finished(model)
        self._dispatch()

    def _finished(self, model: Model) -> None:
        model.running -= 1
        if model.state == "stopping" and not model.running:
            self._unload(model)

    def _unload(self, model: Model) -> None:
        model.epoch += 1
        self._at(model.spec.sleep, "slept", model)

    def _note_wait(self, model: Model, at_once: Sequence[str] = ()) -> None:
        waking = [name for name, one in self.models.items() if one.state == "waking"]
        before = {*self._waiting, *waking, *at_once} - {model.spec.name}
        self._waiting.setdefault(model.spec.name, (self.now, tuple(before)))

    def _dispatch(self) -> None:
        ready = [m for m in self.models.values() if m.state == "ready" and m.queue]
        for model in ready:
            while model.queue and model.queue[0].stream:
                stream = model.queue.popleft()
                self._begin(model, [stream], stream.stream, "finished")
        if self._device_free:
            ready = [model for model in ready if model.queue]
            if ready:
                model = min(ready, key=lambda one: one.queue[0].time)
                batch = list[Arrival]()
                while model.queue and len(batch) < model.spec.most:
                    batch.append(model.queue.popleft())
                self._begin(model, batch, model.spec.seconds(len(batch)), "ended")
                self._device_free = False
                self.order.append(model.spec.name)

    def _begin(self, model: Model, batch: list[Arrival], seconds: float, kind: str) -> None:
        model.running += 1
        model.ends = max(model.ends, self.now + seconds)
        self.served += len(batch)
        self.answer_seconds += [self.now + seconds - one.time for one in batch]
        self._at(seconds, kind, model)

    # The policy

    def decide(self) -> None:
        models = self.models.values()
        views = [self.viewer(self, model, self.now) for model in models]
        swaps = self.last = self.policy.decide(views, self.now)
        self._looks = inf if swaps.look_again_at is None else swaps.look_again_at
        left = [name for name in swaps.sleep if self.models[name].queue]
        for name in swaps.sleep:
            model = self.models[name]
            assert model.state == "ready"
            model.state = "stopping"
            if model.queue:
                self._note_wait(model, left)
            if not model.running:
                self._unload(model)
        for name in swaps.wake:
            model = self.models[name]
            if model.state == "stopping":  # it has not begun to unload
                assert model.running
                model.state = "ready"
                self._waiting.pop(name, None)
                self._dispatch()
                continue
            assert model.state == "asleep"
            model.state, model.since = "waking", self.now
            model.epoch += 1
            self._at(model.spec.wake, "woke", model)
            self.wakes += 1
            self.swap_seconds += model.spec.wake + model.spec.sleep
            if (waited := self._waiting.pop(name, None)) is not None:
                since, before = waited
                self.waits.append(Wait(name, since, self.now - since, before))
        assert self.used() <= self.budget or not swaps.wake

    def used(self) -> int:
        return sum(m.footprint for m in self.models.values() if m.state != "asleep")

    def still_waiting(self) -> list[Wait]:
        return [
            Wait(name, since, self.now - since, before)
            for name, (since, before) in self._waiting.items()
        ]


def bound(wait: Wait, specs: Mapping[str, Spec], runs: float = 0.0) -> float:
    """The most seconds that it may wait until it begins to wake: see wherry.core.residency.policy.
    `runs`: of the longest batch or stream."""
    wake, sleep = max(s.wake for s in specs.values()), max(s.sleep for s in specs.values())
    turn, ends = wake + sleep, runs + sleep
    wakes = sum(specs[name].wake for name in wait.before)
    return ends + (len(wait.before) + 1) * (turn + ends + wake) + wakes


def next_request(model: Model, now: float) -> float:
    """Seconds until its next request, for those who know the future."""
    place = bisect_right(model.future, now)
    return model.future[place] - now if place < len(model.future) else inf
