"""What is done to a server while clients call it?"""

from __future__ import annotations

import asyncio
import random
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.faults.ledger import AWAY, Fault, Ledger
from benchmarks.faults.proxy import Proxy
from benchmarks.faults.servers import Starter, end, ended, fronts_of, kill, logged, workers_of
from wherry.testing import ServerProcess

#: Seconds from one fault to the next.
PAUSES = (0.2, 2.5)


class Harm:
    """Does something at random, again and again. One server with fronts."""

    def __init__(self, server: ServerProcess, ledger: Ledger, seed: int) -> None:
        self.server = server
        self.ledger = ledger
        self.counts: Counter[str] = Counter()
        #: What went wrong with the processes themselves.
        self.wrong: list[str] = []
        self.random = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self.ways: list[Callable[[], Awaitable[None]]] = [
            self.kill_front,
            self.kill_worker,
            self.stop_all,
            self.reload,
        ]

    async def run(self, seconds: float) -> None:
        """Harm it for so long; return when it is whole again."""
        ends_at = time.monotonic() + seconds
        bag: list[Callable[[], Awaitable[None]]] = []
        while True:
            await asyncio.sleep(self.random.uniform(*PAUSES))
            if time.monotonic() > ends_at:
                break
            if not bag:
                bag = list(self.ways)
                self.random.shuffle(bag)
            task = asyncio.create_task(self._do(bag.pop()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.gather(*self._tasks)

    async def _do(self, way: Callable[[], Awaitable[None]]) -> None:
        try:
            await way()
        except Exception as error:  # noqa: BLE001 (the run goes on, and fails)
            self.wrong.append(f"{self.ledger.name}: {way.__name__}: {error!r}")

    def note(self, kind: str, target: str, began_at: float) -> None:
        """Something has been done since then; its effects go on."""
        self.ledger.faults.append(Fault(kind, target, began_at, time.monotonic()))
        self.counts[kind] += 1

    async def kill_front(self) -> None:
        fronts = fronts_of(self.server.pid)
        began_at = time.monotonic()
        if fronts and kill(self.random.choice(fronts)):
            await asyncio.sleep(0.1)
            self.note("front killed", "", began_at)

    async def kill_worker(self) -> None:
        await self._kill_worker_of(self.server)

    async def _kill_worker_of(self, server: ServerProcess) -> None:
        workers = workers_of(server.pid)
        began_at = time.monotonic()
        if workers and kill(self.random.choice(workers)):
            await asyncio.sleep(0.1)
            self.note("worker killed", "", began_at)

    async def stop_all(self) -> None:
        """SIGSTOP for the process that owns the models."""
        began_at = time.monotonic()
        await self._stop(self.server, self.random.uniform(0.2, 3.0))
        self.note("stopped", "", began_at)

    async def _stop(self, server: ServerProcess, seconds: float) -> None:
        server.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            server.send(signal.SIGCONT)

    async def reload(self) -> None:
        await self._reload(self.server)

    async def _reload(self, server: ServerProcess) -> None:
        began_at = time.monotonic()
        url = f"{server.url}/v2/repository/models/reloaded/load"
        with suppress(OSError):  # it may be killed meanwhile
            request = urllib.request.Request(url, b"{}")
            await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=60).read())
            self.note("reloaded", "", began_at)


class Owner:
    """One owner of a pool, which is replaced when it ends."""

    def __init__(self, starter: Starter, pool: str, name: str, proxy: Proxy) -> None:
        self._starter = starter
        self._pool = pool
        self.name = name
        self.proxy = proxy
        self.server = starter.owner(pool)
        self.is_harmed = False

    async def replace(self) -> None:
        """After its process has ended."""
        end(self.server)
        self.server = self._starter.owner(self._pool)
        await self.ready()

    async def ready(self) -> None:
        await asyncio.to_thread(self.server.wait_ready)
        self.proxy.owner_port = int(logged(self.server, "rows").rpartition(":")[2])

    def end(self) -> None:
        end(self.server)


