"""Which instance is given which batch?"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from wherry.core.instances.instance import BatchRun, Instance
from wherry.core.instances.instance_table import InstanceTable
from wherry.core.instances.resources import NothingShared
from wherry.core.scheduler.ahead import Ahead
from wherry.core.scheduler.policy import Dispatch, Scheduler, Wait
from wherry.core.values.errors import WherryError
from wherry.core.values.request import Batch, InferRequest

#: An instance, and the batches that it is to be given by one call.
Assignment = tuple[Instance, list[Batch]]


class Placement:
    """Brings the batches of one model's scheduler to its instances. Pure; the dispatcher's lock is
    held."""

    def __init__(
        self, scheduler: Scheduler, instances: InstanceTable, share: NothingShared
    ) -> None:
        self._scheduler = scheduler
        self._instances = instances
        self._share = share
        self._ahead = Ahead()

    def has_room(self) -> bool:
        """Could an instance be given a batch, if there is one?"""
        most = self._ahead.most
        return bool(self._instances.idle) or (
            most > 1 and self._instances.least_busy(most) is not None
        )

    def assign(self, now: float) -> tuple[list[Assignment], float]:
        """Choose what the instances are given now. Returns it, and when to ask again (inf: when
        something happens)."""
        assigned: list[Assignment] = []
        idle = self._instances.idle
        wake_at = self._assign_idle(assigned, now) if idle else inf
        most = self._ahead.most
        while most > 1 and not idle and self._scheduler.queued_requests:
            instance = self._instances.least_busy(most)
            if instance is None:
                break
            action = self._scheduler.next_action(now, instance.number, ahead=True)
            if not isinstance(action, Dispatch):
                break
            self._begin(assigned, instance, action.batch, now)
        return assigned, wake_at

    def _assign_idle(self, assigned: list[Assignment], now: float) -> float:
        scheduler, limited, unused, wake_at = self._scheduler, self._share.limits, False, inf
        for instance in self._instances.idle[::-1]:
            if limited and not self._share.may_run(scheduler, now):
                break
            action = scheduler.next_action(now, instance.number)
            if isinstance(action, Dispatch):
                if limited:
                    self._share.began()
                self._begin(assigned, instance, action.batch, now)
                unused = False
                continue
            unused = True
            if isinstance(action, Wait):
                wake_at = min(wake_at, action.until)
            if not scheduler.runs_sequences:
                break
        if unused and limited:
            self._share.nothing_to_run()
        return wake_at

    def _begin(
        self, assigned: list[Assignment], instance: Instance, batch: Batch, now: float
    ) -> None:
        self._instances.begin(instance, batch, now)
        for one, batches in assigned:
            if one is instance:
                batches.append(batch)
                return
        assigned.append((instance, [batch]))

    def ended(self, instance: Instance, runs: Sequence[BatchRun], now: float) -> None:
        """Batches of this instance have ended, all that were told of at once. Those that the
        scheduler was told of before count no more."""
        # They have taken equal parts of the time since the ones before them.
        since = max(runs[0].started, instance.ended_at)
        seconds = (now - since) / len(runs)
        instance.ended_at = now
        first = runs[0].batch
        longest_ns = 0
        alike: list[InferRequest] = []
        count = 0
        for run in runs:
            batch, execution = run.batch, run.execution
            whole = len(execution.executed_rows) == 1
            if not self._instances.end(instance, batch, now):
                continue
            if whole and batch.rows == first.rows:
                count += 1
                alike += batch.requests
                longest_ns = max(longest_ns, execution.infer_ns)
            else:
                self._scheduler.finished(batch.requests, seconds if whole else None, now)
            if self._share.limits:
                self._share.ended()
        if count:
            self._scheduler.finished(alike, seconds, now, batches=count)
            nearly_full = 2 * first.rows > self._scheduler.max_batch_size
            if nearly_full and instance.takes_ahead and not self._share.limits:
                self._ahead.ran(longest_ns * 1e-9)

    def lost(self, instance: Instance, now: float) -> None:
        """The instance has ended with the batches that it had, of which none has run to its end."""
        self._ahead.forget()
        for batch in tuple(instance.batches):
            self._instances.end(instance, batch, now)
            self._scheduler.finished(batch.requests, None, now)
            self._share.ended()

    def remove(self, instance: Instance) -> Sequence[tuple[InferRequest, WherryError]]:
        """The instance is gone. Returns the steps that will never run for that, and why."""
        self._instances.remove(instance)
        self._scheduler.instance_lost(instance.number)
        return self._scheduler.broken()
