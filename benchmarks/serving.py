"""What does one request over HTTP cost, and how close does a device come to its ideal?

    python -m benchmarks.serving [--only echo] [--json benchmarks/results/serving.json]

Rows: JSON echo in batches of up to 32 and with max batch 1, through thread and process instances,
at 1, 16 and 64 connections; 600 KB binary tensors; a simulated device of 5 ms + 0.2 ms a row, whose
ideal is all callers in one batch each time; seed S3's echo with max batch 4, which Triton answers
in 10.8 / 11.1 / 0.76 / 1.09 ms (median, with a delay of 10 ms) at 1 / 2 / 4 / 10 connections. The
load generator (wrk, one thread) shares the machine.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import arguments, precise_cpu_seconds, report, server, wrk

TEXT = json.dumps(
    {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["hello wherry"]}]}
).encode()


def image_body() -> tuple[bytes, dict[str, str]]:
    pixels = np.zeros((1, 3, 224, 224), np.float32).tobytes()
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "pixels",
                    "shape": [1, 3, 224, 224],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": len(pixels)},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    return head + pixels, {"Inference-Header-Content-Length": str(len(head))}


def measure(
    what: str,
    url: str,
    pid: int,
    model: str,
    connections: int,
    options: Any,
    *,
    body: bytes = TEXT,
    headers: dict[str, str] | None = None,
    ideal: Callable[[int], float] | None = None,
) -> dict[str, Any]:
    target = f"{url}/v2/models/{model}/infer"
    wrk(target, connections=connections, seconds=1, body=body, headers=headers)
    runs = []
    for _ in range(options.rounds):
        before = precise_cpu_seconds(pid)
        run = wrk(target, connections=connections, seconds=options.seconds, body=body,
                  headers=headers)  # fmt: skip
        run["cpu_us"] = (precise_cpu_seconds(pid) - before) / run["requests"] * 1e6
        runs.append(run)
    median = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    row = {
        "what": what,
        "connections": connections,
        "CPU us/request": round(median["cpu_us"], 1),
        "requests/s": round(median["rate"]),
        "p50 ms": round(median["p50_ms"], 3),
        "p99 ms": round(median["p99_ms"], 3),
        "errors": int(median["errors"]),
        "% of ideal": round(100 * median["rate"] / ideal(connections), 1) if ideal else "",
    }
    print(*row.values(), flush=True)
    return row


def ideal_device(callers: int) -> float:
    rows = min(callers, 32)
    return rows / (0.005 + 0.0002 * rows)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()
    body, headers = image_body()
    rows: list[dict[str, Any]] = []
    for isolation in ("thread", "process"):
        plan: list[tuple[str, int, dict[str, Any]]] = [
            *(("echo", c, {}) for c in (1, 16, 64)),
            *(("single", c, {}) for c in (1, 64)),
            *(("four", c, {}) for c in (1, 2, 4, 10)),
            *(("image", c, {"body": body, "headers": headers}) for c in (1, 16)),
            *(("device", c, {"ideal": ideal_device}) for c in (1, 4, 16, 64, 128)),
        ]
        plan = [row for row in plan if options.only in f"{row[0]} {isolation}"]
        if not plan:
            continue
        with server("benchmarks/models.py", "--isolation", isolation) as (url, pid):
            rows += [
                measure(f"{model} {isolation}", url, pid, model, connections, options, **extra)
                for model, connections, extra in plan
            ]
    report("wherry serve, one front process, wrk with one thread", rows, options.json)


if __name__ == "__main__":
    main()
