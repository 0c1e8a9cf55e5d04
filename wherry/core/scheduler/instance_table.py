"""Which instances of a model are up, which batches has each, and which callers wait for one?"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from math import ceil, inf
from typing import Generic, TypeVar

import msgspec

from wherry.core.models.config import ModelConfig
from wherry.core.observability.otel.following import BatchTrace
from wherry.core.values.execution import Execution
from wherry.core.values.load import Load
from wherry.core.values.request import Batch, InferRequest

#: A batch is sent ahead while those before it are predicted to run for less than this in all:
#: about what one batch takes on its way to a worker and back.
SHORT_SECONDS = 300e-6
#: The next is sent this long before the predicted end of a longer one: what it takes to wake a
#: thread, and to be read by the worker, on a busy machine.
LEAD_SECONDS = 1e-3
MOST_AHEAD = 8
#: By how much of the difference the prediction falls with a batch that was shorter.
FALLING = 1 / 16


class BatchSlot:
    """One instance, as far as it matters for which batch runs where."""

    #: May one row `run_in_caller` while it is idle?
    runs_in_caller = False
    #: Does it take batches while it runs others, and before the callers of the last ones are
    #: answered?
    takes_ahead = False

    name: str
    #: Which of its model's instances it is; the one that takes its place is the same.
    number: int
    #: Since when it works without a break (seconds of the runtime's clock).
    busy_since: float | None

    def __init__(self) -> None:
        #: The batches that it has got and that have not ended, the oldest first.
        self.batches: list[Batch] = []
        #: When a batch has ended last, and whether its callers are still being answered.
        self.ended_at = -inf
        self.is_answering = False
        #: Whether it gets no batch any more, and stops when it has ended what it has.
        self.is_retiring = False

    @property
    def open_requests(self) -> Collection[InferRequest]:
        """Requests that have outlived their batch, or still may. Any thread."""
        return ()


SlotT = TypeVar("SlotT", bound=BatchSlot)


class BatchRun(msgspec.Struct, eq=False):
    """A batch that runs, or has run to its end."""

    batch: Batch
    #: The requests of the batch that run; the others were settled before.
    requests: Sequence[InferRequest]
    #: When it began (seconds of the runtime's clock).
    started: float
    execution: Execution = msgspec.field(default_factory=Execution)
    trace: BatchTrace | None = None


class Ahead:
    """How many batches may an instance have at once? By the longest of the last full ones.

    A worker with one batch sleeps between its answer and the next batch. With several it goes on at
    once, and several answers are read at one wake-up. In return a batch that is sent ahead is
    fixed: nothing joins it, nothing more urgent comes before it, and no other instance takes it.
    So this is for batches that cannot grow, and only while those before them are surely short, or
    about to end.
    """

    def __init__(self) -> None:
        #: How long a full batch runs, without its way to the worker and back; inf: not known.
        self.seconds = inf
        #: Batches that an instance may have; 1 until something is learnt.
        self.most = 1

    def ran(self, seconds: float) -> None:
        known = self.seconds
        if seconds < known < inf:
            seconds = known - FALLING * (known - seconds)
        self.seconds = seconds
        is_long = seconds > SHORT_SECONDS / MOST_AHEAD
        self.most = ceil(SHORT_SECONDS / seconds) if is_long else MOST_AHEAD

    def second_at(self, busy_since: float) -> float:
        """When an instance that runs one batch since then can get the next."""
        return busy_since + self.seconds - LEAD_SECONDS

    def forget(self) -> None:
        """A worker has died: nothing is sent ahead until a batch has run again."""
        self.seconds, self.most = inf, 1


class InstanceTable(Generic[SlotT]):
    def __init__(self) -> None:
        #: All of them, and those that can take a batch or a row.
        self.up: list[SlotT] = []
        self.idle: list[SlotT] = []
        self.ahead = Ahead()

    def remove(self, instance: SlotT) -> None:
        for group in (self.up, self.idle):
            if instance in group:
                group.remove(instance)

    def retire(self, instances: Sequence[SlotT]) -> list[SlotT]:
        """These get no batch any more. Returns those that are idle, which are not any longer."""
        idle = [instance for instance in instances if instance in self.idle]
        for instance in instances:
            instance.is_retiring = True
        for instance in idle:
            self.idle.remove(instance)
        return idle

    def lost(self, instance: SlotT) -> tuple[list[InferRequest], list[InferRequest]]:
        """It gets no batch any more, and counts as busy until it is removed. Returns the requests
        that it was running, and those that waited there for their turn."""
        if instance in self.idle:
            self.idle.remove(instance)
            instance.busy_since = inf
        runs = [request for batch in instance.batches[:1] for request in batch.requests]
        ahead = [request for batch in instance.batches[1:] for request in batch.requests]
        return list(dict.fromkeys((*runs, *instance.open_requests))), ahead

    def has_room(self) -> bool:
        """Could an instance take a batch now?"""
        most = self.ahead.most
        return bool(self.idle) or (most > 1 and self.least_busy(most) is not None)

    def least_busy(self, most: int) -> SlotT | None:
        """The instance that runs the fewest batches, if it takes another one ahead and has fewer
        than `most`."""
        best = None
        for instance in self.up:
            batches = instance.batches
            away = instance.busy_since is None or instance.is_retiring
            if not instance.takes_ahead or not batches or away:
                continue
            # A request with which a worker has died is alone there, to show whether it did that.
            if len(batches) < most and not batches[-1].requests[0].attempts:
                best, most = instance, len(batches)
        return best

    def room_ahead(self, now: float) -> tuple[SlotT | None, float]:
        """The instance to send a full batch ahead to (None: no instance yet), and when to look
        again."""
        if self.ahead.most > 1:
            return self.least_busy(self.ahead.most), inf
        first, at = None, inf
        for instance in self.up:
            batches, since = instance.batches, instance.busy_since
            if not instance.takes_ahead or len(batches) != 1 or since is None:
                continue
            if instance.is_retiring or batches[0].requests[0].attempts:
                continue
            if (then := self.ahead.second_at(since)) < at:
                first, at = instance, then
        return (first, inf) if at <= now else (None, at)

    def overruns_at(self, limit: float) -> float:
        """When the first batch will have run for longer than `limit` seconds; inf: none will."""
        return min([since for _, since in self._at_work()], default=inf) + limit

    def take_overdue(self, now: float, limit: float) -> list[tuple[SlotT, Batch]]:
        """The instances whose oldest batch has run for longer, each once, with that batch."""
        overdue = [instance for instance, since in self._at_work() if since + limit <= now]
        for instance in overdue:
            instance.busy_since = None
        return [(instance, instance.batches[0]) for instance in overdue]

    def is_quiet(self) -> bool:
        return all(
            i.busy_since is None and not i.is_answering and not i.open_requests for i in self.up
        )

    def running(self) -> list[tuple[str, int, float]]:
        return [
            (i.name, i.batches[0].rows if i.batches else 1, i.busy_since)
            for i in self.up
            if i.busy_since is not None
        ]

    def load(
        self,
        now: float,
        seconds_of: Callable[[int], float],
        full_rows: int,
        queued_rows: int,
        *,
        ready: bool,
    ) -> Load:
        busy = len(self.up) - len(self.idle)
        return Load(
            ready=bool(self.up) and ready,
            instances=len(self.up),
            busy=busy,
            queued_rows=queued_rows,
            running_rows=sum([batch.rows for i in self.up for batch in i.batches]) if busy else 0,
            free_after=self.free_after(now, seconds_of) if busy else 0.0,
            full_rows=full_rows,
            one_seconds=seconds_of(1),
            full_seconds=seconds_of(full_rows),
        )

    def free_after(self, now: float, seconds_of: Callable[[int], float]) -> float:
        """Seconds until an instance has run all its batches, each of which takes `seconds_of` its
        rows; 0.0 if one is idle. One that has taken longer is expected to take as long again."""
        soonest = inf
        for instance in self.up:
            if instance.busy_since is None:
                return 0.0
            batches = instance.batches
            runs = seconds_of(batches[0].rows if batches else 1)
            rest = abs(instance.busy_since + runs - now)
            soonest = min(soonest, rest + sum([seconds_of(batch.rows) for batch in batches[1:]]))
        return soonest if soonest < inf else 0.0

    def _at_work(self) -> list[tuple[SlotT, float]]:
        return [(i, i.busy_since) for i in self.up if i.batches and i.busy_since is not None]


class Waiter(Generic[SlotT]):
    __slots__ = ("instance", "is_sent_away")

    def __init__(self) -> None:
        self.instance: SlotT | None = None
        self.is_sent_away = False

    @property
    def is_over(self) -> bool:
        return self.instance is not None or self.is_sent_away


class CallerLine(Generic[SlotT]):
    """Callers that wait for an instance; the first to come is the first served.

    When an instance is free, it becomes idle, and the first caller is woken to take it. Until that
    thread runs, another one may take the instance: one that calls again and again does not wait for
    a switch of threads at each call. A caller that has come too late gets the next instance.

    Pure: it takes instances out of `idle`, and adds the callers that are to look to `wake`. One may
    be woken again before it has looked: a thread that was to wake it may have been interrupted.
    """

    def __init__(self, size: float, idle: list[SlotT]) -> None:
        self.size = size
        self._idle = idle
        self.waiting: deque[Waiter[SlotT]] = deque()
        #: Whether the first one has come too late.
        self._was_late = False

    def freed(
        self, instance: SlotT, now: float, wake: list[Waiter[SlotT]], *, at_once: bool
    ) -> bool:
        """Assign a free instance to the first caller, if it was too late before, or `at_once`.
        Otherwise return False, and wake the caller: the instance must join the idle ones."""
        if not self.waiting:
            return False
        wake.append(self.waiting[0])
        if not at_once and not self._was_late:
            return False
        instance.busy_since = now
        self.waiting[0].instance = instance
        wake += self._remove_first()
        return True

    def look(self, waiter: Waiter[SlotT], now: float) -> list[Waiter[SlotT]]:
        """Let a woken caller take an idle instance, if it still waits. Returns the callers to wake
        next."""
        if waiter.is_over:
            return []
        if not self._idle:
            self._was_late = True
            return []
        waiter.instance = self._idle.pop()
        waiter.instance.busy_since = now
        return self._remove_first()

    def leave(self, waiter: Waiter[SlotT]) -> list[Waiter[SlotT]]:
        """Remove a caller whose wait was interrupted, if it still waits. Returns the callers to
        wake: it may not have woken the one that it was about to wake."""
        if not waiter.is_over:
            self._was_late = self._was_late and waiter is not self.waiting[0]
            self.waiting.remove(waiter)
        return self.first()

    def first(self) -> list[Waiter[SlotT]]:
        """The first caller, if an instance is idle."""
        return [self.waiting[0]] if self._idle and self.waiting else []

    def send_away(self, wake: list[Waiter[SlotT]]) -> None:
        """End the wait of all of them, without an instance."""
        for waiter in self.waiting:
            waiter.is_sent_away = True
        wake += self.waiting
        self.waiting.clear()
        self._was_late = False

    def _remove_first(self) -> list[Waiter[SlotT]]:
        self.waiting.popleft()
        self._was_late = False
        return self.first()


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
