"""Which free instance gets a batch, and what happens when it does not come back?

The shell around one model's scheduler: the real clock, one lock, one serving thread for each
instance. Whoever changes something (a request arrives, a batch is finished, a moment has come)
asks the scheduler under the lock and acts outside it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from math import inf
from time import perf_counter_ns
from typing import Any

from wherry.instances.executable import (
    RESCHEDULED,
    Executable,
    Execution,
    Failure,
    Outcome,
    model_errors,
)
from wherry.instances.instance import Instance
from wherry.instances.life import ModelLife, ModelState
from wherry.instances.resources import Resources
from wherry.instances.sequence_inputs import SequenceInputs
from wherry.instances.stream_run import StreamRun
from wherry.instances.timer import Timer
from wherry.models.config import ModelConfig
from wherry.observability.statistics import ModelStatistics
from wherry.scheduler.arrival_order import ArrivalOrder
from wherry.scheduler.device_share import Claim
from wherry.scheduler.door import PATIENCE, refusal, too_slow
from wherry.scheduler.policy import Dispatch, Scheduler, Wait
from wherry.scheduler.sequence_batcher import NOT_READY, SequenceBatcher
from wherry.values.errors import (
    Cancelled,
    DeadlineExceeded,
    ExecutionTimeout,
    InvalidRequest,
    ModelNotReady,
    Overloaded,
    QueueFull,
    QueueLimitExceeded,
    QueueTimeout,
    RequestTimeoutExpired,
    WherryError,
    WorkerDied,
)
from wherry.values.reply import StreamReply
from wherry.values.request import Batch, Columns, InferRequest, InferResponse, gather

log = logging.getLogger("wherry")


class Dispatcher(ModelLife[Instance]):
    """One loaded model: its queue, its instances, its counters."""

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
        super().__init__(
            config,
            make_instances,
            clock=clock,
            timer=timer,
            statistics=statistics,
            lock=threading.Lock(),
        )
        self._scheduler = scheduler
        #: The same, if the model's requests are steps of sequences, and what they get beside.
        self._sequences = scheduler if isinstance(scheduler, SequenceBatcher) else None
        self._sequence_inputs = sequence_inputs
        self._longest = config.max_queue_wait or None
        self._idle: list[Instance] = []
        #: Answers that must not overtake others, and whose turn it is to deliver them.
        self._order: ArrivalOrder[InferRequest, InferResponse] | None = None
        if config.preserve_ordering:
            self._order = ArrivalOrder()
        self._delivering = threading.RLock()
        #: What is shared with other models, if each batch here needs some of it.
        self._resources = resources if config.resources else None
        self._needs = config.resources or {}
        if self._resources is not None:
            self._resources.admit(config.name, self._needs)
        #: Batches that may run, by what this one has been granted, and do not yet.
        self._grants = 0
        #: When the timer will call `_tick`, latest first.
        self._wake_ups: list[float] = []

    # Life

    def close(self, timeout: float | None = 10.0) -> None:
        """Stop the instances. Requests that still wait are answered with ModelNotReady.

        What still runs after `timeout` seconds is answered with ExecutionTimeout; its worker is
        killed, as is one that still unloads its model, a thread is left behind.
        """
        with self._changed:
            self._closing = True
            if self.state is not ModelState.UNAVAILABLE:
                self.state, self.reason = ModelState.UNLOADING, "unloading"
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        self._fail_waiting(ModelNotReady(f"model {self.config.name!r} is unloading"))
        with self._lock:
            self._return_grants()
        self._hand_over(())
        for instance in idle:
            instance.give(None)
        self._join(timeout)
        with self._lock:
            stuck = [(i, i.batch) for i in (*self._alive, *self._loading, *self._ending)]
            ending = [instance.name for instance in self._ending]
        for name in ending:
            log.warning("unload cut short", extra={"instance": name, "after_seconds": timeout})
        for instance, batch in stuck:
            self._abandon(instance, batch, "the server is stopping")
        self._join(1.0)
        with self._lock:
            self.state, self.reason = ModelState.UNAVAILABLE, "unloaded"

    def not_ready_reason(self) -> str:
        reason = super().not_ready_reason()
        if not reason:
            models = [instance.not_ready_reason() for instance in self.instances]
            reason = models[0] if models and all(models) else ""
        return reason

    # Requests

    def submit(self, requests: Sequence[InferRequest]) -> None:
        """Queue requests and start what can be started. Never blocks; any thread.

        A request that is refused is settled with the reason.
        """
        refused: list[tuple[InferRequest, WherryError]] = []
        handed: list[tuple[Instance, Batch]] = []
        if self._poisons.active:
            requests = self._without_poison(requests)
        with self._lock:
            now = self._clock()
            closed = self._closed_error()
            successor = self.successor if closed is not None else None
            for request in requests if successor is None else ():
                if request.reply.settled:
                    continue  # its caller has just left
                request.enqueued_at = now
                if closed is not None:
                    refused.append((request, closed))
                elif request.deadline is not None and request.deadline <= now:
                    refused.append((request, self._too_late(request, now)))
                elif hopeless := self._hopeless(request, now):
                    self.statistics.predicted_late += 1
                    refused.append((request, hopeless))
                elif refusal := self._enqueue(request, now, handed):
                    refused.append((request, refusal))
                elif self._order is not None:
                    self._order.arrived(request)
            if closed is None:
                handed += self._assign(now)
        self._hand_over(handed)
        for request, error in refused:
            self._fail(request, error)
        if successor is not None:
            successor(requests)

    def cancel(self, request: InferRequest) -> bool:
        """The caller is gone: forget the request where it waits, ignore it where it runs."""
        if not request.reply.claim():
            return False
        with self._lock:
            queued = self._scheduler.cancel(request)
            if queued:
                self._changed.notify_all()
            seconds = self._clock() - request.enqueued_at
            broken = self._broken()
        if request.whole is None:
            self.statistics.failed(Cancelled.reason, seconds)
        request.reply.deliver(Cancelled("the request was cancelled"))
        self._left(request)
        if not queued:
            self._tell_instances(request)
        for follower, error in broken:
            self._fail(follower, error)
        return True

    def _tell_instances(self, request: InferRequest) -> None:
        """Nobody waits for this one any more: a model may ask about that."""
        for instance in self.instances:
            instance.cancel(request)

    def run_in_caller(self, columns: Columns) -> Columns | Failure | None:
        """Run one row in this very thread if an instance is idle and nothing waits, else None."""
        with self._lock:
            if not self._idle or self.state is not ModelState.READY:
                return None
            instance = self._idle[-1]
            now = self._clock()
            if not instance.runs_in_caller or not self._scheduler.may_run_alone(now):
                return None
            if self._resources is not None and not self._may_run_here(now):
                return None
            self._idle.pop()
            instance.busy_since = now
        executable: Executable = instance.executable  # type: ignore[attr-defined]
        started = perf_counter_ns()
        outcome: Columns | Failure
        try:
            if executable.takes_arrays:
                columns = gather([columns])
            outcome = executable.execute(columns, 1)
        except model_errors() as error:
            outcome = executable.failure(error)
        finally:  # Ctrl-C may have interrupted the caller: the instance is free all the same
            ns = perf_counter_ns() - started
            self._returned(instance)
        if isinstance(outcome, Failure):
            self.statistics.failed(outcome.as_exception().reason, ns * 1e-9)
        else:
            self.statistics.inlined(ns)
        return outcome

    def _returned(self, instance: Instance) -> None:
        """A caller that ran this instance is done."""
        with self._lock:
            since, instance.busy_since = instance.busy_since, None
            quiet = not self._scheduler.queued_requests and self.state is ModelState.READY
            if quiet:
                self._idle.append(instance)
            elif since is not None:
                now = self._clock()
                self._scheduler.ran_alone(now - since, now)
        if self._resources is not None:
            self._resources.release(self._needs)
            self._resources.pass_on()
        if quiet:
            return
        self._next(instance)

    @property
    def queued_requests(self) -> int:
        return self._scheduler.queued_requests

    def running(self) -> list[tuple[str, int, float]]:
        """Instances that run something: name, rows, since when."""
        with self._lock:
            return [
                (i.name, i.batch.rows if i.batch else 1, i.busy_since)
                for i in self._alive
                if i.busy_since is not None
            ]

    # Under the lock: ask the scheduler

    def _enqueue(
        self, request: InferRequest, now: float, handed: list[tuple[Instance, Batch]]
    ) -> WherryError | None:
        """Queue a request, or say why not."""
        try:
            if self._scheduler.enqueue(request, now):
                return None
            if self._idle:
                handed += self._assign(now)  # the queue is full of what an idle one may take
                if self._scheduler.enqueue(request, now):
                    return None
        except InvalidRequest as error:  # a step of a sequence that did not start
            return error
        wait = self._scheduler.predicted_seconds(request) or 1.0
        name, queued = self.config.name, self._scheduler.queued_requests
        policy = self.config.queue_policy(request.priority)
        if policy is not None and policy.triton:
            return QueueLimitExceeded(request.id, name, queued, wait)
        return QueueFull(name, queued, wait)

    def _assign(self, now: float) -> list[tuple[Instance, Batch]]:
        """Give free instances what the scheduler lets go; arm the timer for the rest."""
        handed: list[tuple[Instance, Batch]] = []
        wake_at = float("inf")
        shared = self._resources is not None
        if self._sequences is not None:
            wake_at = self._assign_sequences(self._sequences, now, handed)
        while self._idle and self._sequences is None and (not shared or self._has_grant(now)):
            action = self._scheduler.next_action(now)
            if isinstance(action, Dispatch):
                self._grants -= shared
                instance = self._idle.pop()
                instance.batch, instance.busy_since = action.batch, now
                handed.append((instance, action.batch))
                continue
            if isinstance(action, Wait):
                wake_at = action.until
            self._return_grants()
            break
        deadline = self._scheduler.next_deadline()
        if deadline is not None and deadline < wake_at:
            wake_at = deadline
        if self.config.execution_timeout is not None:
            wake_at = min([wake_at, *(overruns_at for overruns_at, _ in self._overruns())])
        if wake_at < (self._wake_ups[-1] if self._wake_ups else float("inf")):
            self._wake_ups.append(wake_at)
            self._timer.wake_at(wake_at, self._tick)
        return handed

    def _assign_sequences(
        self, sequences: SequenceBatcher, now: float, handed: list[tuple[Instance, Batch]]
    ) -> float:
        """Each idle instance gets what waits for it, and no other; when to ask again."""
        wake_at = float("inf")
        for instance in tuple(self._idle):
            if not self._has_grant(now):
                break
            action = sequences.next_action(now, instance.number)
            if isinstance(action, Dispatch):
                self._grants -= 1
                self._idle.remove(instance)
                instance.batch, instance.busy_since = action.batch, now
                handed.append((instance, action.batch))
            elif isinstance(action, Wait):
                wake_at = min(wake_at, action.until)
        self._return_grants()
        return wake_at

    def _has_grant(self, now: float) -> bool:
        """May a batch run, by what is shared with other models? If not, `granted` will come."""
        if self._resources is None:
            self._grants = 1
        elif not self._grants and self._scheduler.queued_requests:
            since, seconds = self._scheduler.head() or (now, 0.0)
            claim = Claim(self._needs, since, seconds, self.config.resource_priority)
            self._grants += self._resources.acquire(self, claim)
        return self._grants > 0

    def _may_run_here(self, now: float) -> bool:
        """The same for one row in its caller's thread, which does not wait for it."""
        assert self._resources is not None
        claim = Claim(self._needs, now, 0.0, self.config.resource_priority)
        if self._resources.acquire(self, claim):
            return True
        self._resources.withdraw(self)
        return False

    def _return_grants(self) -> None:
        """Nothing is to run now: let others. `pass_on` must follow."""
        if self._resources is not None:
            self._resources.withdraw(self)
            while self._grants:
                self._grants -= 1
                self._resources.release(self._needs)

    def _broken(self) -> Sequence[tuple[InferRequest, WherryError]]:
        """Steps of sequences that will never run, as an earlier one did not."""
        return () if self._sequences is None else self._sequences.taken_broken()

    def _overruns(self) -> list[tuple[float, Instance]]:
        """When each running instance will have run for `execution_timeout`."""
        limit = self.config.execution_timeout
        return [
            (instance.busy_since + limit, instance)
            for instance in self._alive
            if limit is not None and instance.batch and instance.busy_since is not None
        ]

    def _is_quiet(self) -> bool:
        return not self._scheduler.queued_requests and all(
            instance.busy_since is None and not instance.open_requests for instance in self._alive
        )

    # Outside of the lock

    def _hand_over(self, handed: Sequence[tuple[Instance, Batch]]) -> None:
        """Give each instance its batch, and other models what is free of what they share."""
        for instance, batch in handed:
            instance.give(batch)
        if self._resources is not None:
            self._resources.pass_on()

    def granted(self) -> None:
        """It is this model's turn on what it shares with others."""
        with self._lock:
            self._grants += 1
            handed = self._assign(self._clock())
            self._return_grants()  # the instance that it was claimed for may be gone
        for instance, batch in handed:
            instance.give(batch)

    # Moments

    def _tick(self) -> None:
        """The timer: a wait is over, or a deadline has passed."""
        with self._changed:
            now = self._clock()
            while self._wake_ups and self._wake_ups[-1] <= now:
                self._wake_ups.pop()
            expired = self._scheduler.expire(now)
            hung = [
                (instance, instance.batch)
                for overruns_at, instance in self._overruns()
                if overruns_at <= now
            ]
            for instance, _ in hung:
                instance.busy_since = None  # looked after below, not again at the next tick
            broken = self._broken()
            handed = self._assign(now)
            if expired:
                self._changed.notify_all()
        self._hand_over(handed)
        for request in expired:
            self._fail(request, self._too_late(request, now))
            self._tell_instances(request)
        for request, error in broken:
            self._fail(request, error)
        limit = self.config.execution_timeout
        for instance, overdue in hung:
            self._abandon(
                instance, overdue, f"the batch ran longer than {limit} s (execution_timeout)"
            )

    def _hopeless(self, request: InferRequest, now: float) -> Overloaded | None:
        """Refuse at the door what could not be finished in time: it would only be in the way."""
        scheduler, left = self._scheduler, None
        turns: float = 0.0
        within = inf
        if request.deadline is not None:
            left = request.deadline - now
        elif self._longest is None or request.follows or scheduler.is_short(self._longest):
            return None
        seconds = scheduler.predicted_seconds(request)
        if left is None:
            _, of_a_batch = scheduler.head() or (0.0, 0.0)
            turns = scheduler.queued_requests
            if turns >= PATIENCE:
                turns = seconds / of_a_batch if of_a_batch else inf
            within = scheduler.turns_within(self._longest or inf)
        return refusal(
            self.config.name,
            seconds,
            left=left,
            longest=self._longest,
            turns=turns,
            within=within,
        )

    def _give_up(self) -> Sequence[tuple[InferRequest, WherryError]]:
        """Under the lock, after a batch: what waits and is now known to wait for too long."""
        longest = self._longest
        if longest is None or self._scheduler.is_short(longest):
            return ()
        given_up = self._scheduler.give_up(self._scheduler.turns_within(longest))
        self.statistics.predicted_late += len({request.whole or request for request in given_up})
        return [(request, too_slow(self.config.name, longest)) for request in given_up]

    def explain(self) -> dict[str, Any]:
        """What the scheduler has learnt and decides."""
        with self._lock:
            return self._scheduler.explain()

    def _too_late(self, request: InferRequest, now: float) -> DeadlineExceeded | QueueTimeout:
        if request.deadline is None or now < request.deadline:
            policy = self.config.queue_policy(request.priority)
            kind = RequestTimeoutExpired if policy is not None and policy.triton else QueueTimeout
            return kind(self.config.name, now - request.enqueued_at)
        return DeadlineExceeded(
            f"model {self.config.name!r}: not finished within the request's timeout"
            f" ({now - request.enqueued_at:.3f} s); allow more time, or add instances"
        )

    def _abandon(self, instance: Instance, batch: Batch | None, why: str) -> None:
        """Give up what an instance runs. A thread cannot be stopped: it is left behind."""
        kind = ModelNotReady if self._closing else ExecutionTimeout
        error = kind(f"model {self.config.name!r}: {why}")
        with self._lock:
            if instance.batch is not batch:
                return  # it has just finished
        for request in batch.requests if batch else ():
            self._fail(request, error)
        if instance.abort(why):
            return
        with self._changed:
            if instance not in self._alive or instance.batch is not batch:
                return
            self._alive.remove(instance)
            self._left_behind.append(instance)
            self._ended(instance)
            broken = self._lose_sequences(instance)
            self._changed.notify_all()
            if not self._closing:
                # Under the lock, so that close() waits for the new thread too.
                self._start_thread(instance.number, hung=why)
        self._hand_over(())
        for request, lost in broken:
            self._fail(request, lost)

    def _lose_sequences(self, instance: Instance) -> Sequence[tuple[InferRequest, WherryError]]:
        """Under the lock: an instance is gone, and with it what its sequences had come to."""
        if self._sequences is None:
            return ()
        self._sequences.instance_lost(instance.number)
        return self._broken()

    # The serving thread of one instance

    def _work(self, instance: Instance) -> None:
        with self._lock:
            handed = self._assign(self._clock())  # what came while it was loaded
        self._hand_over(handed)
        instance.serve()

    def _stop(self, instance: Instance) -> None:
        instance.give(None)

    # What an instance tells

    def prepared(self, batch: Batch) -> list[InferRequest]:
        """The requests of a batch that must run, with all their inputs. Any thread."""
        if self._sequence_inputs is None:
            return [request for request in batch.requests if not request.reply.settled]
        requests = list(batch.requests)  # no step is skipped unseen
        self._sequence_inputs.fill(requests)
        return requests

    def finished(
        self,
        instance: Instance,
        batch: Batch,
        requests: Sequence[InferRequest],
        execution: Execution,
        started: float,
    ) -> None:
        """`requests` of `batch` have run: count and answer them, and give the instance its next
        batch. Any thread."""
        try:
            if requests:
                self._finished(instance, batch, requests, execution, started)
        except BaseException:  # noqa: BLE001 - our own bug: it is logged, and the requests fail
            self.crashed(instance, batch)
        else:
            self._next(instance)

    def crashed(self, instance: Instance, batch: Batch) -> None:
        """The server's own code raised while it ran `batch`: its requests fail."""
        log.exception("internal error", extra={"model": self.config.name})
        for request in batch.requests:
            self._fail(request, WherryError("internal error; see the server's log"))
        self._next(instance)

    def stream_run(
        self, instance: Instance, batch: Batch, requests: Sequence[InferRequest], started: float
    ) -> StreamRun:
        """Begin to run requests that stream. `streamed` ends it."""
        inputs = self._sequence_inputs
        return StreamRun(
            instance,
            batch,
            requests,
            started,
            config=self.config,
            statistics=self.statistics,
            clock=self._clock,
            kept=inputs.keep if inputs is not None else lambda _, columns: columns,
            fail=self._fail,
            failed=self._fail_with,
        )

    def streamed(self, run: StreamRun, outcomes: Sequence[Outcome | None]) -> None:
        """All responses of `run` were handed on: end its streams, and give the instance its next
        batch. Any thread."""
        instance = run.instance
        assert isinstance(instance, Instance)
        try:
            instance.good_batches += 1
            if self._poisons.active:
                self._poisons.survived(run.requests)
            run.ended()
            for index, (request, outcome) in enumerate(zip(run.requests, outcomes, strict=True)):
                if request.sequence is not NOT_READY and not self._reschedules(request, outcome):
                    run.settle(index, outcome)
        except BaseException:  # noqa: BLE001 - our own bug: it is logged, and the requests fail
            self.crashed(instance, run.batch)
        else:
            self._next(instance)

    def _finished(
        self,
        instance: Instance,
        batch: Batch,
        requests: Sequence[InferRequest],
        execution: Execution,
        started: float,
    ) -> None:
        outcomes = execution.outcomes
        ran = requests
        if execution.later:
            done = [i for i, request in enumerate(requests) if request not in execution.later]
            requests, outcomes = [requests[i] for i in done], [outcomes[i] for i in done]
        if self._sequence_inputs is not None:
            requests, outcomes = self._step(self._sequence_inputs, requests, outcomes)
        with self._lock:  # before the callers are told: they may be back at once
            whole = len(execution.executed_rows) == 1
            self._ended(instance, started if whole else None)
            instance.good_batches += 1
            if self._resources is not None:
                self._has_grant(self._clock())  # for the next one, while the callers are told
        if self._resources is not None:
            self._resources.pass_on()
        if execution.out_of_memory_rows > 1:
            self._lacks_memory(execution.out_of_memory_rows)
        if self._poisons.active:
            self._poisons.survived(requests)
        statistics = self.statistics
        statistics.executed(
            requests if self._sequence_inputs is not None else ran,
            execution.executed_rows,
            batch.reason,
            started,
            execution.input_ns,
            execution.infer_ns,
            execution.output_ns,
        )
        good: list[tuple[InferRequest, InferResponse]] = []
        for request, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, Failure):
                self._fail_with(request, outcome, instance.name)
            elif request.reply.claim():
                said = execution.parameters.get(request)
                good.append((request, InferResponse(outcome, request.rows, said)))
        # Before the answers leave: clients subtract.
        statistics.succeeded([request for request, _ in good], self._clock())
        if self._order is None:
            self._deliver(good)
        else:
            self._deliver_in_order(self._order, good)

    # Requests that outlive their batch

    def now(self) -> float:
        return self._clock()

    def answer(self, request: InferRequest, response: InferResponse) -> None:
        """Its only response; of a stream, its end. Any thread."""
        if request.reply.claim():
            self.statistics.succeeded([request], self._clock())
            if self._order is None:
                self._deliver([(request, response)])
            else:
                self._deliver_in_order(self._order, [(request, response)])
        self._calm_down()

    def respond(self, request: InferRequest, response: InferResponse) -> bool:
        """One response of a stream; False if its caller is gone. Any thread."""
        reply = request.reply
        assert isinstance(reply, StreamReply)
        with self.statistics.lock:
            self.statistics.responses += 1
        if reply.send(response):
            return True
        unread = f"model {self.config.name!r}: the caller left {reply.unread} responses unread"
        self.fail(request, Cancelled(unread))
        return False

    def fail(self, request: InferRequest, error: WherryError) -> None:
        self._fail(request, error)
        self._calm_down()

    def failed(self, request: InferRequest, failure: Failure, instance: str) -> None:
        self._fail_with(request, failure, instance)
        self._calm_down()

    def _calm_down(self) -> None:
        """One of these is done: whoever drains may have waited for it."""
        if self.state is ModelState.UNLOADING:
            with self._changed:
                self._changed.notify_all()

    # Delivering

    def _deliver(self, answers: Sequence[tuple[InferRequest, InferResponse]]) -> None:
        for request, answer in answers:
            try:
                request.reply.deliver(answer)
            except Exception:  # our own bug: its neighbours must be answered all the same
                log.exception("internal error", extra={"model": self.config.name})

    def _deliver_in_order(
        self,
        order: ArrivalOrder[InferRequest, InferResponse],
        answers: Sequence[tuple[InferRequest, InferResponse]],
    ) -> None:
        """Deliver those whose turn it is, and those that waited for them."""
        with self._delivering:  # or another thread's later answers would overtake these
            for request, answer in answers:
                with self._lock:
                    leaving = order.answered(request, answer)
                self._deliver(leaving)

    def _left(self, request: InferRequest) -> None:
        """This one has no answer to wait for: those that came after it need not."""
        if self._order is not None:
            with self._delivering:
                with self._lock:
                    leaving = self._order.left(request)
                self._deliver(leaving)

    def _step(
        self, inputs: SequenceInputs, requests: Sequence[InferRequest], outcomes: list[Outcome]
    ) -> tuple[list[InferRequest], list[Outcome]]:
        """One step of sequences has run: keep their states, and leave out those who have no answer
        yet, or nobody who waits for it."""
        answered: list[InferRequest] = []
        answers: list[Outcome] = []
        for request, outcome in zip(requests, outcomes, strict=True):
            if request.sequence is NOT_READY or self._reschedules(request, outcome):
                continue
            answered.append(request)
            if not isinstance(outcome, Failure):
                outcome = inputs.keep(request, outcome)
            answers.append(outcome)
        return answered, answers

    def _reschedules(self, request: InferRequest, outcome: Outcome | None) -> bool:
        """Has the model put off its answer to another run? Then the request waits for that."""
        if not isinstance(outcome, Failure) or outcome.error != RESCHEDULED:
            return False
        with self._lock:
            if request.reply.settled or self._sequences is None:
                return False
            return self._sequences.reschedule(request, self._clock())

    def _lacks_memory(self, rows: int) -> None:
        """So many rows were too many. Half of them ran, or will tell us in their turn."""
        with self._lock:
            self._scheduler.limit_rows(rows // 2)
        log.warning(
            "batches limited: out of memory",
            extra={"model": self.config.name, "rows": rows, "from_now_on": rows // 2},
        )

    def _next(self, instance: Instance) -> None:
        """This instance is free: give it what it should run, if something waits."""
        handed: Sequence[tuple[Instance, Batch]] = ()
        given_up: Sequence[tuple[InferRequest, WherryError]] = ()
        with self._lock:
            self._ended(instance)
            instance.busy_since = None
            ends = self._closing or instance not in self._alive  # or its place is taken: it hung
            if ends:
                self._return_grants()
            else:
                if self.state is ModelState.UNLOADING:
                    self._changed.notify_all()
                self._idle.append(instance)
                if self._scheduler.queued_requests or self._sequences is not None:
                    given_up = self._give_up()
                    handed = self._assign(self._clock())
                else:
                    self._return_grants()
        self._hand_over(handed)
        if ends:
            instance.give(None)
        for request, error in given_up:
            self._fail(request, error)

    def _ended(self, instance: Instance, started: float | None = None) -> None:
        """Under the lock: tell the scheduler, once, that the batch of this instance has ended, and
        how long it took if it knows when it was `started`."""
        batch, instance.batch = instance.batch, None
        if batch is not None:
            now = instance.busy_since = self._clock()  # telling the callers is progress, too
            seconds = None if started is None else now - started
            self._scheduler.finished(batch.requests, seconds, now)
            if self._resources is not None:
                self._resources.release(self._needs)

    # Coming up, going down

    def _make(self, number: int) -> Instance:
        instance = super()._make(number)
        instance.answers = self
        return instance

    def _up(self, instance: Instance) -> None:
        if self._sequences is not None:
            self._sequences.instance_up(instance.number)
        if not self._closing:
            self._idle.append(instance)  # at once: whoever hears that the model is ready calls it

    def _down(self, instance: Instance) -> None:
        if instance in self._idle:
            self._idle.remove(instance)

    def _clear_queue(self) -> Sequence[InferRequest]:
        return self._scheduler.clear()

    def _lost(self, instance: Instance, error: WorkerDied) -> bool:
        """A worker died. What it had and was not answered yet is tried once more, alone."""
        with self._lock:
            # One that was handed to it in the moment of its death counts, too.
            batch = instance.batch
            had = dict.fromkeys((*(batch.requests if batch else ()), *instance.open_requests))
            self._ended(instance)
        # What a step of a sequence does depends on those before it: equal ones are not the same.
        poison = self._blame(instance, list(had), error) if self._sequences is None else {}
        failed: list[tuple[InferRequest, WherryError]] = []
        with self._changed:
            now = self._clock()
            for request in had:
                if request.reply.settled:
                    continue
                request.attempts += error.reached
                once = request.streams or self._sequences is not None
                if request.attempts > 1 or once or self._closing or request in poison:
                    failed.append((request, poison.get(request, error)))
                else:
                    self._scheduler.requeue(request, now)
            self._forget_instance(instance)
            failed += self._lose_sequences(instance)
            self._return_grants()
            waiting = self._scheduler.waiting() if poison else ()
            handed = [] if poison else self._assign(now)
        for request, reason in failed:
            self._fail(request, reason)
        if poison:  # what waits may be the same
            self._without_poison(waiting)
            with self._lock:
                handed = self._assign(self._clock())
        self._hand_over(handed)
        return bool(poison)

    def _without_poison(self, requests: Sequence[InferRequest]) -> Sequence[InferRequest]:
        """Refuse the requests that are poison. Returns the others."""
        good: list[InferRequest] = []
        for request in requests:
            refusal = None if self._sequences is not None else self._poisons.refusal(request)
            if refusal is None:
                good.append(request)
                continue
            with self._lock:
                if self._scheduler.cancel(request):
                    self._changed.notify_all()
                self.statistics.poisoned += 1
            self._fail(request, refusal)
        return good

    def _fail(self, request: InferRequest, error: WherryError) -> None:
        # Counted first, so that a client that reads the statistics next finds it there.
        if request.reply.claim():
            if request.whole is None:
                self.statistics.failed(error.reason, self._clock() - request.enqueued_at)
            request.reply.deliver(error)
            self._left(request)
