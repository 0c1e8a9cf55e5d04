"""What does a request cost here and in the real Triton, on the same Python models?

    python -m benchmarks.against_triton --triton COMMAND [--seconds 3] [--rounds 3] [--json PATH]

COMMAND starts tritonserver; it is given the repository and the HTTP, gRPC and metrics ports as
four arguments. Both servers run the folder benchmarks/triton_models as it is, in turns within one
run; wrk is the client. The tritonserver inside the PyPI package nvidia-pytriton runs without a GPU
and without a container; its Python stub wants numpy below 2.
"""

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np

from benchmarks import harness

REPOSITORY = harness.ROOT / "benchmarks" / "triton_models"
READY_SECONDS = 120.0

Kind = tuple[str, int, bool]

#: Model, connections, binary tensors or JSON.
KINDS: list[Kind] = [
    ("alone", 1, False),
    ("alone", 1, True),
    ("alone", 16, True),
    ("echo", 1, True),
    ("echo", 16, True),
    ("echo", 64, True),
    ("echo", 64, False),
]


@contextmanager
def triton(command: str) -> Iterator[tuple[str, int, float]]:
    """The real one: its URL, process id and seconds to ready."""
    ports = [str(_free_port()) for _ in range(3)]
    started = time.monotonic()
    process = subprocess.Popen(
        [*shlex.split(command), str(REPOSITORY), *ports],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{ports[0]}"
    try:
        while not _ready(url):
            if process.poll() is not None or time.monotonic() - started > READY_SECONDS:
                raise SystemExit(f"{command!r} did not become ready")
            time.sleep(0.05)
        yield url, process.pid, time.monotonic() - started
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v2/health/ready") as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def body(model: str, binary: bool) -> tuple[bytes, dict[str, str]]:
    """One request of one row, and its headers."""
    row = np.arange(16, dtype=np.float32)
    tensor: dict[str, Any] = {
        "name": "X",
        "datatype": "FP32",
        "shape": [16] if model == "alone" else [1, 16],
    }
    if not binary:
        request = json.dumps({"inputs": [{**tensor, "data": row.tolist()}]}).encode()
        return request, {"Content-Type": "application/json"}
    tensor["parameters"] = {"binary_data_size": row.nbytes}
    head = json.dumps({"parameters": {"binary_data_output": True}, "inputs": [tensor]}).encode()
    return head + row.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def measure(url: str, pid: int, kind: Kind, seconds: float) -> dict[str, float]:
    model, connections, binary = kind
    content, headers = body(model, binary)
    before = harness.precise_cpu_seconds(pid)
    result = harness.wrk(
        f"{url}/v2/models/{model}/infer",
        connections=connections,
        seconds=seconds,
        body=content,
        headers=headers,
    )
    used = harness.precise_cpu_seconds(pid) - before
    return {"cpu_us": used * 1e6 / result["requests"], **result}


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--triton", required=True, help="the command that starts tritonserver")
    options = parser.parse_args()
    started = time.monotonic()
    with harness.server(str(REPOSITORY)) as (ours, our_pid):
        our_ready = time.monotonic() - started
        with triton(options.triton) as (theirs, their_pid, their_ready):
            rows: list[dict[str, Any]] = []
            for kind in KINDS:
                runs = [
                    (
                        measure(ours, our_pid, kind, options.seconds),
                        measure(theirs, their_pid, kind, options.seconds),
                    )
                    for _ in range(options.rounds)
                ]
                rows.append(row(kind, runs))
    harness.report(
        f"Triton's Python backend: ready after {our_ready:.1f} s here, {their_ready:.1f} s there",
        rows,
        options.json,
    )


def row(kind: Kind, runs: list[tuple[dict[str, float], dict[str, float]]]) -> dict[str, Any]:
    model, connections, binary = kind

    def middle(side: int, key: str) -> float:
        return median(run[side][key] for run in runs)

    return {
        "what": f"{model}, {connections} connections, {'binary' if binary else 'JSON'}",
        "CPU us here": middle(0, "cpu_us"),
        "CPU us Triton": middle(1, "cpu_us"),
        "Triton / here": median(theirs["cpu_us"] / ours["cpu_us"] for ours, theirs in runs),
        "req/s here": middle(0, "rate"),
        "req/s Triton": middle(1, "rate"),
        "p50 ms here": middle(0, "p50_ms"),
        "p50 ms Triton": middle(1, "p50_ms"),
        "p99 ms here": middle(0, "p99_ms"),
        "p99 ms Triton": middle(1, "p99_ms"),
        "errors": int(sum(ours["errors"] + theirs["errors"] for ours, theirs in runs)),
    }


if __name__ == "__main__":
    main()
