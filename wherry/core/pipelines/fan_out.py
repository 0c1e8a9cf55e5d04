"""How does a pipeline await many model calls at once?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


async def gather(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Await all calls concurrently. Returns their results in order.

        asyncio.run(wherry.gather(asyncio.sleep(0, n) for n in range(3)))  # -> [0, 1, 2]

    The first exception cancels the other calls and is raised; cancelling the caller cancels all
    calls. When this returns or raises, no call is still running.
    """
    futures: list[asyncio.Future[T]] = []
    try:
        futures.extend(asyncio.ensure_future(call) for call in calls)
        return list(await asyncio.gather(*futures))
    finally:
        await stop(futures)


@asynccontextmanager
async def in_order(calls: Iterable[Awaitable[T]]) -> AsyncIterator[AsyncIterator[T]]:
    """Start all calls at once and yield their results in order, for a pipeline that streams:

        @wherry.pipeline
        async def by_line(text: str) -> AsyncIterator[str]:
            calls = (sentiment.ainfer(line) for line in text.splitlines())
            async with wherry.in_order(calls) as labels:
                async for label in labels:
                    yield label

    When the block is left, no call is still running.
    """
    futures: list[asyncio.Future[T]] = []

    async def results() -> AsyncIterator[T]:
        for future in futures:
            yield await future

    try:
        futures.extend(asyncio.ensure_future(call) for call in calls)
        yield results()
    finally:
        await stop(futures)


async def stop(futures: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel what is unfinished of these, and return when nothing of it is running."""
    unfinished = [future for future in futures if future.cancel()]
    if unfinished:
        await asyncio.wait(unfinished)
    for future in futures:
        if not future.cancelled():
            future.exception()  # retrieved: else asyncio logs exceptions never retrieved
