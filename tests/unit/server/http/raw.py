"""A raw client, and an application that waits for the test: what the transport tests share."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pytest
import uvloop

from wherry.server.connections.limits import Limits
from wherry.server.http.exchange import Application, Exchange, RequestHead
from wherry.server.http.protocol import HttpConnection, HttpConnections
from wherry.server.http.request_reader import ordinary_head
from wherry.server.http.request_rules import RememberedHeads

T = TypeVar("T")
LoopFactory = Callable[[], asyncio.AbstractEventLoop]

on_each_loop = pytest.mark.parametrize(
    "loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


def run(main: Coroutine[object, object, T], loop_factory: LoopFactory) -> T:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until `condition` holds; the test's own time limit ends a hang."""
    while not condition():  # noqa: ASYNC110 - what it waits for has no event to give
        await asyncio.sleep(0)


class ManualApplication:
    """An application that hands each exchange to the test, which answers when it likes."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[Exchange] = asyncio.Queue()

    def __call__(self, exchange: Exchange) -> None:
        self._waiting.put_nowait(exchange)

    def __len__(self) -> int:
        return self._waiting.qsize()

    async def next(self) -> Exchange:
        return await self._waiting.get()


def echo(exchange: Exchange) -> None:
    exchange.respond(200, bytes(exchange.request.body), content_type="text/plain")


class MemoryTransport(asyncio.Transport):
    """A transport without a socket: it takes all at once, and remembers it."""

    def __init__(self, *, can_half_close: bool = True) -> None:
        super().__init__()
        self.written = bytearray()
        self.reading = True
        self.half_closed = False
        self.unsent = 0
        self._can_half_close = can_half_close
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.written += b"".join(list_of_data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def can_write_eof(self) -> bool:
        return self._can_half_close

    def write_eof(self) -> None:
        self.half_closed = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    abort = close


class Eager(RememberedHeads):
    """Remembers a head when it comes for the first time."""

    def sight(self, data: bytes) -> RequestHead | None:
        super().sight(data)
        return super().sight(data)


def eager(connections: HttpConnections) -> None:
    """Have the connections remember each head at once."""
    connections.heads = Eager(partial(ordinary_head, connections.rules))


def feed(protocol: asyncio.BaseProtocol, data: bytes) -> int:
    """Hand `data` to a protocol as a transport does; return how much of it went at once."""
    if isinstance(protocol, asyncio.Protocol):
        protocol.data_received(data)
        return len(data)
    assert isinstance(protocol, asyncio.BufferedProtocol)
    buffer = protocol.get_buffer(-1)
    size = min(len(buffer), len(data))  # type: ignore[arg-type]
    buffer[:size] = data[:size]  # type: ignore[index]
    protocol.buffer_updated(size)
    return size


class ManualClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        return self.body.decode()


class Client:
    """One connection, seen from the other side, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def post(self, body: bytes, path: str = "/", *lines: str) -> None:
        head = [f"POST {path} HTTP/1.1", "Host: test", f"Content-Length: {len(body)}", *lines]
        self.send("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body)

    def get(self, path: str = "/", *lines: str, method: str = "GET") -> None:
        head = [f"{method} {path} HTTP/1.1", "Host: test", *lines]
        self.send("\r\n".join(head).encode("latin-1") + b"\r\n\r\n")

    async def head(self) -> tuple[int, dict[str, str]]:
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status, *lines = text[:-4].split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        return int(status.split(" ")[1]), {name.lower(): value for name, value in pairs}

    async def chunk(self) -> bytes:
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def answer(self, *, bodiless: bool = False) -> Answer:
        status, headers = await self.head()
        if bodiless or status in (204, 304):
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = b""
            while piece := await self.chunk():
                body += piece
        else:
            body = await self.reader.readexactly(int(headers["content-length"]))
        return Answer(status, headers, body)

    async def rest(self) -> bytes:
        """All that still comes, up to the end of the connection (a reset is an end too)."""
        pieces = []
        try:
            while piece := await self.reader.read(2**16):
                pieces.append(piece)
        except OSError:
            pass
        return b"".join(pieces)

    def leave(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def connected(
    address: tuple[str, int], *, receive_buffer: int | None = None
) -> AsyncIterator[Client]:
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, address)
    reader, writer = await asyncio.open_connection(sock=sock, limit=2**16)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
        await until(lambda: writer.transport.is_closing())
        with suppress(OSError):  # how it ended is the test's business
            await writer.wait_closed()


@asynccontextmanager
async def plain_socket(address: tuple[str, int]) -> AsyncIterator[socket.socket]:
    """A client's socket: what it sends is with the server's kernel at once, before any turn of the
    loop."""
    with socket.socket() as sock:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
        yield sock


async def received(sock: socket.socket) -> bytes:
    """All that comes up to the end of the connection; ConnectionResetError if that is a reset."""
    pieces = []
    while piece := await asyncio.get_running_loop().sock_recv(sock, 2**16):
        pieces.append(piece)
    return b"".join(pieces)


@dataclass
class Service:
    """Connections of our own protocol, whose clock and sweeps belong to the test."""

    address: tuple[str, int]
    connections: HttpConnections
    clock: ManualClock

    @property
    def only(self) -> HttpConnection:
        (connection,) = self.connections.open
        return connection

    def reading(self, what: str) -> Callable[[], bool]:
        return lambda: any(f"reading {what}" in repr(c) for c in self.connections.open)

    def pass_time(self, seconds: float) -> None:
        self.connections.sweep()
        self.clock.now += seconds
        self.connections.sweep()

    async def all_gone(self) -> None:
        await self.connections.all_closed()


@asynccontextmanager
async def serving(
    application: Application, limits: Limits | None = None, vital: frozenset[str] = frozenset()
) -> AsyncIterator[Service]:
    clock = ManualClock()
    connections = HttpConnections(application, limits or Limits(), vital=vital, clock=clock)
    loop = asyncio.get_running_loop()
    if not type(loop).__module__.startswith("asyncio"):
        eager(connections)  # so that each test that runs on both loops reads heads both ways
    server = await loop.create_server(lambda: HttpConnection(connections), "127.0.0.1", 0)
    try:
        yield Service(server.sockets[0].getsockname(), connections, clock)
    finally:
        server.close()
        for connection in tuple(connections.open):
            connection.abort()
        await connections.all_closed()


@asynccontextmanager
async def service_and_client(
    application: Application, limits: Limits | None = None
) -> AsyncIterator[tuple[Service, Client]]:
    async with serving(application, limits) as service, connected(service.address) as client:
        yield service, client
