"""What does a row cost on its way over the link, above what it costs in one process?

No HTTP: rows are submitted to a front's runtime, whose owner is another process, and to a runtime
with the same model, so many in one turn of the loop, and again when all are answered.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import wherry
from benchmarks.fronts.owner import row
from benchmarks.harness import ROOT, cpu_seconds
from benchmarks.peers.table import median_interval
from wherry.core.values.reply import Reply
from wherry.core.values.request import InferResponse
from wherry.core.workers.loop import new_event_loop
from wherry.server.front import LocalOwner

TOGETHER = (1, 4, 16, 32, 64)
ROWS = 12_000
#: CPU us of a row, above a local call: alone, and together with others.
ALONE, IN_BUNDLES = 35, 8


def link(rounds: int, seconds: float) -> Iterator[dict[str, Any]]:
    """CPU us of a row in the front and the owner, and in one process. `seconds` is not used."""
    with _owner() as (sock, pid), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runs = runner.run(_measured(sock, pid, rounds))
    for together, found in runs.items():
        above = [front + owner - local for local, front, owner in found]
        low, high = median_interval(above)
        goal = ALONE if together == 1 else IN_BUNDLES
        local, front, owner = (median(column) for column in zip(*found, strict=True))
        yield {
            "what": "alone" if together == 1 else f"{together} together",
            "one process, CPU us": round(local, 1),
            "front, CPU us": round(front, 1),
            "owner, CPU us": round(owner, 1),
            "above one process": f"{median(above):.1f} ({low:.1f}-{high:.1f})",
            "goal": goal,
        }


@contextmanager
def _owner() -> Iterator[tuple[socket.socket, int]]:
    """The front's end of a link, and the process id of the owner."""
    ours, theirs = socket.socketpair()
    with ours:
        command = [sys.executable, "-m", "benchmarks.fronts.owner", str(theirs.fileno())]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT) as process:
            theirs.close()
            yield ours, process.pid
            ours.close()


async def _measured(
    sock: socket.socket, pid: int, rounds: int
) -> dict[int, list[tuple[float, float, float]]]:
    """Of each number of rows together, round by round: CPU us in one process, front and owner."""
    here, front = wherry.Runtime(row), wherry.Runtime()
    here.ports.workers.use(here.port())
    await asyncio.get_running_loop().run_in_executor(None, here.start)
    owner = LocalOwner(front, sock)
    owner.start()
    await owner.received_models.wait()
    runs: dict[int, list[tuple[float, float, float]]] = {n: [] for n in TOGETHER}
    for number in range(-1, rounds):  # the first one is not counted
        for together in TOGETHER:
            rows = ROWS if together > 1 else ROWS // 4
            began = time.process_time()
            await _asked(here, together, rows)
            between, owner_began = time.process_time(), cpu_seconds(pid)
            await _asked(front, together, rows)
            ended, owner_ended = time.process_time(), cpu_seconds(pid)
            if number >= 0:
                each = 1e6 / rows
                runs[together].append((
                    each * (between - began),
                    each * (ended - between),
                    each * (owner_ended - owner_began),
                ))  # fmt: skip
    here.close()
    return runs


async def _asked(runtime: wherry.Runtime, together: int, rows: int) -> None:
    """Submit so many rows at a time, until all are answered."""
    loop = asyncio.get_running_loop()
    port, loaded, done = runtime.port(), runtime.model("row"), loop.create_future()
    left = rows
    waiting = 0

    def answered(reply: Reply[InferResponse]) -> None:
        nonlocal left, waiting
        waiting -= 1
        left -= 1
        if isinstance(reply.outcome, Exception):
            done.set_exception(reply.outcome)
        elif waiting == 0:
            submit() if left > 0 else done.set_result(None)

    def submit() -> None:
        nonlocal waiting
        waiting = together
        for _ in range(together):
            port.submit(loaded, loaded.request({"name": ["x"]}, 1, Reply(answered, port)))

    submit()
    await done
