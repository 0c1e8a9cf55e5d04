"""Is anything lost when a server under load is told to stop, and when another takes over?

    python -m benchmarks.restarts [--restarts 20] [--signal TERM] [--json FILE]

Each restart: a server with a small model, clients of every kind (restart_clients.py), a signal at
a random moment, and the count of what every client has sent and got. Ends by itself: a restart
takes a few seconds. Exit code 1 if anything is lost.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.restart_clients import Ledger, Load
from wherry.testing import ServerProcess

MODELS = [f"benchmarks/restart_models.py:{name}" for name in ("echo", "words", "large")]


def start(folder: Path, number: int, *options: str) -> ServerProcess:
    env = {"EXECUTED": str(folder / f"executed-{number}")}
    options = ("--grpc-port", "0", "--isolation", "thread", *options)
    return ServerProcess(*MODELS, *options, env=env, cwd=str(harness.ROOT)).start()


def executed(folder: Path, number: int) -> list[str]:
    return (folder / f"executed-{number}").read_text().split()


def address_of(server: ServerProcess) -> tuple[str, int]:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    return host, int(port)


def grpc_address_of(server: ServerProcess) -> str:
    return server.log.partition("grpc=")[2].split()[0]


async def restart(
    server: ServerProcess, load: Load, after: float, number: int
) -> tuple[int, float]:
    """The exit code, and how long the server took to end, seconds."""
    loop = asyncio.get_running_loop()
    clients = asyncio.create_task(load.run())
    await asyncio.sleep(after)
    told_at = loop.time()
    server.send(number)
    exit_code = await asyncio.to_thread(server.wait, 60.0)
    took = loop.time() - told_at
    await clients
    return exit_code, took


def rows_of(ledger: Ledger) -> list[dict[str, Any]]:
    kinds = sorted({kind for kind, _ in ledger.counts})
    rows = []
    for kind in kinds:
        others = {
            outcome: count for (of, outcome), count in sorted(ledger.counts.items())
            if of == kind and count and outcome not in ("answered", "closed")
        }  # fmt: skip
        rows.append({
            "what": kind,
            "answered": ledger.counts[kind, "answered"],
            "to send again": ledger.counts[kind, "closed"],
            "lost": ledger.lost(kind),
            "how": ", ".join(f"{outcome} {count}" for outcome, count in others.items()),
        })  # fmt: skip
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = harness.arguments(__doc__)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--signal", choices=("TERM", "INT", "HUP"), default="TERM")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    chance = random.Random(options.seed)
    number = signal.Signals[f"SIG{options.signal}"]
    ledger, codes, took = Ledger(), [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        waiting = start(folder, 0)
        for i in range(options.restarts):
            server = waiting
            server.wait_ready()
            waiting = start(folder, i + 1)  # meanwhile
            try:
                load = Load(ledger, address_of(server), grpc_address_of(server), seed=i)
                code, seconds = asyncio.run(restart(server, load, chance.uniform(0.1, 0.6), number))
                codes.append(code)
                took.append(seconds)
                if code not in (0, 128 + number):
                    print(server.log[-2000:], file=sys.stderr)
            finally:
                server.stop(signal.SIGKILL)
            ledger.settle(executed(folder, i))
        waiting.stop(signal.SIGKILL)
    rows = rows_of(ledger)
    total = {key: sum(row[key] for row in rows) for key in ("answered", "to send again", "lost")}
    how = f"exit codes {sorted(set(codes))}, {max(took):.1f} s at most, {ledger.twice} twice"
    rows.append({"what": "all", **total, "how": how})
    harness.report(f"{options.restarts} restarts by SIG{options.signal}", rows, options.json)
    for text, count in ledger.refusals.most_common(10):
        print(count, text, file=sys.stderr)
    return 1 if total["lost"] else 0


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.exit(main())
