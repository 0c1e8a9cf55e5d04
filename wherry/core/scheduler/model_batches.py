"""Which instance of a model runs which batch next, and which requests and callers wait?

Events go in with their time, and what is to be done comes out as `Acts`. Pure: no lock, clock or
thread is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Generic, TypeVar

import msgspec

from wherry.core.models.config import ModelConfig
from wherry.core.scheduler.admission import QueueAdmission
from wherry.core.scheduler.device_share import ModelShare
from wherry.core.scheduler.instance_table import (
    BatchRun,
    CallerLine,
    InstanceTable,
    SlotT,
    Waiter,
    line_size,
)
from wherry.core.scheduler.overload import MIN_QUEUED_BEFORE_REFUSAL
from wherry.core.scheduler.policy import Dispatch, Scheduler, Wait
from wherry.core.values.errors import InvalidRequest, WherryError
from wherry.core.values.load import Load
from wherry.core.values.request import Batch, InferRequest

WaiterT = TypeVar("WaiterT", bound=Waiter[Any])


class Acts(msgspec.Struct, Generic[SlotT]):
    """What is to be done after an event, once no lock is held."""

    #: Instances, and the batches that one call passes to each.
    give: list[tuple[SlotT, list[Batch]]] = []
    fail: list[tuple[InferRequest, WherryError]] = []
    stop: list[SlotT] = []
    #: Callers that are to look whether their wait is over.
    wake: list[Waiter[SlotT]] = []
    #: Instances whose oldest batch has run for too long, with that batch.
    overdue: list[tuple[SlotT, Batch]] = []
    #: When `tick` is due besides the moments named before; inf: at no other one.
    wake_at: float = inf
    #: Requests refused or dropped because their answers would be late.
    predicted_late: int = 0


class ModelBatches(Generic[SlotT]):
    def __init__(
        self, config: ModelConfig, scheduler: Scheduler, share: ModelShare | None = None
    ) -> None:
        """`share`: what the batches need of what several models share."""
        self._config = config
        self._scheduler = scheduler
        self.runs_sequences = scheduler.runs_sequences
        self._share = share
        self._admission = QueueAdmission(config, scheduler)
        self.table: InstanceTable[SlotT] = InstanceTable()
        #: Callers with a single row, which wait while no request is queued.
        size = 0 if share is not None else line_size(config)
        self.line = CallerLine(size, self.table.idle)
        #: When `tick` will be called, latest first.
        self._ticks: list[float] = []
        self._is_closing = False
        self.is_held = False  # nothing that waits is begun

    # Requests

    def arrived(self, requests: Sequence[InferRequest], now: float) -> Acts[SlotT]:
        acts: Acts[SlotT] = Acts()
        scheduler = self._scheduler
        queued = scheduler.queue.queued_requests
        for request in requests:
            if request.reply.settled:
                continue  # its caller has just left
            request.enqueued_at = now
            deadline = request.deadline
            if deadline is not None and deadline <= now:
                acts.fail.append((request, self._admission.late(request, now)))
                continue
            if deadline is not None or queued >= MIN_QUEUED_BEFORE_REFUSAL:
                refusal = self._admission.refusal(request, now)
                if refusal is not None:
                    acts.fail.append((request, refusal))
                    acts.predicted_late += 1
                    continue
            try:
                is_queued = scheduler.enqueue(request, now)
                if not is_queued and self.table.has_room():
                    self._assign(acts, now)  # an instance may take what fills the queue
                    queued = scheduler.queue.queued_requests
                    is_queued = scheduler.enqueue(request, now)
            except InvalidRequest as error:  # a step of a sequence that did not start
                acts.fail.append((request, error))
                continue
            queued += is_queued
            if not is_queued:
                acts.fail.append((request, self._admission.full(request)))
            elif self.line.size and request.priority < self._config.default_priority:
                self.line.send_away(acts.wake)  # they queue their rows behind it
        self._assign(acts, now)
        return acts

    def cancelled(
        self, request: InferRequest
    ) -> tuple[bool, Sequence[tuple[InferRequest, WherryError]]]:
        """A request has its outcome. Was it queued, and and which steps will now never run?"""
        return self._scheduler.cancel(request), self._scheduler.broken()

    def tick(self, now: float) -> Acts[SlotT]:
        """One of the moments `wake_at` has come."""
        acts: Acts[SlotT] = Acts()
        ticks = self._ticks
        while ticks and ticks[-1] <= now:
            ticks.pop()
        for request in self._scheduler.expire(now):
            acts.fail.append((request, self._admission.late(request, now)))
        acts.fail += self._scheduler.broken()
        if (limit := self._config.execution_timeout) is not None:
            acts.overdue = self.table.take_overdue(now, limit)
        self._assign(acts, now)
        return acts

    def granted(self, now: float) -> Acts[SlotT]:
        """It is this model's turn on what it shares with others."""
        acts: Acts[SlotT] = Acts()
        share = self._share
        assert share is not None
        share.granted()
        self._assign(acts, now)
        share.nothing_to_run()  # the instance that it was claimed for may be gone
        return acts

    def cleared(self) -> tuple[Sequence[InferRequest], Acts[SlotT]]:
        """Empty the queue. Returns the requests that waited."""
        acts: Acts[SlotT] = Acts()
        self.line.send_away(acts.wake)
        return self._scheduler.clear(), acts

    def hold(self, held: bool) -> Acts[SlotT]:
        """Held: instances get nothing more. Not held: they get what waits from the next event."""
        self.is_held = held
        acts: Acts[SlotT] = Acts()
        self.line.send_away(acts.wake)
        return acts

    def closing(self) -> Acts[SlotT]:
        """Instances stop from now on, as soon as they have ended what they have."""
        self._is_closing = True
        if self._share is not None:
            self._share.nothing_to_run()
        acts: Acts[SlotT] = Acts(stop=[*self.table.idle])
        self.table.idle.clear()
        return acts

    # Batches

    def ended(self, instance: SlotT, runs: Sequence[BatchRun], now: float) -> Acts[SlotT]:
        """Batches of this instance have ended, all that were reported at once, and their callers
        are about to be answered: `answered` must follow. Batches that it no longer has are skipped.
        """
        scheduler, share, batches = self._scheduler, self._share, instance.batches
        # They have taken equal parts of the time since the ones before them.
        started, before = runs[0].started, instance.ended_at
        seconds = (now - (started if started > before else before)) / len(runs)
        instance.ended_at = now
        first_rows = runs[0].batch.rows
        longest_ns = count = 0
        alike: list[InferRequest] = []
        for run in runs:
            batch, execution = run.batch, run.execution
            if execution.out_of_memory_rows > 1:  # half of them ran, or will report the same
                scheduler.limit_rows(execution.out_of_memory_rows // 2)
            if batch not in batches:
                continue
            if batch is batches[0]:
                instance.busy_since = now  # to answer the callers is progress, too
            batches.remove(batch)
            whole = len(execution.executed_rows) == 1
            if whole and batch.rows == first_rows:
                count += 1
                alike += batch.requests
                longest_ns = max(longest_ns, execution.infer_ns)
            else:
                scheduler.finished(batch.requests, seconds if whole else None, now)
            if share is not None:
                share.ended()
        if count:
            scheduler.finished(alike, seconds, now, batches=count)
            nearly_full = 2 * first_rows > scheduler.max_batch_size
            if nearly_full and instance.takes_ahead and share is None:
                self.table.ahead.ran(longest_ns * 1e-9)
        acts: Acts[SlotT] = Acts()
        instance.is_answering = True
        if instance.takes_ahead:
            self._follow(acts, instance, now)
        elif share is not None:
            share.may_run(scheduler, now)  # the next, while the callers are answered
        return acts

    def answered(self, instance: SlotT, now: float) -> Acts[SlotT] | None:
        """The callers of the batches that have ended are answered. None: there is nothing to do."""
        was_answering, instance.is_answering = instance.is_answering, False
        if was_answering and instance.takes_ahead:
            return None  # it got more before
        acts: Acts[SlotT] = Acts()
        self._follow(acts, instance, now)
        return acts

    def rescheduled(self, request: InferRequest, now: float) -> bool:
        """Queue a request once more whose batch is about to have `ended`; False: that cannot be."""
        return self._scheduler.reschedule(request, now)

    def _follow(self, acts: Acts[SlotT], instance: SlotT, now: float) -> None:
        """Something of this instance has ended; choose what follows."""
        scheduler = self._scheduler
        ends = self._is_closing or instance.is_retiring or instance not in self.table.up
        queued = scheduler.queue.queued_requests
        if not instance.batches:
            line = self.line
            if (
                ends
                or not line.waiting
                or not line.freed(instance, now, acts.wake, at_once=queued > 0)
            ):
                instance.busy_since = None
                if not ends and instance not in self.table.idle:
                    self.table.idle.append(instance)
        if not ends and (queued or scheduler.runs_sequences):
            if queued >= MIN_QUEUED_BEFORE_REFUSAL and (late := self._admission.give_up()):
                acts.fail += late
                acts.predicted_late += len({one.whole or one for one, _ in late})
            self._assign(acts, now)
        elif self._share is not None:
            self._share.nothing_to_run()
        if ends and not instance.batches:
            acts.stop.append(instance)

    # Rows that run in their callers' threads

    def caller_came(self, now: float) -> SlotT | None:
        """Lend an instance to a caller with one row; `caller_ran` must follow. None: it must wait,
        if it is allowed to, or queue its row."""
        if not self.table.idle:
            return None
        instance = self.table.idle[-1]
        if not instance.runs_in_caller or not self._scheduler.may_run_alone(now):
            return None
        if self._share is not None and not self._share.may_run_in_caller(now):
            return None
        self.table.idle.pop()
        instance.busy_since = now
        return instance

    def caller_waits(self, make: Callable[[], WaiterT]) -> WaiterT | None:
        """A caller joins the line, as what `make` returns; None: it must queue its row."""
        if (
            len(self.line.waiting) >= self.line.size
            or self.table.idle
            or self._scheduler.queue.queued_requests
        ):
            return None
        waiter = make()
        self.line.waiting.append(waiter)
        return waiter

    def caller_looks(self, waiter: Waiter[SlotT], now: float) -> Acts[SlotT]:
        """A caller was woken: either its wait `is_over` now, or it sleeps again."""
        return Acts(wake=self.line.look(waiter, now))

    def caller_left(self, waiter: Waiter[SlotT]) -> Acts[SlotT]:
        """The wait of a caller was interrupted. If it has an instance, `caller_ran` must follow."""
        return Acts(wake=self.line.leave(waiter))

    def caller_ran(self, instance: SlotT, now: float, *, is_ready: bool) -> Acts[SlotT] | None:
        """A caller gives an instance back. None: there is nothing to do. `is_ready`: the model
        takes rows of further callers."""
        since, instance.busy_since = instance.busy_since, None
        scheduler, share = self._scheduler, self._share
        if share is not None:
            share.ended()
        if is_ready and not instance.is_retiring and not scheduler.queue.queued_requests:
            if share is None and not self.line.waiting:
                self.table.idle.append(instance)
                return None
            acts: Acts[SlotT] = Acts()
            if not self.line.freed(instance, now, acts.wake, at_once=False):
                self.table.idle.append(instance)
            return acts
        acts = Acts()
        if since is not None:
            scheduler.ran_alone(now - since, now)
        self._follow(acts, instance, now)
        return acts

    # Instances

    def came_up(self, instance: SlotT, instances: int, *, stops: bool) -> Acts[SlotT]:
        """An instance is loaded, of `instances` in all. `stops`: it is surplus by now."""
        acts: Acts[SlotT] = Acts()
        self.table.up.append(instance)
        (acts.stop if stops else self.table.idle).append(instance)
        self._scheduler.instance_up(instance.number)
        self._scheduler.resize(instances)
        # One that takes batches ahead does more from a queue than from a line.
        if not instance.runs_in_caller or instance.takes_ahead:
            self.line.size = 0
        acts.wake += self.line.first()
        return acts

    def retire(self, instances: Sequence[SlotT]) -> Acts[SlotT]:
        """These get no batch any more, and stop."""
        return Acts(stop=self.table.retire(instances))

    def lost(self, instance: SlotT, now: float) -> tuple[list[InferRequest], list[InferRequest]]:
        """Its worker has died. It gets no batch any more, and counts as busy until it is `gone`.
        Returns the requests that it was running, and those that waited there for their turn."""
        had, ahead = self.table.lost(instance)
        self._drop_batches(instance, now)
        return had, ahead

    def gone(
        self,
        instance: SlotT,
        again: Sequence[InferRequest],
        ahead: Sequence[InferRequest],
        now: float,
    ) -> Acts[SlotT]:
        """An instance that was `lost` has ended. Of its requests these run `again`, each alone,
        and those that had waited there are first in the queue."""
        scheduler = self._scheduler
        for request in again:
            if not request.reply.settled:
                scheduler.requeue(request, now, alone=True)
        for request in reversed(ahead):
            if not request.reply.settled:
                scheduler.requeue(request, now, alone=False)
        return self._without(instance)

    def left_behind(
        self, instance: SlotT, batches: tuple[Batch, ...], now: float
    ) -> Acts[SlotT] | None:
        """An instance hangs with these batches and cannot be stopped. None: it has ended one."""
        if instance not in self.table.up or tuple(instance.batches) != batches:
            return None
        self._drop_batches(instance, now)
        return self._without(instance)

    def waiting(self) -> Sequence[InferRequest]:
        return self._scheduler.waiting()

    def _without(self, instance: SlotT) -> Acts[SlotT]:
        self.table.remove(instance)
        self._scheduler.instance_lost(instance.number)
        if self._share is not None:
            self._share.nothing_to_run()
        return Acts(fail=list(self._scheduler.broken()))  # steps that will never run

    def _drop_batches(self, instance: SlotT, now: float) -> None:
        """It has ended, and none of its batches ran to completion."""
        self.table.ahead.forget()
        batches = tuple(instance.batches)
        instance.batches.clear()
        if batches:
            instance.busy_since = now
        for batch in batches:
            self._scheduler.finished(batch.requests, None, now)
            if self._share is not None:
                self._share.ended()

    # What runs next

    def _assign(self, acts: Acts[SlotT], now: float) -> None:
        """Choose what the instances run now, and when to look again."""
        scheduler, share, unused, wake_at = self._scheduler, self._share, False, inf
        for instance in () if self.is_held else self.table.idle[::-1]:
            if share is not None and not share.may_run(scheduler, now):
                break
            action = scheduler.next_action(now, instance.number)
            if isinstance(action, Dispatch):
                if share is not None:
                    share.began()
                self._give(acts, instance, action.batch, now)
                unused = False
                continue
            unused = True
            if isinstance(action, Wait):
                wake_at = min(wake_at, action.until)
            if not scheduler.runs_sequences:
                break
        if (unused or self.is_held) and share is not None:
            share.nothing_to_run()
        may = self.table.ahead.seconds < inf and not self.is_held
        while (
            may and not self.table.idle and scheduler.queue.queued_rows >= scheduler.max_batch_size
        ):
            one, at = self.table.room_ahead(now)
            wake_at = min(wake_at, at)
            follows = one and scheduler.next_action(now, one.number, ahead=True)
            if one is None or not isinstance(follows, Dispatch):
                break
            self._give(acts, one, follows.batch, now)
        if scheduler.may_expire and (deadline := scheduler.next_deadline()) is not None:
            wake_at = min(wake_at, deadline)
        if (limit := self._config.execution_timeout) is not None:
            wake_at = min(wake_at, self.table.overruns_at(limit))
        if wake_at < (self._ticks[-1] if self._ticks else inf):
            self._ticks.append(wake_at)
            acts.wake_at = wake_at

    def _give(self, acts: Acts[SlotT], instance: SlotT, batch: Batch, now: float) -> None:
        """Behind the batches that it has."""
        if not instance.batches:
            self.table.idle.remove(instance)
            instance.busy_since = now
        instance.batches.append(batch)
        for one, batches in acts.give:
            if one is instance:
                batches.append(batch)
                return
        acts.give.append((instance, [batch]))

    # What is shown

    def explain(self, now: float) -> dict[str, Any]:
        decided = self._scheduler.decisions.copy(now)
        explained = self._scheduler.explain()
        return {**explained, "held_seconds": decided.held_seconds, "decisions": decided}

    @property
    def queued_requests(self) -> int:
        return self._scheduler.queue.queued_requests + len(self.line.waiting)

    def is_quiet(self) -> bool:
        return not self.queued_requests and self.table.is_quiet()

    def load(self, now: float, *, ready: bool) -> Load:
        seconds, full = self._scheduler.forecast.batch_seconds, self._scheduler.max_batch_size
        queued = self._scheduler.queue.queued_rows + len(self.line.waiting)
        return self.table.load(now, seconds, full, queued, ready=ready)
