"""What do wrk (HTTP) and h2load (gRPC) say about a server? One run each, in the same figures."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import quantiles

from benchmarks import harness
from benchmarks.peers.cells import Request

METHOD = "/inference.GRPCInferenceService/ModelInfer"


def missing(protocol: str) -> str | None:
    """Why this client cannot run."""
    client = "h2load" if protocol == "grpc" else "wrk"
    return None if shutil.which(client) else f"{client} is not installed"


def run(
    protocol: str, url: str, request: Request, callers: int, seconds: float
) -> dict[str, float]:
    """requests, rate (1/s), p50_ms, p99_ms, errors; `seconds` are whole ones for wrk."""
    if protocol == "grpc":
        return _h2load(url, request, callers, seconds)
    return harness.wrk(
        url, connections=callers, seconds=seconds, body=request.body, headers=request.headers
    )


def _h2load(
    url: str, request: Request, callers: int, seconds: float, tries: int = 5
) -> dict[str, float]:
    """A connection for each caller, with one stream at a time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "message").write_bytes(request.body)
        headers = [f"--header={key}: {value}" for key, value in request.headers.items()]
        output = subprocess.run(
            [
                "h2load", "--threads=1", f"--clients={callers}", "--max-concurrent-streams=1",
                f"--duration={max(1, round(seconds))}", f"--data={folder}/message",
                f"--log-file={folder}/log", *headers, url,
            ],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        lines = (folder / "log").read_text().splitlines()
    done = len(lines)
    if tries > 1 and "0 total, 0 started" in output:  # nothing was answered in all the time
        time.sleep(2)
        return _h2load(url, request, callers, seconds, tries - 1)
    if done < 2:
        raise RuntimeError(f"h2load was answered {done} times:\n{output}")
    milliseconds = [int(line.split("\t")[2]) / 1e3 for line in lines]
    errors = sum(line.split("\t")[1] != "200" for line in lines)
    # A gRPC error comes with status 200 and no message.
    received = int(_figure(r"\((\d+)\) data", output))
    if received < 0.99 * done * request.least_answer:
        errors = done
    cuts = quantiles(milliseconds, n=100)
    return {
        "requests": done,
        "rate": done / max(1, round(seconds)),
        "p50_ms": cuts[49],
        "p99_ms": cuts[98],
        "errors": errors,
    }


def _figure(pattern: str, output: str) -> str:
    found = re.search(pattern, output)
    if found is None:
        raise RuntimeError(f"h2load's output is not understood:\n{output}")
    return found[1]