class PoolHarm(Harm):
    """Harms the fronts and owners of a pool. One owner at least is left in peace."""

    def __init__(
        self, server: ServerProcess, owners: list[Owner], ledger: Ledger, seed: int
    ) -> None:
        super().__init__(server, ledger, seed)
        self._owners = owners
        self.ways = [
            self.kill_front,
            self._on_owner(self._kill),
            self._on_owner(self._stop_owner),
            self._on_owner(self._drain),
            self._on_owner(self._worker),
            self._on_owner(self._cut),
            self._on_owner(self._cut_within),
            self._on_owner(self._delay),
            self._on_owner(self._silence),
            self._on_owner(self._reload_owner),
        ]

    def _on_owner(self, way: Callable[[Owner], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def harm() -> None:
            while len(whole := [one for one in self._owners if not one.is_harmed]) < 2:  # noqa: ASYNC110 (a fault ends in seconds)
                await asyncio.sleep(0.1)
            owner = self.random.choice(whole)
            owner.is_harmed = True
            try:
                await way(owner)
            finally:
                owner.is_harmed = False

        harm.__name__ = getattr(way, "__name__", "harm")
        return harm

    async def _kill(self, owner: Owner) -> None:
        began_at = time.monotonic()
        workers = workers_of(owner.server.pid)
        owner.server.send(signal.SIGKILL)
        await ended(owner.server)
        self.note("owner killed", owner.name, began_at)
        await asyncio.sleep(self.random.uniform(0.0, 0.5))
        await self._replace(owner, began_at)
        gives_up_at = time.monotonic() + 10.0  # one that loads looks at its socket when it has
        while any(map(_lives, workers)) and time.monotonic() < gives_up_at:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        if left := [pid for pid in workers if _lives(pid)]:
            self.wrong.append(f"{self.ledger.name}: workers {left} outlive their killed owner")

    async def _drain(self, owner: Owner) -> None:
        began_at = time.monotonic()
        owner.server.send(signal.SIGTERM)
        code = await ended(owner.server)
        self.note("owner drained", owner.name, began_at)
        if code:
            log = owner.server.log[-2000:]
            self.wrong.append(f"{self.ledger.name}: a drained owner ended with {code}:\n{log}")
        await self._replace(owner, began_at)

    async def _replace(self, owner: Owner, since: float) -> None:
        await owner.replace()
        self.ledger.faults.append(Fault(AWAY, owner.name, since, time.monotonic()))

    async def _stop_owner(self, owner: Owner) -> None:
        began_at = time.monotonic()
        await self._stop(owner.server, self.random.choice((0.5, 2.0, 5.0, 15.0)))
        self.note("owner stopped", owner.name, began_at)

    async def _worker(self, owner: Owner) -> None:
        await self._kill_worker_of(owner.server)

    async def _cut(self, owner: Owner) -> None:
        owner.proxy.cut()
        self.note("link cut", owner.name, time.monotonic())

    async def _cut_within(self, owner: Owner) -> None:
        began_at = time.monotonic()
        owner.proxy.cut_within_a_frame()
        await asyncio.sleep(0.5)
        self.note("link cut within a frame", owner.name, began_at)

    async def _delay(self, owner: Owner) -> None:
        began_at = time.monotonic()
        owner.proxy.delay = self.random.uniform(0.005, 0.2)
        await asyncio.sleep(self.random.uniform(1.0, 5.0))
        owner.proxy.delay = 0.0
        self.note("link delayed", owner.name, began_at)

    async def _silence(self, owner: Owner) -> None:
        began_at = time.monotonic()
        await owner.proxy.silence(self.random.choice((2.0, 15.0)))
        self.note("link silent", owner.name, began_at)

    async def _reload_owner(self, owner: Owner) -> None:
        await self._reload(owner.server)


def _lives(pid: int) -> bool:
    """Whether a process runs: one that has ended and that its parent has not asked for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
