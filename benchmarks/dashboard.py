"""What does it cost a server that people watch its numbers?

    python -m benchmarks.dashboard [--seconds 8] [--rounds 3] [--json FILE]

CPU of the server's process by the second, with 0, 1 and 20 viewers who read all that they are sent,
and with 20 who read nothing, in turns: what is shown is the median of the differences to the same
round without viewers. Idle servers, and one whose model answers a steady 100 requests a second.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from benchmarks import harness
from wherry.testing import ServerProcess

APP = """
import wherry

def model(name):
    @wherry.model(name=name, max_batch_size=16, isolation="thread", run_in_caller=False)
    def echo(text: list[str]) -> list[str]:
        return text
    return echo

globals().update({f"m{number}": model(f"m{number}") for number in range(MODELS)})
"""
REQUEST = b'{"text": "a lovely day"}'
VIEWERS = ((1, True), (20, True), (20, False))


@contextmanager
def watching(url: str, viewers: int, *, read: bool) -> Iterator[None]:
    """So many open streams of events."""
    address = urlsplit(url)
    assert address.hostname is not None
    with ExitStack() as stack:
        sockets = []
        for _ in range(viewers):
            sock = socket.create_connection((address.hostname, address.port or 80))
            sockets.append(stack.enter_context(sock))
            sock.sendall(b"GET /dashboard/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        if read:
            readers = [threading.Thread(target=_read, args=(sock,)) for sock in sockets]
            for reader in readers:
                reader.start()
                stack.callback(reader.join)
            for sock in sockets:
                stack.callback(sock.shutdown, socket.SHUT_RDWR)
        yield


def _read(sock: socket.socket) -> None:
    while sock.recv(1 << 16):
        pass


@contextmanager
def calling(url: str, per_second: float) -> Iterator[None]:
    """Steady requests to the first model; none at 0 a second."""
    ends = threading.Event()
    address = urlsplit(url)
    length = f"Content-Length: {len(REQUEST)}"
    head = f"POST /v2/models/m0/generate HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n"

    def call() -> None:
        with socket.create_connection((address.hostname, address.port or 80)) as sock:
            due = time.perf_counter()
            while not ends.wait(max(0.0, due - time.perf_counter())):
                due += 1 / per_second
                sock.sendall(head.encode() + REQUEST)
                sock.recv(1 << 16)

    thread = threading.Thread(target=call)
    if per_second:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        if per_second:
            thread.join()


def used(pid: int, seconds: float) -> float:
    """Milliseconds of CPU by the second."""
    before, began = harness.cpu_seconds(pid), time.perf_counter()
    time.sleep(seconds)
    return 1000 * (harness.cpu_seconds(pid) - before) / (time.perf_counter() - began)


def measured(models: int, per_second: float, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        app = Path(folder) / "app.py"
        app.write_text(APP.replace("MODELS", str(models)))
        found: dict[tuple[int, bool], list[float]] = {which: [] for which in VIEWERS}
        with (
            ServerProcess(str(app), "--log-level", "warning") as server,
            calling(server.url, per_second),
        ):
            for _ in range(args.rounds):
                alone = used(server.pid, args.seconds)
                for viewers, read in VIEWERS:
                    with watching(server.url, viewers, read=read):
                        time.sleep(7)  # until idle models say nothing any more
                        found[viewers, read].append(used(server.pid, args.seconds) - alone)
    for (viewers, read), costs in found.items():
        yield {
            "models": models,
            "requests_per_second": per_second,
            "viewers": viewers,
            "they_read": read,
            "cpu_ms_per_second": median(costs),
            "cpu_ms_per_second_each": median(costs) / viewers,
        }


def main() -> None:
    args = harness.arguments(__doc__).parse_args()
    rows = [
        row
        for models, per_second in ((1, 0.0), (1, 100.0), (50, 0.0))
        for row in measured(models, per_second, args)
    ]
    harness.report("dashboard", rows, args.json)


if __name__ == "__main__":
    main()
