"""The shell around the plan: a scripted engine, and a front that connects when the test says so."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from wherry.deploy.replicas import OwnerAddress, OwnerEvents, OwnerNotStarted, ReplicaKeeper


class ScriptedEngine:
    """Owners that are placed, ready and ended when the test says so."""

    def __init__(self) -> None:
        self.placed: dict[int, Callable[[], None]] = {}
        self.ready: dict[int, asyncio.Future[OwnerAddress]] = {}
        self.over: dict[int, asyncio.Future[str]] = {}
        self.stopped: list[tuple[int, bool]] = []
        self.closed = False

    async def start(self, number: int, placed: Callable[[], None]) -> OwnerAddress:
        loop = asyncio.get_running_loop()
        self.placed[number] = placed
        self.ready[number], self.over[number] = loop.create_future(), loop.create_future()
        return await self.ready[number]

    async def ended(self, number: int) -> str:
        return await self.over[number]

    async def stop(self, number: int, *, at_once: bool) -> None:
        self.stopped.append((number, at_once))

    async def close(self) -> None:
        self.closed = True


class ScriptedLinks:
    events: OwnerEvents

    def __init__(self) -> None:
        self.joined: dict[int, OwnerAddress] = {}
        self.drains: list[int] = []
        self.left: list[int] = []

    def join(self, number: int, address: OwnerAddress) -> None:
        self.joined[number] = address

    def drain(self, number: int) -> None:
        self.drains.append(number)

    def leave(self, number: int) -> None:
        self.left.append(number)


class Pool:
    def __init__(self, wanted: int) -> None:
        self.engine, self.links = ScriptedEngine(), ScriptedLinks()
        self.replicas = ReplicaKeeper(self.engine, self.links, wanted=wanted)

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def serve(self, number: int) -> None:
        """Let an owner come up and connect."""
        await self.settle()
        self.engine.placed[number]()
        self.engine.ready[number].set_result(address(number))
        await self.settle()
        assert self.links.joined[number] == address(number)
        self.links.events.joined(number)
        await self.settle()

    async def close(self) -> None:
        closing = asyncio.ensure_future(self.replicas.close())
        await self.settle()
        for number in list(self.links.drains):
            self.links.events.drained(number)
        await closing
        assert self.engine.closed
        assert self.replicas.plan.owners == {}


def address(number: int) -> OwnerAddress:
    return OwnerAddress(f"127.0.0.1:{7000 + number}", f"http://127.0.0.1:{8000 + number}")


def run(story: Callable[[Pool], Awaitable[Any]], wanted: int = 1) -> Pool:
    async def told() -> Pool:
        pool = Pool(wanted)
        await story(pool)
        await pool.close()
        return pool

    return asyncio.run(told())


def test_the_pool_is_there_when_the_first_owner_serves_and_ends_with_the_last() -> None:
    async def story(pool: Pool) -> None:
        starting = asyncio.ensure_future(pool.replicas.start())
        await pool.serve(1)
        await starting
        assert pool.replicas.serving() == [1]
        await pool.serve(0)
        assert pool.replicas.serving() == [0, 1]

    pool = run(story, wanted=2)
    assert sorted(pool.links.drains) == [0, 1]
    assert sorted(pool.engine.stopped) == [(0, False), (1, False)]


def test_an_owner_whose_link_ends_is_replaced_and_killed() -> None:
    async def story(pool: Pool) -> None:
        starting = asyncio.ensure_future(pool.replicas.start())
        await pool.serve(0)
        await starting
        pool.links.events.cut(0, ConnectionError("reset"))
        await pool.settle()
        assert pool.engine.stopped == [(0, True)]
        assert pool.links.left == [0]
        await pool.serve(1)
        assert pool.replicas.serving() == [1]

    run(story)


def test_an_owner_that_the_engine_has_lost_serves_until_its_successor_does() -> None:
    async def story(pool: Pool) -> None:
        starting = asyncio.ensure_future(pool.replicas.start())
        await pool.serve(0)
        await starting
        pool.engine.over[0].set_result("its node is gone")
        await pool.settle()
        assert pool.links.drains == []
        await pool.serve(1)
        assert pool.links.drains == [0]
        pool.links.events.drained(0)
        await pool.settle()
        assert pool.engine.stopped == [(0, False)]

    run(story)


def test_a_pool_whose_first_owner_cannot_be_started_says_why() -> None:
    async def story(pool: Pool) -> None:
        starting = asyncio.ensure_future(pool.replicas.start())
        await pool.settle()
        pool.engine.ready[0].set_exception(OwnerNotStarted("no weights"))
        with pytest.raises(OwnerNotStarted, match="no weights"):
            await starting

    pool = run(story)
    assert (0, True) in pool.engine.stopped


def test_an_owner_that_comes_up_when_it_is_wanted_no_more_is_not_joined() -> None:
    async def story(pool: Pool) -> None:
        starting = asyncio.ensure_future(pool.replicas.start())
        await pool.serve(0)
        await starting
        pool.replicas.want(2)
        await pool.settle()
        pool.engine.ready[1].set_result(address(1))
        pool.replicas.want(1)
        await pool.settle()
        assert list(pool.links.joined) == [0]
        assert pool.engine.stopped == [(1, True)]

    run(story)


def test_a_roll_replaces_each() -> None:
    async def story(pool: Pool) -> None:
        starting = asyncio.ensure_future(pool.replicas.start())
        for number in (0, 1):
            await pool.serve(number)
        await starting
        pool.replicas.roll()
        for old, new in ((0, 2), (1, 3)):
            await pool.serve(new)
            assert pool.links.drains == list(range(old + 1))
            pool.links.events.drained(old)
            await pool.settle()
        assert pool.replicas.serving() == [2, 3]

    run(story, wanted=2)
