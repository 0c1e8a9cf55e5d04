"""How is a front whose owners an engine keeps started and ended?"""

from __future__ import annotations

import asyncio
import secrets
import signal
from typing import Any

from wherry.deploy.autoscale import Autoscaler
from wherry.deploy.pool_links import PoolLinks
from wherry.deploy.replicas import OwnerEngine, OwnerNotStarted, ReplicaKeeper
from wherry.deploy.scaling import Scaling
from wherry.remote.members import MANAGED
from wherry.server.server import Server
from wherry.values.errors import LoadFailed


class PooledServer(Server):
    """A server without models of its own, whose owners run on `engine`.

    It is ready when an owner is; `start` and `run` raise LoadFailed if the first one that ends has
    not come so far. There are so many owners as `scaling` says; as the program it replaces them one
    by one at SIGUSR1. When it stops it answers what it has, and then ends its owners. `options` are
    those of `wherry.Server`.
    """

    def __init__(self, engine: OwnerEngine, scaling: Scaling, **options: Any) -> None:
        super().__init__(replicas=MANAGED, **options)
        assert self.pool is not None
        self._links = PoolLinks(self.pool)
        #: Keeps the owners; its methods are for the server's loop.
        self.owners = ReplicaKeeper(
            engine, self._links, wanted=scaling.wanted, drain_timeout=self.drain_timeout
        )
        self._autoscaler: asyncio.Task[None] | None = None
        self._scaling = scaling

    def roll(self) -> None:
        """Replace all owners, one after the other. Any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.owners.roll)

    async def _load(self) -> bool:
        if self._is_the_program:
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.owners.roll)
        starting = asyncio.ensure_future(self.owners.start())
        loading = asyncio.ensure_future(super()._load())
        try:
            await asyncio.wait({starting, loading}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
            loaded = await loading
            if loaded and self._scaling.bounds.most > self._scaling.bounds.least:
                autoscaler = Autoscaler(self.runtime, self._scaling, self.owners.want)
                self._autoscaler = asyncio.ensure_future(autoscaler.run())
            return loaded
        except OwnerNotStarted as error:
            raise LoadFailed(f"no replica could be started: {error}") from None
        finally:
            starting.cancel()
            loading.cancel()

    async def _end(self) -> bool:
        if self._autoscaler is not None:
            self._autoscaler.cancel()
        self._links.close()
        drained = await super()._end()
        await self.owners.close()
        return drained


def new_token() -> str:
    """A secret for one front and its owners."""
    return secrets.token_hex(32)
