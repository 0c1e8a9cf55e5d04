"""How does a pipeline await many model calls at once?"""

import asyncio
from collections.abc import Awaitable, Iterator

import pytest

from wherry.pipelines.fan_out import gather


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
