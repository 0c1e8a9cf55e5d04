"""Which clients does a restart meet, and what has each of them lost in the end?

Every client keeps the client's side of the rule (docs/how-to/restart-without-losing.md): it sends
nothing behind an answer that says `Connection: close`; a request for which the connection ended
before the first byte of its answer may be sent again, and only such a one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from wherry.server.grpc import proto

#: A client that waits so long for an answer, seconds, has lost it.
REQUEST_TIMEOUT = 20.0

SCHEMA = proto.load("v2.proto", "model_config.proto")
SERVICE = "/inference.GRPCInferenceService"


@dataclass
class Ledger:
    """Every request, by the name that is its text: how it ended.

    answered   its whole answer came
    closed     the connection ended before the first byte of an answer: it may be sent again
    reset      so, but by a reset: some clients do not send again then
    cut        within its answer
    refused    an answer that is an error
    late       nothing came within REQUEST_TIMEOUT
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    unanswered: dict[str, tuple[str, str]] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)
    names: itertools.count[int] = field(default_factory=itertools.count)
    twice: int = 0
    #: The longest that a client has waited to be let in, seconds.
    slowest_connect: float = 0.0

    def name(self, kind: str) -> str:
        return f"{kind}-{next(self.names)}"

    def note(self, kind: str, name: str, outcome: str) -> None:
        self.counts[kind, outcome] += 1
        if outcome != "answered":
            self.unanswered[name] = (kind, outcome)

    def settle(self, executed: list[str]) -> None:
        """What was executed and not answered cannot be sent again: it is lost."""
        for name in executed:
            if name in self.unanswered:
                kind, outcome = self.unanswered.pop(name)
                self.counts[kind, outcome] -= 1
                self.counts[kind, f"executed, {outcome}"] += 1
        self.twice += len(executed) - len(set(executed))
        self.unanswered.clear()

    def lost(self, kind: str | None = None) -> int:
        fine = ("answered", "closed")
        return sum(
            count for (of, outcome), count in self.counts.items()
            if outcome not in fine and kind in (None, of)
        )  # fmt: skip


class Ended(Exception):
    """The connection is over: how, and whether anything of the next answer had come."""


