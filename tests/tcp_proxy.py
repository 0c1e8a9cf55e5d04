"""A TCP proxy that makes a network bad: it delays, cuts off, and goes silent."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress


class Proxy:
    """Passes connections on to `target`, HOST:PORT, from a thread of its own.

    `delay`: seconds by which each byte is late. `cut_after`: cut all off once so many bytes have
    gone to the target.
    """

    def __init__(self, target: str, *, delay: float = 0.0) -> None:
        self.address = ""
        self.cut_after: float = float("inf")
        #: Bytes that have gone to the target, and how often all was cut off.
        self.passed = 0
        self.cuts = 0
        self._target = target
        self._delay = delay
        self._writers: set[asyncio.StreamWriter] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def cut(self) -> None:
        """Cut off what is connected."""
        self._loop.call_soon_threadsafe(self._cut)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._paused = asyncio.Event()
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._end.wait()
        server.close()
        self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _cut(self) -> None:
        self.cuts += 1
        self.cut_after = float("inf")
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        self._writers.add(writer)
        with suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            self._writers.add(far_writer)
            await asyncio.gather(
                self._pass(reader, far_writer, counts=True), self._pass(far_reader, writer)
            )

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counts: bool = False
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if self._delay:
                    await asyncio.sleep(self._delay)
                if counts and self.passed + len(data) > self.cut_after:
                    writer.write(data[: int(self.cut_after) - self.passed])
                    await writer.drain()
                    self._cut()
                    return
                self.passed += len(data) if counts else 0
                writer.write(data)
                await writer.drain()
        writer.close()
