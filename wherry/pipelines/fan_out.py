"""How does a pipeline await many model calls at once?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def gather(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Await all calls; their results in order.

    The first that raises cancels the others and is raised itself; cancelling the caller cancels
    them all. None of them runs on when this returns or raises.
    """
    futures: list[asyncio.Future[T]] = []
    try:
        futures.extend(asyncio.ensure_future(call) for call in calls)
        return list(await asyncio.gather(*futures))
    finally:
        unfinished = [future for future in futures if future.cancel()]
        if unfinished:
            await asyncio.wait(unfinished)
