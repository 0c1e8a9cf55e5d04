"""How long does an honest client wait while another one does its worst?

    python -m benchmarks.hostile [--seconds 5] [--rate 1000000] [--connections 100] [--json FILE]

One client sends an echo request every 5 ms and notes how long each takes. Beside it a process sends
`--rate` bytes a second over `--connections` connections of what costs the server most for a byte.
Everything is on this machine, and ends by itself.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import random
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks import harness
from benchmarks.restart_clients import Http, Ledger, post
from wherry.testing import ServerProcess

APP = """
import wherry

@wherry.model(max_batch_size=32)
def echo(text: list[str]) -> list[str]:
    return text
"""
HOST = b"Host:127.0.0.1\r\n"
CHUNKED = b"POST /v2/models/echo/infer HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
PIECE = 2**14


def repeat(request: bytes) -> Iterator[bytes]:
    return itertools.repeat(request * (PIECE // len(request) + 1))


def of_chunks() -> Iterator[bytes]:
    yield CHUNKED
    yield from repeat(b"1\r\nx\r\n")


def of_headers() -> Iterator[bytes]:
    head = b"GET / HTTP/1.1\r\n" + HOST
    while True:
        yield head + b"".join(b"%x:\r\n" % n for n in range(8000)) + b"\r\n"


def of_single_bytes() -> Iterator[bytes]:
    while True:
        for byte in post("echo", {"text": 200 * "x"}):
            yield bytes([byte])


def new_connections(request: bytes) -> Iterator[bytes]:
    """An empty piece asks for a new connection."""
    while True:
        yield request
        yield b""


#: What each of the connections sends. They read nothing if the name says so.
ATTACKS: dict[str, Callable[[], Iterator[bytes]]] = {
    "nothing": lambda: iter(()),
    "pipelined 404": lambda: repeat(b"GET /x HTTP/1.1\r\n" + HOST + b"\r\n"),
    "pipelined, unread": lambda: repeat(b"GET /v2 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "metadata": lambda: repeat(b"GET /v2/models/echo HTTP/1.1\r\n" + HOST + b"\r\n"),
    "metrics": lambda: repeat(b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n"),
    "tiny bad infer": lambda: repeat(
        b"POST /v2/models/echo/infer HTTP/1.1\r\n" + HOST + b"Content-Length:2\r\n\r\n{}"
    ),
    "tiny chunks": of_chunks,
    "many headers": of_headers,
    "single bytes": of_single_bytes,
    "not HTTP": lambda: new_connections(b"\r\n\r\n\x16\x03\x01"),
    "new connections": lambda: new_connections(b"GET /x HTTP/1.1\r\n" + HOST + b"\r\n"),
    "half heads": lambda: new_connections(b"GET /x HTTP/1.1\r\nA: "),
}


class Enemy:
    """One of the connections: sends what the kernel takes, throws away what comes."""

    def __init__(self, address: tuple[str, int], pieces: Iterator[bytes], reads: bool) -> None:
        self._address = address
        self._pieces = pieces
        self._reads = reads
        self._socket: socket.socket | None = None
        self._piece = b""

    def send(self) -> int:
        """How many bytes were sent; a new connection counts for some."""
        try:
            if self._socket is None:
                self._piece = b""
                self._socket = socket.create_connection(self._address, 1.0)
                self._socket.setblocking(False)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return 200
            while self._reads and self._socket.recv(2**16):
                pass
        except BlockingIOError:
            pass
        except OSError:
            self._leave()
            return 0
        try:
            self._piece = self._piece or next(self._pieces, b"")
            if not self._piece:
                self._leave()
                return 0
            assert self._socket is not None
            sent = self._socket.send(self._piece)
            self._piece = self._piece[sent:]
        except BlockingIOError:
            return 0
        except OSError:
            self._leave()
            return 0
        return sent

    def _leave(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def attack(name: str, address: tuple[str, int], rate: int, connections: int, until: float) -> None:
    """All connections are served in bursts, once in 50 ms: that is worse than an even stream."""
    pieces = ATTACKS[name]
    if next(pieces(), None) is None:
        return
    enemies = [Enemy(address, pieces(), "unread" not in name) for _ in range(connections)]
    began, sent = time.monotonic(), 0
    while (now := time.monotonic()) < until:
        random.shuffle(enemies)
        allowed = (now - began) * rate
        progress = True
        while sent < allowed and progress:
            progress = False
            for enemy in enemies:
                count = enemy.send()
                progress |= count > 0
                sent += count
                if sent >= allowed:
                    break
        time.sleep(0.05)


async def honest(address: tuple[str, int], until: float) -> list[tuple[float, float]]:
    """When each request was sent, and how long its answer took, seconds."""
    ledger = Ledger()
    http = Http(ledger, "honest", address)
    waits = []
    while (sent_at := time.monotonic()) < until:
        if not http.open:
            await http.connect()
        name = ledger.name("honest")
        await http.send(post("echo", {"text": name}))
        await http.answer(name)
        waits.append((sent_at, time.monotonic() - sent_at))
        await asyncio.sleep(0.005)
    http.close()
    if ledger.lost():
        raise SystemExit(f"the honest client has lost something: {ledger.counts}")
    return waits


def p99(waits: list[float]) -> float:
    return quantiles(waits, n=100)[98] * 1e3 if len(waits) > 1 else float("nan")


def measure(
    name: str, server: ServerProcess, rate: int, connections: int, seconds: float
) -> dict[str, Any]:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    address = (host, int(port))
    began = time.monotonic() + 0.5
    cpu = harness.cpu_seconds(server.pid)
    enemy = multiprocessing.get_context("spawn").Process(
        target=attack, args=(name, address, rate, connections, began + seconds)
    )
    enemy.start()
    waits = asyncio.run(honest(address, began + seconds))
    enemy.join()
    passed = time.monotonic() - began + 0.5
    by_second: dict[int, list[float]] = {}
    for sent_at, wait in waits:
        by_second.setdefault(int(sent_at - began), []).append(wait)
    slow = [second for second, found in by_second.items() if p99(found) > 50]
    return {
        "what": name,
        "p50 ms": sorted(wait for _, wait in waits)[len(waits) // 2] * 1e3,
        "p99 ms": p99([wait for _, wait in waits]),
        "worst ms": max(wait for _, wait in waits) * 1e3,
        "seconds with p99 > 50 ms": len(slow),
        "server CPU %": (harness.cpu_seconds(server.pid) - cpu) / passed * 100,
    }


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--rate", type=int, default=1_000_000, help="bytes a second")
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--attack", choices=ATTACKS, action="append")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        app = Path(folder) / "app.py"
        app.write_text(APP)
        for name in options.attack or ATTACKS:
            with ServerProcess(str(app), "--isolation", "thread") as server:
                rows.append(
                    measure(name, server, options.rate, options.connections, options.seconds)
                )
    harness.report(
        f"an honest client beside {options.connections} hostile connections,"
        f" {options.rate / 1e6:g} MB/s",
        rows,
        options.json,
    )


if __name__ == "__main__":
    main()
