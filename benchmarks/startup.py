"""What does it cost to start a server and to let it wait?

    python -m benchmarks.startup [--rounds 3] [--seconds 5] [--json FILE]

Wall time from spawn to ready, memory of the whole tree (PSS counts shared pages once, RSS counts
them in each process), CPU used while nobody calls (for `--seconds`), and the CPU of `--help` and
of imports. The model is trivial: this is what wherry itself costs. Wall times move with the
machine's load; read them beside `import numpy`, which every inference server in Python pays.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import harness
from wherry.bench.observe import process_tree
from wherry.testing import ServerProcess

APP = """
import wherry

@wherry.model(max_batch_size=32)
def echo(text: list[str]) -> list[str]:
    return text
"""

SERVERS = {
    "thread instance": ["--isolation", "thread"],
    "process instance": ["--isolation", "process"],
    "2 process instances": ["--isolation", "process", "--instances", "2"],
}
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "wherry --help": ["-m", "wherry", "--help"],
    "wherry serve --help": ["-m", "wherry", "serve", "--help"],
    "import numpy": ["-c", "import numpy"],
    "import wherry": ["-c", "import wherry"],
    "import wherry; wherry.model": ["-c", "import wherry; wherry.model"],
    "import wherry; wherry.Runtime": ["-c", "import wherry; wherry.Runtime"],
    "import wherry; wherry.Server": ["-c", "import wherry; wherry.Server"],
}


def server(app: Path, options: Sequence[str], idle_seconds: float) -> dict[str, float]:
    started = time.perf_counter()
    with ServerProcess(str(app), *options, "--log-level", "warning") as running:
        ready = time.perf_counter() - started
        start_cpu = harness.cpu_seconds(running.pid)
        tree = process_tree(running.pid)
        figures = {
            "ready_s": ready,
            "start_cpu_s": start_cpu,
            "pss_mb": harness.memory_mb(running.pid),
            "rss_mb": sum(rss_mb(pid) for pid in tree),
            "processes": len(tree),
        }
        time.sleep(idle_seconds)
        idle = harness.cpu_seconds(running.pid) - start_cpu
        started = time.perf_counter()
        running.stop()
        return {
            **figures,
            "idle_cpu_us_per_s": idle / idle_seconds * 1e6,
            "stop_s": time.perf_counter() - started,
        }


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def command_cpu_ms(command: Sequence[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def servers(rounds: int, idle_seconds: float) -> list[dict[str, Any]]:
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in SERVERS}
    with tempfile.TemporaryDirectory() as folder:
        app = Path(folder) / "startup_app.py"
        app.write_text(APP)
        # Interleaved, so that a busy minute of the machine is everybody's.
        for _ in range(rounds):
            for name, options in SERVERS.items():
                runs[name].append(server(app, options, idle_seconds))
    return [
        {"what": name, **{key: median(run[key] for run in found) for key in found[0]}}
        for name, found in runs.items()
    ]


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.set_defaults(seconds=5.0)
    args = parser.parse_args()
    started = servers(args.rounds, args.seconds)
    commands = [
        {"what": name, "cpu_ms": median(command_cpu_ms(command) for _ in range(args.rounds))}
        for name, command in COMMANDS.items()
    ]
    harness.report("a server with a trivial model, medians", started, None)
    harness.report("commands and imports, medians", commands, None)
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        result = {**harness.facts(), "title": "startup", "rows": started, "commands": commands}
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
