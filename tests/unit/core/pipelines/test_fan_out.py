"""How does a pipeline await many model calls at once?"""

import asyncio
from collections.abc import Awaitable, Iterator

import pytest

from wherry.core.pipelines.fan_out import gather, in_order


async def value(n: int) -> int:
    await asyncio.sleep(0)
    return n


class Waiting:
    """Calls that wait, and say how they ended."""

    def __init__(self) -> None:
        self.cancelled = 0

    async def call(self) -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return 0


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_results_come_in_the_order_of_the_calls() -> None:
    assert asyncio.run(gather(value(n) for n in range(20))) == list(range(20))
    assert asyncio.run(gather([])) == []


def test_the_first_error_is_raised_and_the_others_are_cancelled() -> None:
    waiting = Waiting()

    async def fail() -> int:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def main() -> None:
        with pytest.raises(ValueError, match="no"):
            await gather([waiting.call(), fail(), waiting.call()])
        assert waiting.cancelled == 2  # none of them runs on

    asyncio.run(main())


def test_cancelling_the_caller_cancels_all_calls() -> None:
    waiting = Waiting()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(gather([waiting.call() for _ in range(3)]))
            await turns()
            task.cancel()
        assert task.cancelled()

    asyncio.run(main())
    assert waiting.cancelled == 3


def test_calls_begun_before_the_iterable_raises_are_cancelled() -> None:
    waiting = Waiting()
    begun: list[asyncio.Task[int]] = []

    async def main() -> None:
        def calls() -> Iterator[Awaitable[int]]:
            begun.append(asyncio.ensure_future(waiting.call()))
            yield begun[0]
            raise ValueError("the text cannot be split")

        with pytest.raises(ValueError, match="cannot be split"):
            await gather(calls())
        assert begun[0].cancelled()

    asyncio.run(main())


def test_in_order_starts_all_and_gives_each_as_soon_as_those_before_it_are_there() -> None:
    async def main() -> None:
        first: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        seen: list[int] = []
        async with in_order([first, value(2), value(3)]) as results:
            await turns()
            assert not seen
            first.set_result(1)
            seen.extend([result async for result in results])
        assert seen == [1, 2, 3]

    asyncio.run(main())


def test_what_nobody_came_to_is_stopped_when_the_block_is_left() -> None:
    async def main() -> None:
        waiting = Waiting()
        async with in_order([value(1), waiting.call(), waiting.call()]) as results:
            assert await anext(results) == 1
            await turns()
        assert waiting.cancelled == 2

    asyncio.run(main())


def test_an_error_is_raised_in_its_place_and_later_ones_are_not_complained_about() -> None:
    async def bad(n: int) -> int:
        raise ValueError(n)

    async def main() -> None:
        async with in_order([value(1), bad(2), bad(3)]) as results:
            assert await anext(results) == 1
            await turns()
            with pytest.raises(ValueError, match="2"):
                await anext(results)

    asyncio.run(main())
