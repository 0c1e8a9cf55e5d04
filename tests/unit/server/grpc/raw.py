"""A client of HTTP/2 in memory, by the hand of another library: what the transport tests share."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import hpack
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    RstStreamFrame,
    SettingsFrame,
)

from tests.fakes import TIMEOUT
from wherry.server.connections.limits import Limits
from wherry.server.grpc.call import Call
from wherry.server.grpc.frames import PREFACE
from wherry.server.grpc.h2 import Connection, Connections
from wherry.server.grpc.proto import Method
from wherry.server.grpc.rpc import Rpc
from wherry.server.grpc.wire import Message

Headers = list[tuple[str, str]]

LIMITS = Limits(max_body_bytes=3_000_000, max_header_bytes=4000)
NOTHING = Message("Nothing")
ONE, MANY, WATCH = "/t.T/One", "/t.T/Many", "/t.T/Watch"


def looped(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine, on a loop of its own in which nothing may fail unseen."""

    @functools.wraps(test)
    def run(*args: Any, **options: Any) -> None:
        async def main() -> None:
            failures: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
            await test(*args, **options)
            assert failures == []

        asyncio.run(main())

    return run


async def turned(condition: Callable[[], bool]) -> None:
    """Turn the loop until it is so: another thread has to do something."""
    async with asyncio.timeout(TIMEOUT):
        while not condition():  # noqa: ASYNC110 - the turns themselves are awaited
            await asyncio.sleep(0)


class ManualApplication:
    """An application that keeps each call for the test to answer."""

    methods: Final = {
        ONE: Method(ONE, NOTHING, NOTHING, takes_stream=False, gives_stream=False),
        MANY: Method(MANY, NOTHING, NOTHING, takes_stream=True, gives_stream=True),
        WATCH: Method(WATCH, NOTHING, NOTHING, takes_stream=False, gives_stream=True),
    }

    vital: Final = frozenset({MANY})
    no_method: Final = "Method not found!"

    def __init__(self) -> None:
        self.calls: list[Rpc] = []
        self.messages: list[bytes] = []
        self.ends = 0
        self.left = 0
        self.drained = self.streams_end = False

    def __call__(self, rpc: Rpc) -> None:
        self.calls.append(rpc)
        rpc.on_message = lambda message: self.messages.append(bytes(message))
        rpc.on_half_close = self.end
        rpc.on_leave = self.leave

    def end(self) -> None:
        self.ends += 1

    def leave(self) -> None:
        self.left += 1

    def drain(self) -> None:
        self.drained = True

    def end_streams(self) -> None:
        self.streams_end = True

    @property
    def only(self) -> Rpc:
        (call,) = self.calls
        return call


