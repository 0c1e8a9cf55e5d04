"""What do front processes bring on one machine?"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from statistics import median
from typing import Any

from benchmarks.harness import ROOT, Load, server, wrk
from benchmarks.peers.table import median_interval

APP = str(ROOT / "benchmarks" / "fronts" / "app.py")
CONNECTIONS = 64

Row = dict[str, Any]
Runs = dict[str, list[dict[str, float]]]
#: The URL and the process id of each server that is compared, by its name.
Servers = Mapping[str, tuple[str, int]]


def fronts(rounds: int, seconds: float) -> Iterator[Row]:
    """Requests/s and CPU time a request of two fronts, as shares of one process."""
    yield from _fronts(rounds, seconds, contextlib.nullcontext)


def apart(rounds: int, seconds: float) -> Iterator[Row]:
    """The same with servers on three quarters of the processors, or on one of two, and the load on
    the others."""
    cores = sorted(os.sched_getaffinity(0))
    load = cores[-max(1, len(cores) // 4) :]

    @contextlib.contextmanager
    def of_servers() -> Iterator[None]:
        os.sched_setaffinity(0, set(cores) - set(load))  # children have it, too
        yield
        os.sched_setaffinity(0, load)

    try:
        yield from _fronts(rounds, seconds, of_servers)
    finally:
        os.sched_setaffinity(0, cores)


def _fronts(
    rounds: int, seconds: float, of_servers: Callable[[], AbstractContextManager[None]]
) -> Iterator[Row]:
    for isolation in ("thread", "process"):
        with contextlib.ExitStack() as stack:
            with of_servers():
                servers = {
                    name: stack.enter_context(server(APP, "--isolation", isolation, *more))
                    for name, more in (("one", ()), ("fronts", ("--fronts", "2")))
                }
            for model in ("hello", "echo"):
                runs = in_turns(servers, model, CONNECTIONS, rounds, seconds)
                yield {
                    "what": f"{model}, model in a {isolation}",
                    "one process, requests/s": _middle(runs["one"], "rate"),
                    "2 fronts, requests/s": _middle(runs["fronts"], "rate"),
                    "x requests/s (1.5)": ratio(runs, "fronts", "one", "rate"),
                    "one process, CPU us": _middle(runs["one"], "cpu_us", 1),
                    "2 fronts, CPU us": _middle(runs["fronts"], "cpu_us", 1),
                    "x CPU (1.35)": ratio(runs, "fronts", "one", "cpu_us"),
                    "foreign": _foreign(runs),
                }


def in_turns(servers: Servers, model: str, connections: int, rounds: int, seconds: float) -> Runs:
    """Call a model of each of the servers once a round, in an order that is drawn."""
    runs: Runs = {name: [] for name in servers}
    for number in range(-1, rounds):  # the first one is not counted
        for name in random.sample(list(servers), len(servers)):
            url, pid = servers[name]
            found = _called(url, pid, model, connections, seconds if number >= 0 else 1)
            if number >= 0:
                runs[name].append(found)
    return runs


def _called(url: str, pid: int, model: str, connections: int, seconds: float) -> dict[str, float]:
    load = Load(pid)
    found = wrk(
        f"{url}/v2/models/{model}/infer",
        connections=connections,
        seconds=seconds,
        body=_body(model),
        headers={"Content-Type": "application/json"},
    )
    used = load.since()
    if found["errors"]:
        raise SystemExit(f"{model}: {found['errors']:.0f} errors")
    cpu = 1e6 * used["cpu_seconds"] / found["requests"]
    return {**found, "cpu_us": cpu, "foreign": used["foreign"]}


def _body(model: str) -> bytes:
    tensor: Row = {"name": "name", "datatype": "BYTES", "shape": [1], "data": ["you"]}
    if model == "echo":
        numbers = [float(n) for n in range(16)]
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 16], "data": numbers}
    return json.dumps({"inputs": [tensor]}).encode()


def ratio(runs: Runs, of: str, to: str, key: str) -> str:
    """`of` as a share of `to`, round by round: the median and its interval."""
    shares = [a[key] / b[key] for a, b in zip(runs[of], runs[to], strict=True)]
    low, high = median_interval(shares)
    return f"{median(shares):.2f} ({low:.2f}-{high:.2f})"


def _middle(runs: Sequence[Mapping[str, float]], key: str, digits: int = 0) -> float:
    return round(median(run[key] for run in runs), digits or None)


def _foreign(runs: Runs) -> float:
    return round(median(run["foreign"] for same in runs.values() for run in same), 2)
