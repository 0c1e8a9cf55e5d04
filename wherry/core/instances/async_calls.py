"""How does code that awaits run in the thread of an instance?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


class AsyncCalls:
    """An event loop in the thread that calls it, from the first call until it is closed."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, awaitable: Any) -> Any:
        if self._runner is None:
            import asyncio

            self._runner = asyncio.Runner()
        return self._runner.run(awaitable)

    def iterate(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        async def next_item() -> Any:
            return await anext(items)

        try:
            while True:
                try:
                    yield self.run(next_item())
                except StopAsyncIteration:
                    return
        finally:
            self.run(items.aclose())  # type: ignore[attr-defined]

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None
