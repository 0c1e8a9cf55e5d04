"""How does a pool's load reach the scaling, and its answer the keeper of the owners?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from wherry.deploy.scaling import PoolLoad, Scaling
from wherry.remote.router import OwnerLoad
from wherry.remote.runner import ReplicaRunner
from wherry.runtime.runtime import Runtime

#: Seconds between two samples of what is busy, and samples of one observation.
SAMPLE: Final = 0.1
SAMPLES: Final = 10


class Autoscaler:
    """Asks `scaling` once a second, and tells `want` how many replicas are wanted. In one loop."""

    def __init__(self, runtime: Runtime, scaling: Scaling, want: Callable[[int], None]) -> None:
        self._runtime = runtime
        self._scaling = scaling
        self._want = want

    async def run(self) -> None:
        """Go on until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            loads: list[PoolLoad] = []
            for _ in range(SAMPLES):
                await asyncio.sleep(SAMPLE)
                loads.append(fullest(self._loads()))
            busy = sum(load.busy for load in loads) / len(loads)
            last = loads[-1]
            load = PoolLoad(last.serving, last.wait, busy, last.rows, last.rows_at_once)
            self._want(self._scaling.observe(load, loop.time()))

    def _loads(self) -> Iterable[PoolLoad]:
        for loaded in self._runtime.models():
            if isinstance(loaded.runner, ReplicaRunner):
                yield pool_load(loaded.runner.router.loads(self._runtime.clock()))


def pool_load(owners: list[OwnerLoad]) -> PoolLoad:
    """What the owners of one model have to do, taken together."""
    count = len(owners)
    if not count:
        return PoolLoad(0, 0.0, 0.0, 0)
    return PoolLoad(
        serving=count,
        wait=sum(owner.wait for owner in owners) / count,
        busy=sum(_busy(owner) for owner in owners) / count,
        rows=sum(owner.rows for owner in owners),
        rows_at_once=max(owner.load.full_rows * (owner.load.instances or 1) for owner in owners),
    )


def fullest(loads: Iterable[PoolLoad]) -> PoolLoad:
    """The largest of each, of models that the same owners have."""
    found = [PoolLoad(0, 0.0, 0.0, 0), *loads]
    most = max(found, key=lambda load: load.rows / load.rows_at_once)
    return PoolLoad(
        serving=max(load.serving for load in found),
        wait=max(load.wait for load in found),
        busy=max(load.busy for load in found),
        rows=most.rows,
        rows_at_once=most.rows_at_once,
    )


def _busy(owner: OwnerLoad) -> float:
    """The share of its instances that run something; none if it has no rows, whatever it said
    last."""
    if not owner.rows:
        return 0.0
    return min(1.0, max(owner.load.busy, 1) / (owner.load.instances or 1))
