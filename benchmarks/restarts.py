"""Is anything lost when a server under load is told to stop, and when another takes over?

    python -m benchmarks.restarts [--restarts 20] [--signal TERM] [--json FILE]
    python -m benchmarks.restarts --rolling {reuse-port,fd}

Each restart: a server with a small model, clients of every kind (restart_clients.py), a signal at
a random moment, and the count of what every client has sent and got. With --rolling the clients go
on all the time, and each server is told to stop when its successor on the same address is ready.
Ends by itself: a restart takes a few seconds. Exit code 1 if anything is lost.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.restart_clients import Ledger, Load
from wherry.testing import ServerProcess

MODELS = [f"benchmarks/restart_models.py:{name}" for name in ("echo", "words", "large")]


def start(folder: Path, number: int, *options: str, pass_fds: Sequence[int] = ()) -> ServerProcess:
    env = {"EXECUTED": str(folder / f"executed-{number}")}
    if "--grpc-fd" not in options:
        options = ("--grpc-port", "0", *options)
    options = ("--isolation", "thread", *options)
    return ServerProcess(
        *MODELS, *options, env=env, cwd=str(harness.ROOT), pass_fds=pass_fds
    ).start()


def executed(folder: Path, number: int) -> list[str]:
    return (folder / f"executed-{number}").read_text().split()


def address_of(server: ServerProcess) -> tuple[str, int]:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    return host, int(port)


def grpc_address_of(server: ServerProcess) -> str:
    return server.log.partition("grpc=")[2].split()[0]


async def restart(
    server: ServerProcess, load: Load, after: float, number: int
) -> tuple[int, float]:
    """The exit code, and how long the server took to end, seconds."""
    loop = asyncio.get_running_loop()
    clients = asyncio.create_task(load.run())
    await asyncio.sleep(after)
    told_at = loop.time()
    server.send(number)
    exit_code = await asyncio.to_thread(server.wait, 60.0)
    took = loop.time() - told_at
    await clients
    return exit_code, took


class Successors:
    """Servers that follow each other on one address."""

    def __init__(self, folder: Path, way: str) -> None:
        self._folder, self._way = folder, way
        # Bound, but not listening: so the ports stay ours.
        self._reserved = [_bound(), _bound()]
        self._http, self._grpc = (one.getsockname()[1] for one in self._reserved)
        if way == "fd":
            for one in self._reserved:
                one.listen(2048)
        self.address = ("127.0.0.1", self._http)
        self.grpc_address = f"127.0.0.1:{self._grpc}"

    def start(self) -> ServerProcess:
        if self._way == "fd":
            http, grpc = (one.fileno() for one in self._reserved)
            given = ("--fd", str(http), "--grpc-fd", str(grpc))
            return start(self._folder, 0, *given, pass_fds=(http, grpc))
        ports = ("--reuse-port", "--port", str(self._http), "--grpc-port", str(self._grpc))
        return start(self._folder, 0, *ports)

    def close(self) -> None:
        for reserved in self._reserved:
            reserved.close()


def _bound() -> socket.socket:
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


async def roll(
    successors: Successors, ledger: Ledger, restarts: int, number: int, chance: random.Random
) -> tuple[list[int], list[float]]:
    """Each server's exit code, and how long those with a successor took to end, seconds."""
    codes, took = [], []
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    server = await asyncio.to_thread(successors.start)
    try:
        await asyncio.to_thread(server.wait_ready)
        load = Load(ledger, successors.address, successors.grpc_address, 0, stop)
        clients = asyncio.create_task(load.run())
        for _ in range(restarts):
            old, server = server, await asyncio.to_thread(successors.start)
            try:
                await asyncio.to_thread(server.wait_ready)
                await asyncio.sleep(chance.uniform(0.0, 0.3))
                told_at = loop.time()
                old.send(number)
                codes.append(await asyncio.to_thread(old.wait, 60.0))
                took.append(loop.time() - told_at)
                if codes[-1] not in (0, 128 + number):
                    print(old.log[-2000:], file=sys.stderr)
            finally:
                old.stop(signal.SIGKILL)
        stop.set()
        await clients
        server.send(number)
        codes.append(await asyncio.to_thread(server.wait, 60.0))
    finally:
        server.stop(signal.SIGKILL)
    return codes, took


def rows_of(ledger: Ledger) -> list[dict[str, Any]]:
    kinds = sorted({kind for kind, _ in ledger.counts})
    rows = []
    for kind in kinds:
        others = {
            outcome: count for (of, outcome), count in sorted(ledger.counts.items())
            if of == kind and count and outcome not in ("answered", "closed")
        }  # fmt: skip
        rows.append({
            "what": kind,
            "answered": ledger.counts[kind, "answered"],
            "to send again": ledger.counts[kind, "closed"],
            "lost": ledger.lost(kind),
            "how": ", ".join(f"{outcome} {count}" for outcome, count in others.items()),
        })  # fmt: skip
    return rows


def one_by_one(
    folder: Path, ledger: Ledger, restarts: int, number: int, chance: random.Random
) -> tuple[list[int], list[float]]:
    """Each server's exit code, and how long it took to end, seconds."""
    codes, took = [], []
    waiting = start(folder, 0)
    for i in range(restarts):
        server = waiting
        server.wait_ready()
        waiting = start(folder, i + 1)  # meanwhile
        try:
            load = Load(ledger, address_of(server), grpc_address_of(server), seed=i)
            code, seconds = asyncio.run(restart(server, load, chance.uniform(0.1, 0.6), number))
            codes.append(code)
            took.append(seconds)
            if code not in (0, 128 + number):
                print(server.log[-2000:], file=sys.stderr)
        finally:
            server.stop(signal.SIGKILL)
        ledger.settle(executed(folder, i))
    waiting.stop(signal.SIGKILL)
    return codes, took


def rolling(
    folder: Path, ledger: Ledger, restarts: int, number: int, chance: random.Random, way: str
) -> tuple[list[int], list[float]]:
    """Each server's exit code, and how long it took to end, seconds."""
    successors = Successors(folder, way)
    try:
        result = asyncio.run(roll(successors, ledger, restarts, number, chance))
    finally:
        successors.close()
    ledger.settle(executed(folder, 0))
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.arguments(__doc__)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--rolling", choices=("reuse-port", "fd"))
    parser.add_argument("--signal", choices=("TERM", "INT", "HUP"), default="TERM")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    chance = random.Random(options.seed)
    number = signal.Signals[f"SIG{options.signal}"]
    ledger = Ledger()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.rolling:
            codes, took = rolling(folder, ledger, options.restarts, number, chance, options.rolling)
        else:
            codes, took = one_by_one(folder, ledger, options.restarts, number, chance)
    rows = rows_of(ledger)
    total = {key: sum(row[key] for row in rows) for key in ("answered", "to send again", "lost")}
    how = f"exit codes {sorted(set(codes))}, {max(took):.1f} s at most, {ledger.twice} twice"
    how += f", {ledger.slowest_connect:.2f} s to be let in at most"
    rows.append({"what": "all", **total, "how": how})
    title = f"{options.restarts} restarts by SIG{options.signal}"
    harness.report(f"{title}, {options.rolling or 'one by one'}", rows, options.json)
    for text, count in ledger.refusals.most_common(10):
        print(count, text, file=sys.stderr)
    return 1 if total["lost"] else 0


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.exit(main())
