"""Callers of every kind before one proxy, and what became of each of their requests."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import grpc.aio

from benchmarks.restart_clients import SCHEMA, SERVICE, infer_request, post

#: A caller that waits for so many seconds has lost its answer.
REQUEST_TIMEOUT: Final = 30.0
#: Requests a second of each kind beside `work`.
OTHERS: Final = {"once": 10.0, "events": 2.0, "grpc": 10.0, "grpc-stream": 2.0}


@dataclass
class Request:
    kind: str
    name: str
    sent_at: float
    seconds: float = 0.0
    outcome: str = "late"
    host: str = ""


@dataclass
class Load:
    """An open loop: requests come at random moments, whether or not others were answered."""

    http: tuple[str, int]
    grpc: str
    requests: list[Request] = field(default_factory=list)
    _idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def run(self, rates: dict[str, float], seconds: float, mark: str) -> None:
        async with grpc.aio.insecure_channel(self.grpc) as channel, asyncio.TaskGroup() as group:
            self._channel = channel
            for kind, rate in rates.items():
                group.create_task(self._send(group, kind, rate, seconds, mark))
        while self._idle:
            self._idle.pop()[1].close()

    async def _send(
        self, group: asyncio.TaskGroup, kind: str, rate: float, seconds: float, mark: str
    ) -> None:
        loop, chance = asyncio.get_running_loop(), random.Random(f"{mark}{kind}")
        begun = due = loop.time()
        number = 0
        while (due := due + chance.expovariate(rate)) < begun + seconds:
            await asyncio.sleep(due - loop.time())
            request = Request(kind, f"{mark}-{kind}-{number}", loop.time())
            self.requests.append(request)
            group.create_task(self._one(request))
            number += 1

    async def _one(self, request: Request) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                request.outcome = await self._ask(request)
        except TimeoutError:
            pass
        except (OSError, asyncio.IncompleteReadError):
            request.outcome = "cut"
        except grpc.aio.AioRpcError as error:
            request.outcome = error.code().name
        request.seconds = loop.time() - request.sent_at

    async def _ask(self, request: Request) -> str:
        if request.kind == "grpc":
            infer = self._channel.unary_unary(f"{SERVICE}/ModelInfer")
            return _told(request, await infer(infer_request("work", request.name, "id")))
        if request.kind == "grpc-stream":
            stream = self._channel.stream_stream(f"{SERVICE}/ModelStreamInfer")
            call = stream(iter([infer_request("words", request.name, "id")]))
            answers = [
                SCHEMA.messages["ModelStreamInferResponse"].decode(one) async for one in call
            ]
            whole = sum(bool(one["infer_response"]["outputs"]) for one in answers) == 20
            return "answered" if whole else f"{len(answers)} of 20"
        if request.kind == "events":
            status, body = await self._http("words", {"id": request.name}, "generate_stream")
            count = body.count(request.name.encode())
            return "answered" if count == 20 else f"{status}, {count} of 20"
        of = {"name": "id", "shape": [1, 1], "datatype": "BYTES", "data": [request.name]}
        status, body = await self._http(request.kind, {"inputs": [of]}, "infer")
        return _told(request, body) if status == 200 else str(status)

    async def _http(self, model: str, body: dict[str, Any], path: str) -> tuple[int, bytes]:
        async with self._connection() as (reader, writer):
            writer.write(post(model, body, path))
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            status = int(head.split(" ", 2)[1])
            if "transfer-encoding: chunked" not in head:
                length = int(head.partition("content-length:")[2].split("\r\n")[0])
                answer = await reader.readexactly(length)
            else:
                answer = b""
                while size := int(await reader.readuntil(b"\r\n"), 16):
                    answer += (await reader.readexactly(size + 2))[:-2]
                await reader.readexactly(2)
            if "connection: close" in head:
                writer.close()
            return status, answer

    @asynccontextmanager
    async def _connection(
        self,
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        pair = self._idle.pop() if self._idle else await asyncio.open_connection(*self.http)
        try:
            yield pair
        except BaseException:  # cancelled, too: half an answer is on it
            pair[1].close()
            raise
        if not pair[1].is_closing() and not pair[0].at_eof():
            self._idle.append(pair)


def _told(request: Request, answer: bytes) -> str:
    """Whether it is the answer of this request; notes the host that it names."""
    at = answer.find(f" {request.name}".encode())
    request.host = answer[:at][-2:].decode(errors="replace") if at >= 0 else ""
    return "answered" if at >= 0 else "wrong"


def summary(requests: Sequence[Request], executed: Sequence[str]) -> dict[str, Any]:
    """A row of figures. Of each kind "lost / run twice of so many"; lost: not answered in full,
    for whatever reason."""
    times = sorted(one.seconds for one in requests if one.kind == "work")
    hosts = Counter(one.host for one in requests if one.kind == "work" and one.host)
    runs = Counter(executed)
    row: dict[str, Any] = {
        "p50 ms": 1000 * times[len(times) // 2],
        "p99 ms": 1000 * times[int(0.99 * (len(times) - 1))],
        "worst s": max(one.seconds for one in requests),
    }
    for kind in ("work", *OTHERS):
        own = [one for one in requests if one.kind == kind]
        lost = sum(one.outcome != "answered" for one in own)
        twice = sum(runs[one.name] > 1 for one in own)
        row[kind] = f"{lost} / {twice} of {len(own)}"
    row["shares"] = " ".join(f"{hosts[host] / hosts.total():.1%}" for host in sorted(hosts))
    ends = Counter(f"{one.kind} {one.outcome}" for one in requests if one.outcome != "answered")
    row["how"] = ", ".join(f"{end} {count}" for end, count in ends.most_common(6))
    return row
