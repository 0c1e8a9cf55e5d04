"""How do the batches of one model run on its instances?

What runs next is decided by `ModelBatches`, which the dispatcher's lock guards; here it is done.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from time import perf_counter_ns
from typing import Any

from wherry.core.instances.instance import Instance
from wherry.core.instances.resources import Resources
from wherry.core.instances.runner import InstanceRunner, Refused
from wherry.core.instances.sequence_inputs import SequenceInputs
from wherry.core.instances.stream_run import ModelStreams, StreamRun
from wherry.core.instances.timer import Timer
from wherry.core.models.config import ModelConfig
from wherry.core.observability.statistics import ModelStatistics
from wherry.core.scheduler.device_share import ModelShare
from wherry.core.scheduler.instance_table import BatchRun, Waiter
from wherry.core.scheduler.model_batches import Acts, ModelBatches
from wherry.core.scheduler.open_sequences import NOT_READY
from wherry.core.scheduler.policy import Scheduler
from wherry.core.values.errors import (
    Cancelled,
    DeadlineExceeded,
    ExecutionTimeout,
    ModelNotReady,
    WherryError,
    WorkerDied,
)
from wherry.core.values.execution import RESCHEDULED, Failure, Outcome
from wherry.core.values.load import Load
from wherry.core.values.reply import StreamReply
from wherry.core.values.request import Batch, Columns, InferRequest, InferResponse

log = logging.getLogger("wherry")


class WaitingCaller(Waiter[Instance]):
    """A thread that waits for an instance."""

    __slots__ = ("turn",)

    def __init__(self) -> None:
        super().__init__()
        #: Released to wake the caller.
        self.turn = threading.Lock()
        self.turn.acquire()

    def wake(self) -> None:
        if self.turn.locked():  # else it was woken before, and has not looked yet
            with suppress(RuntimeError):  # another thread has just done it
                self.turn.release()


class Dispatcher(InstanceRunner[Instance]):
    """One loaded model that runs batches."""

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
        self._timer = timer
        #: What it shares with other models, if it needs any of that.
        self._resources, share = None, None
        if resources is not None and config.resources:
            resources.admit(config.name, config.resources)
            self._resources = resources
            share = ModelShare(resources, config, self.granted)
        self._batches: ModelBatches[Instance] = ModelBatches(config, scheduler, share)
        self._outcomes = Outcomes(self, clock, sequence_inputs)

    # Requests

    def _arrived(self, requests: Sequence[InferRequest], now: float) -> Acts[Instance]:
        if self.delivery.in_order:
            self.delivery.arrived(requests)  # one that is refused leaves again as it fails
        return self._batches.arrived(requests, now)

    def _hand_over(self, chosen: Acts[Instance], *, pass_on: bool = True) -> None:
        """Carry out what was chosen, and grant other models what is free of what they share."""
        for instance, batches in chosen.give:
            instance.give(batches)
        for waiter in chosen.wake:
            assert isinstance(waiter, WaitingCaller)
            waiter.wake()
        for instance in chosen.stop:
            instance.stop()
        if chosen.wake_at < inf:
            self._timer.wake_at(chosen.wake_at, self.tick)
        if pass_on and self._resources is not None:
            self._resources.pass_on()
        if chosen.predicted_late:
            with self._lock:
                self.statistics.predicted_late += chosen.predicted_late
        if chosen.fail:
            self._fail_all(chosen.fail)
        for instance, batch in chosen.overdue:
            limit = self.config.execution_timeout
            why = f"the batch ran longer than {limit} s (execution_timeout)"
            self._abandon(instance, why, batch)

    def _forget(self, request: InferRequest, error: WherryError) -> Sequence[Refused]:
        with self._lock:
            queued, broken = self._batches.cancelled(request)
        if not queued and isinstance(error, Cancelled | DeadlineExceeded):
            for instance in self.instances:  # a model can check whether its caller has left
                instance.cancel(request)
        return broken

    def granted(self) -> None:
        """It is this model's turn on what it shares with others."""
        with self._lock:
            acts = self._batches.granted(self._clock())
        self._hand_over(acts, pass_on=False)

    def tick(self) -> None:
        with self._lock:
            acts = self._batches.tick(self._clock())
        self._hand_over(acts)

    def _is_quiet(self) -> bool:
        return self._batches.is_quiet()

    def _runs_nothing(self) -> bool:
        return self._batches.table.is_quiet()

    @property
    def _is_held(self) -> bool:
        return self._batches.is_held

    def _hold(self, held: bool) -> None:
        self._hand_over(self._batches.hold(held), pass_on=False)  # which only wakes callers

    def _clear_queue(self) -> Sequence[InferRequest]:
        waiting, acts = self._batches.cleared()
        self._hand_over(acts, pass_on=False)  # which only wakes callers
        return waiting

    # Rows that run in their callers' threads

    def run_in_caller(self, columns: Columns) -> Columns | Failure | None:
        if self.poisons.active:  # rows are compared with those that have killed workers
            return None
        batches, waiter = self._batches, None
        with self._lock:
            if self.readiness.reason:
                return None
            instance = batches.caller_came(self._clock())
            if instance is None:
                waiter = batches.caller_waits(WaitingCaller)
                if waiter is None:
                    return None
        waited_ns = 0
        if waiter is not None:
            joined = perf_counter_ns()
            instance = self._wait(waiter)
            waited_ns = perf_counter_ns() - joined
        if instance is None:
            return None
        started = perf_counter_ns()
        try:
            outcome = instance.run_in_caller(columns)
        finally:  # also if Ctrl-C has interrupted the caller
            ns = perf_counter_ns() - started
            self._take_back(instance)
        if isinstance(outcome, Failure):
            self.statistics.failed(outcome.as_exception(), (waited_ns + ns) * 1e-9)
        elif outcome is not None:
            self.statistics.inlined(ns, waited_ns)
        return outcome

    def _wait(self, waiter: WaitingCaller) -> Instance | None:
        """Block until this caller has an instance. None: its wait has ended without one."""
        try:
            while not waiter.is_over:
                waiter.turn.acquire()
                with self._lock:
                    acts = self._batches.caller_looks(waiter, self._clock())
                self._hand_over(acts)
            return waiter.instance
        except BaseException:  # Ctrl-C: the next one must not wait for this one
            with self._lock:
                acts = self._batches.caller_left(waiter)
            self._hand_over(acts)
            if waiter.instance is not None:
                self._take_back(waiter.instance)
            raise

    def _take_back(self, instance: Instance) -> None:
        with self._lock:
            is_ready = not self.readiness.reason
            acts = self._batches.caller_ran(instance, self._clock(), is_ready=is_ready)
        if acts is not None:
            self._hand_over(acts)
        if not is_ready:
            self.request_ended()

    # What has run

    def ended(self, instance: Instance, runs: Sequence[BatchRun]) -> None:
        """Batches of the instance have ended: let it go on, if it can meanwhile. Called before
        their callers are answered, as these may send again at once. `callers_answered` follows."""
        with self._lock:
            acts = self._batches.ended(instance, runs, self._clock())
        self._hand_over(acts)

    def callers_answered(self, instance: Instance) -> None:
        """The callers of all ended batches of the instance have been answered."""
        with self._lock:
            acts = self._batches.answered(instance, self._clock())
        if acts is not None:
            self._hand_over(acts)
        if not self.readiness.takes_requests:
            self.request_ended()

    def reschedule(self, request: InferRequest) -> bool:
        """Queue a request again that its model wants to run once more; False if it cannot be."""
        with self._lock:
            return self._batches.rescheduled(request, self._clock())

    # Instances

    def up(self, instance: Instance) -> None:
        instance.answers = self._outcomes
        with self._lock:
            stops = self.life.is_over(instance.number)
            acts = self._batches.came_up(instance, len(self.life.slots), stops=stops)
        self._hand_over(acts)

    def retire(self, instances: Sequence[Instance]) -> None:
        with self._lock:
            acts = self._batches.retire(instances)
        self._hand_over(acts)

    def lost(self, instance: Instance, error: WorkerDied) -> bool:
        """A worker died. What it ran and was not answered yet is tried once more, alone; what
        waited there for its turn is not to blame."""
        sequences = self._batches.runs_sequences
        with self._lock:
            had, ahead = self._batches.lost(instance, self._clock())
        error.reached |= bool(ahead)  # if it had not read all, it had read the oldest
        failed, is_poison = self._worker_died(instance, had, error, sequences=sequences)
        if self.life.closing:
            failed |= dict.fromkeys(ahead, error)
            ahead = []
        again = [request for request in had if request not in failed]
        with self._lock:
            acts = self._batches.gone(instance, again, ahead, self._clock())
            waiting = self._batches.waiting() if is_poison else ()
        self._fail_all(failed.items())
        self._hand_over(acts)
        self._go_on(waiting)
        return is_poison

    def down(self, instance: Instance) -> None:
        with self._changed:
            self._batches.table.remove(instance)
            self._changed.notify_all()

    def _abandon(self, instance: Instance, why: str, batch: Batch | None = None) -> None:
        """Give up `batch`, or all that the instance has. A thread that hangs is left behind."""
        batches = tuple(instance.batches) if batch is None else (batch,)
        if not all(one in instance.batches for one in batches):
            return  # it has just finished
        kind = ModelNotReady if self.life.closing else ExecutionTimeout
        error = kind(f"model {self.config.name!r}: {why}")
        self._fail_all([(request, error) for one in batches for request in one.requests])
        if instance.abort(why):
            return
        with self._changed:
            acts = self._batches.left_behind(instance, batches, self._clock())
            self._changed.notify_all()
        if acts is not None:
            self.life.replace(instance, why)
            self._hand_over(acts)

    def _stop(self) -> None:
        with self._lock:
            acts = self._batches.closing()
        self._hand_over(acts)

    # What is shown

    @property
    def queued_requests(self) -> int:
        return self._batches.queued_requests

    def running(self) -> list[tuple[str, int, float]]:
        with self._lock:
            return self._batches.table.running()

    def load(self) -> Load:
        with self._lock:
            return self._batches.load(self._clock(), ready=not self.readiness.reason)

    def explain(self) -> dict[str, Any]:
        with self._lock:
            return self._batches.explain(self._clock())


