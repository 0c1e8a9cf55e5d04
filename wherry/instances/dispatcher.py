"""Which free instance gets a batch, and what happens when it does not come back?

The shell around one model's scheduler: the real clock, one lock, one serving thread for each
instance. Whoever changes something (a request arrives, a batch is finished, a moment has come)
asks the scheduler under the lock and acts outside it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from time import perf_counter_ns
from typing import Any

from wherry.config import ModelConfig
from wherry.errors import (
    Cancelled,
    DeadlineExceeded,
    ExecutionTimeout,
    LoadFailed,
    ModelNotReady,
    Overloaded,
    QueueFull,
    WherryError,
    WorkerDied,
)
from wherry.instances.executable import Executable, Failure, model_errors
from wherry.instances.instance import Instance
from wherry.instances.restart import RestartPolicy
from wherry.instances.timer import Timer
from wherry.observability.statistics import ModelStatistics
from wherry.reply import StreamReply
from wherry.request import Batch, Columns, InferRequest, InferResponse, gather
from wherry.scheduler.policy import Dispatch, Scheduler, Wait

log = logging.getLogger("wherry")

#: A request is refused if its timeout is shorter than so many times what it would take: work that
#: is finished too late is done for nobody, and makes the next one late as well.
SAFETY = 1.2


class ModelState(Enum):
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class Dispatcher:
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
    ) -> None:
        self.config = config
        self.statistics = statistics
        self.state = ModelState.LOADING
        #: Why it is not ready, for people.
        self.reason = "loading"
        self._scheduler = scheduler
        self._clock = clock
        self._timer = timer
        self._make_instances = make_instances
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._idle: list[Instance] = []
        #: Loaded instances, idle or running.
        self._alive: list[Instance] = []
        self._threads: list[threading.Thread] = []
        #: Instances in `load`, which is the user's code and may take for ever.
        self._loading: list[Instance] = []
        self._closing = False
        self._starting = 0
        self._given_up = 0
        self._load_error: Exception | None = None
        #: Takes the requests that still come here, once this one is to be unloaded.
        self.successor: Callable[[Sequence[InferRequest]], None] | None = None
        #: When the timer will call `_tick`, latest first.
        self._wake_ups: list[float] = []
        self._policies = [
            RestartPolicy(budget=config.crash_budget, window=config.crash_window)
            for _ in make_instances
        ]

    # Life

    def start(self) -> None:
        """Start loading every instance, each in its serving thread."""
        self._starting = len(self._make_instances)
        for number in range(self._starting):
            self._start_thread(number)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Block until every instance is loaded and warm; LoadFailed if one cannot be."""
        with self._changed:
            done = self._changed.wait_for(lambda: not self._starting or self._closing, timeout)
            error = self._load_error
            if self._closing and error is None:
                raise ModelNotReady(f"model {self.config.name!r}: closed while it was loading")
            if not error and done and self.state is ModelState.LOADING:
                self.state, self.reason = ModelState.READY, ""
        if error is not None:
            self._fail_waiting(ModelNotReady(str(error)))
            raise error
        if not done:
            raise LoadFailed(f"model {self.config.name!r}: not loaded after {timeout} s")

    def drain(self, timeout: float | None) -> bool:
        """Take no more requests; wait for those that are here. False if time ran out."""
        with self._changed:
            self.state, self.reason = ModelState.UNLOADING, "unloading"
            return self._changed.wait_for(self._is_quiet, timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Stop the instances. Requests that still wait are answered with ModelNotReady.

        What still runs after `timeout` seconds is answered with ExecutionTimeout; its worker is
        killed, a thread is left behind.
        """
        with self._changed:
            self._closing = True
            if self.state is not ModelState.UNAVAILABLE:
                self.state, self.reason = ModelState.UNLOADING, "unloading"
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        self._fail_waiting(ModelNotReady(f"model {self.config.name!r} is unloading"))
        for instance in idle:
            instance.give(None)
        self._join(timeout)
        with self._lock:
            stuck = [(i, i.batch) for i in (*self._alive, *self._loading)]
        for instance, batch in stuck:
            self._abandon(instance, batch, "the server is stopping")
        self._join(1.0)
        with self._lock:
            self.state, self.reason = ModelState.UNAVAILABLE, "unloaded"

    def _join(self, timeout: float) -> None:
        deadline = self._clock() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock()))

    @property
    def ready(self) -> bool:
        return self.not_ready_reason() == ""

    def not_ready_reason(self) -> str:
        """Why a new request would not make progress; "" if it would."""
        with self._lock:
            if self.state is not ModelState.READY:
                return self.reason
            if not self._alive:
                return "every instance is being restarted"
            oldest_start = self._clock() - self.config.stall_timeout
            if all(i.busy_since is not None and i.busy_since < oldest_start for i in self._alive):
                return (
                    f"every instance has been in one batch for more than"
                    f" {self.config.stall_timeout:g} s (stall_timeout)"
                )
            return ""

    # Requests

    def submit(self, requests: Sequence[InferRequest]) -> None:
        """Queue requests and start what can be started. Never blocks; any thread.

        A request that is refused is settled with the reason.
        """
        refused: list[tuple[InferRequest, WherryError]] = []
        handed: list[tuple[Instance, Batch]] = []
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
                elif request.deadline is not None and (hopeless := self._hopeless(request, now)):
                    refused.append((request, hopeless))
                elif not self._enqueue(request, now, handed):
                    wait = self._scheduler.predicted_seconds() or 1.0
                    full = QueueFull(self.config.name, self._scheduler.queued_requests, wait)
                    refused.append((request, full))
            if closed is None:
                handed += self._assign(now)
        for instance, batch in handed:
            instance.give(batch)
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
        self.statistics.failed(Cancelled.reason, seconds)
        request.reply.deliver(Cancelled("the request was cancelled"))
        return True

    def run_in_caller(self, columns: Columns) -> Columns | Failure | None:
        """Run one row in this very thread if an instance is idle and nothing waits, else None."""
        with self._lock:
            if not self._idle or self.state is not ModelState.READY:
                return None
            instance = self._idle[-1]
            now = self._clock()
            if not instance.runs_in_caller or not self._scheduler.may_run_alone(now):
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
            if not self._scheduler.queued_requests and self.state is ModelState.READY:
                self._idle.append(instance)
                return
            now = self._clock()
            if since is not None:
                self._scheduler.ran_alone(now - since, now)
        batch = self._next(instance)
        if batch is not None:
            instance.give(batch)

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

    @property
    def instances(self) -> list[Instance]:
        with self._lock:
            return list(self._alive)

    # Under the lock: ask the scheduler

    def _enqueue(
        self, request: InferRequest, now: float, handed: list[tuple[Instance, Batch]]
    ) -> bool:
        if self._scheduler.enqueue(request, now):
            return True
        if not self._idle:
            return False
        handed += self._assign(now)  # the queue is full of what an idle instance may take
        return self._scheduler.enqueue(request, now)

    def _assign(self, now: float) -> list[tuple[Instance, Batch]]:
        """Give free instances what the scheduler lets go; arm the timer for the rest."""
        handed: list[tuple[Instance, Batch]] = []
        wake_at = float("inf")
        while self._idle:
            action = self._scheduler.next_action(now)
            if isinstance(action, Dispatch):
                instance = self._idle.pop()
                instance.batch, instance.busy_since = action.batch, now
                handed.append((instance, action.batch))
                continue
            if isinstance(action, Wait):
                wake_at = action.until
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

    def _overruns(self) -> list[tuple[float, Instance]]:
        """When each running instance will have run for `execution_timeout`."""
        limit = self.config.execution_timeout
        return [
            (instance.busy_since + limit, instance)
            for instance in self._alive
            if limit is not None and instance.batch and instance.busy_since is not None
        ]

    def _closed_error(self) -> WherryError | None:
        if self.state in (ModelState.READY, ModelState.LOADING):
            return None
        return ModelNotReady(f"model {self.config.name!r} is not ready: {self.reason}")

    def _is_quiet(self) -> bool:
        return not self._scheduler.queued_requests and all(
            instance.busy_since is None for instance in self._alive
        )

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
            handed = self._assign(now)
            if expired:
                self._changed.notify_all()
        for instance, batch in handed:
            instance.give(batch)
        for request in expired:
            self._fail(request, self._too_late(request, now))
        limit = self.config.execution_timeout
        for instance, overdue in hung:
            self._abandon(
                instance, overdue, f"the batch ran longer than {limit} s (execution_timeout)"
            )

    def _hopeless(self, request: InferRequest, now: float) -> Overloaded | None:
        """Refuse at the door what could not be finished in time: it would only be in the way."""
        seconds = self._scheduler.predicted_seconds()
        if request.deadline is None or now + SAFETY * seconds < request.deadline:
            return None
        return Overloaded(
            f"model {self.config.name!r}: this request would take about {seconds:.3f} s, too long"
            f" for its timeout ({request.deadline - now:.3f} s); retry later, or add instances",
            retry_after=seconds,
        )

    def explain(self) -> dict[str, Any]:
        """What the scheduler has learnt and decides."""
        with self._lock:
            return self._scheduler.explain()

    def _too_late(self, request: InferRequest, now: float) -> DeadlineExceeded:
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
            self._ended(instance, None)
            self._changed.notify_all()
            if self._closing:
                return
            # Under the lock, so that close() waits for the new thread too.
            self._start_thread(int(instance.name.rpartition("_")[2]), hung=why)

    # The serving thread of one instance

    def _start_thread(self, number: int, *, hung: str = "") -> None:
        thread = threading.Thread(
            target=self._serve,
            args=(number, hung),
            name=f"wherry-{self.config.name}-{number}",
            daemon=True,  # a hung model must not keep the program alive
        )
        thread.start()  # first: close() may come at any time, and joins what is listed
        self._threads = [*(t for t in self._threads if t.is_alive()), thread]

    def _serve(self, number: int, hung: str) -> None:
        """Load the instance, run its batches, and bring it back when its worker dies.

        `hung` is why it takes the place of another one, if it does.
        """
        policy = self._policies[number]
        if hung and not self._wait_for_restart(policy, hung):
            return
        first = not hung
        while True:
            instance: Instance | None = None
            try:
                instance = self._make_instances[number]()
                with self._lock:
                    self._loading.append(instance)
                instance.load()
            except model_errors() as error:
                if instance is not None:
                    self._went_down(instance)
                    instance.unload_quietly()
                if first:
                    self._could_not_load(error)
                    return
                cause = str(error)
            else:
                self._came_up(instance, first)
                first = False
                try:
                    self._work(instance)
                    self._went_down(instance)
                    instance.unload_quietly()
                    return
                except WorkerDied as error:
                    cause = str(error)
                    self._lost(instance, error)
                    instance.unload_quietly()
            if not self._wait_for_restart(policy, cause):
                return

    def _work(self, instance: Instance) -> None:
        batch = self._next(instance)
        while (batch := batch or instance.wait()) is not None:
            try:
                self._run(instance, batch)
            except WorkerDied:
                raise
            except BaseException:  # our own bug: its requests must be answered all the same
                log.exception("internal error", extra={"model": self.config.name})
                for request in batch.requests:
                    self._fail(request, WherryError("internal error; see the server's log"))
            batch = self._next(instance)

    def _run(self, instance: Instance, batch: Batch) -> None:
        requests = [r for r in batch.requests if not r.reply.settled]
        if not requests:
            return
        started = self._clock()
        if requests[0].streams:
            self._run_stream(instance, batch, requests, started)
            return
        execution = instance.execute(requests)
        with self._lock:  # before the callers are told: they may be back at once
            whole = len(execution.executed_rows) == 1
            self._ended(instance, self._clock() - started if whole else None)
        if execution.out_of_memory_rows > 1:
            self._lacks_memory(execution.out_of_memory_rows)
        statistics = self.statistics
        statistics.executed(
            requests,
            execution.executed_rows,
            batch.reason,
            started,
            execution.input_ns,
            execution.infer_ns,
            execution.output_ns,
        )
        good: list[tuple[InferRequest, InferResponse]] = []
        for request, outcome in zip(requests, execution.outcomes, strict=True):
            if isinstance(outcome, Failure):
                self._fail(request, outcome.as_exception())
            elif request.reply.claim():
                good.append((request, InferResponse(outcome, request.rows)))
        # Before the answers leave: clients subtract.
        statistics.succeeded([request for request, _ in good], self._clock())
        for request, answer in good:
            try:
                request.reply.deliver(answer)
            except Exception:  # our own bug: its neighbours must be answered all the same
                log.exception("internal error", extra={"model": self.config.name})

    def _lacks_memory(self, rows: int) -> None:
        """So many rows were too many. Half of them ran, or will tell us in their turn."""
        with self._lock:
            self._scheduler.limit_rows(rows // 2)
        log.warning(
            "batches limited: out of memory",
            extra={"model": self.config.name, "rows": rows, "from_now_on": rows // 2},
        )

    def _run_stream(
        self, instance: Instance, batch: Batch, requests: list[InferRequest], started: float
    ) -> None:
        lone = len(requests) == 1

        def respond(index: int, columns: Columns) -> bool:
            request = requests[index]
            reply = request.reply
            assert isinstance(reply, StreamReply)
            instance.busy_since = self._clock()  # progress
            with self.statistics.lock:
                self.statistics.responses += 1
            if lone:
                self._wait_for_reader(instance, reply)
            most = reply.window if lone else reply.limit
            if reply.send(InferResponse(columns, request.rows), most=most):
                return True
            unread = f"model {self.config.name!r}: the caller left {most} responses unread"
            self._fail(request, Cancelled(unread))
            return False

        clock = perf_counter_ns()
        outcomes = instance.stream(requests, respond)
        rows = [sum(r.rows for r in requests)]
        self.statistics.executed(
            requests, rows, batch.reason, started, 0, perf_counter_ns() - clock, 0
        )
        for request, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, Failure):
                self._fail(request, outcome.as_exception())
            elif request.reply.claim():
                self.statistics.succeeded([request], self._clock())
                request.reply.deliver(InferResponse({}, 0))

    def _wait_for_reader(self, instance: Instance, reply: StreamReply[InferResponse]) -> None:
        """A slow reader slows its own stream for a while; the instance does not hang meanwhile."""
        gives_up_at = self._clock() + self.config.stall_timeout
        while not reply.wait_for_room(0.5) and self._clock() < gives_up_at:
            instance.busy_since = self._clock()

    def _next(self, instance: Instance) -> Batch | None:
        """This instance is free: what should it run? None: nothing, it is idle now."""
        with self._changed:
            self._ended(instance, None)
            instance.busy_since = None
            if self._closing or instance not in self._alive:
                instance.give(None)  # it ends, or its place is taken since it hung
                return None
            if self.state is ModelState.UNLOADING:
                self._changed.notify_all()
            now = self._clock()
            self._idle.append(instance)
            mine: Batch | None = None
            handed = self._assign(now)
            for other, batch in handed:
                if other is instance:
                    mine = batch
        for other, batch in handed:
            if other is not instance:
                other.give(batch)
        return mine

    def _ended(self, instance: Instance, seconds: float | None) -> None:
        """Under the lock: tell the scheduler, once, that the batch of this instance has ended."""
        batch, instance.batch = instance.batch, None
        if batch is not None:
            instance.busy_since = self._clock()  # telling the callers is progress, too
            self._scheduler.finished(batch.requests, seconds, self._clock())

    # Coming up, going down

    def _came_up(self, instance: Instance, first: bool) -> None:
        with self._changed:
            self._loading.remove(instance)
            self._alive.append(instance)
            if first:
                self._starting -= 1
            else:
                self.statistics.worker_restarts += 1
            self._changed.notify_all()
        if not first:
            log.warning(
                "instance is back", extra={"model": self.config.name, "instance": instance.name}
            )

    def _went_down(self, instance: Instance) -> None:
        with self._changed:
            self._forget(instance)

    def _forget(self, instance: Instance) -> None:
        for group in (self._loading, self._alive, self._idle):
            if instance in group:
                group.remove(instance)
        self._changed.notify_all()

    def _could_not_load(self, error: BaseException) -> None:
        name = self.config.name
        # Our own errors say what it is; of others the type says half of it.
        what = error if isinstance(error, WherryError) else f"{type(error).__name__}: {error}"
        failed = LoadFailed(f"model {name!r} could not be loaded: {what}")
        failed.__cause__ = error
        with self._changed:
            self._starting -= 1
            self._load_error = self._load_error or failed
            self.state, self.reason = ModelState.UNAVAILABLE, str(failed)
            self._changed.notify_all()

    def _lost(self, instance: Instance, error: WorkerDied) -> None:
        """A worker died. What it had and was not answered yet is tried once more, alone."""
        failed: list[InferRequest] = []
        with self._changed:
            now = self._clock()
            # One that was handed to it in the moment of its death counts, too.
            batch = instance.batch
            self._ended(instance, None)
            for request in batch.requests if batch else ():
                if request.reply.settled:
                    continue
                request.attempts += error.reached
                if request.attempts > 1 or request.streams or self._closing:
                    failed.append(request)
                else:
                    self._scheduler.requeue(request, now)
            self._forget(instance)
            handed = self._assign(now)
        for other, batch in handed:
            other.give(batch)
        for request in failed:
            self._fail(request, error)

    def _wait_for_restart(self, policy: RestartPolicy, cause: str) -> bool:
        """Wait out the back-off; False if the instance is not to come back."""
        delay = policy.died(self._clock())
        name = self.config.name
        with self._changed:
            if delay is not None and not self._closing:
                log.error("worker died, restarting", extra={"model": name, "why": cause})
                self._changed.wait_for(lambda: self._closing, delay)
            if self._closing:
                return False
            if delay is not None:
                return True
            self._given_up += 1
            gone = self._given_up == len(self._make_instances)
            if gone:
                self.state = ModelState.UNAVAILABLE
                self.reason = (
                    f"every instance died more than {policy.budget} times within"
                    f" {policy.window:g} s; the last time: {cause}"
                )
        log.error("instance given up", extra={"model": name, "why": cause})
        if gone:
            self._fail_waiting(ModelNotReady(f"model {name!r} is not ready: {self.reason}"))
        return False

    def _fail_waiting(self, error: WherryError) -> None:
        with self._changed:
            waiting = self._scheduler.clear()
            self._changed.notify_all()
        for request in waiting:
            self._fail(request, error)

    def _fail(self, request: InferRequest, error: WherryError) -> None:
        # Counted first, so that a client that reads the statistics next finds it there.
        if request.reply.claim():
            self.statistics.failed(error.reason, self._clock() - request.enqueued_at)
            request.reply.deliver(error)