class Wire(asyncio.Transport):
    """A transport that remembers what it was given. With `room`, it takes no more than that."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.connection: Connection | None = connection
        self.written = bytearray()
        self.writes = 0
        self.room: int | None = None
        self.reading = True
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended
        self.written += data
        self.writes += 1
        if self.room is not None and self.connection is not None:
            was_full, self.room = self.room <= 0, self.room - len(data)
            if self.room <= 0 and not was_full:
                self.connection.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def take(self, room: int | None = None) -> None:
        """The client takes what there is."""
        full, self.room = self.room is not None and self.room <= 0, room
        if full and self.connection is not None:
            self.connection.resume_writing()

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 5) if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return 0 if self.room is None else max(0, -self.room)

    def is_closing(self) -> bool:
        return self.connection is None

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            asyncio.get_running_loop().call_soon(connection.connection_lost, None)

    abort = close


class Peer:
    """One connection to `app`; its clock and sweeps belong to the test."""

    def __init__(
        self,
        app: ManualApplication,
        *,
        settings: dict[int, int] | None = None,
        greet: bool = True,
        limits: Limits = LIMITS,
        coding: str = "identity",
        draining: bool = False,
        beside: Peer | None = None,
    ) -> None:
        """With `beside`, on the same listener."""
        self.app = app
        self.now = 1000.0
        self.ended: list[Call] = []
        self.connections: Connections = (
            Connections(
                app,
                limits,
                coding=coding,
                clock=lambda: self.now,
                ended=lambda peer, call: self.ended.append(call),
            )
            if beside is None
            else beside.connections
        )
        self.connections.draining = draining
        self.connection = Connection(self.connections)
        self.wire = Wire(self.connection)
        self.connection.connection_made(self.wire)
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        if greet:
            self.feed(PREFACE + SettingsFrame(0, settings=settings or {}).serialize())
            self.frames()

    def feed(self, data: bytes, at_once: int = 10**9) -> None:
        """As a loop does: only while the connection reads, never more than fits."""
        offset = 0
        while offset < len(data) and self.wire.connection is not None and self.wire.reading:
            buffer = self.connection.get_buffer(-1)
            piece = data[offset : offset + min(at_once, len(buffer))]
            buffer[: len(piece)] = piece
            self.connection.buffer_updated(len(piece))
            offset += len(piece)

    async def feed_all(self, data: bytes, at_once: int = 2**16) -> None:
        """What is more than one turn of the loop reads, too."""
        for i in range(0, len(data), at_once):
            self.feed(data[i : i + at_once])
            while self.connections.turns.behind:  # noqa: ASYNC110 - the turns themselves are awaited
                await asyncio.sleep(0)

    def send(self, *frames: Frame) -> None:
        self.feed(b"".join(frame.serialize() for frame in frames))

    def frames(self) -> list[Frame]:
        """What the server has written since the last time."""
        data, found = bytes(self.wire.written), []
        self.wire.written.clear()
        while data:
            frame, length = Frame.parse_frame_header(memoryview(data[:9]))
            frame.parse_body(memoryview(data[9 : 9 + length]))
            assert len(data) >= 9 + length
            found.append(frame)
            data = data[9 + length :]
        return found

    def head(self, path: str = ONE, *more: tuple[str, str], method: str = "POST") -> Headers:
        return [
            (":method", method), (":scheme", "http"), (":path", path), (":authority", "x"),
            ("te", "trailers"), ("content-type", "application/grpc"), *more,
        ]  # fmt: skip

    def open(
        self, stream_id: int, path: str = ONE, *more: tuple[str, str], end: bool = False
    ) -> None:
        flags = ["END_HEADERS", *(["END_STREAM"] if end else [])]
        block = self.encoder.encode(self.head(path, *more))
        self.send(HeadersFrame(stream_id, block, flags=flags))

    def message(self, stream_id: int, message: bytes, *, end: bool = False) -> None:
        self.data(stream_id, prefixed(message), end=end)

    def data(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        self.send(DataFrame(stream_id, data, flags=["END_STREAM"] if end else []))

    def ask(self, stream_id: int, message: bytes = b"hi", *more: tuple[str, str]) -> None:
        self.open(stream_id, ONE, *more)
        self.message(stream_id, message, end=True)

    def answers(self) -> dict[int, Answer]:
        """By stream: all that came since the last time."""
        found: dict[int, Answer] = {}
        for frame in self.frames():
            answer = found.setdefault(frame.stream_id, Answer())
            if isinstance(frame, HeadersFrame):
                assert "END_HEADERS" in frame.flags
                answer.headers += map(_text, self.decoder.decode(frame.data))
                answer.over = "END_STREAM" in frame.flags
            elif isinstance(frame, DataFrame):
                answer.data += frame.data
            elif isinstance(frame, RstStreamFrame):
                answer.reset = frame.error_code
        found.pop(0, None)
        return found

    def goaway(self) -> int | None:
        """The code of the last GOAWAY since the last look."""
        codes = [frame.error_code for frame in self.frames() if isinstance(frame, GoAwayFrame)]
        return codes[-1] if codes else None

    def pass_time(self, seconds: float) -> None:
        self.connections.sweep()
        self.now += seconds
        self.connections.sweep()

    async def leave(self) -> None:
        """The end of the connection, and nothing is left of it."""
        self.wire.close()
        await self.connections.all_closed()
        assert self.connections.serving.calls == 0
        assert self.connection.streams.by_id == {}


class Answer:
    def __init__(self) -> None:
        self.headers: Headers = []
        self.data = b""
        self.over = False
        self.reset: int | None = None

    @property
    def status(self) -> str:
        return dict(self.headers).get("grpc-status", "")

    @property
    def text(self) -> str:
        return dict(self.headers).get("grpc-message", "")

    @property
    def messages(self) -> list[bytes]:
        return messages_in(self.data)


def messages_in(data: bytes) -> list[bytes]:
    """The whole messages of a stream."""
    found = []
    while len(data) >= 5 and len(data) >= 5 + int.from_bytes(data[1:5]):
        length = int.from_bytes(data[1:5])
        found.append(data[5 : 5 + length])
        data = data[5 + length :]
    return found


def prefixed(message: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + len(message).to_bytes(4) + message


def _text(header: Any) -> tuple[str, str]:
    name, value = header
    return name, value
