"""How do a model's instances come up, come back when they die, and go down?

What is the same whether the model runs batches or steps: one serving thread for each instance,
which loads it, works until it is told to stop, and brings it back when its worker dies.
"""

from __future__ import annotations

import logging
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar

from wherry.instances.executable import Failure, model_errors
from wherry.instances.failure_log import FailureLog
from wherry.instances.poison_watch import PoisonWatch
from wherry.instances.restart import RestartPolicy, shortage
from wherry.instances.timer import Timer
from wherry.models.config import ModelConfig
from wherry.models.model import Device
from wherry.observability.statistics import ModelStatistics
from wherry.values.errors import LoadFailed, ModelNotReady, PoisonRequest, WherryError, WorkerDied
from wherry.values.request import InferRequest

log = logging.getLogger("wherry")


class ModelState(Enum):
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Loss:
    """Why an instance is to be started again."""

    why: str
    #: The cause for the metrics: a signal's name, or one word.
    cause: str
    good_batches: int = 0
    #: A request is the cause, and not the model.
    explained: bool = False
    #: What the system was short of when it was to be started.
    short_of: str = ""
    traceback: str = ""


class Loadable(Protocol):
    """What the life of an instance asks of it."""

    name: str
    device: Device
    busy_since: float | None
    #: Batches that it has run to their end.
    good_batches: int

    def load(self) -> None: ...
    def abort(self, reason: str) -> bool: ...
    def unload(self) -> None: ...


InstanceT = TypeVar("InstanceT", bound=Loadable)


