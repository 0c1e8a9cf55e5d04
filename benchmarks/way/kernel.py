"""What does a request ask of the kernel? System calls by name, and how often a thread slept."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from wherry.bench.observe import process_tree

CALL = re.compile(r"^(\d+) +(\w+)\(")


def sleeps(pid: int) -> int:
    """How often the threads of a process have waited so far: voluntary context switches."""
    found = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = (task / "status").read_text()
        found += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return found


def why_no_strace() -> str | None:
    """Why system calls cannot be counted here; tried on a process that ends at once."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True)
    return f"strace may not trace here: {tried.stderr[-200:]}" if tried.returncode else None


def system_calls(pids: Iterable[int], run: Callable[[], object]) -> list[Counter[str]]:
    """Those of each process and all its threads while `run` runs, counted by name."""
    pids = list(pids)
    threads = [{int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()} for pid in pids]
    with tempfile.NamedTemporaryFile("r") as trace:
        command = ["strace", "-f", "-o", trace.name, *(f"-p{pid}" for pid in pids)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
            assert strace.stderr is not None
            try:
                for _ in pids:
                    told = strace.stderr.readline()
                    if "attached" not in told:
                        raise RuntimeError(told + strace.stderr.read())
                run()
            finally:
                strace.send_signal(signal.SIGINT)
                strace.communicate()
        calls = [match for match in map(CALL.match, trace) if match]
    return [
        Counter(
            call[2].replace("epoll_pwait", "epoll_wait") for call in calls if int(call[1]) in own
        )
        for own in threads
    ]


def family(pid: int) -> tuple[int, list[int]]:
    """A server's process, and those of its workers."""
    server, *workers = process_tree(pid)
    return server, workers
