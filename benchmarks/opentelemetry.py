"""What does OpenTelemetry cost a request: switched off, on at 1 %, on for all?

    python -m benchmarks.opentelemetry [--before TREE] [--seconds 2] [--rounds 15] [--json FILE]

CPU of a server's whole process tree for a request, V2 JSON over HTTP to a worker process. All
servers are started at once and asked in turns; a ratio is that of two runs of one round, its median
over the rounds is shown with the range in which half of them lie. A collector that reads and drops
takes the spans. `--before` is a working tree of an earlier commit: what `off` is compared with.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Load, arguments, report, wrk
from wherry.testing.servers import ServerProcess

APP = """
import wherry

@wherry.model(max_batch_size=32)
def echo(text: list[str]) -> list[str]:
    return text

@wherry.model
def single(text: str) -> str:
    return text
"""
BODY = b'{"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["hello"]}]}'
CELLS = (("single", 1), ("echo", 32))


class _Dropped(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _collect(port: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Dropped)
    port.send(server.server_port)
    server.serve_forever()


@contextmanager
def _collector() -> Iterator[str]:
    context = get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=_collect, args=(its,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{mine.recv()}"
    finally:
        process.terminate()
        process.join()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--before", type=Path, help="a working tree of an earlier commit")
    parser.set_defaults(rounds=15)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        (Path(folder) / "app.py").write_text(APP)
        url = stack.enter_context(_collector())
        on = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
        ratio = {**on, "OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}
        kinds = {
            **({"before": {"PYTHONPATH": str(options.before)}} if options.before else {}),
            "off": {},
            "off, again": {},
            "on, 1 %": {**ratio, "OTEL_TRACES_SAMPLER_ARG": "0.01"},
            "on, all": on,
        }
        servers = {
            name: stack.enter_context(
                ServerProcess("app.py", cwd=folder, env={"PYTHONPATH": str(ROOT), **variables})
            )
            for name, variables in kinds.items()
        }
        rows = [
            row
            for model, callers in CELLS
            for row in _cell(servers, model, callers, options.seconds, options.rounds)
        ]
    report("OpenTelemetry: CPU us for a request", rows, options.json)


def _cell(
    servers: dict[str, ServerProcess], model: str, callers: int, seconds: float, rounds: int
) -> list[dict[str, Any]]:
    found: dict[str, list[float]] = {name: [] for name in servers}
    foreign: list[float] = []
    for number in range(rounds + 1):
        for name in random.sample(list(servers), len(servers)):
            server = servers[name]
            load = Load(server.pid)
            told = wrk(
                f"{server.url}/v2/models/{model}/infer",
                connections=callers,
                seconds=seconds,
                body=BODY,
            )
            used = load.since()
            if number:  # the first round warms up
                found[name].append(used["cpu_seconds"] / told["requests"] * 1e6)
                foreign.append(used["foreign"])
    rows = []
    for name, costs in found.items():
        ratios = [mine / its for mine, its in zip(costs, found["off"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        rows.append(
            {
                "what": f"{model}, {callers} callers: {name}",
                "cpu us": statistics.median(costs),
                "beside off": middle,
                "half within": f"{low:.3f}-{high:.3f}",
                "foreign": statistics.median(foreign),
            }
        )
    return rows


if __name__ == "__main__":
    os.environ.pop("OTEL_EXPORTER_OTLP_ENDPOINT", None)
    main()
