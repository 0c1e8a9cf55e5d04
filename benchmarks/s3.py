"""How do the experiments of seed S3 (local calls instead of RPC) come out here?

    python -m benchmarks.s3 [--seconds 3] [--rounds 3] [--json benchmarks/results/s3.json]

Wants wrk, and the environment that `make demo-ocr` makes; in that of `make test` it also
measures gRPC.

Every row of its table: the same work called in this process from threads, and served over HTTP
(wrk is the client) and gRPC. Beside it stand the figures that torchpipe and Triton published for
their own machine and network, and what of them may be compared:

    yes           the work is nothing: what is left is the software, and a core is about a core
    per core      the work fills the cores, and theirs had more of them
    local : RPC   another network on another device: only how the two ways compare with each other
    no            the client (Python, over gRPC) costs more than the server
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import wherry
from benchmarks.harness import arguments, report, server, wrk

OVERHEAD, CORES, OTHER = "yes", "per core", "local : RPC"

PAGE_LINES = ("One line", "Another line")


class Row(dict[str, Any]):
    """A line of the report."""

    def __init__(
        self,
        what: str,
        clients: int,
        way: str,
        measured: dict[str, float],
        *,
        torchpipe: str = "",
        triton: str = "",
        comparable: str = "",
    ) -> None:
        super().__init__(
            {
                "what": what,
                "clients": clients,
                "way": way,
                "calls/s": round(measured["rate"]),
                "p50 ms": round(measured["p50_ms"], 3),
                "p99 ms": round(measured["p99_ms"], 3),
                "torchpipe": torchpipe,
                "Triton": triton,
                "comparable": comparable,
            }
        )
        print(*self.values(), sep="  ", flush=True)


def median_of(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def local(call: Callable[[], object], clients: int, options: Any) -> dict[str, float]:
    """So many threads that call again as soon as they have their answer."""
    return median_of([_local(call, clients, options.seconds) for _ in range(options.rounds)])


def _local(call: Callable[[], object], clients: int, seconds: float) -> dict[str, float]:
    times: list[list[float]] = [[] for _ in range(clients)]
    stop_at = time.perf_counter() + seconds

    def work(mine: list[float]) -> None:
        now = time.perf_counter()
        while now < stop_at:
            call()
            before, now = now, time.perf_counter()
            mine.append(now - before)

    call()
    threads = [threading.Thread(target=work, args=(mine,)) for mine in times]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - started
    all_ms = np.array([1000 * one for mine in times for one in mine])
    p50, p99 = np.percentile(all_ms, [50, 99])
    return {"rate": len(all_ms) / elapsed, "p50_ms": float(p50), "p99_ms": float(p99)}


def over_http(
    url: str, model: str, inputs: dict[str, Any], clients: int, options: Any
) -> dict[str, float]:
    body, headers = request(inputs)
    target = f"{url}/v2/models/{model}/infer"
    wrk(target, connections=clients, seconds=1, body=body, headers=headers)
    runs = [
        wrk(target, connections=clients, seconds=options.seconds, body=body, headers=headers)
        for _ in range(options.rounds)
    ]
    if errors := sum(run["errors"] for run in runs):
        raise SystemExit(f"{model}: {errors:.0f} requests failed")
    return median_of(runs)


def request(inputs: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    """A V2 request of one row: text and numbers as JSON, bytes as binary data."""
    tensors: list[dict[str, Any]] = []
    binary = b""
    for name, value in inputs.items():
        tensor: dict[str, Any] = {"name": name, "shape": [1], "datatype": "BYTES"}
        if isinstance(value, bytes):
            packed = len(value).to_bytes(4, "little") + value
            tensor["parameters"] = {"binary_data_size": len(packed)}
            binary += packed
        else:
            tensor |= {"data": [value]} | ({"datatype": "INT64"} if isinstance(value, int) else {})
        tensors.append(tensor)
    head = json.dumps({"inputs": tensors}).encode()
    if not binary:
        return head, {"Content-Type": "application/json"}
    return head + binary, {"Inference-Header-Content-Length": str(len(head))}


def over_grpc(
    url: str, model: str, inputs: dict[str, Any], clients: int, options: Any
) -> dict[str, float]:
    """tritonclient's threads are the clients: they cost more than the server."""
    import tritonclient.grpc as triton

    tensors = []
    for name, value in inputs.items():
        tensor = triton.InferInput(name, [1], "BYTES")
        data = value if isinstance(value, bytes) else str(value).encode()
        tensor.set_data_from_numpy(np.array([data], np.object_))
        tensors.append(tensor)
    client = triton.InferenceServerClient(url)
    try:
        return local(lambda: client.infer(model, tensors), clients, options)
    finally:
        client.close()