class ModelLife(ABC, Generic[InstanceT]):
    """One loaded model's state and instances. Who inherits says what an instance works on.

    `lock` guards everything here and in who inherits; `_changed` is told of whatever somebody may
    wait for.
    """

    #: What an instance is in while it works, for people.
    turn = "batch"

    def __init__(
        self,
        config: ModelConfig,
        make_instances: Sequence[Callable[[], InstanceT]],
        *,
        clock: Callable[[], float],
        timer: Timer,
        statistics: ModelStatistics,
        lock: threading.Lock | threading.RLock,
    ) -> None:
        self.config = config
        self.statistics = statistics
        self.state = ModelState.LOADING
        #: Why it is not ready, for people.
        self.reason = "loading"
        #: Takes the requests that still come here, once this one is to be unloaded.
        self.successor: Callable[[Sequence[InferRequest]], None] | None = None
        self._clock = clock
        self._timer = timer
        self._lock = lock
        self._changed = threading.Condition(lock)
        self._make_instances = make_instances
        #: Instances in `load`, which is the user's code and may take for ever.
        self._loading: list[InstanceT] = []
        #: Loaded instances, idle or running.
        self._alive: list[InstanceT] = []
        #: Instances in `unload`, which is the user's code, too.
        self._ending: list[InstanceT] = []
        #: Instances that hang in a thread and have been replaced.
        self._left_behind: list[InstanceT] = []
        self._threads: list[threading.Thread] = []
        self._policies = [
            RestartPolicy(
                budget=config.crash_budget,
                window=config.crash_window,
                longest=config.max_restart_delay,
            )
            for _ in make_instances
        ]
        self._poisons = PoisonWatch(config.name, clock)
        self.failures = FailureLog(config.name, config.version, clock)
        self._starting = 0
        #: When those that crash too often, or cannot be started, are tried next, by their numbers.
        self._away: dict[int, float] = {}
        self._load_error: Exception | None = None
        self._closing = False

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

    def not_ready_reason(self) -> str:
        """Why a new request would not make progress; "" if it would."""
        with self._lock:
            if self.state is not ModelState.READY:
                return self._full_reason()
            if not self._alive:
                return "every instance is being restarted"
            oldest_start = self._clock() - self.config.stall_timeout
            if all(i.busy_since is not None and i.busy_since < oldest_start for i in self._alive):
                return (
                    f"every instance has been in one {self.turn} for more than"
                    f" {self.config.stall_timeout:g} s (stall_timeout)"
                )
            return ""

    def next_try(self) -> float | None:
        """In how many seconds an instance is tried again, if all of them are away."""
        with self._lock:
            return self._next_try()

    def _next_try(self) -> float | None:
        if len(self._away) < len(self._make_instances):
            return None
        return max(0.0, min(self._away.values()) - self._clock())

    def _full_reason(self) -> str:
        """Under the lock: why it is not ready, and until when if that is known."""
        seconds = self._next_try()
        if seconds is None or self.state is not ModelState.UNAVAILABLE:
            return self.reason
        return f"{self.reason}; tried next in {seconds:.1f} s" if seconds else self.reason

    @property
    def instances(self) -> list[InstanceT]:
        with self._lock:
            return list(self._alive)

    def _join(self, timeout: float | None) -> None:
        self.failures.close()
        ends_at = None if timeout is None else self._clock() + timeout
        for thread in self._threads:
            thread.join(None if ends_at is None else max(0.0, ends_at - self._clock()))

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
        """Load the instance, work, and bring it back when its worker dies.

        `hung` is why it takes the place of another one, if it does.
        """
        first = not hung
        loss = Loss(hung, "hang") if hung else None
        while loss is None or self._wait_for_restart(number, loss):
            instance: InstanceT | None = None
            try:
                instance = self._make(number)
                with self._lock:
                    self._loading.append(instance)
                instance.load()
            except model_errors() as error:
                if instance is not None:
                    self._ended_life(instance)
                if first:
                    self._could_not_load(error)
                    return
                cause = error.cause if isinstance(error, WorkerDied) else "load"
                loss = Loss(
                    _said(error), cause, short_of=shortage(error), traceback=_traceback(error)
                )
            else:
                self._came_up(number, instance, first)
                first = False
                try:
                    self._work(instance)
                    self._ended_life(instance)
                    return
                except WorkerDied as error:
                    explained = self._lost(instance, error)
                    loss = Loss(str(error), error.cause, instance.good_batches, explained)
                    self._ended_life(instance)

    def _came_up(self, number: int, instance: InstanceT, first: bool) -> None:
        with self._changed:
            self._policies[number].came_up(self._clock())
            self._away.pop(number, None)
            if self.state is ModelState.UNAVAILABLE and not self._closing and not first:
                self.state, self.reason = ModelState.READY, ""
            self._loading.remove(instance)
            self._alive.append(instance)
            if first:
                self._starting -= 1
            else:
                self.statistics.worker_restarts += 1
            ends = self._closing
            self._up(instance)
            self._changed.notify_all()
        if ends:
            self._stop(instance)
        if not first:
            log.warning(
                "instance is back", extra={"model": self.config.name, "instance": instance.name}
            )

    def _ended_life(self, instance: InstanceT) -> None:
        with self._changed:
            self._forget_instance(instance)
            self._ending.append(instance)
        _unload(instance)
        with self._lock:
            self._ending.remove(instance)

    def _forget_instance(self, instance: InstanceT) -> None:
        """Under the lock: it gets nothing any more."""
        for group in (self._loading, self._alive, self._left_behind):
            if instance in group:
                group.remove(instance)
        self._down(instance)
        self._changed.notify_all()

    def _could_not_load(self, error: BaseException) -> None:
        name = self.config.name
        failed = LoadFailed(f"model {name!r} could not be loaded: {_said(error)}")
        failed.__cause__ = error
        with self._changed:
            self._starting -= 1
            self._load_error = self._load_error or failed
            self.state, self.reason = ModelState.UNAVAILABLE, str(failed)
            self._changed.notify_all()

    def _wait_for_restart(self, number: int, loss: Loss) -> bool:
        """Wait until the instance may be tried again; False if the model is to be closed."""
        policy = self._policies[number]
        with self._changed:
            if self._closing:
                return False
            now = self._clock()
            if loss.short_of:
                restart = policy.short()
            else:
                self.statistics.worker_deaths[loss.cause] += 1
                restart = policy.died(now, loss.good_batches, explained=loss.explained)
            if restart.away:
                self._away[number] = now + restart.delay
            gone = self._all_away(loss)
        log.error(
            "instance cannot be started, trying again"
            if loss.short_of
            else "worker died, restarting",
            extra={
                "model": self.config.name,
                "instance": number,
                "why": loss.why,
                "next_try_seconds": round(restart.delay, 3),
                **({"traceback": loss.traceback} if loss.traceback else {}),
            },
        )
        if gone is not None:
            self._fail_waiting(gone)
        self._sleep(now + restart.delay)
        with self._changed:
            # A thread that hangs holds a copy of the model for as long as it does.
            self._changed.wait_for(
                lambda: self._closing or len(self._left_behind) <= self.config.crash_budget
            )
            return not self._closing

    def _all_away(self, loss: Loss) -> WherryError | None:
        """Under the lock: the error for what waits, if no instance is here or about to be."""
        if len(self._away) < len(self._make_instances):
            return None
        if self.state in (ModelState.READY, ModelState.UNAVAILABLE):
            self.state = ModelState.UNAVAILABLE
            self.reason = (
                f"no instance can be started: {loss.short_of}"
                if loss.short_of
                else f"every instance died more than {self.config.crash_budget} times within"
                f" {self.config.crash_window:g} s, or cannot be loaded again; the last time:"
                f" {loss.why}"
            )
        return self._closed_error()

    def _sleep(self, until: float) -> None:
        """Until that moment, or until the model is to be closed."""
        if until > self._clock():
            self._timer.wake_at(until, self._wake)
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._clock() >= until)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _blame(
        self, instance: InstanceT, requests: Sequence[InferRequest], error: WorkerDied
    ) -> dict[InferRequest, PoisonRequest]:
        """Record that a worker died with `requests`. Returns the poison among them, with errors."""
        if not error.reached or self._closing:
            return {}
        number = int(instance.name.rpartition("_")[2])
        poison, excused = self._poisons.died(requests, number, error)
        with self._lock:
            for one in excused:
                self._policies[one].excused()
        return poison

    def _fail_with(self, request: InferRequest, failure: Failure, instance: str) -> None:
        """Fail a request with what its model raised, and log where it did."""
        if failure.is_the_models:
            self.failures.tell(
                failure.message, failure.traceback, request_id=request.id, instance=instance
            )
        self._fail(request, failure.as_exception())

    def _fail_waiting(self, error: WherryError) -> None:
        with self._changed:
            waiting = self._clear_queue()
            self._changed.notify_all()
        for request in waiting:
            self._fail(request, error)

    def _closed_error(self) -> WherryError | None:
        """Under the lock: why no request is taken, if none is."""
        if self.state in (ModelState.READY, ModelState.LOADING):
            return None
        error = ModelNotReady(f"model {self.config.name!r} is not ready: {self._full_reason()}")
        next_try = self._next_try()
        if next_try is not None:
            error.retry_after = next_try
        return error

    # Who inherits

    def _make(self, number: int) -> InstanceT:
        return self._make_instances[number]()

    @abstractmethod
    def _work(self, instance: InstanceT) -> None:
        """Run what there is to run until the instance is told to stop. Raises WorkerDied."""

    @abstractmethod
    def _lost(self, instance: InstanceT, error: WorkerDied) -> bool:
        """Its worker died: see to the requests that it had. Is one of them to blame?"""

    @abstractmethod
    def _stop(self, instance: InstanceT) -> None:
        """Have `_work` return soon. No lock is held."""

    @abstractmethod
    def _up(self, instance: InstanceT) -> None:
        """Under the lock: it is loaded."""

    @abstractmethod
    def _down(self, instance: InstanceT) -> None:
        """Under the lock: it is gone, or never came up."""

    @abstractmethod
    def _is_quiet(self) -> bool:
        """Under the lock: is there no request here?"""

    @abstractmethod
    def _clear_queue(self) -> Sequence[InferRequest]:
        """Under the lock: take everything out that waits."""

    @abstractmethod
    def _fail(self, request: InferRequest, error: WherryError) -> None:
        """Answer a request with an error, if it has no answer yet."""


def _unload(instance: Loadable) -> None:
    try:
        instance.unload()
    except Exception:  # the user's code: anything may come
        log.exception("unload failed", extra={"instance": instance.name})


def _traceback(error: BaseException) -> str:
    """The traceback of an error that the model's own code raised; "" for other errors."""
    if isinstance(error, WherryError):
        return "\n".join(getattr(error, "__notes__", ()))  # of a worker
    return "".join(traceback.format_exception(error)).rstrip()


def _said(error: BaseException) -> str:
    """Our own errors say what it is; of others the type says half of it."""
    return str(error) if isinstance(error, WherryError) else f"{type(error).__name__}: {error}"
