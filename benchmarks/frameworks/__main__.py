"""How many reviews a second does one classifier read in FastAPI, LitServe, BentoML, Ray Serve and
wherry, and what do callers wait?

    python -m benchmarks.frameworks --python PYTHON [--only wherry,fastapi] [--json PATH]

PYTHON has an environment with all of them (pip install . scikit-learn fastapi uvicorn litserve
bentoml 'ray[serve]'). Servers run one after the other, in an order that is drawn for each round,
each as its own documentation starts it, with one copy of the model. wrk asks a row at a time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from benchmarks import harness

CALLERS = (1, 8, 32, 128)
REVIEW = "the hotel was lovely, and never failed me"
HEADERS = {"Content-Type": "application/json"}
HERE = "benchmarks.frameworks"
#: What a client sends, where that is not {"text": ...}.
BODIES: dict[str, dict[str, Any]] = {"BentoML": {"texts": [REVIEW]}}
#: How each is started; its port follows.
COMMANDS = {
    "FastAPI": ["-m", "uvicorn", f"{HERE}.fastapi_app:app", "--log-level", "warning", "--port"],
    "LitServe": ["-m", f"{HERE}.litserve_app"],
    "BentoML": ["-m", "bentoml", "serve", f"{HERE}.bentoml_app:Reviews", "--port"],
    "Ray Serve": ["-m", f"{HERE}.ray_app"],
    "wherry": ["-m", "wherry", "serve", f"{HERE}.wherry_app", "--no-access-log", "--port"],
}
#: Seconds for a server to answer.
PATIENCE = 120.0


@contextmanager
def running(python: str, framework: str) -> Iterator[tuple[str, int]]:
    """Its URL and process id, once it answers rightly."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [python, *COMMANDS[framework], str(port)],
        cwd=harness.ROOT,
        env={**os.environ, "PYTHONPATH": str(harness.ROOT), "RAY_DEDUP_LOGS": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}/predict"
    try:
        wait_until_right(url, body_of(framework), process)
        yield url, process.pid
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        process.wait()


def body_of(framework: str) -> bytes:
    return json.dumps(BODIES.get(framework, {"text": REVIEW})).encode()


def wait_until_right(url: str, body: bytes, process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            request = urllib.request.Request(url, body, HEADERS)
            with urllib.request.urlopen(request, timeout=10) as answer:
                assert b"good" in answer.read()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > ends:
                raise SystemExit(f"{process.args!r} does not answer") from None
            time.sleep(0.2)


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--python", required=True, help="of an environment with all of them")
    parser.add_argument("--only", default=",".join(COMMANDS), help="frameworks (%(default)s)")
    options = parser.parse_args()
    frameworks = [one for one in COMMANDS if one.lower() in options.only.lower().split(",")]
    runs: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for framework in random.sample(frameworks, len(frameworks)):
            with running(options.python, framework) as (url, pid):
                for callers in CALLERS:
                    how: dict[str, Any] = {"body": body_of(framework), "headers": HEADERS}
                    harness.wrk(url, connections=callers, seconds=1, **how)  # to warm up
                    load = harness.Load(pid)
                    found = harness.wrk(url, connections=callers, seconds=options.seconds, **how)
                    found["cpu_us"] = load.since()["cpu_seconds"] / found["requests"] * 1e6
                    runs.setdefault((framework, callers), []).append(found)
    rows = [
        {"what": framework, "callers": callers}
        | {key: median(run[key] for run in each) for key in ("rate", "p50_ms", "p95_ms", "cpu_us")}
        | {
            "least": min(run["rate"] for run in each),
            "most": max(run["rate"] for run in each),
            "errors": sum(run["errors"] for run in each),
        }
        for (framework, callers), each in sorted(
            runs.items(), key=lambda one: (frameworks.index(one[0][0]), one[0][1])
        )
    ]
    harness.report("one scikit-learn text classifier, a row a request", rows, options.json)


if __name__ == "__main__":
    main()
