"""What a keeper of owners is told of a front's links to them."""

import asyncio
from collections.abc import Callable

from wherry.deploy.pool_links import PoolLinks
from wherry.deploy.replicas import OwnerAddress
from wherry.remote.members import ReplicaStatus

ADDRESS = OwnerAddress("127.0.0.1:7000", "http://127.0.0.1:8000")


class ScriptedPool:
    """A pool whose links are as the test says."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.wanted: list[str] = []
        self.shown: list[ReplicaStatus] = []

    def add(self, address: str) -> None:
        self.wanted.append(address)

    def remove(self, address: str) -> None:
        self.wanted.remove(address)

    def replicas(self) -> list[ReplicaStatus]:
        return self.shown

    def becomes(self, *states: str, error: str = "") -> None:
        self.shown = [ReplicaStatus(ADDRESS.rows, state, error=error) for state in states]
        self.on_change()


class Events:
    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.why = ""

    def joined(self, number: int) -> None:
        self.told.append(("joined", number))

    def drained(self, number: int) -> None:
        self.told.append(("drained", number))

    def leaving(self, number: int) -> None:
        self.told.append(("leaving", number))

    def cut(self, number: int, error: Exception) -> None:
        self.told.append(("cut", number))
        self.why = str(error)


def links() -> tuple[ScriptedPool, PoolLinks, Events]:
    pool = ScriptedPool()
    made = PoolLinks(pool)  # type: ignore[arg-type]
    made.events = Events()
    return pool, made, made.events


def test_an_owner_has_joined_once_it_has_told_of_its_models_and_is_cut_when_its_link_ends() -> None:
    pool, made, events = links()
    made.join(3, ADDRESS)
    assert pool.wanted == [ADDRESS.rows]
    for state in ("connecting", "connected"):
        pool.becomes(state)
    assert events.told == []
    for _ in range(2):
        pool.becomes("ready")
    assert events.told == [("joined", 3)]
    pool.becomes("connecting", error="Connection reset by peer")
    assert events.told == [("joined", 3), ("cut", 3)]
    assert events.why == "Connection reset by peer"
    made.leave(3)
    assert pool.wanted == []
    pool.becomes("ready")
    assert len(events.told) == 2


def test_an_owner_that_was_stopped_by_another_is_leaving_until_its_link_ends() -> None:
    pool, made, events = links()
    made.join(3, ADDRESS)
    pool.becomes("ready")
    for _ in range(2):
        pool.becomes("leaving")
    assert events.told == [("joined", 3), ("leaving", 3)]
    pool.becomes("connecting", error="it has left")
    assert events.told == [("joined", 3), ("leaving", 3), ("cut", 3)]


def test_an_owner_is_drained_when_its_link_has_gone_after_what_it_had() -> None:
    async def use() -> None:
        pool, made, events = links()
        made.join(3, ADDRESS)
        pool.becomes("ready")
        made.drain(3)
        assert pool.wanted == []
        pool.becomes("leaving")
        await asyncio.sleep(0)
        assert events.told == [("joined", 3)]
        pool.becomes()
        assert events.told == [("joined", 3), ("drained", 3)]

    asyncio.run(use())


def test_at_the_end_no_loss_is_told_and_drains_are_over_at_once() -> None:
    async def use() -> None:
        pool, made, events = links()
        made.join(3, ADDRESS)
        pool.becomes("ready")
        made.close()
        pool.becomes("connecting")
        assert events.told == [("joined", 3)]
        made.drain(3)
        await asyncio.sleep(0)
        assert events.told == [("joined", 3), ("drained", 3)]

    asyncio.run(use())
