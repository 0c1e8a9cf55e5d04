"""What does a load process do? (`python -m wherry.bench.child FD`: it runs plans until its
parent ends.)

The command that started it handles the terminal, the display and the server's statistics, so that
none of them slows the load down.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection

import uvloop

from wherry.bench.load import (
    Begin,
    ChildFailed,
    Done,
    LoadProgress,
    LoadReady,
    RunLoad,
    ToChild,
)
from wherry.bench.load_run import LoadRun

#: Seconds between two reports of progress.
EVERY = 0.25
#: Maximum number of latencies in one of them.
RECENT = 500


def main() -> None:
    os.dup2(2, 1)  # stdout is the command's
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(Connection(int(sys.argv[1]))))


async def _serve(parent: Connection) -> None:
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[ToChild | None] = asyncio.Queue()

    def read() -> None:
        with contextlib.suppress(EOFError, OSError):  # the command ended
            while True:
                loop.call_soon_threadsafe(inbox.put_nowait, parent.recv())
        loop.call_soon_threadsafe(inbox.put_nowait, None)

    # Not in the loop: libuv makes a file that it watches non-blocking.
    threading.Thread(target=read, daemon=True).start()
    while isinstance(message := await inbox.get(), RunLoad):
        try:
            await _run(message, inbox, parent)
        except Exception:  # noqa: BLE001 - the command shows it
            parent.send(ChildFailed(traceback.format_exc()))


async def _run(run: RunLoad, inbox: asyncio.Queue[ToChild | None], parent: Connection) -> None:
    load = LoadRun(run.plan, run.wire, run.requests, offset=run.offset, phase=run.phase)
    await load.prepare()
    parent.send(LoadReady())
    message = await inbox.get()
    at = message.at if isinstance(message, Begin) else time.perf_counter()
    await _until(at)
    cpu = time.process_time()
    running = asyncio.ensure_future(load.run(at))
    if not isinstance(message, Begin):
        load.stop("interrupted")
    seen = 0
    stopping = asyncio.ensure_future(inbox.get())
    while not running.done():
        await asyncio.wait([running, stopping], timeout=EVERY, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            load.stop("interrupted")
            stopping = asyncio.ensure_future(inbox.get())
            await running
        parent.send(_progress(load, seen))
        seen = len(load.recorder)
    stopping.cancel()
    await running
    parent.send(
        Done(
            records=load.recorder,
            samples=load.samples,
            stopped_because=load.stopped_because,
            cpu_seconds=time.process_time() - cpu,
            seconds=time.perf_counter() - at,
        )
    )


async def _until(moment: float) -> None:
    """Sleep until a moment of time.perf_counter, never less: uvloop's timers are in whole
    milliseconds, and what is sent before the run begins is not measured."""
    while (rest := moment - time.perf_counter()) > 0:  # noqa: ASYNC110 - a time, no event
        await asyncio.sleep(rest)


def _progress(load: LoadRun, seen: int) -> LoadProgress:
    recorder = load.recorder
    return LoadProgress(
        answered=len(recorder),
        failed=recorder.failures,
        in_flight=load.in_flight,
        recent=recorder.latencies(seen, RECENT),
    )


if __name__ == "__main__":
    main()
