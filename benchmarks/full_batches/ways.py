"""How is a model that was just loaded called over HTTP, through two fronts, over gRPC or in its own
process, and which batches did it run?
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.peers import clients
from benchmarks.peers.cells import Cell, request
from benchmarks.peers.servers import free_ports, process

#: What runs in the process that is measured. It is not a package: that would bring the wherry of
#: this tree along.
PROCESS = Path(__file__).parent / "process"
OVER = ("http", "fronts", "grpc", "tasks", "threads")
#: What is looked at is this second of a phase, less a moment before the callers leave.
LOOKED_AT, BEFORE_END = 1.0, 0.1

#: A moment (seconds of perf_counter), and what /batching said then.
Look = tuple[float, dict[str, Any]]


@dataclass(frozen=True)
class Phase:
    """So many callers, each asking again as soon as it is answered, for whole seconds."""

    callers: int
    seconds: int

    @property
    def moments(self) -> tuple[float, float]:
        """Seconds from its start between which its batches are looked at."""
        return self.seconds - LOOKED_AT, self.seconds - BEFORE_END


@dataclass(frozen=True)
class Seen:
    """The two looks at each phase, and the cores that other processes took meanwhile."""

    looks: Sequence[tuple[Look, Look]]
    foreign: float


def run(tree: Path, over: str, model: str, phases: Sequence[Phase]) -> Seen:
    """Start a process with the model and have it called. Blocks."""
    if over in ("http", "fronts", "grpc"):
        return _served(tree, over, model, phases)
    return _in_process(tree, over, model, phases)


def _served(tree: Path, over: str, model: str, phases: Sequence[Phase]) -> Seen:
    http, grpc = free_ports(2)
    command = [sys.executable, "-P", "-m", "wherry", "serve", str(PROCESS / "devices.py")]
    command += ["--port", str(http), "--grpc-port", str(grpc)]
    if over == "fronts":
        command += ["--fronts", "2"]
    base = f"http://127.0.0.1:{http}/v2"
    url, protocol = f"{base}/models/{model}/infer", "json"
    if over == "grpc":
        url, protocol = f"http://127.0.0.1:{grpc}{clients.METHOD}", "grpc"
    ready, env = f"{base}/health/ready", {"PYTHONPATH": str(tree)}
    with process(command, ready, env=env, cwd=tree) as pid, ThreadPoolExecutor(1) as loading:
        load = harness.Load(pid)
        looks = []
        for phase in phases:
            body = request(Cell("", "function", model, protocol, phase.callers), model)  # type: ignore[arg-type] # mypy: one of two literals
            began = time.perf_counter()
            client = loading.submit(
                clients.run, protocol, url, body, phase.callers, float(phase.seconds)
            )
            first, last = (
                _look(f"{base}/models/{model}/batching", began + moment) for moment in phase.moments
            )
            if errors := client.result()["errors"]:
                raise SystemExit(f"{over}, {phase.callers} callers: {errors:.0f} errors")
            looks.append((first, last))
        return Seen(looks, load.since()["foreign"])


def _look(url: str, at: float) -> Look:
    time.sleep(max(0.0, at - time.perf_counter()))
    with urllib.request.urlopen(url) as answer:
        return time.perf_counter(), json.load(answer)


def _in_process(tree: Path, over: str, model: str, phases: Sequence[Phase]) -> Seen:
    asked = {
        "model": model,
        "over": over,
        "phases": [(phase.callers, phase.seconds, phase.moments) for phase in phases],
    }
    with subprocess.Popen(
        [sys.executable, str(PROCESS / "in_process.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tree)},
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(asked) + "\n")
        child.stdin.flush()
        _told(child.stdout.readline())
        load = harness.Load(child.pid)
        looks = [_told(child.stdout.readline()) for _ in phases]
        seen = Seen(looks, load.since()["foreign"])
        child.stdin.close()
        return seen


def _told(line: str) -> Any:
    if not line:
        raise SystemExit("the process with the model has ended")
    return json.loads(line)
