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

from benchmarks.faults.ledger import Fault, Ledger
from benchmarks.faults.servers import fronts_of, kill, workers_of
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

    def note(self, kind: str, began_at: float) -> None:
        """Something has been done since then; its effects go on."""
        self.ledger.faults.append(Fault(kind, began_at, time.monotonic()))
        self.counts[kind] += 1

    async def kill_front(self) -> None:
        fronts = fronts_of(self.server.pid)
        began_at = time.monotonic()
        if fronts and kill(self.random.choice(fronts)):
            await asyncio.sleep(0.1)
            self.note("front killed", began_at)

    async def kill_worker(self) -> None:
        workers = workers_of(self.server.pid)
        began_at = time.monotonic()
        if workers and kill(self.random.choice(workers)):
            await asyncio.sleep(0.1)
            self.note("worker killed", began_at)

    async def stop_all(self) -> None:
        """SIGSTOP for the process that owns the models."""
        began_at = time.monotonic()
        self.server.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(self.random.uniform(0.2, 3.0))
        finally:
            self.server.send(signal.SIGCONT)
        self.note("stopped", began_at)

    async def reload(self) -> None:
        began_at = time.monotonic()
        url = f"{self.server.url}/v2/repository/models/reloaded/load"
        with suppress(OSError):  # it may be killed meanwhile
            request = urllib.request.Request(url, b"{}")
            await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=60).read())
            self.note("reloaded", began_at)
