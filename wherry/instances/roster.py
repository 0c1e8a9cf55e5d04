"""Which instances of a model are up, and which batches has each?"""

from __future__ import annotations

from math import inf

from wherry.instances.instance import Instance
from wherry.values.request import Batch, InferRequest


class Roster:
    """The loaded instances of one model. Pure; the dispatcher's lock is held.

    `longest` is the most seconds that a batch may run (None: any).
    """

    def __init__(self, longest: float | None) -> None:
        self.idle: list[Instance] = []
        self._up: list[Instance] = []
        self._longest = longest

    def __contains__(self, instance: Instance) -> bool:
        return instance in self._up

    def add(self, instance: Instance, *, idle: bool) -> None:
        self._up.append(instance)
        if idle:
            self.idle.append(instance)

    def retire(self, instance: Instance) -> list[InferRequest]:
        """It gets no batch any more, and counts as busy until it is removed. Returns all of its
        requests."""
        if instance in self.idle:
            self.idle.remove(instance)
            instance.busy_since = inf
        batches = [request for batch in instance.batches for request in batch.requests]
        return list(dict.fromkeys((*batches, *instance.open_requests)))

    def remove(self, instance: Instance) -> None:
        for group in (self._up, self.idle):
            if instance in group:
                group.remove(instance)

    def begin(self, instance: Instance, batch: Batch, now: float) -> None:
        """An instance is given a batch, behind those that it has."""
        if not instance.batches:
            self.idle.remove(instance)
            instance.busy_since = now
        instance.batches.append(batch)

    def end(self, instance: Instance, batch: Batch, now: float) -> bool:
        """A batch of the instance has ended. False: that was told before. Without another one the
        instance is not idle yet."""
        if batch not in instance.batches:
            return False
        instance.batches.remove(batch)
        instance.busy_since = now  # to tell the callers is progress, too
        return True

    def free(self, instance: Instance, *, idle: bool) -> None:
        """All batches of the instance have ended, and their callers were told. `idle`: it may be
        given more."""
        instance.busy_since = None
        if idle:
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
            for i in self._up
            if i.busy_since is not None
        ]

    def is_quiet(self) -> bool:
        """Does no instance have a request?"""
        return all(i.busy_since is None and not i.open_requests for i in self._up)

    def _running(self) -> list[tuple[Instance, float]]:
        return [(i, i.busy_since) for i in self._up if i.batches and i.busy_since is not None]
