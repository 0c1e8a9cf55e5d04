"""How does a row run in its caller's own thread, and which caller is next where several wait?"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Protocol

from wherry.core.instances.execution import Failure
from wherry.core.instances.instance import Instance
from wherry.core.instances.instance_table import InstanceTable
from wherry.core.instances.readiness import Readiness
from wherry.core.instances.resources import NothingShared
from wherry.core.observability.statistics import ModelStatistics
from wherry.core.scheduler.policy import Scheduler
from wherry.core.values.request import Columns


class Waiter:
    """A caller that waits for an instance."""

    __slots__ = ("instance", "is_sent_away", "turn")

    def __init__(self) -> None:
        #: Released to wake the caller.
        self.turn = threading.Lock()
        self.turn.acquire()
        #: The instance that it was given.
        self.instance: Instance | None = None
        self.is_sent_away = False


class CallerLine:
    """Callers that wait for an instance; the first come is the first served. The dispatcher's lock
    is held.

    When an instance is free, it becomes idle, and the first caller is woken to take it. Until that
    thread runs, another one may take the instance: one that calls again and again does not wait for
    a switch of threads at each call. A caller that has come too late is given the next instance.
    """

    def __init__(self) -> None:
        self._waiting: deque[Waiter] = deque()
        #: Whether the first one was woken, and has not looked yet.
        self._is_awake = False
        #: Whether the first one has come too late.
        self._was_late = False

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self) -> Waiter:
        waiter = Waiter()
        self._waiting.append(waiter)
        return waiter

    def freed(self, instance: Instance, idle: list[Instance], *, at_once: bool) -> bool:
        """Give a free instance to the first caller, if it has come too late before, or `at_once`.
        Otherwise return False, and wake the caller: the instance must join the idle ones."""
        if not self._waiting:
            return False
        if not at_once and not self._was_late:
            self._wake_first()
            return False
        self._waiting[0].instance = instance
        self._wake_first()
        self._remove_first()
        self.see(idle)
        return True

    def look(self, waiter: Waiter, idle: list[Instance]) -> bool:
        """Let a caller that was woken take an idle instance. Return whether its wait is over."""
        if waiter.instance is not None or waiter.is_sent_away:
            return True
        self._is_awake = False
        if not idle:
            self._was_late = True
            return False
        waiter.instance = idle.pop()
        self._remove_first()
        self.see(idle)
        return True

    def leave(self, waiter: Waiter, idle: list[Instance]) -> None:
        """Remove a caller whose wait was interrupted; nothing was given to it."""
        if waiter is self._waiting[0]:
            self._remove_first()
            self.see(idle)
        else:
            self._waiting.remove(waiter)

    def see(self, idle: list[Instance]) -> None:
        """Wake the first caller if an instance is idle."""
        if idle and self._waiting:
            self._wake_first()

    def send_away(self) -> None:
        """Have all of them wait no longer, with nothing."""
        while self._waiting:
            self._waiting[0].is_sent_away = True
            self._wake_first()
            self._remove_first()

    def _wake_first(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._waiting[0].turn.release()

    def _remove_first(self) -> None:
        self._waiting.popleft()
        self._is_awake = self._was_late = False


class InstanceOwner(Protocol):
    """The model whose instances run rows in callers' threads."""

    readiness: Readiness
    statistics: ModelStatistics

    def callers_answered(self, instance: Instance) -> None:
        """An instance is free, and something waits for it. No lock is held."""


