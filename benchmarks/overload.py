"""What is left of a device's rows/s when far more callers come than it can serve in time?

    python -m benchmarks.overload [--isolation process] [--json benchmarks/results/overload.json]

The simulated device (5 ms + 0.2 ms a row, at most 32 rows: 2807 rows/s) behind HTTP, callers in a
loop whose requests have a timeout of 0.3 s; then a slower one (200 rows/s) whose callers set no
timeout, bounded by `max_queue_wait` alone (1 s). One that is refused pauses for 0.2 s on average,
less than its Retry-After may say.

"offered" is all that was asked, refusals too, as a multiple of the model's peak: the most good
answers/s of its rows; "of peak" is what was left of it. The goal: 95 % at an offered 3, and
refusals within 5 ms (p50). The client is one uvloop on the same cores, its time is in all figures.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import uvloop

from benchmarks.harness import arguments, report, server

TIMEOUT = 0.3
PAUSE = 0.2
#: The models, the timeout of their requests, and how many callers there are.
LOADS: tuple[tuple[str, float | None, tuple[int, ...]], ...] = (
    ("device", TIMEOUT, (64, 256, 1000, 2000, 3000)),
    ("slow_device", None, (32, 128, 640)),
)


def request_bytes(model: str, timeout: float | None) -> bytes:
    body = json.dumps(
        {
            "parameters": {} if timeout is None else {"timeout": round(timeout * 1e6)},
            "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["hello"]}],
        }
    ).encode()
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}"
    )
    return head.encode() + b"\r\n\r\n" + body


@dataclass
class Seen:
    """Seconds of each answer by status, refusals without Retry-After, and connections that were
    closed before an answer.
    """

    seconds: dict[int, list[float]] = field(default_factory=dict)
    without_hint: int = 0
    closed: int = 0


class Caller(asyncio.Protocol):
    """Asks again as soon as it is answered, after a pause if it was refused."""

    def __init__(self, request: bytes, seen: Seen) -> None:
        self._request, self._seen = request, seen
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        # Not all at once: the first seconds would be a wave.
        self._loop.call_later(PAUSE * random.random(), self._ask)

    def _ask(self) -> None:
        if not self._over:
            self._started = time.perf_counter()
            self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        head = head.lower()
        if len(body) < int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            return
        self._received = b""
        status = int(head[9:12])
        taken = time.perf_counter() - self._started
        self._seen.seconds.setdefault(status, []).append(taken)
        if status == 429:
            self._seen.without_hint += b"retry-after:" not in head
            self._loop.call_later(PAUSE * (0.5 + random.random()), self._ask)
        else:
            self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        self._seen.closed += not self._over
        self._over = True

    def end(self) -> None:
        self._over = True
        self._transport.close()


async def load(port: int, request: bytes, callers: int, seconds: float) -> Seen:
    """What is seen in so many seconds, after a second that is not counted."""
    loop, seen = asyncio.get_running_loop(), Seen()
    protocols = []
    for _ in range(callers):
        _, protocol = await loop.create_connection(lambda: Caller(request, seen), "127.0.0.1", port)
        protocols.append(protocol)
    await asyncio.sleep(1)
    seen.seconds.clear()
    await asyncio.sleep(seconds)
    for protocol in protocols:
        protocol.end()
    return seen


def percentile_ms(seconds: list[float], share: float) -> float | str:
    return round(1e3 * sorted(seconds)[int(share * len(seconds))], 1) if seconds else ""


def row(what: str, seen: Seen, seconds: float) -> dict[str, Any]:
    good, refused = seen.seconds.get(200, []), seen.seconds.get(429, [])
    others = Counter({s: len(t) for s, t in seen.seconds.items() if s not in (200, 429)})
    if seen.closed:
        others[0] = seen.closed
    return {
        "what": what,
        "offered": sum(len(times) for times in seen.seconds.values()) / seconds,
        "good/s": len(good) / seconds,
        "of peak": "",
        "p50 ms": percentile_ms(good, 0.5),
        "p99 ms": percentile_ms(good, 0.99),
        "refused/s": round(len(refused) / seconds),
        "refused p50 ms": percentile_ms(refused, 0.5),
        "refused p99 ms": percentile_ms(refused, 0.99),
        "without Retry-After": seen.without_hint,
        "other answers (0: closed)": str(dict(others)) if others else "",
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(seconds=4.0)
    parser.add_argument("--isolation", choices=("thread", "process"), default="thread")
    options = parser.parse_args()
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # the server inherits it
    rows: list[dict[str, Any]] = []
    with server("benchmarks/models.py", "--isolation", options.isolation) as (url, _):
        port = urlsplit(url).port
        assert port is not None
        for model, timeout, many in LOADS:
            request = request_bytes(model, timeout)
            found = []
            for callers in many:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    seen = runner.run(load(port, request, callers, options.seconds))
                found.append(row(f"{model}, {callers} callers", seen, options.seconds))
            rows += against_peak(found)
    title = "devices for 2807 rows/s (timeout of 0.3 s) and 200 rows/s (no timeout)"
    report(title, rows, options.json)


def against_peak(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one model, with what was offered and what was left as shares of its peak."""
    peak = max(row["good/s"] for row in rows)
    return [
        {
            **row,
            "offered": f"{row['offered'] / peak:.1f}",
            "good/s": round(row["good/s"]),
            "of peak": f"{row['good/s'] / peak:.0%}",
        }
        for row in rows
    ]


if __name__ == "__main__":
    main()
