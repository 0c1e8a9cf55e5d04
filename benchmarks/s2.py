"""What does seed S2's pressure test say of wherry, and of the seed's own way beside it?

    python -m benchmarks.s2 [--queues 5 --loops 20 | --duration 60] [--json ...]

Each queue asks for one answer after the other. `wherry`: `wherry serve` and, as the load,
`wherry bench` over OpenAI's protocol, streamed. `the seed's way`: worker processes made once, in
each of them transformers' generate() in a thread with a streamer, and a queue for each request
between the processes; one worker for each core, one thread each. The same checkpoint in float32,
the same prompts, no two alike, greedy, as many tokens. SIGINT or SIGTERM ends it with what there is
so far.

Wall-clock figures of a shared machine move by factors; tokens per CPU-second (of the server with
its workers, or of the pool) are those to compare.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Threads that wait must not count as work; workers inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from benchmarks.harness import ROOT, cpu_seconds, report
from wherry.llm.engine.checkpoint import converted
from wherry.testing.servers import ServerProcess

APP = ROOT / "examples" / "llm" / "app.py"
TOPICS = ("rivers", "bread", "the moon", "bicycles", "whales", "glass", "tea", "bridges")


@dataclass(frozen=True, slots=True)
class Load:
    """How hard: so many queues, each `loops` answers, or all of them for `duration` seconds."""

    queues: int
    loops: int
    duration: float | None
    tokens: int

    def prompts(self) -> list[str]:
        """No two are alike: a cache of prefixes is not what is tested."""
        count = 512 if self.duration else self.queues * self.loops
        return [f"Tell me {2 + n} facts about {TOPICS[n % len(TOPICS)]}." for n in range(count)]


@dataclass(slots=True)
class Outcome:
    """What was done. `cpu` is that of all who served."""

    tasks: int = 0
    tokens: int = 0
    failed: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    interrupted: bool = False

    def row(self, what: str) -> dict[str, Any]:
        return {
            "what": what + (" (interrupted)" if self.interrupted else ""),
            "seconds": self.seconds,
            "tasks": self.tasks,
            "failed": self.failed,
            "requests/s": self.tasks / max(self.seconds, 1e-9),
            "tokens/s": self.tokens / max(self.seconds, 1e-9),
            "tokens per CPU-second": self.tokens / max(self.cpu, 1e-9),
        }


# wherry


def through_wherry(load: Load) -> Outcome:
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(str(APP), ready_timeout=900, own_group=True) as served,
    ):
        url, pid = served.url, served.pid
        inputs, result = Path(folder) / "prompts.jsonl", Path(folder) / "report.json"
        wishes = {"temperature": 0, "ignore_eos": True}
        rows = [{"messages": _user(prompt), **wishes} for prompt in load.prompts()]
        inputs.write_text("\n".join(json.dumps(row) for row in rows))
        command = [sys.executable, "-m", "wherry", "bench", url, "--protocol", "chat"]
        command += ["--inputs", str(inputs), "--max-tokens", str(load.tokens), "--timeout", "600s"]
        command += ["--callers", str(load.queues), "--warmup", "0s", "--json", str(result)]
        if load.duration is None:
            command += ["--loops", str(load.loops)]
        else:
            command += ["--duration", f"{load.duration}s"]
        _warm(url, load)
        before = cpu_seconds(pid)
        interrupted = _finished(subprocess.Popen([*command, "--quiet"], cwd=ROOT))
        cpu = cpu_seconds(pid) - before
        if not result.exists():
            return Outcome(interrupted=interrupted)
        points: list[dict[str, Any]] = json.loads(result.read_text())["points"]
        figures = points[0]["figures"] if points else {}
        seconds = figures.get("seconds", 0.0)
        return Outcome(
            tasks=figures.get("ok", 0),
            tokens=round(figures.get("tokens_out_per_second", 0.0) * seconds),
            failed=figures.get("failed", 0),
            seconds=seconds,
            cpu=cpu,
            interrupted=interrupted,
        )


def _user(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def _warm(url: str, load: Load) -> None:
    """The first answer of each side is not counted."""
    import wherry

    with wherry.Client(url, timeout=600) as client:
        wishes = {"max_tokens": load.tokens, "temperature": 0}
        for _ in client.stream("chat", messages=_user("Hello"), parameters=wishes):
            pass


def _finished(process: subprocess.Popen[bytes]) -> bool:
    """Wait for its end. True if somebody wants all to end: then it is told, and ends by itself."""
    try:
        process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.wait()
        return True
    return False


# The seed's way


def worker(checkpoint: str, tasks: Any, ready: Any) -> None:
    """A process of the pool: one request at a time, its pieces to the request's own queue."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer
    from transformers.utils import logging

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)
    net: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    net.generation_config.eos_token_id = None
    ready.put(os.getpid())
    while (task := tasks.get()) is not None:
        prompt, new_tokens, pieces = task
        given = tokenizer.apply_chat_template(
            _user(prompt), add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
        wishes = {"max_new_tokens": new_tokens, "do_sample": False, "pad_token_id": 0}
        generation = threading.Thread(
            target=net.generate, kwargs={**given, **wishes, "streamer": streamer}
        )
        generation.start()
        for text in streamer:
            pieces.put(text)
        generation.join()
        pieces.put(None)


class Pool:
    """The seed's server: processes that are made once, and a queue for each request."""

    def __init__(self, checkpoint: str, workers: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._manager = spawn.Manager()
        self._tasks, self._ready = spawn.Queue(), spawn.Queue()
        arguments = (checkpoint, self._tasks, self._ready)
        self._workers = [
            spawn.Process(target=worker, args=arguments, daemon=True) for _ in range(workers)
        ]

    def start(self) -> None:
        for process in self._workers:
            process.start()
        for _ in self._workers:
            self._ready.get()

    def stream(self, prompt: str, new_tokens: int) -> Iterator[str]:
        pieces = self._manager.Queue()
        self._tasks.put((prompt, new_tokens, pieces))
        while (text := pieces.get()) is not None:
            yield text

    def cpu_seconds(self) -> float:
        return sum(cpu_seconds(process.pid) for process in self._workers if process.pid)

    def close(self) -> None:
        started = [process for process in self._workers if process.pid]
        for _ in started:
            self._tasks.put(None)
        for process in started:
            process.join(5)
            process.terminate()  # it is in the middle of something that nobody waits for any more
            process.join()
        self._manager.shutdown()


@contextmanager
def pool(checkpoint: str, workers: int) -> Iterator[Pool]:
    made = Pool(checkpoint, workers)
    try:
        made.start()
        yield made
    finally:
        made.close()


def the_seeds_way(load: Load, checkpoint: str, workers: int) -> Outcome:
    with pool(checkpoint, workers) as served:
        for _ in served.stream("Hello", load.tokens):
            pass
        return pressed(served, load)


def pressed(served: Pool, load: Load) -> Outcome:
    """The seed's tester: queues that ask, until they are through, it is time, or a signal."""
    outcome, done = Outcome(), queue.SimpleQueue[int | Exception]()
    stop = threading.Event()
    start, cpu = time.perf_counter(), served.cpu_seconds()
    ends = None if load.duration is None else start + load.duration

    def ask(number: int) -> None:
        prompts = load.prompts()[number :: load.queues]
        for prompt in itertools.cycle(prompts) if ends else prompts:
            if stop.is_set() or (ends and time.perf_counter() >= ends):
                return
            try:
                for _ in served.stream(prompt, load.tokens):
                    pass
                done.put(load.tokens)
            except Exception as error:  # noqa: BLE001 - it is counted
                done.put(error)

    queues = [threading.Thread(target=ask, args=(n,), daemon=True) for n in range(load.queues)]
    for thread in queues:
        thread.start()
    try:
        for thread in queues:
            thread.join()
    except KeyboardInterrupt:
        outcome.interrupted = True
        stop.set()
    outcome.seconds = time.perf_counter() - start
    outcome.cpu = served.cpu_seconds() - cpu
    while not done.empty():
        result = done.get()
        outcome.failed += isinstance(result, Exception)
        if isinstance(result, int):
            outcome.tasks, outcome.tokens = outcome.tasks + 1, outcome.tokens + result
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--queues", type=int, default=5)
    parser.add_argument("--loops", type=int, default=20, help="answers of each queue")
    parser.add_argument("--duration", type=float, help="seconds, in place of --loops")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="of the seed's way")
    parser.add_argument("--only", choices=("wherry", "seed"), help="one side")
    parser.add_argument("--json", type=Path, help="write the figures and the machine's facts here")
    given = parser.parse_args()
    load = Load(given.queues, given.loops, given.duration, given.tokens)
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    from examples.llm.app import checkpoint

    folder = str(converted(checkpoint()))
    sides: dict[str, Callable[[], Outcome]] = {
        "wherry": lambda: through_wherry(load),
        "seed": lambda: the_seeds_way(load, folder, given.workers),
    }
    names = {"wherry": "wherry", "seed": f"the seed's way, {given.workers} workers"}
    rows: list[dict[str, Any]] = []
    for side, run in sides.items():
        if given.only not in (None, side):
            continue
        try:
            outcome = run()
        except KeyboardInterrupt:  # while it was starting
            return 130
        rows.append(outcome.row(names[side]))
        if outcome.interrupted:
            break
    each = f"{load.loops} loops" if load.duration is None else f"{load.duration:g} s"
    title = f"S2: {load.queues} queues x {each}, {load.tokens} tokens each"
    report(title, rows, given.json)
    return 130 if outcome.interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
