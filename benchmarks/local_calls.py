"""How much does a local call cost over calling the function, and how far do threads scale?

    python -m benchmarks.local_calls [--json benchmarks/results/local_calls.json]

CPU us of this process and its workers for each call, of so many threads that call one after the
other. Seed S3's echo: torchpipe reports 65,227 calls/s from one client and 46,655 from ten.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from typing import Any

import wherry
from benchmarks.harness import arguments, cpu_seconds, report
from benchmarks.models import echo, echo_process, single


def calls(function: Any, threads: int, seconds: float) -> tuple[float, float]:
    """Calls/s of so many threads, and CPU us a call."""
    counts = [0] * threads
    stop_at = time.perf_counter() + seconds

    def work(number: int) -> None:
        done = 0
        while time.perf_counter() < stop_at:
            for _ in range(20):
                function()
            done += 20
        counts[number] = done

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    cpu, started = cpu_seconds(os.getpid()), time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    elapsed = time.perf_counter() - started
    return sum(counts) / elapsed, (cpu_seconds(os.getpid()) - cpu) / sum(counts) * 1e6


def main() -> None:
    options = arguments(__doc__).parse_args()
    published = {1: 65_227, 10: 46_655}
    rows: list[dict[str, Any]] = []
    with wherry.Runtime(single, echo, echo_process) as runtime:
        for what, function in (
            ("the function itself", lambda: single(["x"])),
            ("runtime.infer, max batch 1", lambda: runtime.infer("single", text="x")),
            ("model.infer, max batch 1", lambda: single.infer("x")),
            ("runtime.infer, batches of up to 32", lambda: runtime.infer("echo", text="x")),
            ("the same, in a process", lambda: runtime.infer("echo_process", text="x")),
        ):
            for threads in (1, 10, 64):
                runs = [calls(function, threads, options.seconds) for _ in range(options.rounds)]
                rate = statistics.median(rate for rate, _ in runs)
                rows.append(
                    {
                        "what": what,
                        "threads": threads,
                        "calls/s": round(rate),
                        "CPU us/call": round(statistics.median(cpu for _, cpu in runs), 2),
                        "torchpipe's report, calls/s": published.get(threads, ""),
                    }
                )
    report("local echo", rows, options.json)


if __name__ == "__main__":
    main()
