"""A server that does to its callers what a test says: the load tester's counterpart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Answer = Callable[["Scripted", asyncio.StreamWriter, int], Awaitable[None]]


def ok(body: bytes = b"fine", status: str = "200 OK", more: str = "") -> Answer:
    """A whole answer; `more` are header lines."""

    async def answer(server: Scripted, writer: asyncio.StreamWriter, number: int) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        writer.write(head.encode() + body)

    return answer


def raw(data: bytes, *, close: bool = False) -> Answer:
    """These bytes; then perhaps the connection's end."""

    async def answer(server: Scripted, writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(data)
        if close:
            writer.close()

    return answer


def events(*pieces: bytes) -> Answer:
    """Server-sent events, each written by itself."""

    async def answer(server: Scripted, writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for piece in pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    return answer


async def silence(server: Scripted, writer: asyncio.StreamWriter, number: int) -> None:
    """No answer, and no end of it, as long as the test lasts."""
    await server.ended.wait()


class Scripted:
    """Answers every request with `answer(server, writer, number of the request)`.

    async with Scripted(ok()) as server: ... server.port ...
    """

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.bodies: list[bytes] = []
        self.heads: list[bytes] = []
        self.connections = 0
        self.port = 0
        self.ended = asyncio.Event()
        self._asked = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Scripted:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def seen(self, requests: int) -> None:
        """Wait until so many requests have come."""
        async with self._asked:
            await self._asked.wait_for(lambda: len(self.bodies) >= requests)

    async def stop(self) -> None:
        """Take no more connections, and end those there are."""
        self.ended.set()
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
                body = await reader.readexactly(int(length or 0))
                self.heads.append(head)
                async with self._asked:
                    self.bodies.append(body)
                    self._asked.notify_all()
                await self.answer(self, writer, len(self.bodies))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)
