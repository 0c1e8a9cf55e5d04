"""What happens to a model's requests when one arrives, a batch ends, a worker dies or time passes?

The shell around one model's scheduler: the real clock and one lock. Each event (a request arrives,
a batch is finished, a moment has come) asks the scheduler under the lock and acts outside it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from wherry.core.instances.execution import Failure
from wherry.core.instances.in_caller import InCaller
from wherry.core.instances.instance import BatchRun, Instance
from wherry.core.instances.instance_runner import InstanceRunner, begun
from wherry.core.instances.instance_scaler import InstanceScaler
from wherry.core.instances.instance_table import InstanceTable
from wherry.core.instances.outcomes import Outcomes
from wherry.core.instances.placement import Assignment, Placement
from wherry.core.instances.resources import Resources, share_of
from wherry.core.instances.runner import Refused
from wherry.core.instances.sequence_inputs import SequenceInputs
from wherry.core.instances.stream_run import ModelStreams
from wherry.core.instances.timer import Timer
from wherry.core.models.config import ModelConfig
from wherry.core.observability.statistics import ModelStatistics
from wherry.core.scheduler.admission import QueueAdmission
from wherry.core.scheduler.overload import MIN_QUEUED_BEFORE_REFUSAL
from wherry.core.scheduler.policy import Scheduler
from wherry.core.values.errors import (
    Cancelled,
    DeadlineExceeded,
    ExecutionTimeout,
    InvalidRequest,
    ModelNotReady,
    WherryError,
    WorkerDied,
)
from wherry.core.values.load import Load
from wherry.core.values.request import Batch, Columns, InferRequest

log = logging.getLogger("wherry")

#: What instances are given, which requests are given up, and whether an instance is to stop.
Following = tuple[Sequence[Assignment], Sequence[Refused], bool]


class Dispatcher(InstanceRunner[Instance]):
    """One loaded model that runs batches: its queue, its instances, its counters."""

    def __init__(
        self,
        config: ModelConfig,
        scheduler: Scheduler,
        make_instances: Sequence[Callable[[], Instance]],
        *,
        clock: Callable[[], float],
        timer: Timer,
        statistics: ModelStatistics,
        sequence_inputs: SequenceInputs | None = None,
        resources: Resources | None = None,
    ) -> None:
        super().__init__(config, make_instances, clock=clock, timer=timer, statistics=statistics)
        self._scheduler = scheduler
        self._admission = QueueAdmission(config, scheduler)
        table = self._instances = InstanceTable(config.execution_timeout)
        share = self._share = share_of(resources, config, self)
        self._placement = Placement(scheduler, table, share)
        self.scaler = InstanceScaler(
            self._life, table, scheduler, self._lock, config.unload_timeout
        )
        streams = ModelStreams(config, statistics, clock, self)
        self._outcomes = Outcomes(self, self._delivery, streams, self._poisons, sequence_inputs)
        self._in_caller = InCaller(
            self, self._lock, clock, table, scheduler, share, line_size=_line_size(config)
        )
        self._assigned: list[Assignment] = []  #: To make room in the queue; not handed over yet.

    # Requests

    def _enqueue(self, request: InferRequest, now: float) -> WherryError | None:
        deadline = request.deadline
        if deadline is not None and deadline <= now:
            return self._admission.late(request, now)
        if deadline is not None or self._scheduler.queued_requests >= MIN_QUEUED_BEFORE_REFUSAL:
            refusal = self._admission.refusal(request, now)
            if refusal is not None:
                self.statistics.predicted_late += 1
                return refusal
        try:
            queued = self._scheduler.enqueue(request, now)
            if not queued and self._placement.has_room():
                self._assigned = self._assign(now)  # an instance may take what fills the queue
                queued = self._scheduler.enqueue(request, now)
        except InvalidRequest as error:  # a step of a sequence that did not start
            return error
        if not queued:
            return self._admission.full(request)
        if self._in_caller.lines_up and request.priority < self.config.default_priority:
            self._in_caller.send_away()  # those in the line queue their rows behind it
        if self._delivery.in_order:
            self._delivery.arrived(request)
        return None

    def _forget(self, request: InferRequest, error: WherryError) -> Sequence[Refused]:
        with self._lock:
            queued = self._scheduler.cancel(request)
            broken = self._scheduler.broken()
        if not queued and isinstance(error, Cancelled | DeadlineExceeded):
            for instance in self.instances:  # a model may ask whether its caller has left
                instance.cancel(request)
        return broken

    def run_in_caller(self, columns: Columns) -> Columns | Failure | None:
        if self._poisons.active:  # rows are compared with those that have killed workers
            return None
        return self._in_caller.run(columns)

    @property
    def queued_requests(self) -> int:
        return self._scheduler.queued_requests + self._in_caller.waiting

    def running(self) -> list[tuple[str, int, float]]:
        with self._lock:
            return self._instances.running()

    def load(self) -> Load:
        with self._lock:
            scheduler, up = self._scheduler, self._instances.up
            full, seconds = scheduler.max_batch_size, scheduler.forecast.batch_seconds
            busy = len(up) - len(self._instances.idle)
            return Load(
                ready=bool(up) and not self.readiness.reason,
                instances=len(up),
                busy=busy,
                queued_rows=scheduler.queued_rows + self._in_caller.waiting,
                running_rows=self._instances.running_rows if busy else 0,
                free_after=self._instances.free_after(self._clock(), seconds) if busy else 0.0,
                full_rows=full,
                one_seconds=seconds(1),
                full_seconds=seconds(full),
            )

    def explain(self) -> dict[str, Any]:
        with self._lock:
            decided = self._scheduler.decisions.copy(self._clock())
            explained = self._scheduler.explain()
        return {**explained, "held_seconds": decided.held_seconds, "decisions": decided}

    # What runs next

    def _assign(self, now: float) -> list[Assignment]:
        assigned, wake_at = self._placement.assign(now)
        if self._assigned:
            assigned = [*self._assigned, *assigned]
            self._assigned = []
        if (deadline := self._scheduler.next_deadline()) is not None:
            wake_at = min(wake_at, deadline)
        if self.config.execution_timeout is not None:
            wake_at = min(wake_at, self._instances.overruns_at())
        if wake_at < inf:
            self._alarm.set(wake_at)
        return assigned

    def _hand_over(self, chosen: Sequence[Assignment]) -> None:
        """Give the instances their batches, and other models what is free of what they share."""
        for instance, batches in chosen:
            instance.give(batches)
        if self._share.limits:
            self._share.pass_on()

    def granted(self) -> None:
        """It is this model's turn on what it shares with others."""
        with self._lock:
            self._share.granted()
            assigned = self._assign(self._clock())
            self._share.nothing_to_run()  # the instance that it was claimed for may be gone
        for instance, batches in assigned:
            instance.give(batches)

    def tick(self) -> None:
        """The timer: a wait is over, or a deadline has passed."""
        with self._lock:
            now = self._clock()
            self._alarm.rang(now)
            expired = self._scheduler.expire(now)
            broken = self._scheduler.broken()
            overdue = self._instances.take_overdue(now)
            assigned = self._assign(now)
        self._hand_over(assigned)
        late = [(request, self._admission.late(request, now)) for request in expired]
        self._fail_all([*late, *broken])
        why = f"the batch ran longer than {self.config.execution_timeout} s (execution_timeout)"
        for instance, batch in overdue:
            self._abandon(instance, why, batch)

    # What has run

    def ended(self, instance: Instance, runs: Sequence[BatchRun]) -> None:
        with self._lock:
            now = self._clock()
            self._placement.ended(instance, runs, now)
            instance.is_telling = True
            following: Following = (), (), False
            if instance.takes_ahead:
                following = self._following(instance, now)
            elif self._share.limits:
                self._share.may_run(self._scheduler, now)  # the next, while the callers are told
        self._follow(instance, following)

    def callers_answered(self, instance: Instance) -> None:
        was_telling, instance.is_telling = instance.is_telling, False
        if not (was_telling and instance.takes_ahead):  # else it was given more before
            with self._lock:
                following = self._following(instance, self._clock())
            self._follow(instance, following)
        if not self.readiness.takes_requests:
            self.request_ended()

    def _following(self, instance: Instance, now: float) -> Following:
        """Under the lock: batches of this instance have ended; choose what follows."""
        ends = self._life.closing or instance.is_let_go or instance not in self._instances.up
        queued = self._scheduler.queued_requests
        if not instance.batches:
            line = self._in_caller
            if ends or not line.lines_up or not line.assign(instance, at_once=queued > 0):
                self._instances.free(instance, idle=not ends)
        assigned: Sequence[Assignment] = ()
        abandoned: Sequence[Refused] = ()
        if not ends and (queued or self._scheduler.runs_sequences):
            if queued >= MIN_QUEUED_BEFORE_REFUSAL and (abandoned := self._admission.give_up()):
                self.statistics.predicted_late += len({one.whole or one for one, _ in abandoned})
            assigned = self._assign(now)
        elif self._share.limits:
            self._share.nothing_to_run()
        return assigned, abandoned, ends and not instance.batches

    def _follow(self, instance: Instance, following: Following) -> None:
        assigned, abandoned, stops = following
        self._hand_over(assigned)
        if stops:
            instance.stop()
        if abandoned:
            self._fail_all(abandoned)

    def reschedule(self, request: InferRequest) -> bool:
        """Queue a request again that its model wants to run once more; False if it cannot be."""
        with self._lock:
            return self._scheduler.reschedule(request, self._clock())

    def limit_rows(self, rows: int) -> None:
        """A batch of more rows found too little memory."""
        with self._lock:
            self._scheduler.limit_rows(rows)

    # Instances

    def up(self, instance: Instance) -> None:
        instance.answers = self._outcomes
        with self._lock:
            stops = self._life.is_over(instance.number)
            self._instances.add(instance, idle=not stops)
            self._scheduler.instance_up(instance.number)
            self.scaler.counted()
            self._in_caller.came_up(instance)
        if stops:
            instance.stop()

    def serve(self, instance: Instance) -> None:
        self._go_on((), ())  # what came while it was loaded
        instance.serve()

    def lost(self, instance: Instance, error: WorkerDied) -> bool:
        """A worker died. What it ran and was not answered yet is tried once more, alone; what
        waited there for its turn is not to blame."""
        sequences = self._scheduler.runs_sequences
        with self._lock:
            had, ahead = self._instances.retire(instance)
            error.reached |= bool(ahead)  # if it had not read all, it had read the oldest
            self._placement.lost(instance, self._clock())
        # What a step of a sequence does depends on those before it: equal ones are not the same.
        poison = {} if sequences else self._blame(instance, had, error)
        failed: list[Refused] = []
        with self._lock:
            now = self._clock()
            for request in had:
                if request.reply.settled:
                    continue
                once = "a step of a sequence" if sequences else begun(request)
                if (why := self._final(request, error, poison, once=once)) is not None:
                    failed.append((request, why))
                else:
                    self._scheduler.requeue(request, now, alone=True)
            for request in reversed(ahead):
                if self._life.closing:
                    failed.append((request, error))
                elif not request.reply.settled:
                    self._scheduler.requeue(request, now, alone=False)
            failed += self._placement.remove(instance)
            self._share.nothing_to_run()
            waiting = self._scheduler.waiting() if poison else ()
        self._go_on(failed, waiting)
        return bool(poison)

    def down(self, instance: Instance) -> None:
        with self._changed:
            self._instances.remove(instance)
            self._changed.notify_all()

    def _abandon(self, instance: Instance, why: str, batch: Batch | None = None) -> None:
        """Give up `batch`, or all that the instance has. A thread that hangs is left behind."""
        batches = tuple(instance.batches) if batch is None else (batch,)
        if not all(one in instance.batches for one in batches):
            return  # it has just finished
        kind = ModelNotReady if self._life.closing else ExecutionTimeout
        error = kind(f"model {self.config.name!r}: {why}")
        self._fail_all([(request, error) for one in batches for request in one.requests])
        if instance.abort(why):
            return
        with self._changed:
            if instance not in self._instances.up or tuple(instance.batches) != batches:
                return
            self._placement.lost(instance, self._clock())
            broken = self._placement.remove(instance)
            self._changed.notify_all()
        self._life.replace(instance, why)
        self._hand_over(())
        self._fail_all(broken)

    def _stop(self) -> None:
        with self._lock:
            idle, self._instances.idle = self._instances.idle, []
            self._share.nothing_to_run()
        self._hand_over(())
        for instance in idle:
            instance.stop()

    def _is_quiet(self) -> bool:
        return not self.queued_requests and self._instances.is_quiet()

    def _clear_queue(self) -> Sequence[InferRequest]:
        self._in_caller.send_away()
        return self._scheduler.clear()


def _line_size(config: ModelConfig) -> float:
    """How many callers may wait in line for an instance. 0: their rows are queued, as the model has
    batches, delays or limits, which are the queue's."""
    if (
        config.max_batch_size > 1
        or config.max_queue_delay
        or config.queue_policies
        or config.max_queue_bytes is not None
    ):
        return 0
    return inf if config.max_queue_size is None else config.max_queue_size