def main() -> None:
    parser = arguments(__doc__)
    options = parser.parse_args()
    try:
        from benchmarks import s3_models as models
        from examples.ocr.page import photo
    except ImportError as error:
        raise SystemExit(
            f"{error}; `make demo-ocr` makes an environment that has all of it:"
            " .venv/bin/python -m benchmarks.s3"
        ) from None
    grpc_port = _free_port() if importlib.util.find_spec("tritonclient") else None
    if grpc_port is None:
        sys.stderr.write("no tritonclient here: the gRPC rows are left out\n")
    serve = ["benchmarks/s3_models.py"]
    if grpc_port is not None:
        serve += ["--grpc-port", str(grpc_port)]
    page, picture = photo(PAGE_LINES), models.jpeg()
    rows: list[Row] = []
    everything = (
        models.single, models.four, models.four_10ms, models.sum_in_threads,
        models.sum_in_processes, models.jpeg_size, models.decode, models.detect, models.lines,
    )  # fmt: skip
    with wherry.Runtime(*everything) as runtime:
        rows += local_rows(runtime, page, picture, options)
    with server(*serve) as (url, _):
        grpc = None if grpc_port is None else f"127.0.0.1:{grpc_port}"
        rows += served_rows(url, grpc, page, picture, options)
    rows.sort(key=lambda row: ORDER.index(row["what"]))
    report("seed S3: local calls instead of RPC", rows, options.json)


ORDER = [
    "echo, max batch 1",
    "echo, max batch 4, delay 10 ms",
    "echo, max batch 4, nothing set",
    "sum of 1..100000, threads",
    "sum of 1..100000, processes",
    "JPEG decode 640x444",
    "decode + image network",
]

#: Published: at 1, 2, 4 and 10 clients.
ADAPTIVE = {
    1: ("p50 0.25", "p50 10.5"),
    2: ("p50 10.25", "p50 10.57"),
    4: ("p50 0.34", "p50 0.5"),
    10: ("p50 0.82", "p50 0.97"),
}


def local_rows(runtime: wherry.Runtime, page: bytes, picture: bytes, options: Any) -> list[Row]:
    rows: list[Row] = []

    def row(what: str, clients: int, call: Callable[[], object], **published: str) -> None:
        rows.append(Row(what, clients, "local", local(call, clients, options), **published))

    echo: Callable[[], object] = lambda: runtime.infer("single", text="x")  # noqa: E731
    row(ORDER[0], 1, echo, torchpipe="65,227/s", comparable=OVERHEAD)
    row(ORDER[0], 10, echo, torchpipe="46,655/s", comparable=OVERHEAD)
    for what, model in ((ORDER[1], "four_10ms"), (ORDER[2], "four")):
        for clients, (torchpipe, _) in ADAPTIVE.items():
            call: Callable[[], object] = lambda model=model: runtime.infer(  # type: ignore[misc]  # noqa: E731
                model, text="x"
            )
            row(what, clients, call, torchpipe=torchpipe, comparable=OVERHEAD)
    for what, model, published in (
        (ORDER[3], "sum_in_threads", "233/s"),
        (ORDER[4], "sum_in_processes", "872/s"),
    ):
        call = lambda model=model: runtime.infer(model, n=100_000)  # type: ignore[misc]  # noqa: E731
        row(what, 10, call, torchpipe=published, comparable=CORES)
    for clients in (1, 10):
        row(ORDER[5], clients, lambda: runtime.infer("jpeg_size", jpeg=picture), comparable=CORES)
        published = "559/s" if clients == 1 else "1303/s"
        row(
            ORDER[6],
            clients,
            lambda: runtime.infer("lines", jpeg=page),
            torchpipe=published,
            comparable=OTHER,
        )
    return rows


def served_rows(url: str, grpc: str | None, page: bytes, picture: bytes, options: Any) -> list[Row]:
    rows: list[Row] = []

    def row(what: str, model: str, clients: int, inputs: dict[str, Any], **published: str) -> None:
        measured = over_http(url, model, inputs, clients, options)
        rows.append(Row(what, clients, "HTTP", measured, **published))

    text = {"text": "x"}
    for clients, torchpipe, triton in (
        (1, "10,020/s, p50 0.09", "7,342/s, p50 0.23"),
        (10, "13,221/s, p50 0.64", "15,039/s, p50 1.26"),
    ):
        row(ORDER[0], "single", clients, text, torchpipe=torchpipe, triton=triton,
            comparable=OVERHEAD)  # fmt: skip
        if grpc is not None:
            measured = over_grpc(grpc, "single", text, clients, options)
            rows.append(
                Row(ORDER[0], clients, "gRPC", measured, torchpipe=torchpipe, triton=triton,
                    comparable="no")
            )  # fmt: skip
    for what, model in ((ORDER[1], "four_10ms"), (ORDER[2], "four")):
        for clients, (torchpipe, triton) in ADAPTIVE.items():
            row(what, model, clients, text, torchpipe=torchpipe, triton=triton,
                comparable=OVERHEAD)  # fmt: skip
    row(ORDER[3], "sum_in_threads", 10, {"n": 100_000}, torchpipe="233/s", comparable=CORES)
    row(ORDER[4], "sum_in_processes", 10, {"n": 100_000}, torchpipe="872/s", triton="814/s",
        comparable=CORES)  # fmt: skip
    for clients, torchpipe, triton in ((1, "406/s", "339/s"), (10, "1334/s", "1440/s")):
        row(ORDER[5], "jpeg_size", clients, {"jpeg": picture}, torchpipe=torchpipe, triton=triton,
            comparable=CORES)  # fmt: skip
    for clients, torchpipe in ((1, "462/s"), (10, "907/s")):
        row(ORDER[6], "lines", clients, {"jpeg": page}, torchpipe=torchpipe, comparable=OTHER)
    return rows


def _free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
