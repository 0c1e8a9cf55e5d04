"""What does a request cost over gRPC, beside the same request over HTTP? CPU us of the server.

    python -m benchmarks.grpc_echo [--seconds 2] [--rounds 3] [--json PATH]

One server, its model in a thread; ModelInfer of one text, 64 requests at once. gRPC's client is
grpcio itself, in a process of its own; HTTP's is wrk.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from functools import partial
from socket import create_server
from statistics import median
from typing import Any

import grpc.aio
import msgspec

from benchmarks import harness
from wherry.frontends.grpc import proto
from wherry.frontends.v2.element_bytes import pack_bytes

METHOD = "/inference.GRPCInferenceService/ModelInfer"
TEXT = "what a day"
AT_ONCE = 64


def grpc_request(text: str) -> bytes:
    message = proto.load("v2.proto", "model_config.proto").messages["ModelInferRequest"]
    given = {"name": "text", "datatype": "BYTES", "shape": [1]}
    raw = [pack_bytes([text.encode()])]
    return message.encode({"model_name": "echo", "inputs": [given], "raw_input_contents": raw})


def http_request(text: str) -> bytes:
    given = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}
    return msgspec.json.encode({"inputs": [given]})


async def load(address: str, at_once: int, seconds: float) -> dict[str, float]:
    """Be the client: so many requests in flight over one connection."""
    body = grpc_request(TEXT)
    latencies: list[float] = []
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(METHOD)
        ends = time.perf_counter() + seconds

        async def one_after_the_other() -> None:
            while (begun := time.perf_counter()) < ends:
                await call(body)
                latencies.append(time.perf_counter() - begun)

        await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    latencies.sort()
    return {
        "requests": len(latencies),
        "rate": len(latencies) / seconds,
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1e3,
    }


def over_grpc(address: str, at_once: int, seconds: float) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.grpc_echo", "--load", address]
    command += ["--at-once", str(at_once), "--seconds", str(seconds)]
    output = subprocess.run(command, cwd=harness.ROOT, capture_output=True, check=True).stdout
    result: dict[str, float] = msgspec.json.decode(output)
    return result


def over_http(url: str, at_once: int, seconds: float) -> dict[str, float]:
    return harness.wrk(
        f"{url}/v2/models/echo/infer",
        connections=at_once,
        seconds=seconds,
        body=http_request(TEXT),
        headers={"Content-Type": "application/json"},
    )


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--load", metavar="ADDRESS", help="be the client")
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    options = parser.parse_args()
    if options.load:
        result = asyncio.run(load(options.load, options.at_once, options.seconds))
        sys.stdout.write(msgspec.json.encode(result).decode())
        return
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    rows: list[dict[str, Any]] = []
    served = ["benchmarks/models.py:echo", "--isolation", "thread", "--grpc-port", str(port)]
    with harness.server(*served) as (url, pid):
        for what, ask in (
            ("gRPC", partial(over_grpc, f"127.0.0.1:{port}")),
            ("HTTP", partial(over_http, url)),
        ):
            ask(8, 1)  # the first requests pay for caches
            for at_once in (1, options.at_once):
                runs = []
                for _ in range(options.rounds):
                    before = harness.precise_cpu_seconds(pid)
                    run = ask(at_once, options.seconds)
                    used = harness.precise_cpu_seconds(pid) - before
                    runs.append({**run, "cpu_us": used * 1e6 / run["requests"]})
                middle = {key: median(run[key] for run in runs) for key in runs[0]}
                rows.append({
                    "what": f"{what}, {at_once} at once",
                    "CPU us/request": middle["cpu_us"],
                    "requests/s": middle["rate"],
                    "p50 ms": middle["p50_ms"],
                    "p99 ms": middle["p99_ms"],
                })  # fmt: skip
    harness.report("echo of one text over gRPC and over HTTP", rows, options.json)


if __name__ == "__main__":
    main()
