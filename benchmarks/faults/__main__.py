"""Is anything lost, answered twice, or answered wrongly when processes die under load?

    python -m benchmarks.faults --seconds 600 --seed 7 [--json FILE]

A server with two fronts under constant load of every kind. At random moments fronts and workers are
killed, the owner is stopped, a model is loaded anew. Every request has a number, which its answer
tells, and the models note each run. Exit code 1 if a request was lost that could have been saved,
or anything else went wrong. Everything is on this machine and ends by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.faults.clients import Clients
from benchmarks.faults.harm import Harm
from benchmarks.faults.ledger import Ledger
from benchmarks.faults.servers import Starter, end, figures, logged
from benchmarks.harness import facts
from wherry.testing import ServerProcess

#: Seconds of load before the first figures of a process are taken.
WARM = 3.0
#: What a process may have more at the end than when it was warm.
MORE_FILES = 12
MORE_MIB = 150.0


@dataclass
class Result:
    """What was found at one server."""

    name: str
    requests: int = 0
    harm: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    #: Requests that have not ended well, by the reason.
    verdicts: dict[str, int] = field(default_factory=dict)
    #: Everything that makes the run fail, with its particulars.
    wrong: list[str] = field(default_factory=list)
    files: tuple[int, int] = (0, 0)
    mib: tuple[float, float] = (0.0, 0.0)


async def under_harm(
    ledger: Ledger, clients: Clients, harm: Harm, runs: Path, seconds: float
) -> Result:
    """Load the server and harm it for so many seconds."""
    pid = harm.server.pid
    clients.start()
    await asyncio.sleep(WARM)
    before = figures(pid)
    await harm.run(seconds)
    await asyncio.sleep(1.0)
    await clients.stop()
    await asyncio.sleep(1.0)
    after = figures(pid)
    counted = Counter(map(int, (await asyncio.to_thread(runs.read_text)).split()))
    verdicts, lines = ledger.judge(counted)
    wrong = [*lines, *harm.wrong]
    if after[0] > before[0] + MORE_FILES:
        wrong.append(f"{ledger.name}: {before[0]} descriptors have become {after[0]}")
    if after[1] > before[1] + MORE_MIB:
        wrong.append(f"{ledger.name}: {before[1]:.0f} MiB have become {after[1]:.0f}")
    return Result(
        ledger.name, len(ledger.requests), dict(harm.counts), dict(ledger.counts()),
        dict(verdicts), wrong, (before[0], after[0]), (before[1], after[1]),
    )  # fmt: skip


async def fronts(starter: Starter, seconds: float, seed: int) -> Result:
    """One server whose clients are served by two fronts."""
    server = starter.fronts("fronts")
    try:
        await asyncio.to_thread(server.wait_ready)
        ledger = Ledger("fronts")
        clients = Clients(ledger, server.url, logged(server, "grpc"), seed)
        harm = Harm(server, ledger, seed)
        result = await under_harm(ledger, clients, harm, starter.runs("fronts"), seconds)
        result.wrong += await in_flight("fronts", server)
    finally:
        end(server)
    return result


async def in_flight(name: str, server: ServerProcess) -> list[str]:
    """What a server still holds when nobody waits for it."""

    def read() -> str:
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    found = re.findall(
        r"^(wherry_(?:requests_in_flight|queue_depth|batches_running)\S*) ([1-9]\S*)$",
        await asyncio.to_thread(read),
        re.MULTILINE,
    )
    return [f"{name}: left over: {metric} {value}" for metric, value in found]


async def run(seconds: float, seed: int) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        starter = Starter(Path(folder))
        result = await fronts(starter, seconds, seed)
        await asyncio.sleep(1.0)
        result.wrong += [f"a process is left over: {one}" for one in starter.left_over()]
    return result


def show(result: Result, console: Console) -> None:
    table = Table("what", "how often")
    table.add_row("requests", str(result.requests))
    for kind, group in (
        ("harm", result.harm), ("outcome", result.outcomes), ("", result.verdicts)
    ):  # fmt: skip
        for name, count in sorted(group.items()):
            table.add_row(f"{kind}: {name}".removeprefix(": "), str(count))
    table.add_row("descriptors", "{} -> {}".format(*result.files))
    table.add_row("MiB", "{:.0f} -> {:.0f}".format(*result.mib))
    console.print(table)
    for line in result.wrong:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--json", type=Path, help="write the figures and the machine's facts here")
    options = parser.parse_args()
    result = asyncio.run(run(options.seconds, options.seed))
    show(result, Console(width=110))
    if options.json:
        content = {**facts(), "seconds": options.seconds, "seed": options.seed}
        content["servers"] = [vars(result)]
        options.json.write_text(json.dumps(content) + "\n")
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
