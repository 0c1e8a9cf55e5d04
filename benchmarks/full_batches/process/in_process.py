"""Calls a model of `devices.py` in this process, in the phases that stdin gives, and prints a look
at its batches at each moment that is asked for. `benchmarks.full_batches` runs this file.

It imports only wherry, so that PYTHONPATH says which tree is measured.
"""

import asyncio
import json
import sys
import threading
import time

import devices  # type: ignore[import-not-found] # it lies beside this script

import wherry

try:
    from wherry.server.v2.batching import batching
except ImportError:  # an earlier tree
    from wherry.server.v2.describe import batching  # type: ignore[attr-defined, no-redef]


def tasks(runtime: wherry.Runtime, model: str, callers: int, stop_at: float) -> None:
    """So many tasks of one event loop, each asking again as soon as it is answered."""

    async def caller() -> None:
        while time.perf_counter() < stop_at:
            await runtime.ainfer(model, text="hello")

    async def together() -> None:
        await asyncio.gather(*(caller() for _ in range(callers)))

    asyncio.run(together())


def threads(runtime: wherry.Runtime, model: str, callers: int, stop_at: float) -> None:
    """So many threads, likewise."""

    def caller() -> None:
        while time.perf_counter() < stop_at:
            runtime.infer(model, text="hello")

    started = [threading.Thread(target=caller) for _ in range(callers)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    model, load = asked["model"], {"tasks": tasks, "threads": threads}[asked["over"]]
    with wherry.Runtime(getattr(devices, model)) as runtime:
        print(json.dumps("ready"), flush=True)
        for callers, seconds, moments in asked["phases"]:
            began = time.perf_counter()
            arguments = (runtime, model, callers, began + seconds)
            loading = threading.Thread(target=load, args=arguments)
            loading.start()
            looks = []
            for moment in moments:
                time.sleep(max(0.0, began + moment - time.perf_counter()))
                looks.append((time.perf_counter(), batching(runtime.model(model))))
            loading.join()
            print(json.dumps(looks), flush=True)
        sys.stdin.read()  # until its CPU time is taken


if __name__ == "__main__":
    main()
