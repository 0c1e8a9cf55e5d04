"""Which caller is next where several wait for an instance that runs their rows?"""

from __future__ import annotations

from collections import deque
from math import inf

from wherry.core.instances.instance import Instance
from wherry.core.models.config import ModelConfig


class Waiter:
    """A caller that waits for an instance."""

    __slots__ = ("instance", "is_sent_away")

    def __init__(self) -> None:
        #: The instance that it was given.
        self.instance: Instance | None = None
        self.is_sent_away = False


class CallerLine:
    """Callers that wait for an instance; the first to come is the first served.

    When an instance is free, it becomes idle, and the first caller is woken to take it. Until that
    thread runs, another one may take the instance: one that calls again and again does not wait for
    a switch of threads at each call. A caller that has come too late is given the next instance.

    Pure: it takes instances out of `idle`, and adds the callers that are to look to `wake`.
    """

    def __init__(self, size: float, idle: list[Instance]) -> None:
        #: Callers that it may hold.
        self.size = size
        self._idle = idle
        self.waiting: deque[Waiter] = deque()
        #: Whether the first one was woken, and has not looked yet.
        self._is_awake = False
        #: Whether the first one has come too late.
        self._was_late = False

    def join(self, waiter: Waiter) -> None:
        self.waiting.append(waiter)

    def freed(self, instance: Instance, now: float, wake: list[Waiter], *, at_once: bool) -> bool:
        """Give a free instance to the first caller, if it has come too late before, or `at_once`.
        Otherwise return False, and wake the caller: the instance must join the idle ones."""
        if not self.waiting:
            return False
        if not at_once and not self._was_late:
            self._wake_first(wake)
            return False
        instance.busy_since = now
        self.waiting[0].instance = instance
        self._wake_first(wake)
        self._remove_first()
        self.see(wake)
        return True

    def look(self, waiter: Waiter, now: float, wake: list[Waiter]) -> bool:
        """Let a caller that was woken take an idle instance. Return whether its wait is over."""
        if waiter.instance is not None or waiter.is_sent_away:
            return True
        self._is_awake = False
        if not self._idle:
            self._was_late = True
            return False
        waiter.instance = self._idle.pop()
        waiter.instance.busy_since = now
        self._remove_first()
        self.see(wake)
        return True

    def leave(self, waiter: Waiter, wake: list[Waiter]) -> None:
        """Remove a caller whose wait was interrupted, if it waits still."""
        if waiter.instance is not None or waiter.is_sent_away:
            return
        if waiter is self.waiting[0]:
            self._remove_first()
            self.see(wake)
        else:
            self.waiting.remove(waiter)

    def see(self, wake: list[Waiter]) -> None:
        """Wake the first caller if an instance is idle."""
        if self._idle and self.waiting:
            self._wake_first(wake)

    def send_away(self, wake: list[Waiter]) -> None:
        """Have all of them wait no longer, with nothing."""
        while self.waiting:
            self.waiting[0].is_sent_away = True
            self._wake_first(wake)
            self._remove_first()

    def _wake_first(self, wake: list[Waiter]) -> None:
        if not self._is_awake:
            self._is_awake = True
            wake.append(self.waiting[0])

    def _remove_first(self) -> None:
        self.waiting.popleft()
        self._is_awake = self._was_late = False


def line_size(config: ModelConfig) -> float:
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
