"""How long do a start, one more replica, a replacement and a roll take, and what is lost?

    python -m benchmarks.ray.times [--on ray] [--on local] [--rounds 3] [--json PATH]

`wherry serve --on ...` with the simulated device and 32 callers in a loop. "start" is from the
command to its readiness (on Ray with the start of a local Ray), "one more" from the decision to
its first rows, "replaced" from SIGKILL of an owner's actor or process to the rows of its successor,
"roll" is that of two owners. "lost" are requests that were not answered with 200.
"""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, arguments, report
from wherry.client import Client
from wherry.testing import ServerProcess
from wherry.values.errors import WherryError

DEVICE = "benchmarks/models.py:device"
CALLERS = 32


def waited(server: ServerProcess, text: str, count: int = 1) -> float:
    """Seconds until the log has this so many times."""
    started = time.perf_counter()
    while server.log.count(text) < count:
        time.sleep(0.005)
    return time.perf_counter() - started


@contextmanager
def callers(url: str) -> Iterator[list[int]]:
    """Callers in a loop; yields how many requests were answered, and how many were lost."""
    seen, ends = [0, 0], threading.Event()

    def call() -> None:
        with Client(url) as client:
            while not ends.is_set():
                try:
                    client.infer("device", text="hello")
                    seen[0] += 1
                except (OSError, WherryError):
                    seen[1] += 1

    threads = [threading.Thread(target=call) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def owner_to_kill(front: int, on: str) -> int:
    """An owner's process, or the actor that is its parent."""
    parents = {}
    for one in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(one.parent.name)] = int(one.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    for pid in parents:
        above = list(itertools.takewhile(lambda p: p > 1, _ancestors(pid, parents)))
        command = (Path("/proc") / str(pid) / "cmdline").read_bytes()
        if front in above and b"--stop-fd" in command:
            return pid if on == "local" else parents[pid]
    raise SystemExit("no owner is there")


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid in parents:
        pid = parents[pid]
        yield pid


def times(on: str) -> dict[str, float]:
    """One run."""
    found: dict[str, float] = {}
    flags = ["--on", on, "--replicas", "1..2", "--target-wait", "0.001"]
    started = time.perf_counter()
    with ServerProcess(DEVICE, *flags, cwd=str(ROOT)) as server:
        found["start s"] = time.perf_counter() - started
        with callers(server.url) as seen:
            waited(server, "replicas wanted")
            found["one more s"] = waited(server, "replica serves", 2)
            os.kill(owner_to_kill(server.pid, on), signal.SIGKILL)
            found["replaced s"] = waited(server, "replica serves", 3)
            gone = server.log.count("replica is gone")
            server.send(signal.SIGUSR1)
            found["roll s"] = waited(server, "replica is gone", gone + 2)
        found["answered"], found["lost"] = seen
    return found


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--on", action="append", choices=("ray", "local"))
    options = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    rows: list[dict[str, Any]] = []
    for on in options.on or ("local", "ray"):
        runs = [times(on) for _ in range(options.rounds)]
        medians = {name: statistics.median([run[name] for run in runs]) for name in runs[0]}
        rows.append({"what": on, **medians, "lost": sum(run["lost"] for run in runs)})
    report(f"{CALLERS} callers, one to two replicas, medians", rows, options.json)


if __name__ == "__main__":
    main()
