"""What does a load process do? (`python -m wherry.bench.child`: it runs plans until its stdin
ends.)

The command that started it keeps the terminal, the display and the server's statistics, so that
none of them slows the load down.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback

import uvloop

from wherry.bench import load_protocol
from wherry.bench.load_run import LoadRun

#: Seconds between two reports of progress.
EVERY = 0.25
#: Latencies in one of them, at most.
RECENT = 500


def main() -> None:
    # What anything prints must not come between the frames.
    output = os.dup(1)
    os.dup2(2, 1)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(output))


async def _serve(output: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    inbox: asyncio.Queue[load_protocol.ToChild | None] = asyncio.Queue()
    listening = loop.create_task(_listen(reader, inbox))
    while isinstance(message := await inbox.get(), load_protocol.RunLoad):
        try:
            await _run(message, inbox, output)
        except Exception:  # noqa: BLE001 - the command shows it
            _say(output, load_protocol.ChildFailed(traceback.format_exc()))
    listening.cancel()


async def _listen(
    reader: asyncio.StreamReader, inbox: asyncio.Queue[load_protocol.ToChild | None]
) -> None:
    frames = load_protocol.Frames(load_protocol.ToChild)
    while data := await reader.read(2**20):
        for message in frames.feed(data):
            inbox.put_nowait(message)
    inbox.put_nowait(None)


async def _run(
    run: load_protocol.RunLoad, inbox: asyncio.Queue[load_protocol.ToChild | None], output: int
) -> None:
    load = LoadRun(run.plan, run.wire, run.requests, offset=run.offset, phase=run.phase)
    await load.prepare()
    _say(output, load_protocol.LoadReady())
    message = await inbox.get()
    at = message.at if isinstance(message, load_protocol.Begin) else time.perf_counter()
    await _until(at)
    cpu = time.process_time()
    running = asyncio.ensure_future(load.run(at))
    if not isinstance(message, load_protocol.Begin):
        load.stop(
            message.because if isinstance(message, load_protocol.StopLoad) else "the command ended"
        )
    seen = 0
    stopping = asyncio.ensure_future(inbox.get())
    while not running.done():
        await asyncio.wait([running, stopping], timeout=EVERY, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            stop = stopping.result()
            load.stop(
                stop.because if isinstance(stop, load_protocol.StopLoad) else "the command ended"
            )
            stopping = asyncio.ensure_future(inbox.get())
            await running
        _say(output, _progress(load, seen))
        seen = len(load.recorder)
    stopping.cancel()
    await running
    _say(
        output,
        load_protocol.Done(
            records=load.recorder.packed(),
            samples=load.samples,
            stopped_because=load.stopped_because,
            cpu_seconds=time.process_time() - cpu,
            seconds=time.perf_counter() - at,
        ),
    )


async def _until(moment: float) -> None:
    """Sleep until a moment of time.perf_counter, and not less: uvloop's timers are whole
    milliseconds, and what is sent before the run's beginning is not measured."""
    while (rest := moment - time.perf_counter()) > 0:  # noqa: ASYNC110 - a time, no event
        await asyncio.sleep(rest)


def _progress(load: LoadRun, seen: int) -> load_protocol.LoadProgress:
    recorder = load.recorder
    return load_protocol.LoadProgress(
        answered=len(recorder),
        failed=recorder.failures,
        in_flight=load.in_flight,
        recent=recorder.latencies(seen, RECENT),
    )


def _say(output: int, message: load_protocol.FromChild) -> None:
    data = memoryview(load_protocol.frame(message))
    while data:
        data = data[os.write(output, data) :]


if __name__ == "__main__":
    main()
