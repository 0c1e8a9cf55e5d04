"""How do a model's instances come up, come back when they die, and go down?

The same for batches and for steps: one thread for each instance, which loads it, serves it until it
is stopped, and brings it back when its worker dies.
"""

from __future__ import annotations

import logging
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from wherry.core.instances.instance import Loadable
from wherry.core.instances.instance_slots import InstanceSlots, Restart, shortage
from wherry.core.instances.model_errors import model_errors
from wherry.core.instances.timer import Timer
from wherry.core.models.config import ModelConfig
from wherry.core.observability.statistics import ModelStatistics
from wherry.core.values.errors import LoadFailed, ModelNotReady, WherryError, WorkerDied

log = logging.getLogger("wherry")


class ModelState(Enum):
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"
    #: No instance is loaded until a request comes, and: one has come.
    ASLEEP = "ASLEEP"
    WAKING = "WAKING"


#: States in which arriving requests are queued.
_AWAKE = (ModelState.LOADING, ModelState.READY)


class Readiness:
    """The state of a runner for requests that arrive, from its load to its end. Any thread.

    Whether callers find the runner's version at all is in the runtime's Lifecycle.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.state = ModelState.LOADING
        #: Why it is not ready, for people; "" if it is.
        self.reason = "loading"
        #: May requests be queued? Also while it loads: they wait until it is ready.
        self.takes_requests = True
        self._closing = False

    def loaded(self) -> None:
        self._go(ModelState.READY, "", {ModelState.LOADING, ModelState.WAKING})

    def asleep(self) -> None:
        """It holds no instance, and no request waits."""
        self._go(ModelState.ASLEEP, "asleep", {*_AWAKE, ModelState.WAKING, ModelState.UNAVAILABLE})

    def waking(self) -> None:
        """It holds no instance, or soon none; its requests wait until it is loaded again."""
        self._go(ModelState.WAKING, "waking", {*_AWAKE, ModelState.ASLEEP})

    @property
    def sleeps(self) -> bool:
        """Whether it is unloaded only because no requests come, or others need the room."""
        return self.state in (ModelState.ASLEEP, ModelState.WAKING)

    def failed(self, reason: str) -> None:
        """It cannot be loaded, or none of its instances can be started again."""
        self._go(ModelState.UNAVAILABLE, reason, set(ModelState) - {ModelState.UNLOADING})

    def is_back(self) -> None:
        """An instance is back that could not be started before."""
        if not self._closing:
            self._go(ModelState.READY, "", {ModelState.UNAVAILABLE})

    def unloading(self) -> None:
        self._go(ModelState.UNLOADING, "unloading", set(ModelState))

    def closing(self) -> None:
        """It is being closed: it will not be ready again."""
        self._closing = True
        self._go(ModelState.UNLOADING, "unloading", set(ModelState) - {ModelState.UNAVAILABLE})

    def unloaded(self) -> None:
        self._go(ModelState.UNAVAILABLE, "unloaded", set(ModelState))

    def _go(self, state: ModelState, reason: str, of: Collection[ModelState]) -> None:
        with self._lock:
            if self.state in of:
                self.state, self.reason = state, reason
                self.takes_requests = state in _AWAKE


@dataclass(frozen=True, slots=True)
class Loss:
    """Why an instance is to be started again."""

    why: str
    #: The cause for the metrics: a signal's name, or one word.
    cause: str
    good_batches: int = 0
    #: A request is the cause, and not the model.
    explained: bool = False
    #: Another model in the process that they share is the cause.
    innocent: bool = False
    #: What the system was short of when it was to be started.
    short_of: str = ""
    traceback: str = ""


InstanceT = TypeVar("InstanceT", bound=Loadable)


class LifecycleHooks(ABC, Generic[InstanceT]):
    """What the instances work for. The life calls this in their threads; it holds no lock."""

    @abstractmethod
    def up(self, instance: InstanceT) -> None:
        """It is loaded."""

    @abstractmethod
    def serve(self, instance: InstanceT) -> None:
        """Block until the instance is stopped. Raises WorkerDied."""

    @abstractmethod
    def lost(self, instance: InstanceT, error: WorkerDied) -> bool:
        """Its worker has died: handle the requests that it had. Is one of them to blame?"""

    @abstractmethod
    def down(self, instance: InstanceT) -> None:
        """It is about to be unloaded, or never came up: it gets no work any more."""

    @abstractmethod
    def none_left(self, error: WherryError | None) -> None:
        """No instance is loaded or about to be: what waits must fail. `error` is the reason if it
        could not be loaded at all."""


class InstanceLife(Generic[InstanceT]):
    """The instances of one loaded model. Safe from any thread."""

    def __init__(
        self,
        config: ModelConfig,
        make_instances: Sequence[Callable[[], InstanceT]],
        works: LifecycleHooks[InstanceT],
        readiness: Readiness,
        *,
        clock: Callable[[], float],
        timer: Timer,
        statistics: ModelStatistics,
    ) -> None:
        self.closing = False
        self._config = config
        #: The instances that there should be.
        self.slots = InstanceSlots(config, make_instances)
        self._works = works
        self._readiness = readiness
        self._clock = clock
        self._timer = timer
        self._statistics = statistics
        self._changed = threading.Condition()
        #: Instances in `load`, which is the user's code and may take for ever.
        self._loading: list[InstanceT] = []
        #: Loaded instances, idle or running.
        self._alive: list[InstanceT] = []
        #: Instances in `unload`, which is the user's code, too.
        self._ending: list[InstanceT] = []
        #: Instances that hang in a thread and have been replaced.
        self._left_behind: list[InstanceT] = []
        self._threads: list[threading.Thread] = []
        self._starting = 0
        self._load_error: LoadFailed | None = None
        #: Of the instance that took longest when the model was last unloaded.
        self.unload_seconds = 0.0
        #: No instance is started or brought back.
        self.asleep = False
        #: How often it was put to sleep: threads from before start nothing any more.
        self._sleeps = 0

    def start(self) -> None:
        """Start loading every instance, each in its thread."""
        self._starting = len(self.slots)
        for number in list(self.slots.makers):
            self._start_thread(number)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Block until every instance is loaded and warm. Raises LoadFailed if one cannot be,
        ModelNotReady if the model is closed meanwhile."""
        try:
            self.wait_loaded(timeout)
        except LoadFailed as error:
            if self._load_error is not None and not self.instances:  # else they answer what waits
                self._works.none_left(ModelNotReady(str(error)))
            raise

    def wait_loaded(self, timeout: float | None = None) -> None:
        """The same; what waits for it goes on waiting if it cannot be loaded."""
        with self._changed:
            done = self._changed.wait_for(lambda: not self._starting or self.closing, timeout)
            error = self._load_error
        name = self._config.name
        if error is not None:
            raise error
        if self.closing:
            raise ModelNotReady(f"model {name!r}: closed while it was loading")
        if not done:
            raise LoadFailed(f"model {name!r}: not loaded after {timeout} s")
        self._readiness.loaded()

    def sleep(self) -> list[InstanceT]:
        """Start no instance until `wake`. Returns those that are loaded, which are to be
        stopped."""
        with self._changed:
            self.asleep = True
            self._sleeps += 1
            self._changed.notify_all()
            return list(self._alive)

    def go_on(self, instances: Collection[InstanceT]) -> bool:
        """Undo `sleep`, if these are still loaded: one that has died meanwhile is not brought
        back."""
        with self._changed:
            if not {*self._alive} >= {*instances}:
                return False
            self.asleep = False
            self._sleeps -= 1
        self._readiness.loaded()
        return True

    def wake(self) -> None:
        """Start every instance again, as `start` does. None of the earlier ones is left."""
        with self._changed:
            if self.closing:
                return
            self.asleep, self._load_error = False, None
        self.start()

    def wait_until_empty(self, timeout: float | None) -> bool:
        """Block until there is no instance, after `sleep`, or the model is closed. False if that
        takes longer than `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self.closing or not (self._loading or self._alive or self._ending), timeout
            )

    def end(self) -> None:
        """Start no instance any more, and wait no longer for a retry."""
        with self._changed:
            self.closing = True
            self._changed.notify_all()
        self._readiness.closing()

    def join(self, timeout: float | None) -> None:
        """Block until the threads have ended, for `timeout` seconds at most."""
        ends_at = None if timeout is None else self._clock() + timeout
        for thread in self._threads:
            thread.join(None if ends_at is None else max(0.0, ends_at - self._clock()))

    @property
    def instances(self) -> list[InstanceT]:
        with self._changed:
            return list(self._alive)

    @property
    def unloading(self) -> list[InstanceT]:
        with self._changed:
            return list(self._ending)

    def not_ended(self) -> list[InstanceT]:
        """Everything that still loads, works or unloads."""
        with self._changed:
            return [*self._alive, *self._loading, *self._ending]

    def next_try(self) -> float | None:
        """In how many seconds an instance is tried again, if all of them are away."""
        with self._changed:
            at = self.slots.next_try()
            return None if at is None else max(0.0, at - self._clock())

    def not_ready_reason(self, turn: str) -> str:
        """Why no instance makes progress with its `turn` (batch, step), or why the model itself
        reports for each that it is not ready; "" if one is."""
        instances = self.instances
        if not instances:
            return "every instance is being restarted"
        seconds = self._config.stall_timeout
        oldest_start = self._clock() - seconds
        if all(i.busy_since is not None and i.busy_since < oldest_start for i in instances):
            return (
                f"every instance has been in one {turn} for more than {seconds:g} s (stall_timeout)"
            )
        reasons = [instance.not_ready_reason() for instance in instances]
        return min(reasons) if all(reasons) else ""

    def excuse(self, instances: Sequence[int]) -> None:
        """Earlier deaths of these were a request's fault."""
        with self._changed:
            for number in instances:
                self.slots.excuse(number)

    def replace(self, instance: InstanceT, why: str) -> None:
        """It hangs in its thread, which cannot be stopped: start another one in its place."""
        with self._changed:
            if instance in self._alive:  # else it has ended by itself in this moment
                self._alive.remove(instance)
                self._left_behind.append(instance)
            self._changed.notify_all()
            if not self.is_over(instance.number):
                # Under the lock, so that close() waits for the new thread too.
                self._start_thread(instance.number, hung=why)

    # The thread of one instance

    def _start_thread(self, number: int, *, hung: str = "") -> None:
        thread = threading.Thread(
            target=self._serve,
            args=(number, hung, self._sleeps),
            name=f"wherry-{self._config.name}-{number}",
            daemon=True,  # a hung model must not keep the program alive
        )
        thread.start()  # first: close() may come at any time, and joins what is listed
        self._threads = [*(t for t in self._threads if t.is_alive()), thread]

    def _serve(self, number: int, hung: str, sleeps: int) -> None:
        """`hung` is why it takes the place of another one, if it does."""
        first = not hung
        loss = Loss(hung, "hang") if hung else None
        with self._changed:
            self._changed.wait_for(lambda: self.is_over(number) or number not in self.slots.copies)
            if self.is_over(number):
                return
        while loss is None or self._wait_for_restart(number, loss):
            instance: InstanceT | None = None
            try:
                instance = self.slots.makers[number]()
                with self._changed:
                    self._loading.append(instance)
                    is_over = sleeps != self._sleeps
                if is_over:
                    self._ended_life(instance)
                    return
                instance.load()
            except model_errors() as error:
                if instance is not None:
                    self._ended_life(instance)
                if first:
                    self._could_not_load(error)
                    return
                cause = error.cause if isinstance(error, WorkerDied) else "load"
                loss = Loss(
                    _reason_of(error), cause, short_of=shortage(error), traceback=_traceback(error)
                )
            else:
                self._came_up(number, instance, first)
                first = False
                try:
                    self._works.serve(instance)
                    self._ended_life(instance)
                    return
                except Exception as error:  # noqa: BLE001 - our own bug, too: its requests must end
                    died = _death(instance, error)
                    explained = self._works.lost(instance, died)
                    loss = Loss(
                        str(died), died.cause, instance.good_batches, explained, died.innocent
                    )
                    self._ended_life(instance)

    def _came_up(self, number: int, instance: InstanceT, first: bool) -> None:
        with self._changed:
            self.slots.came_up(number, self._clock())
            self._loading.remove(instance)
            self._alive.append(instance)
            if instance.device.automatic:
                self._starting -= self.slots.decide_on_copies(needed=instance.uses_device)
            if not first:
                self._statistics.worker_restarts += 1
                self._readiness.is_back()
        self._works.up(instance)  # first: the model is called as soon as it is known to be ready
        with self._changed:
            self._starting -= first
            self._changed.notify_all()
        if not first:
            log.warning(
                "instance is back", extra={"model": self._config.name, "instance": instance.name}
            )

    def _ended_life(self, instance: InstanceT) -> None:
        self._works.down(instance)
        with self._changed:
            for group in (self._loading, self._alive, self._left_behind):
                if instance in group:
                    group.remove(instance)
            self._ending.append(instance)
            self._changed.notify_all()
        began = self._clock()
        try:
            instance.unload()
        except Exception:  # the user's code: anything may come
            log.exception("unload failed", extra={"instance": instance.name})
        with self._changed:
            self.unload_seconds = self._clock() - began
            self._ending.remove(instance)
            self._changed.notify_all()

    def _could_not_load(self, error: BaseException) -> None:
        name = self._config.name
        failed = LoadFailed(f"model {name!r} could not be loaded: {_reason_of(error)}")
        failed.__cause__ = error
        with self._changed:
            self._starting -= 1 + self.slots.decide_on_copies(needed=False)
            self._load_error = self._load_error or failed
            if self._readiness.state is ModelState.LOADING:  # else it is one more than before
                self._readiness.failed(str(failed))
            self._changed.notify_all()

    def _wait_for_restart(self, number: int, loss: Loss) -> bool:
        """Wait until the instance may be tried again; False if the model is to be closed."""
        with self._changed:
            if self.is_over(number):
                return False
            now = self._clock()
            if not loss.short_of:
                self._statistics.worker_deaths[loss.cause] += 1
            restart = Restart(0.0)
            if not loss.innocent:
                restart = self.slots.lost(
                    number,
                    now,
                    short=bool(loss.short_of),
                    good_batches=loss.good_batches,
                    explained=loss.explained,
                )
            if none_left := self.slots.next_try() is not None:
                self._readiness.failed(_why_none_is_left(self._config, loss))
        log.error(
            "instance cannot be started, trying again"
            if loss.short_of
            else "worker died, restarting",
            extra={
                "model": self._config.name,
                "instance": number,
                "why": loss.why,
                "next_try_seconds": round(restart.delay, 3),
                **({"traceback": loss.traceback} if loss.traceback else {}),
            },
        )
        if none_left:
            self._works.none_left(None)
        self._sleep(number, now + restart.delay)
        with self._changed:
            # A thread that hangs holds a copy of the model for as long as it does.
            self._changed.wait_for(
                lambda: self.closing or len(self._left_behind) <= self._config.crash_budget
            )
            return not self.is_over(number)

    def is_over(self, number: int) -> bool:
        """Should this instance no longer exist?"""
        return self.closing or self.asleep or number not in self.slots

    def _sleep(self, number: int, until: float) -> None:
        """Until that moment, or until the model closes or sleeps or drops this instance."""
        if until > self._clock():
            self._timer.wake_at(until, self._wake)
        with self._changed:
            self._changed.wait_for(lambda: self.is_over(number) or self._clock() >= until)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _why_none_is_left(config: ModelConfig, loss: Loss) -> str:
    if loss.short_of:
        return f"no instance can be started: {loss.short_of}"
    return (
        f"every instance died more than {config.crash_budget} times within"
        f" {config.crash_window:g} s, or cannot be loaded again; the last time: {loss.why}"
    )


def _death(instance: Loadable, error: Exception) -> WorkerDied:
    """What ended `serve`: the worker's death, or our own bug, which is logged."""
    if isinstance(error, WorkerDied):
        return error
    log.exception("internal error", extra={"instance": instance.name})
    died = WorkerDied(f"instance {instance.name}: internal error; see the server's log")
    died.cause = "bug"
    return died


def _traceback(error: BaseException) -> str:
    """The traceback of an error that the model's own code raised; "" for other errors."""
    if isinstance(error, WherryError):
        return "\n".join(getattr(error, "__notes__", ()))  # of a worker
    return "".join(traceback.format_exception(error)).rstrip()


def _reason_of(error: BaseException) -> str:
    # The text of our own errors is enough; of others the type is half of the reason.
    return str(error) if isinstance(error, WherryError) else f"{type(error).__name__}: {error}"
