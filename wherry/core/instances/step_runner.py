"""Which requests are active in a model that works in steps, and what becomes of the others?

There is no batch to wait for: a request joins as soon as an instance has room (`max_batch_size`),
and waits in the queue before that. A request that would wait too long for its first response is
refused at the door.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Any

from wherry.core.instances.runner import InstanceRunner, Refused, refused_of
from wherry.core.instances.step_instance import StepInstance
from wherry.core.instances.step_loop import Progress, Share
from wherry.core.instances.timer import Alarm, Timer
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device
from wherry.core.observability.statistics import ModelStatistics, ResponseCount
from wherry.core.scheduler.overload import FirstResponses, late, refusal, too_slow
from wherry.core.scheduler.queue import RequestQueue
from wherry.core.values.errors import (
    ModelNotReady,
    QueueFull,
    Unsupported,
    WherryError,
    WorkerDied,
)
from wherry.core.values.load import Load
from wherry.core.values.reply import StreamReply
from wherry.core.values.request import Columns, InferRequest, InferResponse

log = logging.getLogger("wherry")


@dataclass(slots=True)
class Active:
    """One request while it is active, as number `key` of `instance`."""

    request: InferRequest
    instance: StepInstance
    key: int
    joined_at: float
    count: ResponseCount
    #: Whether it is alone there, as a worker has died with it, until its first response.
    on_trial: bool
    #: When its last response came; None: none has come.
    last_at: float | None = None


class ActiveRequests:
    """The active requests of one model, on each instance at most as many as `most` says of its
    device. Pure."""

    def __init__(self, most: Callable[[Device], int]) -> None:
        self._most_on = most
        self.most = most(Device())
        self._by_instance: dict[StepInstance, dict[int, Active]] = {}
        self._by_request: dict[InferRequest, Active] = {}
        #: Nothing more joins: those that are active are to end.
        self.is_held = False
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
        return gone

    def has_room(self) -> bool:
        return not self.is_held and any(
            len(active) < self.most for active in self._by_instance.values()
        )

    def place_for(self, request: InferRequest) -> StepInstance | None:
        """The emptiest instance that has room for it, if one has."""
        most = 1 if request.attempts else self.most
        free = {
            instance: len(active)
            for instance, active in self._by_instance.items()
            if len(active) < most and not (len(active) == 1 and self.on(instance)[0].on_trial)
        }
        return min(free, key=free.__getitem__, default=None)

    def join(
        self, request: InferRequest, instance: StepInstance, now: float, responses: ResponseCount
    ) -> Active:
        key, on_trial = next(self._keys), request.attempts > 0
        active = Active(request, instance, key, now, responses, on_trial)
        self._by_instance[instance][key] = self._by_request[request] = active
        if request.trace is not None:
            request.trace.enters(request, now, instance)
        return active

    def leave(self, request: InferRequest) -> Active | None:
        """It is active no more; None if it was not."""
        active = self._by_request.pop(request, None)
        if active is not None:
            self._by_instance[active.instance].pop(active.key, None)
        return active

    def at(self, instance: StepInstance, key: int) -> Active | None:
        return self._by_instance.get(instance, {}).get(key)

    def on(self, instance: StepInstance) -> list[Active]:
        return list(self._by_instance.get(instance, {}).values())

    def all(self) -> list[Active]:
        return list(self._by_request.values())

    @property
    def instances(self) -> list[StepInstance]:
        return list(self._by_instance)


class StepRunner(InstanceRunner[StepInstance]):
    """One loaded step model: its queue, its instances, its counters."""

    turn = "step"

    def __init__(
        self,
        config: ModelConfig,
        make_instances: Sequence[Callable[[], StepInstance]],
        *,
        clock: Callable[[], float],
        timer: Timer,
        statistics: ModelStatistics,
        takes_parameters: bool = False,
        most_active: Callable[[Device], int] | None = None,
    ) -> None:
        super().__init__(config, make_instances, clock=clock, timer=timer, statistics=statistics)
        self._takes_parameters = takes_parameters
        self._queue = RequestQueue()
        self._first = FirstResponses()
        self._longest = config.max_queue_wait or None
        self._active = ActiveRequests(most_active or (lambda _: config.max_batch_size))
        self._gauges: dict[str, Mapping[str, float]] = {}
        self._alarm = Alarm(timer, self.tick)

    # What is shown

    @property
    def queued_requests(self) -> int:
        return self._queue.queued_requests

    def running(self) -> list[tuple[str, int, float]]:
        """Active requests: the instance's name, rows, since when."""
        with self._lock:
            return [(one.instance.name, 1, one.joined_at) for one in self._active.all()]

    def gauges(self) -> dict[str, Mapping[str, float]]:
        """What the model said of itself after its last step, by instance."""
        with self._lock:
            return dict(self._gauges)

    def load(self) -> Load:
        with self._lock:
            most, instances = self._active.most, self._active.instances
            one, waiting = self._first.mean_seconds, len(self._first)
            return Load(
                ready=bool(instances) and not self.readiness.reason,
                instances=len(instances),
                busy=sum([instance.busy_since is not None for instance in instances]),
                queued_rows=waiting,
                running_rows=max(0, len(self._active) + self._queue.queued_rows - waiting),
                full_rows=most,
                one_seconds=one,
                full_seconds=one * most,
                joins=True,
            )

    def explain(self) -> dict[str, Any]:
        with self._lock:
            return {
                "policy": "steps: a request joins as soon as an instance has room",
                "active_requests": len(self._active),
                "predicted_first_response_seconds": self._first.predicted_seconds(),
                "instances": {name: dict(gauges) for name, gauges in self._gauges.items()},
            }

    # Requests

    def _arrived(self, requests: Sequence[InferRequest], now: float) -> Sequence[Refused]:
        refused = refused_of(requests, self._enqueue, now)
        self._assign(now)
        return refused

    def _hand_over(self, chosen: Sequence[Refused]) -> None:
        """What was chosen has joined its instance."""
        self._fail_all(chosen)

    def _enqueue(self, request: InferRequest, now: float) -> WherryError | None:
        if (error := self._refusal(request, now)) is not None:
            return error
        self._first.arrived(request, request.cost, now)
        self._queue.push(request)
        self._assign(now)  # whether there is room decides about the next one
        return None

    def _refusal(self, request: InferRequest, now: float) -> WherryError | None:
        name = self.config.name
        left = None if request.deadline is None else request.deadline - now
        if request.rows != 1:
            return Unsupported(
                f"model {name!r} works in steps: send each of the {request.rows} rows as a"
                " request of its own"
            )
        if left is not None and left <= 0:
            return late(name, now - request.enqueued_at)
        seconds = self._first.predicted_seconds(request.cost)
        if self._active.has_room() and not self._queue.queued_requests:
            return None
        if self._queue.is_full(self.config.max_queue_size, request):
            return QueueFull(name, self._queue.queued_requests, seconds or 1.0)
        return refusal(
            name,
            seconds,
            left=left,
            longest=self._longest,
            turns=self._queue.queued_requests,
            within=self._first.turns.within(self._longest or inf),
            what="its first response",
        )

    def _assign(self, now: float) -> None:
        """Let those that wait join where there is room, the emptiest instance first.

        Joining and leaving are posted under the lock, in their order; to post never blocks.
        """
        while self._queue.queued_requests and self._active.has_room():
            lane = next(iter(self._queue.lanes(now)), None)
            instance = None if lane is None else self._active.place_for(lane.head)
            if lane is None or instance is None:
                break
            for request in self._queue.take(lane, 1):
                responses = ResponseCount(self.statistics, now)
                active = self._active.join(request, instance, now, responses)
                if instance.busy_since is None:
                    instance.busy_since = now
                columns = with_parameters(request) if self._takes_parameters else request.inputs
                instance.join(active.key, columns)
        self._arm()

    def _forget(self, request: InferRequest, error: WherryError) -> Sequence[Refused]:
        """It leaves the queue, or the model before the next step."""
        with self._changed:
            now = self._clock()
            self._first.left(request)
            self._queue.remove(request)
            active = self._active.leave(request)
            if active is not None:
                active.instance.leave(active.key)
                active.count.ended(now, error.reason)
            self._assign(now)
            self._changed.notify_all()
        return ()

    # Moments

    def _arm(self) -> None:
        moments = [] if self._queue.next_deadline is None else [self._queue.next_deadline]
        if (limit := self.config.execution_timeout) is not None:
            began = [i.busy_since for i in self._active.instances if i.busy_since is not None]
            moments += [since + limit for since in began]
        self._alarm.set(min(moments, default=inf))

    def tick(self) -> None:
        """The timer: a deadline has passed, or a step takes too long."""
        limit = self.config.execution_timeout
        hung: list[StepInstance] = []
        with self._lock:
            now = self._clock()
            self._alarm.rang(now)
            expired = self._queue.expire(now)
            for instance in self._active.instances:
                since = instance.busy_since
                if limit is not None and since is not None and since + limit <= now:
                    hung.append(instance)
                    instance.busy_since = None  # looked after below, not again at the next tick
            self._arm()
        for request in expired:
            self.fail(request, late(self.config.name, now - request.enqueued_at))
        for instance in hung:
            self._abandon(instance, f"a step took longer than {limit} s (execution_timeout)")

    # Steps

    def _hand_out(self, instance: StepInstance, progress: Progress) -> None:
        """Give each caller its share of a step."""
        with self._lock:
            now = self._clock()
            instance.busy_since = now if self._active.on(instance) else None
            self._gauges[instance.name] = progress.gauges
            shares = [
                (active, share)
                for share in progress.shares
                if (active := self._active.at(instance, share.key)) is not None
            ]
        if progress.active_requests:
            instance.good_batches += 1
            self.statistics.stepped(progress.active_requests, progress.step_ns)
        for active, share in shares:
            try:
                self._give(active, share, now)
            except Exception:  # our own bug: its neighbours must be answered all the same
                log.exception("internal error", extra={"model": self.config.name})
                self.fail(active.request, WherryError("internal error; see the server's log"))

    def _give(self, active: Active, share: Share, now: float) -> None:
        request, reply = active.request, active.request.reply
        assert isinstance(reply, StreamReply)
        if share.responses:
            self._count_responses(active, len(share.responses), now)
        for place, columns in enumerate(share.responses):
            if not reply.send(InferResponse(columns, 1), together=place > 0):
                self.fail(request, reply.dropped(self.config.name))
                return
        if share.failure is not None:
            self.failed(request, share.failure, active.instance.name)
        elif share.done and reply.claim():
            self._finished(active, now)
            reply.deliver(InferResponse({}, 0))

    def _finished(self, active: Active, now: float) -> None:
        """The model is done with a request, which is about to be told."""
        request = active.request
        if self._poisons.active:
            self._poisons.survived([request])
        with self._changed:
            self._first.left(request)
            active.count.ended(now)
            if self._active.leave(request) is not None and not self._active.on(active.instance):
                active.instance.busy_since = None
            self._assign(now)
            self._changed.notify_all()
        self.statistics.finished(request, active.joined_at, now)

    def _count_responses(self, active: Active, responses: int, now: float) -> None:
        request = active.request
        with self._lock:
            first = self._first.responded(request, now)
            since = request.enqueued_at if active.last_at is None else active.last_at
            active.last_at = now
            ended = self._active.at(active.instance, active.key) is None  # meanwhile
            if active.on_trial:
                active.on_trial = False
                self._assign(now)
        self.statistics.responded(now - since, first=first)
        if first:
            self._give_up()
        for _ in range(0 if ended else responses):
            active.count.responded(now)

    def _give_up(self) -> None:
        """Refuse, after a first response, the requests that would wait too long for theirs."""
        if self._longest is None:
            return
        with self._lock:
            abandoned = self._queue.cut(self._first.turns.within(self._longest))
            self.statistics.predicted_late += len(abandoned)
        for request in abandoned:
            self.fail(request, too_slow(self.config.name, self._longest))

    # Instances

    def up(self, instance: StepInstance) -> None:
        instance.hand_out = self._hand_out
        with self._lock:
            stops = self.life.is_over(instance.number)
            if not stops:
                if not self._active.instances:
                    self._first.can_run(self._clock())
                self._active.add_instance(instance)
        if stops:
            instance.close()

    def _runs_nothing(self) -> bool:
        return not self._active

    @property
    def _is_held(self) -> bool:
        return self._active.is_held

    def _hold(self, held: bool) -> None:
        self._active.is_held = held

    def let_go(self, instances: Sequence[StepInstance]) -> None:
        with self._lock:
            for instance in instances:
                self._active.remove_instance(instance)
        for instance in instances:
            instance.close()

    def down(self, instance: StepInstance) -> None:
        with self._changed:
            self._active.remove_instance(instance)
            self._gauges.pop(instance.name, None)
            self._changed.notify_all()

    def lost(self, instance: StepInstance, error: WorkerDied) -> bool:
        """A worker died. Streams that had begun have failed; the others are tried once more."""
        with self._lock:
            had = [active.request for active in self._active.on(instance)]
        failed, is_poison = self._worker_died(instance, had, error)
        with self._lock:
            now = self._clock()
            for active in self._active.remove_instance(instance):
                if (why := failed.get(active.request)) is not None:
                    active.count.ended(now, why.reason)
                elif not active.request.reply.settled:
                    self._queue.push(active.request)
            waiting = self._queue.waiting() if is_poison else ()
        self._fail_all(failed.items())
        self._go_on(waiting)
        return is_poison

    def _stop(self) -> None:
        with self._lock:
            active = self._active.all()
        error = ModelNotReady(f"model {self.config.name!r} is unloading")
        for one in active:
            self.fail(one.request, error)
        for instance in self.life.not_ended():
            instance.close()

    def _is_quiet(self) -> bool:
        return not self._queue.queued_requests and not self._active

    def _clear_queue(self) -> Sequence[InferRequest]:
        return self._queue.clear()


def with_parameters(request: InferRequest) -> Columns:
    """A request's columns, its parameters among them."""
    if not request.parameters:
        return request.inputs
    request_parameters = request.inputs.get("parameters", [{}])[0]
    if not isinstance(request_parameters, Mapping):
        return request.inputs
    return {**request.inputs, "parameters": [{**request.parameters, **request_parameters}]}
