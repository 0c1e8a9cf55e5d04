"""What does the HTTP transport cost by itself? A bare echo through it, CPU us per request.

    python -m benchmarks.http_echo [--seconds 2] [--rounds 3] [--json PATH]

The server is a process of its own; wrk is the client. `--loop asyncio` leaves uvloop out.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import uvloop

from benchmarks import harness
from wherry.frontends.http.exchange import Exchange
from wherry.frontends.http.listener import Listener

PATH = "/v2/models/echo/infer"
SMALL, LARGE = 100 * b"x", 600_000 * b"x"
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


def echo(exchange: Exchange) -> None:
    """Small bodies go back as they are; of large ones only 4 KB, as a model's answer might be."""
    body = exchange.request.body
    exchange.respond(200, [body] if len(body) <= 4096 else [body[:4096]])


async def serve() -> None:
    listener = Listener(echo)
    await listener.start(port=0)
    print(listener.url, flush=True)
    await asyncio.to_thread(sys.stdin.read)  # the parent closes it when it is done
    await listener.drain(1)


@contextmanager
def server(loop: str) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "benchmarks.http_echo", "--serve", "--loop", loop]
    with subprocess.Popen(
        command, cwd=harness.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.stdin.close()


def measure(url: str, pid: int, connections: int, body: bytes, seconds: float) -> dict[str, float]:
    before = harness.precise_cpu_seconds(pid)
    result = harness.wrk(
        url + PATH,
        connections=connections,
        seconds=seconds,
        body=body,
        headers={"Content-Type": "application/json"},
    )
    used = harness.precise_cpu_seconds(pid) - before
    return {"cpu_us": used * 1e6 / result["requests"], **result}


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--loop", choices=LOOPS, default="uvloop")
    parser.add_argument("--serve", action="store_true", help="be the server")
    options = parser.parse_args()
    if options.serve:
        with asyncio.Runner(loop_factory=LOOPS[options.loop]) as runner:
            return runner.run(serve())
    rows: list[dict[str, Any]] = []
    with server(options.loop) as (url, pid):
        measure(url, pid, 1, SMALL, 1)  # the first requests pay for caches
        for name, body in (("100 B", SMALL), ("600 KB", LARGE)):
            for connections in (1, 16, 64):
                runs = [
                    measure(url, pid, connections, body, options.seconds)
                    for _ in range(options.rounds)
                ]
                middle = {key: median(run[key] for run in runs) for key in runs[0]}
                rows.append({"what": f"{name}, {connections} connections"} | {
                    "CPU us/request": middle["cpu_us"],
                    "requests/s": middle["rate"],
                    "p50 ms": middle["p50_ms"],
                    "p99 ms": middle["p99_ms"],
                    "errors": int(sum(run["errors"] for run in runs)),
                })  # fmt: skip
    harness.report(f"bare HTTP echo, {options.loop}", rows, options.json)


if __name__ == "__main__":
    main()
