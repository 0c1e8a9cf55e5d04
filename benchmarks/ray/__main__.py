"""How many rows/s do two replicas of a device answer on Ray, by which way?

    python -m benchmarks.ray [--callers 64] [--json benchmarks/results/ray.json]

The simulated device (5 ms + 0.2 ms a row, at most 32 rows: 2807 rows/s, two of them 5614) over V2
HTTP from wrk, all ways on one local Ray, in turns. Ray Serve is as fast as it goes: its HAProxy
and RAY_SERVE_THROUGHPUT_OPTIMIZED (they need the ports 9101 and 8404); with --python-proxy as it
comes. "of ideal" is of those 5614. What runs:

    ray_serve   wherry.deploy.ray_serve in Ray Serve
    servers     deploy/ray/servers.py: whole wherry servers as actors, behind deploy/haproxy; only
                where there is a HAProxy
    batch 10ms  @serve.batch as it comes, but with enough requests at once to fill batches
    batch 0ms   the same with batch_wait_timeout_s=0
    batch 5     the same with Ray Serve's default of five requests at once

The client and Ray's own processes share the cores: ratios hold, absolute figures do not.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, arguments, cpu_seconds, report, wrk

IDEAL = 2 * 32 / (0.005 + 32 * 0.0002)
BODY = json.dumps(
    {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["hello"]}]}
).encode()
DEVICE = "benchmarks/models.py:device"
INFER = "/v2/models/device/infer"


@contextmanager
def ray_serve_ways(*, python_proxy: bool) -> Iterator[dict[str, str]]:
    """The URLs of the ways in Ray Serve, by name."""
    os.environ.update(RAY_worker_niceness="0", RAY_USAGE_STATS_ENABLED="0")
    if not python_proxy:
        os.environ.update(RAY_SERVE_ENABLE_HA_PROXY="1", RAY_SERVE_THROUGHPUT_OPTIMIZED="1")
    import ray
    from ray import serve

    from benchmarks.ray.serve_batch import application
    from wherry.deploy import ray_serve

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="ray-")
    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
    serve.start(
        http_options={"host": "127.0.0.1", "port": port},
        logging_config={"enable_access_log": False},
    )
    ways = {
        "ray_serve": ray_serve(DEVICE, num_replicas=2, ray_actor_options={"num_cpus": 1}),
        "batch 10ms": application(0.01, 100),
        "batch 0ms": application(0.0, 100),
        "batch 5": application(0.01, 5),
    }
    urls = {}
    for number, (name, way) in enumerate(ways.items()):
        serve.run(way, name=name, route_prefix=f"/{number}")
        urls[name] = f"http://127.0.0.1:{port}/{number}{INFER}"
    try:
        if shutil.which("haproxy") is None:
            yield urls
            return
        with whole_servers(Path(folder), ray.get_runtime_context().gcs_address) as url:
            yield {**urls, "servers": url}
    finally:
        ray.shutdown()


@contextmanager
def whole_servers(folder: Path, address: str) -> Iterator[str]:
    """The URL of two servers that deploy/ray/servers.py starts on the Ray at `address`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = (ROOT / "deploy/haproxy/haproxy.cfg").read_text().partition("frontend grpc")[0]
    text = re.sub(r" +server h[34] .*\n", "", text).replace("bind :8080", f"bind 127.0.0.1:{port}")
    text = text.replace("\nglobal\n", f"\nglobal\n    stats socket {folder}/admin level admin\n")
    (folder / "haproxy.cfg").write_text(text)
    proxy = subprocess.Popen(["haproxy", "-q", "-db", "-f", folder / "haproxy.cfg"])
    started: list[str] = []
    recipe = None
    try:
        while not (folder / "admin").exists():
            if proxy.poll() is not None:
                raise RuntimeError("haproxy has ended")
            time.sleep(0.05)
        recipe = subprocess.Popen(
            [sys.executable, ROOT / "deploy/ray/servers.py", DEVICE, f"--haproxy={folder}/admin"],
            env={**os.environ, "RAY_ADDRESS": address}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert recipe.stdout is not None
        while len(started) < 2:
            line = recipe.stdout.readline()
            if not line:
                raise RuntimeError("deploy/ray/servers.py has ended")
            started += [line] if re.match(r"h\d ", line) else []
        time.sleep(3)  # HAProxy's checks, and its slow start
        yield f"http://127.0.0.1:{port}{INFER}"
    finally:
        for process in (recipe, proxy):
            if process is not None:
                process.terminate()
                process.wait()


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--python-proxy", action="store_true", help="Ray Serve as it comes")
    options = parser.parse_args()
    figures: dict[str, list[dict[str, float]]] = {}
    with ray_serve_ways(python_proxy=options.python_proxy) as urls:
        measure(urls, options, figures)
    rows: list[dict[str, Any]] = []
    for name, runs in figures.items():
        rate, p50, cpu = (
            statistics.median([run[key] for run in runs]) for key in ("rate", "p50_ms", "cpu_us")
        )
        first = next(iter(figures.values()))
        times = [one["rate"] / run["rate"] for one, run in zip(first, runs, strict=True)]
        rows.append({
            "what": name, "rows/s": rate, "of ideal": rate / IDEAL, "p50 ms": p50,
            "CPU us/row": cpu, "first is so many times this": statistics.median(times),
            "errors": sum(run["errors"] for run in runs),
        })  # fmt: skip
    report(f"{options.callers} callers, two replicas", rows, options.json)


def measure(urls: dict[str, str], options: Any, figures: dict[str, list[dict[str, float]]]) -> None:
    for name, url in urls.items():
        wrk(url, connections=options.callers, seconds=1, body=BODY)
        figures[name] = []
    for _ in range(options.rounds):
        for name, url in urls.items():
            before = servers_seconds()
            run = wrk(url, connections=options.callers, seconds=options.seconds, body=BODY)
            run["cpu_us"] = (servers_seconds() - before) / run["requests"] * 1e6
            figures[name].append(run)


def servers_seconds() -> float:
    """The CPU time of all that this process has started, but for wrk: what it has waited for."""
    waited = resource.getrusage(resource.RUSAGE_CHILDREN)
    return cpu_seconds(os.getpid()) - time.process_time() - waited.ru_utime - waited.ru_stime


if __name__ == "__main__":
    main()