class Outcomes:
    """The outcomes of one model's batches; the `answers` of its instances."""

    def __init__(
        self, dispatcher: Dispatcher, now: Callable[[], float], inputs: SequenceInputs | None
    ) -> None:
        self._dispatcher = dispatcher
        self._delivery = dispatcher.delivery
        self._poisons = dispatcher.poisons
        self._model = dispatcher.config.name
        self._statistics = statistics = dispatcher.statistics
        self.now = now
        #: If requests are steps of sequences: the further inputs of their model.
        self._inputs = inputs
        streams = ModelStreams(
            dispatcher.config, statistics, now, dispatcher.fail, dispatcher.failed
        )
        self._streams = streams if inputs is None else replace(streams, keep=inputs.keep)

    def prepared(self, batch: Batch) -> Sequence[InferRequest]:
        if self._inputs is None:
            for request in batch.requests:
                if request.reply.settled:
                    return [request for request in batch.requests if not request.reply.settled]
            return batch.requests
        requests = list(batch.requests)  # no step is skipped unseen
        self._inputs.fill(requests)
        return requests

    # A batch that answers once

    def finished(self, instance: Instance, runs: Sequence[BatchRun]) -> None:
        try:
            ran: list[tuple[BatchRun, Sequence[InferRequest], Sequence[Outcome]]] = []
            for run in runs:
                execution = run.execution
                special = execution.later or execution.out_of_memory_rows
                if special or self._inputs is not None:
                    ran.append((run, *self._with_outcomes(run)))
                else:  # as nearly always
                    ran.append((run, run.requests, execution.outcomes))
            self._dispatcher.ended(instance, runs)
            good: list[tuple[InferRequest, InferResponse]] = []
            bad: list[tuple[InferRequest, Failure]] = []
            for run, requests, outcomes in ran:
                if run.requests:
                    self._count(instance, run, requests)
                response_parameters = run.execution.parameters
                for request, outcome in zip(requests, outcomes, strict=True):
                    if isinstance(outcome, Failure):
                        bad.append((request, outcome))
                    elif request.reply.claim():
                        response = InferResponse(
                            outcome,
                            request.rows,
                            response_parameters.get(request) if response_parameters else None,
                        )
                        good.append((request, response))
            self._delivery.answer(good)
            for request, failure in bad:
                self._dispatcher.failed(request, failure, instance.name)
        except BaseException:  # noqa: BLE001 - our own bug: it is logged, and the requests fail
            self._fail(instance, [run.batch for run in runs])
        self._dispatcher.callers_answered(instance)

    def crashed(self, instance: Instance, batch: Batch) -> None:
        self._fail(instance, [batch])
        self._dispatcher.callers_answered(instance)

    def _fail(self, instance: Instance, batches: Sequence[Batch]) -> None:
        log.exception("internal error", extra={"model": self._model})
        for batch in batches:
            for request in batch.requests:
                self._dispatcher.fail(request, WherryError("internal error; see the server's log"))
        now = self.now()
        runs = [BatchRun(batch, (), now) for batch in batches]
        self._dispatcher.ended(instance, runs)

    def _count(self, instance: Instance, run: BatchRun, requests: Sequence[InferRequest]) -> None:
        """Count a batch of which `requests` have ended."""
        execution = run.execution
        instance.good_batches += 1
        if self._poisons.active:
            self._poisons.survived(requests)
        if run.trace is not None:
            took = execution.input_ns + execution.infer_ns + execution.output_ns
            run.trace.ended(run.started, took)
        self._statistics.executed(
            run.requests if self._inputs is None else requests,
            execution.executed_rows,
            run.batch.reason,
            run.started,
            execution.input_ns,
            execution.infer_ns,
            execution.output_ns,
        )
        if (records := self._statistics.records) is not None:
            ns = execution.input_ns, execution.infer_ns, execution.output_ns
            records.ran(instance.name, run.batch.reason, run.started, ns, requests)

    def _with_outcomes(self, run: BatchRun) -> tuple[Sequence[InferRequest], Sequence[Outcome]]:
        """The requests that end with this batch, and their outcomes: not those that outlive it,
        run again, or only fill a slot."""
        requests, execution = run.requests, run.execution
        outcomes: Sequence[Outcome] = execution.outcomes
        if execution.out_of_memory_rows > 1:
            rows = execution.out_of_memory_rows
            log.warning(
                "batches limited: out of memory",
                extra={"model": self._model, "rows": rows, "from_now_on": rows // 2},
            )
        if execution.later:
            done = [i for i, request in enumerate(requests) if request not in execution.later]
            requests, outcomes = [requests[i] for i in done], [outcomes[i] for i in done]
        if self._inputs is None:
            return requests, outcomes
        answered: list[InferRequest] = []
        answers: list[Outcome] = []
        for request, outcome in zip(requests, outcomes, strict=True):
            if self._runs_on(request, outcome):
                continue
            answered.append(request)
            if not isinstance(outcome, Failure):
                outcome = self._inputs.keep(request, outcome)
            answers.append(outcome)
        return answered, answers

    def _runs_on(self, request: InferRequest, outcome: Outcome | None) -> bool:
        """Has this row no outcome yet, or none at all?"""
        if request.sequence is NOT_READY:
            return True
        again = isinstance(outcome, Failure) and outcome.error == RESCHEDULED
        return again and not request.reply.settled and self._dispatcher.reschedule(request)

    # A batch that streams

    def stream_run(self, instance: Instance, run: BatchRun) -> StreamRun:
        return StreamRun(self._streams, instance, run)

    def streamed(self, stream: StreamRun, outcomes: Sequence[Outcome | None]) -> None:
        instance, run = stream.instance, stream.executed()
        assert isinstance(instance, Instance)
        try:
            self._count(instance, run, run.requests)
            for index, (request, outcome) in enumerate(zip(run.requests, outcomes, strict=True)):
                if not self._runs_on(request, outcome):
                    stream.settle(index, outcome)
            # Nothing is learnt of its time, which its readers may have taken.
            self._dispatcher.ended(instance, [BatchRun(run.batch, (), run.started)])
        except BaseException:  # noqa: BLE001 - our own bug: it is logged, and the requests fail
            self._fail(instance, [run.batch])
        self._dispatcher.callers_answered(instance)

    # Requests that outlive their batch

    def answer(self, request: InferRequest, response: InferResponse) -> None:
        if request.reply.claim():
            self._delivery.answer([(request, response)])
        self._dispatcher.request_ended()

    def respond(self, request: InferRequest, response: InferResponse) -> bool:
        reply = request.reply
        assert isinstance(reply, StreamReply)
        with self._statistics.lock:
            self._statistics.responses += 1
        if reply.send(response):
            return True
        self._dispatcher.fail(request, reply.dropped(self._model))
        return False

    def fail(self, request: InferRequest, error: WherryError) -> None:
        self._dispatcher.fail(request, error)

    def failed(self, request: InferRequest, failure: Failure, instance: str) -> None:
        self._dispatcher.failed(request, failure, instance)
