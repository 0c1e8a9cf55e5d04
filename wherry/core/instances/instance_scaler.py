"""How does a model that serves get more instances, or fewer?"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

from wherry.core.instances.instance import Instance
from wherry.core.instances.instance_table import InstanceTable
from wherry.core.instances.life import InstanceLife
from wherry.core.scheduler.batcher import Batcher
from wherry.core.scheduler.policy import Scheduler
from wherry.core.values.errors import LoadFailed

#: Makes one instance, when it is started.
Make = Callable[[], Instance]


class InstanceScaler:
    """The instances of one model as they are to be. Any thread, one at a time; `change` blocks."""

    def __init__(
        self,
        life: InstanceLife[Instance],
        instances: InstanceTable,
        scheduler: Scheduler,
        lock: threading.Lock,
        unload_timeout: float | None,
    ) -> None:
        """`lock` is the dispatcher's: it guards the table of instances and the scheduler.
        `unload_timeout`: how long the end of an instance is waited for."""
        self._life = life
        self._instances = instances
        self._scheduler = scheduler
        self._lock = lock
        self._unload_timeout = unload_timeout

    @property
    def makers(self) -> dict[int, Make]:
        """By the instances' numbers."""
        return dict(self._life.slots.makers)

    def change(self, surplus: Collection[int], makers: Callable[[int], Sequence[Make]]) -> None:
        """Start further instances, with numbers from the given one on, and then let others go, by
        their numbers: they stop when they have ended what they run, which is waited for as long as
        unloading may take. Blocks; LoadFailed leaves the old ones as they were."""
        added = self._life.add(makers)
        try:
            self._life.wait_ready()
        except LoadFailed:
            self._let_go(added)
            raise
        self._let_go(surplus)

    def counted(self) -> None:
        """Have the scheduler plan for those that there are to be. The lock is held."""
        if isinstance(self._scheduler, Batcher):  # others are told of each that comes and goes
            self._scheduler.resize(len(self._life.slots))

    def _let_go(self, numbers: Collection[int]) -> None:
        going = self._life.remove(numbers)
        with self._lock:
            idle = self._instances.let_go(going)
            self.counted()
        for instance in idle:
            instance.stop()
        self._life.wait_until_gone(going, self._unload_timeout)
