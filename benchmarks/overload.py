"""What is left of a device's rows/s when far more callers come than it can serve in time?

    python -m benchmarks.overload [--json benchmarks/results/overload.json]

The simulated device (5 ms + 0.2 ms a row, at most 32 rows: 2807 rows/s) behind HTTP, callers in a
loop whose requests have a timeout of 0.3 s; then a slower one (200 rows/s) whose callers set no
timeout, bounded by `max_queue_wait` alone (1 s). One that is refused pauses for 0.2 s, less than
its Retry-After may say. Good answers, how fast they were, and how fast the others were refused.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

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
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: device\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


@dataclass
class Seen:
    """Seconds of each answer by status, and refusals without Retry-After."""

    seconds: dict[int, list[float]] = field(default_factory=dict)
    without_hint: int = 0


async def caller(port: int, request: bytes, stop_at: float, seen: Seen) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (started := time.perf_counter()) < stop_at:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        status = int(head[9:12])
        seen.seconds.setdefault(status, []).append(time.perf_counter() - started)
        if status == 429:
            seen.without_hint += b"retry-after:" not in head
            await asyncio.sleep(PAUSE)
    writer.close()


async def load(port: int, request: bytes, callers: int, seconds: float) -> Seen:
    seen = Seen()
    stop_at = time.perf_counter() + seconds
    await asyncio.gather(*(caller(port, request, stop_at, seen) for _ in range(callers)))
    return seen


def percentile_ms(seconds: list[float], share: float) -> float | str:
    return round(1e3 * sorted(seconds)[int(share * len(seconds))], 1) if seconds else ""


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(seconds=4.0)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with server("benchmarks/models.py", "--isolation", "thread") as (url, _):
        port = urlsplit(url).port
        assert port is not None
        plan = [(model, timeout, n) for model, timeout, many in LOADS for n in many]
        for model, timeout, callers in plan:
            request = request_bytes(model, timeout)
            seen = asyncio.run(load(port, request, callers, options.seconds))
            good, refused = seen.seconds.get(200, []), seen.seconds.get(429, [])
            others = Counter({s: len(t) for s, t in seen.seconds.items() if s not in (200, 429)})
            rows.append(
                {
                    "what": f"{model}, {callers} callers",
                    "good/s": round(len(good) / options.seconds),
                    "p50 ms": percentile_ms(good, 0.5),
                    "p99 ms": percentile_ms(good, 0.99),
                    "refused/s": round(len(refused) / options.seconds),
                    "refused p50 ms": percentile_ms(refused, 0.5),
                    "refused p99 ms": percentile_ms(refused, 0.99),
                    "without Retry-After": seen.without_hint,
                    "other answers": str(dict(others)) if others else "",
                }
            )
    title = "devices for 2807 rows/s (timeout of 0.3 s) and 200 rows/s (no timeout)"
    report(title, rows, options.json)


if __name__ == "__main__":
    main()
