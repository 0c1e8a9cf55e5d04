"""Which requests are active in a model that works in steps, and what becomes of the others?

To the runtime what a Dispatcher is for a model that runs batches. There is no batch to wait for:
a request joins as soon as an instance has room (`max_batch_size`), and waits in the queue before
that. Who would have to wait too long for the first response is refused at the door.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from math import inf
from typing import Any

from wherry.instances.life import ModelLife, ModelState
from wherry.instances.step_instance import StepInstance
from wherry.instances.step_loop import Progress, Share
from wherry.instances.timer import Timer
from wherry.models.config import ModelConfig
from wherry.observability.statistics import ModelStatistics, ResponseCount
from wherry.scheduler.door import refusal, too_slow
from wherry.scheduler.first_responses import FirstResponses
from wherry.scheduler.queue import RequestQueue
from wherry.values.errors import (
    Cancelled,
    DeadlineExceeded,
    ModelNotReady,
    QueueFull,
    Unsupported,
    WherryError,
    WorkerDied,
)
from wherry.values.reply import StreamReply
from wherry.values.request import Columns, InferRequest, InferResponse

log = logging.getLogger("wherry")


class StepRunner(ModelLife[StepInstance]):
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
    ) -> None:
        super().__init__(
            config,
            make_instances,
            clock=clock,
            timer=timer,
            statistics=statistics,
            lock=threading.RLock(),
        )
        #: The model has an input called `parameters`: a request's own parameters go there.
        self._takes_parameters = takes_parameters
        self._queue = RequestQueue()
        self._first = FirstResponses()
        self._longest = config.max_queue_wait or None
        self._keys = count(1)
        #: The requests that are active in each loaded instance, by their numbers there.
        self._active: dict[StepInstance, dict[int, InferRequest]] = {}
        self._places: dict[InferRequest, tuple[StepInstance, int]] = {}
        #: When each active request has joined, and had its last response.
        self._joined_at: dict[InferRequest, float] = {}
        self._last_at: dict[InferRequest, float] = {}
        self._counts: dict[InferRequest, ResponseCount] = {}
        #: Those that run alone until their first response, as a worker has died with them.
        self._on_trial: set[InferRequest] = set()
        self._gauges: dict[str, Mapping[str, float]] = {}
        self._wake_at = float("inf")

    # Life

    def close(self, timeout: float | None = 10.0) -> None:
        """Stop the instances. What is still here is answered with ModelNotReady."""
        with self._changed:
            self._closing = True
            if self.state is not ModelState.UNAVAILABLE:
                self.state, self.reason = ModelState.UNLOADING, "unloading"
            instances = [*self._alive, *self._loading]
            running = list(self._places)
            self._changed.notify_all()
        error = ModelNotReady(f"model {self.config.name!r} is unloading")
        self._fail_waiting(error)
        for request in running:
            self._fail(request, error)
        for instance in instances:
            instance.close()
        self._join(timeout)
        for instance in instances:  # in a step that does not end
            if any(thread.is_alive() for thread in self._threads):
                instance.abort("the server is stopping")
        self._join(1.0)
        with self._lock:
            self.state, self.reason = ModelState.UNAVAILABLE, "unloaded"

    # What is shown

    @property
    def queued_requests(self) -> int:
        return self._queue.queued_requests

    def running(self) -> list[tuple[str, int, float]]:
        """Active requests: the instance's name, rows, since when."""
        with self._changed:
            return [
                (instance.name, 1, self._joined_at[request])
                for request, (instance, _) in self._places.items()
            ]

    def gauges(self) -> dict[str, Mapping[str, float]]:
        """What the model said of itself after its last step, by instance."""
        with self._changed:
            return dict(self._gauges)

    def explain(self) -> dict[str, Any]:
        with self._changed:
            return {
                "policy": "steps: a request joins as soon as an instance has room",
                "active_requests": len(self._places),
                "predicted_first_response_seconds": self._first.predicted_seconds(),
                "instances": {name: dict(gauges) for name, gauges in self._gauges.items()},
            }

    # Requests

    def submit(self, requests: Sequence[InferRequest]) -> None:
        """Queue requests, and let them join where there is room. Never blocks; any thread."""
        refused: list[tuple[InferRequest, WherryError]] = []
        if self._poisons.active:
            requests = self._without_poison(requests)
        with self._changed:
            now = self._clock()
            closed = self._closed_error()
            successor = self.successor if closed is not None else None
            for request in requests if successor is None else ():
                if request.reply.settled:
                    continue  # its caller has just left
                request.enqueued_at = now
                error = closed or self._refusal(request, now)
                if error is not None:
                    refused.append((request, error))
                    continue
                self._first.arrived(request, request.cost, now)
                self._queue.push(request)
                self._assign(now)
        for request, error in refused:
            self._fail(request, error)
        if successor is not None:
            successor(requests)

    def cancel(self, request: InferRequest) -> bool:
        """The caller is gone: it leaves the queue, or the model before the next step."""
        if not request.reply.claim():
            return False
        with self._changed:
            now = self._clock()
            self._forget(request)
            self._count_end(request, now, Cancelled.reason)
            self._assign(now)
        self.statistics.failed(Cancelled.reason, now - request.enqueued_at)
        request.reply.deliver(Cancelled("the request was cancelled"))
        return True

    def run_in_caller(self, columns: Columns) -> None:
        """A step is for all who are active: it does not run in a caller's thread."""

    # Under the lock

    def _refusal(self, request: InferRequest, now: float) -> WherryError | None:
        name = self.config.name
        if request.rows != 1:
            return Unsupported(
                f"model {name!r} works in steps: send each of the {request.rows} rows as a"
                " request of its own"
            )
        left = None if request.deadline is None else request.deadline - now
        if left is not None and left <= 0:
            return self._too_late(request, now)
        seconds = self._first.predicted_seconds(request.cost)
        if self._has_room() and not self._queue.queued_requests:
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

    def _has_room(self) -> bool:
        return any(len(active) < self.config.max_batch_size for active in self._active.values())

    def _assign(self, now: float) -> None:
        """Let those who wait join where there is room, the emptiest instance first."""
        while self._queue.queued_requests and self._has_room():
            lane = next(self._queue.lanes(now), None)
            instance = None if lane is None else self._place_for(lane.head)
            if lane is None or instance is None:
                break
            for request in self._queue.take(lane, 1):
                if request.attempts:
                    self._on_trial.add(request)
                key = next(self._keys)
                self._active[instance][key] = request
                self._places[request] = (instance, key)
                self._joined_at[request] = now
                self._counts[request] = ResponseCount(self.statistics, now)
                if instance.busy_since is None:
                    instance.busy_since = now
                instance.join(key, self._inputs(request))
        self._arm(now)

    def _place_for(self, request: InferRequest) -> StepInstance | None:
        """The emptiest instance that has room for it, if one has."""
        most = 1 if request.attempts else self.config.max_batch_size
        free = self._active
        if self._on_trial:
            free = {i: a for i, a in free.items() if self._on_trial.isdisjoint(a.values())}
        instance = min(free, key=lambda one: len(free[one]), default=None)
        return None if instance is None or len(free[instance]) >= most else instance

    def _inputs(self, request: InferRequest) -> Columns:
        """The request's columns, its parameters among them."""
        if not self._takes_parameters or not request.parameters:
            return request.inputs
        given = request.inputs.get("parameters", [{}])[0]
        if not isinstance(given, Mapping):
            return request.inputs
        return {**request.inputs, "parameters": [{**request.parameters, **given}]}

    def _arm(self, now: float) -> None:
        """Have `_tick` called at the next moment that matters."""
        moments = [] if self._queue.next_deadline is None else [self._queue.next_deadline]
        if (limit := self.config.execution_timeout) is not None:
            moments += [i.busy_since + limit for i in self._active if i.busy_since is not None]
        wake_at = min(moments, default=float("inf"))
        if wake_at < self._wake_at:
            self._wake_at = wake_at
            self._timer.wake_at(wake_at, self._tick)

    def _forget(self, request: InferRequest) -> None:
        """It is nowhere any more; the model is told."""
        self._first.left(request)
        self._queue.remove(request)
        if request in self._places:
            instance, key = self._leave(request)
            instance.leave(key)
        self._changed.notify_all()

    def _leave(self, request: InferRequest) -> tuple[StepInstance, int]:
        instance, key = self._places.pop(request)
        self._active.get(instance, {}).pop(key, None)
        self._joined_at.pop(request, None)
        self._last_at.pop(request, None)
        self._on_trial.discard(request)
        return instance, key

    # Moments

    def _tick(self) -> None:
        """The timer: a deadline has passed, or a step takes too long."""
        with self._changed:
            now = self._clock()
            self._wake_at = float("inf")
            expired = self._queue.expire(now)
            limit = self.config.execution_timeout
            hung = [
                instance
                for instance in self._active
                if limit is not None
                and instance.busy_since is not None
                and instance.busy_since + limit <= now
            ]
            for instance in hung:
                instance.busy_since = None  # looked after below, not again at the next tick
            self._arm(now)
        for request in expired:
            self._fail(request, self._too_late(request, now))
        for instance in hung:
            instance.abort(f"a step took longer than {limit} s (execution_timeout)")

    def _too_late(self, request: InferRequest, now: float) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"model {self.config.name!r}: not finished within the request's timeout"
            f" ({now - request.enqueued_at:.3f} s); allow more time, or add instances"
        )

    # The serving thread of one instance

    def _work(self, instance: StepInstance) -> None:
        instance.serve(lambda progress: self._hand_out(instance, progress))

    def _hand_out(self, instance: StepInstance, progress: Progress) -> None:
        """Give each caller its share of a step."""
        with self._changed:
            now = self._clock()
            instance.busy_since = now if self._active[instance] else None
            self._gauges[instance.name] = progress.gauges
            shares = [
                (request, share)
                for share in progress.shares
                if (request := self._active[instance].get(share.key)) is not None
            ]
        if progress.active_requests:
            instance.good_batches += 1
            self.statistics.stepped(progress.active_requests, progress.step_ns)
        for request, share in shares:
            try:
                self._give(request, share, now, instance.name)
            except Exception:  # our own bug: its neighbours must be answered all the same
                log.exception("internal error", extra={"model": self.config.name})
                self._fail(request, WherryError("internal error; see the server's log"))

    def _give(self, request: InferRequest, share: Share, now: float, instance: str) -> None:
        reply = request.reply
        assert isinstance(reply, StreamReply)
        if share.responses:
            self._count_responses(request, len(share.responses), now)
        for columns in share.responses:
            if not reply.send(InferResponse(columns, 1)):
                text = f"the caller left {reply.unread} responses unread"
                self._fail(request, Cancelled(f"model {self.config.name!r}: {text}"))
                return
        if share.failure is not None:
            self._fail_with(request, share.failure, instance)
        elif share.done and reply.claim():
            if self._poisons.active:
                self._poisons.survived([request])
            with self._changed:
                started = self._joined_at.get(request, now)
                self._forget_finished(request, now)
            self.statistics.finished(request, started, now)
            reply.deliver(InferResponse({}, 0))

    def _forget_finished(self, request: InferRequest, now: float) -> None:
        """Under the lock: the model is done with it already."""
        self._first.left(request)
        self._count_end(request, now)
        if request in self._places:
            instance, _ = self._leave(request)
            if not self._active.get(instance):
                instance.busy_since = None
        self._assign(now)
        self._changed.notify_all()

    def _count_responses(self, request: InferRequest, responses: int, now: float) -> None:
        with self._changed:
            first = self._first.responded(request, now)
            since = self._last_at.get(request, request.enqueued_at)
            if request in self._places:
                self._last_at[request] = now
            if request in self._on_trial:
                self._on_trial.discard(request)
                self._assign(now)
            count = self._counts.get(request)
        self.statistics.responded(now - since, first=first)
        if first:
            self._give_up()
        if count is not None:
            for _ in range(responses):
                count.responded(now)

    def _give_up(self) -> None:
        """Refuse, after a first response, the requests that would wait too long for theirs."""
        if self._longest is None:
            return
        with self._changed:
            given_up = self._queue.cut(self._first.turns.within(self._longest))
            self.statistics.predicted_late += len(given_up)
        for request in given_up:
            self._fail(request, too_slow(self.config.name, self._longest))

    def _count_end(self, request: InferRequest, now: float, reason: str | None = None) -> None:
        """Under the lock: it has ended, and why if it has failed."""
        if (count := self._counts.pop(request, None)) is not None:
            count.ended(now, reason)

    # Coming up, going down

    def _up(self, instance: StepInstance) -> None:
        self._active[instance] = {}
        self._assign(self._clock())

    def _stop(self, instance: StepInstance) -> None:
        instance.close()

    def _down(self, instance: StepInstance) -> None:
        self._active.pop(instance, None)
        self._gauges.pop(instance.name, None)

    def _is_quiet(self) -> bool:
        return not self._queue.queued_requests and not self._places

    def _clear_queue(self) -> Sequence[InferRequest]:
        return self._queue.clear()

    def _lost(self, instance: StepInstance, error: WorkerDied) -> bool:
        """A worker died. Streams that had begun have failed; the others are tried once more."""
        with self._lock:
            had = list(self._active.get(instance, {}).values())
        poison = self._blame(instance, had, error)
        failed: list[tuple[InferRequest, WherryError]] = []
        with self._changed:
            active = self._active.pop(instance, {})
            for request in active.values():
                begun = request in self._last_at
                self._leave(request)
                request.attempts += error.reached
                if begun or request.attempts > 1 or self._closing or request in poison:
                    failed.append((request, poison.get(request, error)))
                    continue
                self._counts.pop(request, None)
                if not request.reply.settled:
                    self._queue.push(request)
            waiting = self._queue.waiting() if poison else ()
        for request, reason in failed:
            self._fail(request, reason)
        self._without_poison(waiting)
        with self._changed:
            self._assign(self._clock())
        return bool(poison)

    def _without_poison(self, requests: Sequence[InferRequest]) -> Sequence[InferRequest]:
        """Refuse the requests that are poison. Returns the others."""
        good: list[InferRequest] = []
        for request in requests:
            if (refusal := self._poisons.refusal(request)) is None:
                good.append(request)
                continue
            with self._changed:
                self.statistics.poisoned += 1
            self._fail(request, refusal)
        return good

    def _fail(self, request: InferRequest, error: WherryError) -> None:
        if request.reply.claim():
            with self._changed:
                now = self._clock()
                self._forget(request)
                self._count_end(request, now, error.reason)
                self._assign(now)
            self.statistics.failed(error.reason, now - request.enqueued_at)
            request.reply.deliver(error)
