"""What does a network between a front and an owner do at its worst? A TCP proxy that does it."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from contextlib import suppress

#: Bytes that are passed on at once, at most.
PIECE = 2**16


class Proxy:
    """Passes the links to one owner on. Everything is for the event loop."""

    def __init__(self, rng: random.Random) -> None:
        #: Of the owner; 0: it is not there.
        self.owner_port = 0
        self._random = rng
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None
        #: Seconds that each piece waits.
        self.delay = 0.0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for link in list(self._links):
            link.end()
        await asyncio.sleep(0)

    def cut(self) -> None:
        """End each link at once, by a reset."""
        for link in list(self._links):
            link.end(reset=True)

    def cut_within_a_frame(self) -> None:
        """End each link within the next pieces."""
        for link in self._links:
            link.bytes_left = self._random.randrange(1, 60)

    async def silence(self, seconds: float) -> None:
        """Lose all that the present links carry: each side holds the other for alive."""
        links = set(self._links)
        for link in links:
            link.is_silent = True
        await asyncio.sleep(seconds)
        for link in links:
            link.end(reset=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_owner = await asyncio.open_connection("127.0.0.1", self.owner_port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, writer, to_owner[1])
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(link.pump(reader, to_owner[1]))
                group.create_task(link.pump(to_owner[0], writer))
        finally:
            self._links.discard(link)
            link.end()


class _Link:
    def __init__(self, proxy: Proxy, *writers: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._writers = writers
        self.bytes_left: int | None = None
        self.is_silent = False

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(PIECE):
                if self._proxy.delay:
                    await asyncio.sleep(self._proxy.delay)
                if self.is_silent:
                    continue
                if self.bytes_left is not None:
                    piece, short = piece[: self.bytes_left], len(piece) >= self.bytes_left
                    self.bytes_left -= len(piece)
                    writer.write(piece)
                    if short:
                        await asyncio.sleep(0.01)  # so that what was written arrives
                        break
                    continue
                writer.write(piece)
                await writer.drain()
        if not self.is_silent:
            self.end()

    def end(self, *, reset: bool = False) -> None:
        for writer in self._writers:
            if reset and (sock := writer.get_extra_info("socket")) is not None:
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
