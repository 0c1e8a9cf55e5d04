"""How do the requests of a model that works in steps reach its instances, and their responses their
callers?

Which of them are active is decided by `StepRequests`, which the runner's lock guards; here it is
done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wherry.core.instances.runner import InstanceRunner, Refused
from wherry.core.instances.step_instance import StepInstance
from wherry.core.instances.timer import Alarm, Timer
from wherry.core.instances.worker_protocol import Share, Stepped
from wherry.core.models.config import ModelConfig
from wherry.core.models.model import Device
from wherry.core.observability.statistics import ModelStatistics, ResponseCount
from wherry.core.scheduler.step_requests import Active, StepActs, StepRequests
from wherry.core.values.errors import ModelNotReady, WherryError, WorkerDied
from wherry.core.values.load import Load
from wherry.core.values.reply import StreamReply
from wherry.core.values.request import Columns, InferRequest, InferResponse

log = logging.getLogger("wherry")


class StepRunner(InstanceRunner[StepInstance]):
    """One loaded model that works in steps."""

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
        most_on = most_active or (lambda _: config.max_batch_size)
        self._requests: StepRequests[StepInstance] = StepRequests(config, most_on)
        self._gauges: dict[str, Mapping[str, float]] = {}
        self._alarm = Alarm(timer, self.tick)

    # What is shown

    @property
    def queued_requests(self) -> int:
        return self._requests.queue.queued_requests

    def running(self) -> list[tuple[str, int, float]]:
        """Active requests: the instance's name, rows, since when."""
        with self._lock:
            return [(a.instance.name, 1, a.joined_at) for a in self._requests.all_active]

    def gauges(self) -> dict[str, Mapping[str, float]]:
        with self._lock:
            return dict(self._gauges)

    def load(self) -> Load:
        with self._lock:
            return self._requests.load(ready=not self.readiness.reason)

    def explain(self) -> dict[str, Any]:
        with self._lock:
            instances = {name: dict(gauges) for name, gauges in self._gauges.items()}
            return {**self._requests.explain(), "instances": instances}

    # Requests

    def _arrived(self, requests: Sequence[InferRequest], now: float) -> Sequence[Refused]:
        acts = self._requests.arrived(requests, now)
        self._carry_out(acts, now)
        return acts.fail

    def _hand_over(self, chosen: Sequence[Refused]) -> None:
        self._fail_all(chosen)

    def _carry_out(self, acts: StepActs[StepInstance], now: float) -> None:
        """Under the lock: so instances get what joins and leaves in this order. That never
        blocks."""
        if acts.leave is not None:
            acts.leave.instance.leave(acts.leave.key)
        for active in acts.join:
            request, instance = active.request, active.instance
            active.count = ResponseCount(self.statistics, now)
            if request.trace is not None and request.trace.is_followed:
                request.trace.begins(request, now, instance)
            columns = with_parameters(request) if self._takes_parameters else request.inputs
            instance.join(active.key, columns)
        self._alarm.set(acts.wake_at)

    def _forget(self, request: InferRequest, error: WherryError) -> Sequence[Refused]:
        """It leaves the queue, or the model before the next step."""
        with self._changed:
            now = self._clock()
            acts = self._requests.left(request, now)
            self._carry_out(acts, now)
            if acts.leave is not None:
                acts.leave.count.ended(now, error.reason)
            self._changed.notify_all()
        return ()

    def tick(self) -> None:
        with self._lock:
            now = self._clock()
            self._alarm.rang(now)
            acts = self._requests.tick(now)
            self._carry_out(acts, now)
        self._fail_all(acts.fail)
        limit = self.config.execution_timeout
        for instance in acts.overdue:
            self._abandon(instance, f"a step took longer than {limit} s (execution_timeout)")

    # Steps

    def _hand_out(self, instance: StepInstance, progress: Stepped) -> None:
        """Give each caller its share of a step."""
        with self._lock:
            now = self._clock()
            self._gauges[instance.name] = progress.gauges
            keys = [share.key for share in progress.shares]
            found = self._requests.stepped(instance, keys, now)
        if progress.active_requests:
            instance.good_batches += 1
            self.statistics.stepped(progress.active_requests, progress.step_ns)
        for active, share in zip(found, progress.shares, strict=True):
            if active is None:
                continue
            try:
                self._give(active, share, now)
            except Exception:  # our own bug: the other requests must be answered
                log.exception("internal error", extra={"model": self.config.name})
                self.fail(active.request, WherryError("internal error; see the server's log"))

    def _give(self, active: Active[StepInstance], share: Share, now: float) -> None:
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

    def _finished(self, active: Active[StepInstance], now: float) -> None:
        """The model is done with a request, which is about to be answered."""
        request = active.request
        if self.poisons.active:
            self.poisons.survived([request])
        with self._changed:
            active.count.ended(now)
            self._carry_out(self._requests.finished(active, now), now)
            self._changed.notify_all()
        self.statistics.finished(request, active.joined_at, now)
        if (records := self.statistics.records) is not None:
            records.ran(active.instance.name, "", active.joined_at, request.compute_ns, [request])

    def _count_responses(self, active: Active[StepInstance], responses: int, now: float) -> None:
        with self._lock:
            seconds, is_first, acts = self._requests.responded(active, now)
            has_ended = not self._requests.is_active(active)  # meanwhile
            if acts is not None:
                self._carry_out(acts, now)
        self.statistics.responded(seconds, first=is_first)
        if is_first:
            with self._lock:
                slow = self._requests.slow()
                self.statistics.predicted_late += len(slow)
            self._fail_all(slow)
        for _ in range(0 if has_ended else responses):
            active.count.responded(now)

    # Instances

    def up(self, instance: StepInstance) -> None:
        instance.hand_out = self._hand_out
        with self._lock:
            stops = self.life.is_over(instance.number)
            if not stops:
                self._requests.came_up(instance, self._clock())
        if stops:
            instance.stop()

    def retire(self, instances: Sequence[StepInstance]) -> None:
        with self._lock:
            for instance in instances:
                self._requests.gone(instance)
        for instance in instances:
            instance.stop()

    def down(self, instance: StepInstance) -> None:
        with self._changed:
            self._requests.gone(instance)
            self._gauges.pop(instance.name, None)
            self._changed.notify_all()

    def lost(self, instance: StepInstance, error: WorkerDied) -> bool:
        """A worker died. Streams that had begun have failed; the others are tried once more."""
        with self._lock:
            had = [active.request for active in self._requests.active_on(instance)]
        failed, is_poison = self._worker_died(instance, had, error)
        with self._lock:
            now = self._clock()
            for active in self._requests.gone(instance, failed):
                active.count.ended(now, failed[active.request].reason)
            waiting = self._requests.queue.waiting() if is_poison else ()
        self._fail_all(failed.items())
        self._go_on(waiting)
        return is_poison

    def _stop(self) -> None:
        with self._lock:
            active = self._requests.all_active
        error = ModelNotReady(f"model {self.config.name!r} is unloading")
        for one in active:
            self.fail(one.request, error)
        for instance in self.life.not_ended():
            instance.stop()

    def _is_quiet(self) -> bool:
        return self._requests.is_quiet()

    def _runs_nothing(self) -> bool:
        return not self._requests.all_active

    @property
    def _is_held(self) -> bool:
        return self._requests.is_held

    def _hold(self, held: bool) -> None:
        self._requests.is_held = held

    def _clear_queue(self) -> Sequence[InferRequest]:
        return self._requests.queue.clear()


def with_parameters(request: InferRequest) -> Columns:
    """A request's columns, its parameters among them."""
    if not request.parameters:
        return request.inputs
    request_parameters = request.inputs.get("parameters", [{}])[0]
    if not isinstance(request_parameters, Mapping):
        return request.inputs
    return {**request.inputs, "parameters": [{**request.parameters, **request_parameters}]}
