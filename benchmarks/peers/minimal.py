"""How little can a Python server cost? One event loop and a worker process for each model.

    python -m benchmarks.peers.minimal PORT

It answers V2's JSON for a text as functions/app.py does, and leaves out nearly all that makes a
server: no errors, headers, deadlines, statistics, restarts, order of pipelined answers.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
from collections import deque

import httptools
import msgspec
import uvloop

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
BODY = b'{"outputs":[{"name":"return","datatype":"BYTES","shape":[1],"data":%b}]}'
LENGTH = struct.Struct("<I")

parse = msgspec.json.Decoder().decode
to_json = msgspec.json.Encoder().encode
pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(list[list[str]]).decode


class Frames(asyncio.Protocol):
    """The messages that arrive on one direction of a worker's channel."""

    def __init__(self, model: Model) -> None:
        self._model, self._rest = model, b""

    def data_received(self, data: bytes) -> None:
        data, at = self._rest + data, 0
        while len(data) - at >= 4 and len(data) - at - 4 >= (n := LENGTH.unpack_from(data, at)[0]):
            self._model.answered(unpack(data[at + 4 : at + 4 + n]))
            at += 4 + n
        self._rest = data[at:]
        self._model.give()


class Model:
    """The texts that wait for a worker, and those that are with it."""

    def __init__(self, name: str, most: int, ahead: int) -> None:
        self.name, self._most, self._ahead = name, most, ahead
        self._waiting: deque[tuple[Connection, list[str]]] = deque()
        self._given: deque[list[Connection]] = deque()

    async def connect(self) -> None:
        # One channel for each direction: reading an answer does not wake the worker.
        to_worker, theirs_in = socket.socketpair()
        from_worker, theirs_out = socket.socketpair()
        ends = (theirs_in.fileno(), theirs_out.fileno())
        command = [sys.executable, __file__, "worker", self.name, *map(str, ends)]
        await asyncio.create_subprocess_exec(*command, pass_fds=ends)
        theirs_in.close()
        theirs_out.close()
        loop = asyncio.get_running_loop()
        self._out, _ = await loop.create_connection(asyncio.Protocol, sock=to_worker)
        await loop.create_connection(lambda: Frames(self), sock=from_worker)

    def submit(self, connection: Connection, text: list[str]) -> None:
        self._waiting.append((connection, text))
        self.give()

    def give(self) -> None:
        while self._waiting and len(self._given) < self._ahead:
            taken = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
            self._given.append([connection for connection, _ in taken])
            message = pack([text for _, text in taken])
            self._out.write(LENGTH.pack(len(message)) + message)

    def answered(self, rows: list[list[str]]) -> None:
        for connection, text in zip(self._given.popleft(), rows, strict=True):
            connection.answer(text)


class Connection(asyncio.Protocol):
    def __init__(self, models: dict[bytes, Model]) -> None:
        self._models = models

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._model, self._body = self._models[url], b""

    def on_body(self, part: bytes) -> None:
        self._body += part

    def on_message_complete(self) -> None:
        self._model.submit(self, parse(self._body)["inputs"][0]["data"])

    def answer(self, text: list[str]) -> None:
        body = BODY % to_json(text)
        if not self._transport.is_closing():  # its client has not left
            self._transport.write(HEAD % len(body) + body)


def work(name: str, receive: int, send: int) -> None:
    """Be the worker of a model until the server's end of the channel is closed."""
    frames, answers, rest = socket.socket(fileno=receive), socket.socket(fileno=send), b""
    while data := frames.recv(1 << 16):
        data, at = rest + data, 0
        out = []
        while len(data) - at >= 4 and len(data) - at - 4 >= (n := LENGTH.unpack_from(data, at)[0]):
            rows = unpack(data[at + 4 : at + 4 + n])
            at += 4 + n
            if name == "device":
                time.sleep(0.005 + 0.0002 * len(rows))
            message = pack(rows)
            out += [LENGTH.pack(len(message)), message]
        rest = data[at:]
        answers.sendall(b"".join(out))


async def serve(port: int) -> None:
    models = [Model("single", 1, 8), Model("echo", 32, 2), Model("device", 32, 1)]
    for model in models:
        await model.connect()
    paths = {f"/v2/models/{model.name}/infer".encode(): model for model in models}
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: Connection(paths), "127.0.0.1", port)
    await listener.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        work(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        uvloop.run(serve(int(sys.argv[1])))
