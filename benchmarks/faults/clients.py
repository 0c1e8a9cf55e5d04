"""Which clients does a server meet while it is harmed, and what does each of them get?"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import grpc.aio

from benchmarks.faults.ledger import Ledger, Request
from wherry.server.grpc import proto

#: A client that waits so long, seconds, has got no answer.
REQUEST_TIMEOUT = 45.0
#: Seconds between two requests of one client.
PAUSE = 0.05

_SCHEMA = proto.load("v2.proto", "model_config.proto")
_INFER = "/inference.GRPCInferenceService/ModelInfer"


class Cut(Exception):
    """The connection has ended within an answer, or before it."""


class Connection:
    """One HTTP connection at a time, for one request after the other."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, path: str, body: dict[str, Any] | None) -> None:
        """Send a POST, or without a body a GET."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(*self._address)
        method = "GET" if body is None else "POST"
        text = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(text)}\r\n\r\n"
        self._writer.write(head.encode() + text)
        await self._writer.drain()

    async def answer(self) -> tuple[int, bytes, bool]:
        """The status, the body as far as it came, and whether it was whole."""
        assert self._reader is not None
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        fields = dict(line.split(": ", 1) for line in head[1:] if line)
        status = int(head[0].split(" ")[1])
        whole = True
        if fields.get("transfer-encoding") == "chunked":
            body = b""
            try:
                while size := int(await self._reader.readuntil(b"\r\n"), 16):
                    body += (await self._reader.readexactly(size + 2))[:-2]
                await self._reader.readexactly(2)
            except (asyncio.IncompleteReadError, ConnectionError):
                whole = False
        else:
            body = await self._reader.readexactly(int(fields["content-length"]))
        if fields.get("connection") == "close" or not whole:
            self.close()
        return status, body, whole

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


class Clients:
    """Clients of every kind on one server."""

    def __init__(self, ledger: Ledger, url: str, grpc_address: str, seed: int) -> None:
        self._ledger = ledger
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._host, self._port = host, int(port)
        self._grpc_address = grpc_address
        self._random = random.Random(seed)
        self._stops = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        kinds: list[Callable[[], Coroutine[Any, Any, None]]] = [
            *6 * [lambda: self._ask("quick")],
            *4 * [lambda: self._ask("apart")],
            *2 * [lambda: self._ask("slow")],
            *2 * [lambda: self._ask("reloaded")],
            *2 * [lambda: self._ask("deadline")],
            *3 * [self._stream],
            *3 * [self._sequence],
            *2 * [self._leave],
            lambda: self._get("config", "/v2/models/quick/config"),
            lambda: self._get("metrics", "/metrics"),
            lambda: self._get("health", "/v2/health/ready"),
        ]
        self._tasks = [asyncio.create_task(one()) for one in kinds]
        self._tasks += [asyncio.create_task(self._call_grpc()) for _ in range(2)]

    async def stop(self) -> None:
        """Return when each has its last answer."""
        self._stops = True
        await asyncio.gather(*self._tasks)

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.uniform(0.2, 1.8) * PAUSE)

    async def _exchange(
        self, connection: Connection, request: Request, path: str, body: dict[str, Any] | None
    ) -> tuple[int, bytes, bool] | None:
        """None if there was no answer: that is noted."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                await connection.send(path, body)
                return await connection.answer()
        except TimeoutError:
            self._ledger.end(request, "late")
        except (OSError, EOFError) as error:
            self._ledger.end(request, "cut", text=str(error) or type(error).__name__)
        connection.close()
        return None

    def _judge(self, request: Request, status: int, body: bytes, right: int) -> None:
        text = body.decode(errors="replace")
        if status != 200:
            self._ledger.end(request, "refused", status, _reason(text))
            return
        answer = json.loads(text)
        found = answer.get("output", answer.get("ANSWER"))
        self._ledger.end(request, "answered" if found == right else "wrong", status, text)

    async def _ask(self, kind: str) -> None:
        connection = Connection(self._host, self._port)
        model = "slow" if kind == "deadline" else kind
        while not self._stops:
            await self._pause()
            timeout = self._random.uniform(0.05, 1.0) if kind == "deadline" else None
            request = self._ledger.begin(kind, timeout)
            body: dict[str, Any] = {"number": request.number}
            if kind == "reloaded":
                body = {"NUMBER": request.number}
            if timeout is not None:
                body["parameters"] = {"timeout": int(timeout * 1e6)}
            got = await self._exchange(connection, request, f"/v2/models/{model}/generate", body)
            if got is not None:
                self._judge(request, got[0], got[1], request.number)
        connection.close()

    async def _get(self, kind: str, path: str) -> None:
        connection = Connection(self._host, self._port)
        while not self._stops:
            await self._pause()
            request = self._ledger.begin(kind)
            got = await self._exchange(connection, request, path, None)
            if got is not None:
                status, body, _ = got
                outcome = "answered" if status == 200 else "refused"
                self._ledger.end(request, outcome, status, body[:200].decode())
        connection.close()

    async def _stream(self) -> None:
        connection = Connection(self._host, self._port)
        while not self._stops:
            await self._pause()
            request = self._ledger.begin("stream")
            count = self._random.randrange(1, 60)
            body = {"number": request.number, "count": count}
            path = "/v2/models/words/generate_stream"
            got = await self._exchange(connection, request, path, body)
            if got is not None:
                self._judge_stream(request, got, count)
        connection.close()

    def _judge_stream(self, request: Request, got: tuple[int, bytes, bool], count: int) -> None:
        status, body, whole = got
        if status != 200:
            self._ledger.end(request, "refused", status, _reason(body.decode()))
            return
        events = body.decode().split("\n\n")
        parts = [json.loads(one[6:]) for one in events[:-1] if one.startswith("data: ")]
        errors = [part["error"] for part in parts if "error" in part]
        answers = [part["output"] for part in parts if "output" in part]
        if answers != [request.number] * len(answers) or len(answers) > count:
            self._ledger.end(request, "wrong", status, body.decode())
        elif errors:
            self._ledger.end(request, "broken", 503, errors[0])
        elif not whole:
            self._ledger.end(request, "cut", text="in a stream")
        else:
            self._ledger.end(request, "answered" if len(answers) == count else "silent", status)

    async def _sequence(self) -> None:
        connection = Connection(self._host, self._port)
        while not self._stops:
            first, total, since = None, 0, time.monotonic()
            steps = self._random.randrange(2, 12)
            for step in range(steps):
                await self._pause()
                request = self._ledger.begin("sequence", since=since)
                first, total = first or request.number, total + request.number
                parameters = {
                    "sequence_id": first,
                    "sequence_start": step == 0,
                    "sequence_end": step == steps - 1,
                }
                body = {"number": request.number, "parameters": parameters}
                path = "/v2/models/total/generate"
                got = await self._exchange(connection, request, path, body)
                if got is not None:
                    self._judge(request, got[0], got[1], total)
                if request.outcome != "answered":
                    break  # a client begins anew
        connection.close()

    async def _leave(self) -> None:
        """Leave before the answer."""
        while not self._stops:
            await self._pause()
            connection = Connection(self._host, self._port)
            request = self._ledger.begin("leaver")
            try:
                await connection.send("/v2/models/slow/generate", {"number": request.number})
            except OSError:
                pass
            else:
                await asyncio.sleep(self._random.uniform(0.0, 0.3))
            self._ledger.end(request, "left")
            connection.close()

    async def _call_grpc(self) -> None:
        message = _SCHEMA.messages["ModelInferRequest"]
        answers = _SCHEMA.messages["ModelInferResponse"]
        # A connection of its own for each client.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200)]
        async with grpc.aio.insecure_channel(self._grpc_address, options=options) as channel:
            infer = channel.unary_unary(_INFER)
            while not self._stops:
                await self._pause()
                request = self._ledger.begin("grpc")
                tensor = {
                    "name": "number", "datatype": "INT64", "shape": [1, 1],
                    "contents": {"int64_contents": [request.number]},
                }  # fmt: skip
                given = message.encode({"model_name": "quick", "inputs": [tensor]})
                try:
                    answer = answers.decode(await infer(given, timeout=REQUEST_TIMEOUT))
                except grpc.aio.AioRpcError as error:
                    self._grpc_error(request, error)
                else:
                    raw = bytes(answer["raw_output_contents"][0])
                    right = int.from_bytes(raw, "little") == request.number
                    self._ledger.end(request, "answered" if right else "wrong", text=str(raw))

    def _grpc_error(self, request: Request, error: grpc.aio.AioRpcError) -> None:
        code, text = error.code().name, error.details() or ""
        if code == "DEADLINE_EXCEEDED":
            self._ledger.end(request, "late")
        elif any(
            one in text.lower() for one in ("socket closed", "reset", "broken pipe", "goaway")
        ):
            self._ledger.end(request, "cut", code, text)
        else:
            self._ledger.end(request, "refused", code, text)


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return ""
