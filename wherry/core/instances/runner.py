"""What do all loaded models have in common, whatever runs their requests?

A request comes in by `submit` and leaves in exactly one of four ways: it is answered, it fails, it
is cancelled, or the version that has replaced this one takes it.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from wherry.core.instances.delivery import Delivery
from wherry.core.instances.instance import Loadable
from wherry.core.instances.life import (
    InstanceLife,
    InstanceT,
    LifecycleHooks,
    ModelState,
    Readiness,
)
from wherry.core.instances.model_errors import model_errors
from wherry.core.instances.poison_watch import PoisonWatch
from wherry.core.instances.timer import Timer
from wherry.core.models.config import ModelConfig
from wherry.core.observability.logging import FailureLog
from wherry.core.observability.statistics import ModelStatistics
from wherry.core.values.errors import (
    Cancelled,
    MayHaveRun,
    ModelNotReady,
    WherryError,
    WorkerDied,
)
from wherry.core.values.execution import Failure
from wherry.core.values.load import Load
from wherry.core.values.request import Columns, InferRequest

log = logging.getLogger("wherry")

Refused = tuple[InferRequest, WherryError]


class Runner(ABC):
    """What runs the requests of one loaded version. Public methods are for any thread; only
    `wait_ready`, `drain` and `close` block.

    A subclass defines how requests are queued, cancelled and run. One lock guards its state; no
    caller is answered under it.
    """

    #: Whether a request may have more rows than a batch holds.
    takes_any_rows = False

    def __init__(
        self,
        config: ModelConfig,
        *,
        clock: Callable[[], float],
        statistics: ModelStatistics,
    ) -> None:
        self.config = config
        self.statistics = statistics
        self.readiness = Readiness()
        self.failures = FailureLog(config.name, config.version, clock)
        #: Takes the requests that still come once this version is to be unloaded.
        self.successor: Callable[[Sequence[InferRequest]], None] | None = None
        #: Whether its instances are on their device now, and why, if not all models fit there;
        #: else it is empty.
        self.residence: Callable[[], Mapping[str, Any]] = dict
        self._clock = clock
        self.delivery = Delivery(config.name, statistics, clock, in_order=config.preserve_ordering)
        self.poisons = PoisonWatch(config.name, clock)
        self._lock = threading.Lock()
        #: Notified of whatever `drain` may wait for.
        self._changed = threading.Condition(self._lock)

    # Life

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def wait_ready(self, timeout: float | None = None) -> None:
        """Block until it is loaded. Raises LoadFailed, or ModelNotReady if it is closed."""

    def drain(self, timeout: float | None) -> bool:
        """Take no more requests; block until those that are here have ended. False if that took
        longer than `timeout` seconds."""
        self.readiness.unloading()
        with self._changed:
            return self._changed.wait_for(self._is_quiet, timeout)

    @abstractmethod
    def close(self, timeout: float | None = 10.0) -> None:
        """End it within about `timeout` seconds. What is still here fails with ModelNotReady."""

    def not_ready_reason(self) -> str:
        """Why a new request would not make progress; "" if it would."""
        return self.readiness.reason

    # What is shown

    @property
    def instances(self) -> Sequence[Loadable]:
        return ()

    def next_try(self) -> float | None:
        """In how many seconds an instance is tried again, if all of them are away."""
        return None

    def gauges(self) -> Mapping[str, Mapping[str, float]]:
        """The gauges of a step model after its last step, by instance."""
        return {}

    @property
    @abstractmethod
    def queued_requests(self) -> int: ...

    @abstractmethod
    def running(self) -> list[tuple[str, int, float]]:
        """What runs at the moment: where, how many rows, since when (seconds of the clock)."""

    @abstractmethod
    def load(self) -> Load:
        """What it has to do now, and what that takes. Cheap enough to be called for each answer."""

    @abstractmethod
    def explain(self) -> dict[str, Any]:
        """What is decided here and was learnt, for people. Where batches are formed, `decisions`
        are the last ones, as `Decisions`."""

    # Requests

    def submit(self, requests: Sequence[InferRequest]) -> None:
        """Queue requests and start what can be started. Never blocks.

        A request that is refused is settled with the reason.
        """
        if self.poisons.active:
            requests = self._without_poison(requests)
        closed = None
        with self._lock:
            if self.readiness.takes_requests:
                chosen = self._arrived(requests, self._clock())
            else:
                closed, successor = self._closed_error(), self.successor
        if closed is None:
            self._hand_over(chosen)
        elif successor is not None:
            successor(requests)
        else:
            now = self._clock()
            for request in requests:
                request.enqueued_at = now
                self.fail(request, closed)

    def run_in_caller(self, columns: Columns) -> Columns | Failure | None:
        """Run one row in the calling thread; None if that is not possible now."""
        return None

    def cancel(self, request: InferRequest) -> bool:
        """The caller is gone: forget the request where it waits, stop or ignore it where it runs.
        False if it has its outcome already."""
        return self.fail(request, Cancelled("the request was cancelled"))

    def fail(self, request: InferRequest, error: WherryError) -> bool:
        """Answer a request with an error; False if it has its outcome already."""
        if not request.reply.claim():
            return False
        followers = self._forget(request, error)
        self.delivery.fail(request, error)
        self.request_ended()
        self._fail_all(followers)
        return True

    def _fail_all(self, failed: Iterable[Refused]) -> None:
        for request, error in failed:
            self.fail(request, error)

    def request_ended(self) -> None:
        """A request has ended: if `drain` waits, it looks again."""
        if not self.readiness.takes_requests:
            with self._changed:
                self._changed.notify_all()

    def _fail_waiting(self, error: WherryError) -> None:
        with self._changed:
            waiting = self._clear_queue()
            self._changed.notify_all()
        self._fail_all([(request, error) for request in waiting])

    def _closed_error(self) -> WherryError:
        return ModelNotReady(f"model {self.config.name!r} is not ready: {self.readiness.reason}")

    # The body

    def _without_poison(self, requests: Sequence[InferRequest]) -> Sequence[InferRequest]:
        """Fail the requests that are known to kill workers. Returns the others."""
        good: list[InferRequest] = []
        for request in requests:
            refusal = self.poisons.refusal(request)
            if refusal is None:
                good.append(request)
                continue
            with self._lock:
                self.statistics.poisoned += 1
            self.fail(request, refusal)
        return good

    @abstractmethod
    def _arrived(self, requests: Sequence[InferRequest], now: float) -> Any:
        """Under the lock: queue or refuse those that are not settled, and choose what starts now.
        `_hand_over` must follow."""

    @abstractmethod
    def _hand_over(self, chosen: Any) -> None:
        """Start what was chosen, and fail what was refused. No lock is held."""

    @abstractmethod
    def _forget(self, request: InferRequest, error: WherryError) -> Sequence[Refused]:
        """A request that may be queued or running ends with this error. Returns those that end
        with it, and why."""

    @abstractmethod
    def _is_quiet(self) -> bool:
        """Under the lock: is there no request here?"""

    @abstractmethod
    def _clear_queue(self) -> Sequence[InferRequest]:
        """Under the lock: take everything out that waits."""


class InstanceRunner(Runner, LifecycleHooks[InstanceT]):
    """A runner with instances, which come and go, and whose workers may die with a request."""

    #: What an instance works on, in messages: a batch or a step.
    turn = "batch"

    def __init__(
        self,
        config: ModelConfig,
        make_instances: Sequence[Callable[[], InstanceT]],
        *,
        clock: Callable[[], float],
        timer: Timer,
        statistics: ModelStatistics,
    ) -> None:
        super().__init__(config, clock=clock, statistics=statistics)
        self.life = InstanceLife(
            config,
            make_instances,
            self,
            self.readiness,
            clock=clock,
            timer=timer,
            statistics=statistics,
        )
        #: Instances whose weights are in host memory while the model sleeps.
        self.on_host: list[InstanceT] = []

    def start(self) -> None:
        self.life.start()

    def wait_ready(self, timeout: float | None = None) -> None:
        self.life.wait_ready(timeout)

    def close(self, timeout: float | None = 10.0) -> None:
        """Stop the instances. What waits fails with ModelNotReady.

        What still runs after `timeout` seconds fails with it, too; its worker is killed, as is one
        that still unloads its model; a thread is left behind.
        """
        error = ModelNotReady(f"model {self.config.name!r} is unloading")
        self.life.end()
        self._fail_waiting(error)
        self._stop()
        self.failures.close()
        self.life.join(timeout)
        for instance in self.life.unloading:
            fields = {"instance": instance.name, "after_seconds": timeout}
            log.warning("unload cut short", extra=fields)
        for instance in self.life.not_ended():
            self._abandon(instance, "the server is stopping")
        self.life.join(1.0)
        self._fail_waiting(error)  # what an instance that died meanwhile gave back
        self.life.slots.makers.clear()  # which hold on to the model
        self.readiness.unloaded()

    def not_ready_reason(self) -> str:
        if self.readiness.sleeps:
            return ""  # it answers, in its time
        if self.readiness.reason:
            return self._why_not_ready()
        return self.life.not_ready_reason(self.turn)

    @property
    def instances(self) -> list[InstanceT]:
        return self.life.instances

    def next_try(self) -> float | None:
        return self.life.next_try()

    def none_left(self, error: WherryError | None) -> None:
        self._fail_waiting(error or self._closed_error())

    def _closed_error(self) -> WherryError:
        error = ModelNotReady(f"model {self.config.name!r} is not ready: {self._why_not_ready()}")
        if next_try := self.life.next_try():  # 0: it is tried now
            error.retry_after = next_try
        return error

    def _why_not_ready(self) -> str:
        seconds = self.life.next_try()
        reason = self.readiness.reason
        if not seconds or self.readiness.state is not ModelState.UNAVAILABLE:
            return reason
        return f"{reason}; tried next in {seconds:.1f} s"

    # Sleep: the runtime's Residency decides when

    def check_while_asleep(self, refusal_of: Callable[[InferRequest], WherryError | None]) -> None:
        """From now on call `refusal_of` for each request that comes while the model sleeps or
        wakes: why it is refused, or None: it waits in the queue."""
        self.successor = partial(self._submit_asleep, refusal_of)

    def _submit_asleep(
        self,
        refusal_of: Callable[[InferRequest], WherryError | None],
        requests: Sequence[InferRequest],
    ) -> None:
        refused = {
            request: error for request in requests if (error := refusal_of(request)) is not None
        }
        taken = [request for request in requests if request not in refused]
        with self._lock:
            if sleeps := self.readiness.sleeps:
                self.readiness.waking()
                chosen = self._arrived(taken, self._clock())
        self._fail_all(refused.items())
        if sleeps:
            self._hand_over(chosen)
        elif self.readiness.takes_requests:  # it has just woken
            self.submit(taken)
        else:
            self._fail_all((request, self._closed_error()) for request in taken)

    def sleep_if_idle(self) -> None:
        """Sleep, with no instance, if no request is here."""
        with self._lock:
            if self._is_quiet():
                self.readiness.asleep()

    def fall_asleep(self, *, offload: bool = False) -> bool:
        """Begin nothing more of what waits, let what runs end, and then unload every instance, or
        if possible keep it with its weights in host memory. Blocks. A worker whose `unload` takes
        longer than `unload_timeout` is killed. False: `stay` was called before that."""
        with self._changed:
            self.readiness.waking()
            self._hold(True)
            self._changed.wait_for(
                lambda: not self._is_held or self.life.closing or self._runs_nothing()
            )
            if not self._is_held:
                return False
            going = self.life.sleep()
        began = self._clock()
        whole = len(going) == len(self.life.slots) and not self.life.closing
        if offload and whole and self._to_host(going):
            self.on_host = going
            self.life.unload_seconds = self._clock() - began
        else:
            self._unload(going)
        return True

    def _unload(self, going: Sequence[InstanceT]) -> None:
        self.on_host = []
        self.retire(going)
        with self._lock:
            self._hold(False)
        ending: set[InstanceT] = set()
        while not self.life.wait_until_empty(self.config.unload_timeout):
            for instance in ending.intersection(self.life.unloading):
                self._abandon(instance, "unload took too long (unload_timeout)")
            ending = {*self.life.unloading}

    def _to_host(self, going: Iterable[InstanceT]) -> bool:
        try:
            return all(one.to_host() for one in going)
        except model_errors() as error:
            fields = {"model": self.config.name, "why": f"{type(error).__name__}: {error}"}
            log.warning("weights could not leave the device, unloading them", extra=fields)
            return False

    def stay(self) -> bool:
        """Go on with what waits, as no other model needs the room any more. False: it is too late,
        its instances stop."""
        with self._changed:
            if not self._is_held or self.life.asleep:
                return False
            self.readiness.loaded()
            self._hold(False)
            chosen = self._arrived((), self._clock())
            self._changed.notify_all()
        self._hand_over(chosen)
        return True

    def is_running(self) -> bool:
        """Counts what has outlived its batch, too."""
        with self._lock:
            return not self._runs_nothing()

    def wake(self) -> None:
        """Load every instance again, and run what waits. Blocks. Raises LoadFailed, or
        ModelNotReady if it is closed."""
        with self._lock:
            self.readiness.waking()
        if not self.on_host or not self._back_on_device():
            self.life.wake()
            self.life.wait_loaded()
            return
        with self._lock:
            self._hold(False)
            chosen = self._arrived((), self._clock())
        self._hand_over(chosen)

    def _back_on_device(self) -> bool:
        """False: the instances must be loaded again."""
        why = "a worker has ended"
        try:
            for instance in self.on_host:
                instance.to_device()
            if self.life.go_on(self.on_host):
                self.on_host = []
                return True
        except model_errors() as error:
            why = f"{type(error).__name__}: {error}"
        fields = {"model": self.config.name, "why": why}
        log.warning("weights could not come back, loading them", extra=fields)
        self._unload(self.life.instances)
        return False

    def cannot_wake(self, error: WherryError, seconds: float) -> None:
        """It could not be loaded, and is tried again in `seconds` at the soonest: what waits fails,
        and what comes until it is put to sleep again."""
        self.readiness.failed(str(error))
        refused = ModelNotReady(str(error))
        refused.retry_after = seconds
        self._fail_waiting(refused)

    # Requests that fail by their model, or that workers die with

    def failed(self, request: InferRequest, failure: Failure, instance: str) -> None:
        """Fail a request with what its model raised, and log that if the model is to blame."""
        if failure.is_the_models:
            self.failures.log(
                failure.message, failure.traceback, request_id=request.id, instance=instance
            )
        self.fail(request, failure.as_exception())

    def _worker_died(
        self,
        instance: InstanceT,
        had: Sequence[InferRequest],
        error: WorkerDied,
        *,
        sequences: bool = False,
    ) -> tuple[dict[InferRequest, WherryError], bool]:
        """Count a death against the requests that the worker had. Returns those that fail, each
        with its error, and whether one of them is poison; the others are tried once more."""
        poison: Mapping[InferRequest, WherryError] = {}
        # What a step of a sequence does depends on those before it: equal ones are not the same.
        is_held_against = error.reached and not error.innocent
        if is_held_against and not sequences and not self.life.closing:
            poison, excused = self.poisons.died(had, instance.number, error)
            self.life.excuse(excused)
        failed: dict[InferRequest, WherryError] = {}
        once = "a step of a sequence" if sequences else "a stream that has begun"
        for request in had:
            request.attempts += is_held_against
            if request.reply.settled:
                continue
            if request in poison:
                failed[request] = poison[request]
            elif error.reached and not self.config.run_again:
                failed[request] = MayHaveRun(
                    f"{error}; the request may have run, and is not run again (run_again=False)"
                )
            elif sequences or request.reply.has_begun:
                failed[request] = WorkerDied(f"{error}; {once} is not run again")
            elif request.attempts > 1 or self.life.closing:
                failed[request] = error
        return failed, bool(poison)

    def _go_on(self, waiting: Sequence[InferRequest] = ()) -> None:
        """An instance has come or gone: fail those in the queue that are poison, and run what else
        waits."""
        self._without_poison(waiting)
        with self._lock:
            chosen = self._arrived((), self._clock())
        self._hand_over(chosen)

    def serve(self, instance: InstanceT) -> None:
        self._go_on()  # what came while it was loaded
        instance.serve()

    # The body

    @abstractmethod
    def tick(self) -> None:
        """A wait is over, or a deadline has passed."""

    @property
    @abstractmethod
    def _is_held(self) -> bool:
        """Under the lock: does it begin nothing of what waits?"""

    @abstractmethod
    def _hold(self, held: bool) -> None: ...

    @abstractmethod
    def retire(self, instances: Sequence[InstanceT]) -> None:
        """Have `serve` return for these when they have ended what they run, and give them nothing
        more. Does not block."""

    @abstractmethod
    def _runs_nothing(self) -> bool:
        """Under the lock: does no instance have a request?"""

    @abstractmethod
    def _stop(self) -> None:
        """Have `serve` return for each instance, at once or after what it runs."""

    def _abandon(self, instance: InstanceT, why: str) -> None:
        instance.abort(why)


def admitted(
    requests: Iterable[InferRequest],
    refusal: Callable[[InferRequest, float], WherryError | None],
    now: float,
) -> tuple[list[InferRequest], list[Refused]]:
    """Of requests that have come, those that are not settled: admitted, and refused with the
    reason."""
    accepted: list[InferRequest] = []
    refused: list[Refused] = []
    for request in requests:
        if not request.reply.settled:  # else its caller has just left
            request.enqueued_at = now
            if (error := refusal(request, now)) is None:
                accepted.append(request)
            else:
                refused.append((request, error))
    return accepted, refused
