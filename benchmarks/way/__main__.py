"""Which way does one request take through wherry, and what does it ask of the kernel?

    python -m benchmarks.way [json|chat|events|grpc|local] [--isolation thread] [--c-calls]
    python -m benchmarks.way --counts

Prints the calls of one lone request in order, those of each thread indented by their depth, and
then the worker's; --files: only how many each file has. --counts: what
tests/integration/test_request_cost.py holds to limits, for all ways (system calls need strace).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from typing import get_args

from benchmarks.way import cost
from benchmarks.way.callers import Kind
from benchmarks.way.calls import Recorder, recorded, worker_calls
from benchmarks.way.kernel import why_no_strace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=get_args(Kind), nargs="?", default="json")
    parser.add_argument("--isolation", choices=("process", "thread"), default="process")
    parser.add_argument("--c-calls", action="store_true", help="those of C functions, too")
    parser.add_argument("--files", action="store_true", help="count by file")
    parser.add_argument("--counts", action="store_true", help="all ways, only counted")
    options = parser.parse_args()
    if options.counts:
        counts()
    else:
        calls(cost.Way(options.kind, options.isolation), options)


def calls(way: cost.Way, options: argparse.Namespace) -> None:
    recorder = Recorder(options.c_calls)
    with recorded(way.kind, way.model, recorder) as ask:
        time.sleep(0.3)  # what the warming-up left to be done
        for _ in range(5):
            ask()
        recorder.on = True
        ask()
        time.sleep(0.05)  # what is done after the answer is part of the way
        recorder.on = False
        recorder.calls += worker_calls(ask())
    own = [call for call in recorder.calls if call.is_wherrys]
    if options.files:
        for file, count in Counter(call.file for call in own).items():
            print(f"{count:5} {file}")
    else:
        for call in recorder.calls:
            print(f"{call.thread[:18]:18} {'  ' * call.depth}{call.file} {call.function}")
    for where in (False, True):
        there = [call for call in own if (call.thread == "worker") is where]
        if there:
            files = len({call.file for call in there})
            print(f"{'worker' if where else 'server'}: {len(there)} calls in {files} files")


def counts() -> None:
    for name, way in cost.WAYS.items():
        print(f'["{name}"]')
        for what, count in cost.calls(way).counts().items():
            print(f"{what} = {count:g}")
        if way.kind == "local" or way.kind in cost.CHATS:
            continue
        for process, asked in cost.kernel(way).items():
            print(f"{process}_waits = {asked.waits:.2f}")
            found = [f"{name} = {n:.2f}" for name, n in asked.system_calls.items() if n >= 0.02]
            print(f"{process}_system_calls = {{ {', '.join(found)} }}")
    if told := why_no_strace():
        print(f"# {told}")


if __name__ == "__main__":
    main()