class InCaller:
    """Runs single rows of one model in the threads of their callers. Any thread.

    While all instances are busy and no request is queued, up to `line_size` callers wait in a line.
    Requests that are queued later come after them.
    """

    def __init__(
        self,
        owner: InstanceOwner,
        lock: threading.Lock,
        clock: Callable[[], float],
        instances: InstanceTable,
        scheduler: Scheduler,
        share: NothingShared,
        *,
        line_size: float,
    ) -> None:
        """`lock` is the dispatcher's: it guards the table of instances, the scheduler and
        the share."""
        self._owner = owner
        self._readiness = owner.readiness
        self._statistics = owner.statistics
        self._lock = lock
        self._clock = clock
        self._instances = instances
        self._scheduler = scheduler
        self._share = share
        self._line_size = 0 if share.limits else line_size
        #: Whether callers may be waiting in the line.
        self.lines_up = self._line_size > 0
        self._line = CallerLine()

    def run(self, columns: Columns) -> Columns | Failure | None:
        """Run one row in this very thread. None: it must be queued."""
        waiter = None
        with self._lock:
            if self._readiness.reason:
                return None
            idle = self._instances.idle
            if idle:
                instance = idle[-1]
                now = self._clock()
                alone = instance.runs_in_caller and self._scheduler.may_run_alone(now)
                if not alone or (self._share.limits and not self._share.may_run_in_caller(now)):
                    return None
                idle.pop()
                instance.busy_since = now
            elif len(self._line) < self._line_size and not self._scheduler.queued_requests:
                waiter = self._line.join()
            else:
                return None
        waited_ns = 0
        if waiter is not None:
            joined = perf_counter_ns()
            given = self._wait(waiter)
            if given is None:
                return None
            instance, waited_ns = given, perf_counter_ns() - joined
        started = perf_counter_ns()
        try:
            outcome = instance.run_in_caller(columns)
        finally:  # Ctrl-C may have interrupted the caller: the instance is free all the same
            ns = perf_counter_ns() - started
            self._give_back(instance)
        if isinstance(outcome, Failure):
            self._statistics.failed(outcome.as_exception(), (waited_ns + ns) * 1e-9)
        elif outcome is not None:
            self._statistics.inlined(ns, waited_ns)
        return outcome

    def _wait(self, waiter: Waiter) -> Instance | None:
        """Block until an instance is this caller's. None: it waits no longer."""
        try:
            while True:
                waiter.turn.acquire()
                with self._lock:
                    if self._line.look(waiter, self._instances.idle):
                        if waiter.instance is not None:
                            waiter.instance.busy_since = self._clock()
                        return waiter.instance
        except BaseException:  # Ctrl-C: the next one must not wait for this one
            with self._lock:
                if waiter.instance is None and not waiter.is_sent_away:
                    self._line.leave(waiter, self._instances.idle)
            if waiter.instance is not None:
                self._give_back(waiter.instance)
            raise

    def _give_back(self, instance: Instance) -> None:
        with self._lock:
            since, instance.busy_since = instance.busy_since, None
            quiet = not self._scheduler.queued_requests and not self._readiness.reason
            quiet &= not instance.is_let_go
            if quiet:
                if not self._line or not self.assign(instance, at_once=False):
                    self._instances.idle.append(instance)
            elif since is not None:
                now = self._clock()
                self._scheduler.ran_alone(now - since, now)
        if self._share.limits:
            self._share.returned()
        if not quiet:
            self._owner.callers_answered(instance)

    # The dispatcher's lock is held

    @property
    def waiting(self) -> int:
        """Callers in the line."""
        return len(self._line)

    def came_up(self, instance: Instance) -> None:
        """An instance can be idle from now on. One that takes batches ahead does more from a queue
        than from a line."""
        if not instance.runs_in_caller or instance.takes_ahead:
            self._line_size, self.lines_up = 0, False
        self._line.see(self._instances.idle)

    def assign(self, instance: Instance, *, at_once: bool) -> bool:
        """Give a free instance to the first caller in the line. False: it must become idle, or run
        what is queued; `at_once`: only if no caller waits."""
        if not self._line.freed(instance, self._instances.idle, at_once=at_once):
            return False
        instance.busy_since = self._clock()
        return True

    def send_away(self) -> None:
        """Have the callers in the line queue their rows."""
        self._line.send_away()
