"""Which instances of a model are up, and which batches has each?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from wherry.core.instances.instance import Instance
from wherry.core.values.request import Batch, InferRequest


class InstanceTable:
    """The loaded instances of one model. Pure; the dispatcher's lock is held.

    `longest` is the most seconds that a batch may run (None: any).
    """

    def __init__(self, longest: float | None) -> None:
        self.idle: list[Instance] = []
        #: All of them.
        self.up: list[Instance] = []
        self._longest = longest

    def add(self, instance: Instance, *, idle: bool) -> None:
        self.up.append(instance)
        if idle:
            self.idle.append(instance)

    def retire(self, instance: Instance) -> tuple[list[InferRequest], list[InferRequest]]:
        """It gets no batch any more, and counts as busy until it is removed. Returns the requests
        that it was running, and those that waited there for their turn."""
        if instance in self.idle:
            self.idle.remove(instance)
            instance.busy_since = inf
        runs = [request for batch in instance.batches[:1] for request in batch.requests]
        ahead = [request for batch in instance.batches[1:] for request in batch.requests]
        return list(dict.fromkeys((*runs, *instance.open_requests))), ahead

    def let_go(self, instances: Sequence[Instance]) -> list[Instance]:
        """These get no batch any more. Returns those that are idle."""
        idle = [instance for instance in instances if instance in self.idle]
        for instance in instances:
            instance.is_let_go = True
        self.idle = [instance for instance in self.idle if instance not in idle]
        return idle

    def remove(self, instance: Instance) -> None:
        for group in (self.up, self.idle):
            if instance in group:
                group.remove(instance)

    def begin(self, instance: Instance, batch: Batch, now: float) -> None:
        """An instance is given a batch, behind those that it has."""
        if not instance.batches:
            self.idle.remove(instance)
            instance.busy_since = now
        instance.batches.append(batch)

    def least_busy(self, most: int) -> Instance | None:
        """The instance that runs the fewest batches, if it may be given another one ahead and has
        less than `most`."""
        best = None
        for instance in self.up:
            batches = instance.batches
            away = instance.busy_since is None or instance.is_let_go
            if not instance.takes_ahead or not batches or away:
                continue
            # A request with which a worker has died is alone there, to show whether it did that.
            if len(batches) < most and not batches[-1].requests[0].attempts:
                best, most = instance, len(batches)
        return best

    def end(self, instance: Instance, batch: Batch, now: float) -> bool:
        """A batch of the instance has ended. False: that was told before. Without another one the
        instance is not idle yet."""
        batches = instance.batches
        if batch not in batches:
            return False
        if batch is batches[0]:
            instance.busy_since = now  # to tell the callers is progress, too
        batches.remove(batch)
        return True

    def free(self, instance: Instance, *, idle: bool) -> None:
        """All batches of the instance have ended, and it need not see to them any more. `idle`: it
        may be given more."""
        instance.busy_since = None
        if idle and instance not in self.idle:
            self.idle.append(instance)

    def overruns_at(self) -> float:
        """When the first batch will have run for too long; inf: none will."""
        if self._longest is None:
            return inf
        return min([since for _, since in self._running()], default=inf) + self._longest

    def take_overdue(self, now: float) -> list[tuple[Instance, Batch]]:
        """The instances whose oldest batch has run for too long, each once, with that batch."""
        if self._longest is None:
            return []
        overdue = [i for i, since in self._running() if since + self._longest <= now]
        for instance in overdue:
            instance.busy_since = None
        return [(instance, instance.batches[0]) for instance in overdue]

    def running(self) -> list[tuple[str, int, float]]:
        """Instances that run something: name, rows, since when."""
        return [
            (i.name, i.batches[0].rows if i.batches else 1, i.busy_since)
            for i in self.up
            if i.busy_since is not None
        ]

    @property
    def running_rows(self) -> int:
        """Rows of all batches that were given to an instance and have not ended."""
        return sum([batch.rows for i in self.up for batch in i.batches])

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

    def is_quiet(self) -> bool:
        """Does no instance have a request?"""
        return all(
            i.busy_since is None and not i.is_telling and not i.open_requests for i in self.up
        )

    def _running(self) -> list[tuple[Instance, float]]:
        return [(i, i.busy_since) for i in self.up if i.batches and i.busy_since is not None]
