"""What an event loop reads for others; that requests and outcomes pass is in test_runtime.py."""

import asyncio
import os
import select
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest
import uvloop

from tests.fakes import PATIENCE
from wherry.runtime.loop_port import LoopPort

if not hasattr(select, "epoll"):
    pytest.skip("a loop reads for others with epoll", allow_module_level=True)

Run = Callable[[Awaitable[None]], None]


@pytest.fixture(params=[None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop] | None:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    out, into = os.pipe()
    os.set_blocking(out, False)
    yield out, into
    os.close(out)
    os.close(into)


class Turns:
    """Counts turns, and lets a coroutine wait for them."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.read = b""
        self.taken = asyncio.Event()

    def __call__(self) -> None:
        self.read += os.read(self.file, 100)
        self.taken.set()

    async def next(self) -> bytes:
        await asyncio.wait_for(self.taken.wait(), PATIENCE)
        self.taken.clear()
        return self.read


async def opened(port: LoopPort, turns: Turns) -> None:
    """It can from the loop's next turn on."""
    assert not port.watch(turns.file, turns)
    await asyncio.sleep(0)
    assert port.watch(turns.file, turns)


def run(
    main: Callable[[], Awaitable[None]], factory: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())  # type: ignore[arg-type]


def test_a_turn_is_taken_whenever_there_is_something_to_read_until_it_is_forgotten(
    pipe: tuple[int, int], factory: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:
    async def main() -> None:
        port, turns = LoopPort(asyncio.get_running_loop()), Turns(pipe[0])
        await opened(port, turns)
        os.write(pipe[1], b"a")
        assert await turns.next() == b"a"
        os.write(pipe[1], b"b")
        assert await turns.next() == b"ab"
        port.forget(pipe[0])
        port.forget(pipe[0])
        os.write(pipe[1], b"c")
        for _ in range(5):
            await asyncio.sleep(0)
        assert turns.read == b"ab"
        port.close()
        await asyncio.sleep(0)

    run(main, factory)


def test_another_thread_may_watch_and_forget_and_close(
    pipe: tuple[int, int], factory: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:
    async def main() -> None:
        port, turns = LoopPort(asyncio.get_running_loop()), Turns(pipe[0])
        await opened(port, turns)

        def elsewhere() -> None:
            port.forget(pipe[0])
            assert port.watch(pipe[0], turns)
            os.write(pipe[1], b"a")

        thread = threading.Thread(target=elsewhere)
        thread.start()
        assert await turns.next() == b"a"
        thread.join()
        closing = threading.Thread(target=port.close)
        closing.start()
        closing.join()
        port.forget(pipe[0])
        port.close()
        await asyncio.sleep(0)

    run(main, factory)


def test_what_is_answered_in_a_turn_is_told_at_its_end(
    pipe: tuple[int, int], factory: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        port, turns = LoopPort(loop), Turns(pipe[0])
        await opened(port, turns)
        told: list[str] = []
        port.forget(pipe[0])

        def turn() -> None:
            port.call(told.append, "answer")
            assert not told
            loop.call_soon(told.append, "next turn of the loop")
            turns()

        port.watch(pipe[0], turn)
        os.write(pipe[1], b"a")
        await turns.next()
        await asyncio.sleep(0)
        assert told == ["answer", "next turn of the loop"]
        port.close()
        await asyncio.sleep(0)

    run(main, factory)


def test_nothing_is_watched_once_it_is_closed_and_that_is_no_error(pipe: tuple[int, int]) -> None:
    ports: list[LoopPort] = []

    async def main() -> None:
        ports.append(LoopPort(asyncio.get_running_loop()))
        await opened(ports[0], Turns(pipe[0]))
        ports[0].forget(pipe[0])

    run(main, None)
    epoll = ports[0]._epoll
    ports[0].close()
    ports[0]._epoll = epoll  # as who asked just before
    assert not ports[0].watch(pipe[0], lambda: None)
    assert not ports[0].watch(pipe[0], lambda: None)


def test_a_loop_that_has_ended_leaves_nothing_behind_once_its_port_is_closed(
    pipe: tuple[int, int], factory: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:
    ports: list[LoopPort] = []

    async def main() -> None:
        ports.append(LoopPort(asyncio.get_running_loop()))
        await opened(ports[0], Turns(pipe[0]))

    run(main, factory)
    ports[0].close()