class Http:
    """One connection. Reads answers in turn; says how each ended."""

    def __init__(self, ledger: Ledger, kind: str, address: tuple[str, int], timid: int = 0) -> None:
        self._ledger = ledger
        self._kind = kind
        self._address = address
        self._receive_buffer = timid
        self._buffer = b""
        self.open = False

    async def connect(self) -> bool:
        """False if nothing listens there any more."""
        self._socket = socket.socket()
        if self._receive_buffer:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        self._socket.setblocking(False)
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        try:
            await loop.sock_connect(self._socket, self._address)
        except OSError:
            self._socket.close()
            return False
        took = loop.time() - began_at
        self._ledger.slowest_connect = max(self._ledger.slowest_connect, took)
        self._buffer = b""
        self.open = True
        return True

    def close(self) -> None:
        self.open = False
        self._socket.close()

    async def send(self, data: bytes) -> None:
        with suppress(OSError):  # how it ended is read: an answer may have come before
            await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def answer(self, name: str) -> bool:
        """Read one answer and note how that went; False if nothing more can be read here."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                status, closing, body = await self._answer()
        except Ended as end:
            outcome = str(end)
        except TimeoutError:
            outcome = "late"
        else:
            complete = status == 200 and name.encode() in body
            if not complete:
                self._ledger.refusals[f"{self._kind}: {status} {body[:200]!r}"] += 1
            self._ledger.note(self._kind, name, "answered" if complete else "refused")
            self.open = not closing
            return self.open
        self._ledger.note(self._kind, name, outcome)
        self.open = False
        return False

    def never_answered(self, name: str) -> None:
        """Sent behind what turned out to be the last answer here: the server has not looked."""
        self._ledger.note(self._kind, name, "closed")

    async def _answer(self) -> tuple[int, bool, bytes]:
        while b"\r\n\r\n" not in self._buffer:
            await self._more()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:])
        status = int(lines[0].split(" ")[1])
        self._begun = True
        if fields.get("transfer-encoding") == "chunked":
            body = b""
            while piece := await self._chunk():
                body += piece
        else:
            length = int(fields["content-length"])
            while len(self._buffer) < length:
                await self._more()
            body, self._buffer = self._buffer[:length], self._buffer[length:]
        self._begun = False
        return status, fields.get("connection") == "close", body

    async def _chunk(self) -> bytes:
        while b"\r\n" not in self._buffer:
            await self._more()
        size, _, self._buffer = self._buffer.partition(b"\r\n")
        while len(self._buffer) < int(size, 16) + 2:
            await self._more()
        end = int(size, 16)
        piece, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
        return piece

    _begun = False

    async def _more(self) -> None:
        try:
            data = await asyncio.get_running_loop().sock_recv(self._socket, 2**16)
            how = "closed"
        except OSError:
            data, how = b"", "reset"
        if not data:
            raise Ended("cut" if self._buffer or self._begun else how)
        self._buffer += data


def post(model: str, body: dict[str, Any], path: str = "generate") -> bytes:
    text = json.dumps(body).encode()
    return (
        f"POST /v2/models/{model}/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Length: {len(text)}\r\n\r\n"
    ).encode() + text


@dataclass
class Load:
    """Clients of every kind on one server; they go on until nothing listens there."""

    ledger: Ledger
    address: tuple[str, int]
    grpc_address: str
    seed: int
    #: With a successor on the same address they go on until this is set.
    stop: asyncio.Event | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clients: list[Callable[[], Coroutine[Any, Any, None]]] = [
            *12 * [self.keep_alive],
            *4 * [self.slow_keep_alive],
            *3 * [self.pipelining],
            *4 * [self.new_connection_each],
            *6 * [self.event_stream],
            *3 * [self.half_sent],
            *2 * [self.stalled],
            *2 * [self.grpc_unary],
            *2 * [self.grpc_stream],
        ]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for client in self.clients:
                group.create_task(client())

    def _over(self) -> bool:
        return self.stop is not None and self.stop.is_set()

    async def _on_connections(
        self,
        kind: str,
        talk: Callable[[Http], Awaitable[None]],
        timid: int = 0,
    ) -> None:
        """`talk` again and again, over a new connection where the last one has ended."""
        http = Http(self.ledger, kind, self.address, timid)
        while not self._over():
            if not http.open and not await http.connect():
                if self.stop is None:
                    return
                self.ledger.note(kind, self.ledger.name(kind), "not let in")
                await asyncio.sleep(0.05)
                continue
            await talk(http)
            if not http.open:
                http.close()
        http.close()

    async def keep_alive(self) -> None:
        async def talk(http: Http) -> None:
            name = self.ledger.name("keep-alive")
            await http.send(post("echo", {"text": name}))
            await http.answer(name)

        await self._on_connections("keep-alive", talk)

    async def slow_keep_alive(self) -> None:
        """Its connection is often idle when the server wants to end it."""

        async def talk(http: Http) -> None:
            await asyncio.sleep(self.random.uniform(0.0, 0.6))
            name = self.ledger.name("idle")
            await http.send(post("echo", {"text": name}))
            await http.answer(name)

        await self._on_connections("idle", talk)

    async def pipelining(self) -> None:
        async def talk(http: Http) -> None:
            names = [self.ledger.name("pipelined") for _ in range(8)]
            await http.send(b"".join(post("echo", {"text": name}) for name in names))
            while names and await http.answer(names.pop(0)):
                pass
            for name in names:
                http.never_answered(name)

        await self._on_connections("pipelined", talk)

    async def new_connection_each(self) -> None:
        async def talk(http: Http) -> None:
            name = self.ledger.name("connection")
            await http.send(post("echo", {"text": name}))
            await http.answer(name)
            http.open = False

        await self._on_connections("connection", talk)

    async def event_stream(self) -> None:
        async def talk(http: Http) -> None:
            name = self.ledger.name("events")
            count = self.random.randrange(1, 20)
            await http.send(post("words", {"text": name, "count": count}, "generate_stream"))
            await http.answer(name)

        await self._on_connections("events", talk)

    async def half_sent(self) -> None:
        async def talk(http: Http) -> None:
            name = self.ledger.name("half-sent")
            request = post("echo", {"text": name + " " + 1000 * "x"})
            at = self.random.randrange(1, len(request))
            await http.send(request[:at])
            await asyncio.sleep(self.random.uniform(0.0, 0.5))
            await http.send(request[at:])
            await http.answer(name)

        await self._on_connections("half-sent", talk)

    async def stalled(self) -> None:
        async def talk(http: Http) -> None:
            name = self.ledger.name("stalled")
            await http.send(post("large", {"text": name, "size": 1_000_000}))
            await asyncio.sleep(self.random.uniform(0.0, 1.0))
            await http.answer(name)

        await self._on_connections("stalled", talk, timid=4096)

    # gRPC

    async def grpc_unary(self) -> None:
        async with grpc.aio.insecure_channel(self.grpc_address) as channel:
            infer = channel.unary_unary(f"{SERVICE}/ModelInfer")
            async with asyncio.TaskGroup() as group:
                for _ in range(4):
                    group.create_task(self._grpc_calls(infer))

    async def _grpc_calls(self, infer: Any) -> None:
        while not self._over():
            name = self.ledger.name("grpc")
            try:
                answer = await infer(infer_request("echo", name), timeout=REQUEST_TIMEOUT)
            except grpc.aio.AioRpcError as error:
                if not self._grpc_failed("grpc", name, error):
                    return
                await asyncio.sleep(0.05)
            else:
                complete = name.encode() in answer
                self.ledger.note("grpc", name, "answered" if complete else "cut")

    def _grpc_failed(self, kind: str, name: str, error: Any) -> bool:
        """Note it; False if nothing listens there any more."""
        said = f"{error.code().name} {error.details()}"
        refused = "onnection refused" in said
        if not refused or self.stop is not None:
            # UNAVAILABLE may be sent again, if it has not been executed: see Ledger.settle.
            outcome = "closed" if error.code() is grpc.StatusCode.UNAVAILABLE else "refused"
            self.ledger.note(kind, name, "not let in" if refused else outcome)
            self.ledger.refusals[f"{kind}: {said[:200]}"] += 1
        return not refused or self.stop is not None

    async def grpc_stream(self) -> None:
        """Streams of requests, up to four of them unanswered, as a program with threads has them:
        grpc.aio forgets the answers that it has when it is told to write to a stream that ended.
        """
        await asyncio.to_thread(self._grpc_streams)

    def _grpc_streams(self) -> None:
        with grpc.insecure_channel(self.grpc_address) as channel:
            open_stream = channel.stream_stream(f"{SERVICE}/ModelStreamInfer")
            while not self._over() and self._grpc_one_stream(open_stream):
                pass

    def _grpc_one_stream(self, open_stream: Any) -> bool:
        """False if nothing listens there any more."""
        sent: deque[str] = deque()
        may_send = threading.Semaphore(4)
        ended = threading.Event()

        def requests() -> Iterator[bytes]:
            for _ in range(40):
                may_send.acquire()
                if ended.is_set():
                    return
                name = self.ledger.name("grpc-stream")
                sent.append(name)
                yield infer_request("echo", name)

        try:
            for answer in open_stream(requests(), timeout=REQUEST_TIMEOUT):
                name = sent.popleft()
                complete = name.encode() in answer
                self.ledger.note("grpc-stream", name, "answered" if complete else "cut")
                may_send.release()
        except grpc.RpcError as error:
            listens = True
            for name in sent:
                listens = self._grpc_failed("grpc-stream", name, error)
            if listens and self.stop is not None:
                time.sleep(0.05)
            return listens
        finally:
            ended.set()
            may_send.release()
        return True


def infer_request(model: str, text: str, name: str = "text") -> bytes:
    given = {
        "name": name, "datatype": "BYTES", "shape": [1, 1],
        "contents": {"bytes_contents": [text.encode()]},
    }  # fmt: skip
    message = {"model_name": model, "inputs": [given]}
    return SCHEMA.messages["ModelInferRequest"].encode(message)
