"""Which instances of a model are up, and which batches has each?"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf

from wherry.core.instances.instance import Instance
from wherry.core.values.request import Batch

#: A batch is given ahead while those before it are predicted to run for less than this in all:
#: about what one batch takes on its way to a worker and back.
SHORT_SECONDS = 300e-6
#: Batches that an instance has at most.
MOST_AHEAD = 8
#: By how much of the difference the prediction falls with a batch that was shorter.
FALLING = 1 / 16


class Ahead:
    """How many batches may an instance have at once? By the longest of the last full ones.

    A worker with one batch sleeps between its answer and the next batch. With several it goes on at
    once, and several answers are read at one wake-up. In return a batch that is given ahead has
    lost its choice: nothing joins it, nothing more urgent comes before it, and no other instance
    takes it. So this is for batches that cannot grow, and only while those before them are surely
    short.
    """

    def __init__(self) -> None:
        self._seconds: float | None = None
        #: Batches that an instance may have; 1 until something is learnt.
        self.most = 1

    def ran(self, seconds: float) -> None:
        """A full batch has run for `seconds`, without its way to the worker and back."""
        known = self._seconds
        if known is not None and seconds < known:
            seconds = known - FALLING * (known - seconds)
        self._seconds = seconds
        self.most = min(MOST_AHEAD, ceil(SHORT_SECONDS / max(seconds, SHORT_SECONDS / MOST_AHEAD)))

    def forget(self) -> None:
        """A worker has died: nothing is given ahead until a batch has run again."""
        self._seconds, self.most = None, 1


class InstanceTable:
    """The loaded instances of one model. Pure."""

    def __init__(self) -> None:
        #: All of them, and those that may be given a batch or a row.
        self.up: list[Instance] = []
        self.idle: list[Instance] = []
        self.ahead = Ahead()

    def remove(self, instance: Instance) -> None:
        for group in (self.up, self.idle):
            if instance in group:
                group.remove(instance)

    def has_room(self) -> bool:
        """Could an instance be given a batch, if there is one?"""
        most = self.ahead.most
        return bool(self.idle) or (most > 1 and self.least_busy(most) is not None)

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

    def overruns_at(self, limit: float) -> float:
        """When the first batch will have run for longer than `limit` seconds; inf: none will."""
        return min([since for _, since in self._at_work()], default=inf) + limit

    def take_overdue(self, now: float, limit: float) -> list[tuple[Instance, Batch]]:
        """The instances whose oldest batch has run for longer, each once, with that batch."""
        overdue = [instance for instance, since in self._at_work() if since + limit <= now]
        for instance in overdue:
            instance.busy_since = None
        return [(instance, instance.batches[0]) for instance in overdue]

    def is_quiet(self) -> bool:
        """Does no instance have a request?"""
        return all(
            i.busy_since is None and not i.is_telling and not i.open_requests for i in self.up
        )

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

    def _at_work(self) -> list[tuple[Instance, float]]:
        return [(i, i.busy_since) for i in self.up if i.batches and i.busy_since is not None]
