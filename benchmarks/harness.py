"""What do all benchmarks share: the machine's facts, CPU time of a process tree, wrk, the report?

CPU time per request (user + system, the whole process tree) is the figure to compare: wall-clock
rates on shared machines move by factors, CPU time by percents.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from wherry.bench.observe import process_tree

TICK = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).parent.parent


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its descendants, seconds.

    Threads and children that have ended count, a child once its parent has waited for it: children
    to 10 ms, all others to the nanosecond.
    """
    total = 0.0
    for member in process_tree(pid):
        with contextlib.suppress(OSError):  # it has ended in the meantime
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            # Linux makes a process's CPU clock of its id: MAKE_PROCESS_CPUCLOCK(pid, SCHED).
            total += time.clock_gettime(~member << 3 | 2)
            total += (int(fields[13]) + int(fields[14])) / TICK
    return total


class Load:
    """The CPU time that a server's tree, and everything else, uses from here on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._start = self._now()

    def _now(self) -> tuple[float, float, float, float]:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        client = children.ru_utime + children.ru_stime + time.process_time()
        return time.perf_counter(), cpu_seconds(self._pid), client, busy_seconds()

    def since(self) -> dict[str, float]:
        """cpu_seconds of the server's tree since the start; `foreign`: the cores that were taken by
        other processes, and by other machines of the same host.
        """
        wall, server, client, busy = (
            now - then for now, then in zip(self._now(), self._start, strict=True)
        )
        return {"cpu_seconds": server, "foreign": max(0.0, busy - server - client) / wall}


def busy_seconds() -> float:
    """CPU time of all cores that was used: user, nice, system, interrupts, stolen."""
    ticks = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, interrupts, soft_interrupts, stolen = ticks
    return (user + nice + system + interrupts + soft_interrupts + stolen) / TICK


def memory_mb(pid: int) -> float:
    """Proportional memory (PSS) of a process tree, MB."""
    kb = 0
    for member in process_tree(pid):
        rollup = Path(f"/proc/{member}/smaps_rollup").read_text()
        kb += int(re.search(r"^Pss:\s+(\d+)", rollup, re.M)[1])  # type: ignore[index]
    return kb / 1024


@contextmanager
def server(*arguments: str, module: str = "wherry") -> Iterator[tuple[str, int]]:
    """`wherry serve` on a free port: its URL and process id, once it is ready."""
    read_fd, write_fd = os.pipe()
    command = [sys.executable, "-m", module, "serve", "--port", "0", "--ready-fd", str(write_fd)]
    process = subprocess.Popen(
        [*command, *arguments], pass_fds=[write_fd], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    os.close(write_fd)
    with os.fdopen(read_fd) as ready:
        url = ready.readline().strip()
    if not url:
        raise SystemExit(f"the server did not start:\n{process.communicate()[1]}")
    try:
        yield url, process.pid
    finally:
        process.terminate()
        process.communicate()


def wrk(
    url: str,
    *,
    connections: int,
    seconds: float,
    body: bytes,
    headers: dict[str, str] | None = None,
) -> dict[str, float]:
    """Run wrk with one thread: requests, requests/s, latencies in ms, errors."""
    if shutil.which("wrk") is None:
        raise SystemExit("this benchmark needs wrk on the PATH (Debian: apt-get install wrk)")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "body").write_bytes(body)
        lines = [
            'wrk.method = "POST"',
            f'local f = io.open("{folder}/body", "rb")',
            'wrk.body = f:read("*a")',
            "f:close()",
            *(f'wrk.headers["{name}"] = "{value}"' for name, value in (headers or {}).items()),
            "done = function(summary, latency, requests)",
            "  local e = summary.errors",
            '  print(string.format("RESULT %d %d %f %f %f %d", summary.requests,'
            " summary.duration, latency:percentile(50), latency:percentile(95),"
            " latency:percentile(99),"
            " e.connect + e.read + e.write + e.status + e.timeout))",
            "end",
        ]
        (Path(folder) / "load.lua").write_text("\n".join(lines))
        output = subprocess.run(
            [
                "wrk",
                "-t1",
                f"-c{connections}",
                f"-d{max(1, round(seconds))}s",
                "-s",
                f"{folder}/load.lua",
                url,
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    fields = [float(x) for x in output.split("RESULT")[1].split()[:6]]
    requests, microseconds, p50, p95, p99, errors = fields
    return {
        "requests": requests,
        "rate": requests / microseconds * 1e6,
        "p50_ms": p50 / 1e3,
        "p95_ms": p95 / 1e3,
        "p99_ms": p99 / 1e3,
        "errors": errors,
    }


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="write the figures and the machine's facts here")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="length of each run, whole seconds"
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each row; medians are shown")
    return parser


def commit(tree: Path) -> str:
    """The commit that a working tree stands on, and whether it was changed since."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, cwd=tree).stdout.strip()


#: Packages that a figure may depend on.
VERSIONED = (
    *("wherry", "numpy", "uvloop", "httptools", "msgspec", "onnxruntime"),
    *("torch", "transformers", "tokenizers", "xllamacpp", "vllm"),
    *("fastapi", "litserve", "bentoml", "ray", "scikit-learn"),
)


def facts() -> dict[str, Any]:
    """Machine, versions and commit, so that a figure can be placed later."""
    versions = {}
    for package in VERSIONED:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(ROOT),
        "command": " ".join(["python", "-m", _module(), *sys.argv[1:]]),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": model[1] if model else platform.processor(),
        "cores": os.cpu_count(),
        "versions": versions,
    }


def _module() -> str:
    """The benchmark that runs, as `python -m` takes it."""
    path = Path(sys.argv[0]).resolve().relative_to(ROOT).with_suffix("")
    return ".".join(path.parts).removesuffix(".__main__")


def report(title: str, rows: Sequence[dict[str, Any]], json_path: Path | None) -> None:
    """Print rows as a table and, if asked, write them with the machine's facts as JSON."""
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "what" else "right")
    for row in rows:
        table.add_row(
            *(f"{value:,.4g}" if isinstance(value, float) else str(value) for value in row.values())
        )
    Console(width=max(120, Console().width)).print(table)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps({**facts(), "title": title, "rows": list(rows)}, indent=1))
