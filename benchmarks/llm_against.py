"""What does a token cost here and in another server with OpenAI's routes, for the same prompts?

    python -m benchmarks.llm_against --against vLLM http://127.0.0.1:8001 PID
        [--rounds 5] [--json benchmarks/results/llm_against.json] [--checkpoint FOLDER]
        [--threads N] [--cache-gb 1.07]

wherry's engine is started here, the others (`--against` may come several times) run already, with
as large a cache: PID is the process at the root of each. Each has its own default number of
threads, or wherry's engine the one that is named. All get the same
requests from the same client, `/v1/completions` with token ids, streamed, greedy, of an exact
length, in float32. They take turns, so that a machine that gets slower gets slower for all; each
round has new prompts, so that nobody knows their beginnings. CPU is that of a server's whole
process tree.

"here/there" is the tokens per CPU-second of wherry over those of the other in the same round.
"""

from __future__ import annotations

import http.client
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness import arguments, cpu_seconds, facts, memory_mb, server
from benchmarks.llm import Job, checkpoint_of_the_package

OURS = "wherry"
LOADS = (("equal", 1), ("equal", 4), ("equal", 16), ("equal", 64), ("mixed", 4), ("mixed", 16))
TITLE = "the same requests over HTTP, SmolLM2-135M, float32, greedy"


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    url: str
    pid: int
    model: str


@dataclass(slots=True)
class Run:
    """What one load gave on one server."""

    tokens: int = 0
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    @property
    def tokens_per_cpu_second(self) -> float:
        return self.tokens / self.cpu_seconds


def jobs(kind: str, streams: int, number: int) -> list[Job]:
    """Of 59 tokens in and 64 out, or mixed: 20 to 400 in, 8 to 256 out. The lengths are those of
    the round with this number, the tokens never the same: a server may know those of yesterday."""
    lengths, tokens = random.Random(f"{kind} {streams} {number}"), random.Random()
    made = []
    for _ in range(max(2, streams)):
        length, new = 59, 64
        if kind == "mixed":
            length, new = lengths.randint(20, 400), lengths.randint(8, 256)
        made.append(Job([tokens.randrange(1000, 40_000) for _ in range(length)], new))
    return made


def measure(server: Server, work: Sequence[Job], streams: int) -> Run:
    """So many callers, each with its next request as soon as the last one is answered."""
    waiting: SimpleQueue[Job] = SimpleQueue()
    for job in work:
        waiting.put(job)
    answers: list[list[float]] = []
    failed: list[BaseException] = []

    def call() -> None:
        try:
            while True:
                answers.append(ask(server, waiting.get_nowait()))
        except Empty:
            pass
        except Exception as error:  # noqa: BLE001 - raised again by who has started this thread
            failed.append(error)

    threads = [threading.Thread(target=call) for _ in range(streams)]
    cpu, started = cpu_seconds(server.pid), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run = Run(sum(job.new_tokens for job in work))
    run.seconds, run.cpu_seconds = time.perf_counter() - started, cpu_seconds(server.pid) - cpu
    if failed:
        raise SystemExit(f"{server.name}: {failed[0]}")
    for came in answers:
        run.first.append(came[0])
        run.gaps += [later - earlier for earlier, later in pairwise(came)]
    return run


def ask(server: Server, job: Job) -> list[float]:
    """One streamed answer: how long after the request each piece of it came."""
    body = {
        "model": server.model, "prompt": job.prompt, "max_tokens": job.new_tokens,
        "temperature": 0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=600)
    came, tokens, started = [], 0, time.perf_counter()
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"{response.status} {response.read()[:500]!r}")
    for line in response:
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
            if chunk["choices"]:
                came.append(time.perf_counter() - started)
    connection.close()
    if tokens != job.new_tokens:
        raise RuntimeError(f"{tokens} tokens instead of {job.new_tokens}")
    return came


def model_of(url: str) -> str:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("GET", "/v1/models")
    name: str = json.loads(connection.getresponse().read())["data"][0]["id"]
    connection.close()
    return name


def row(what: str, runs: Sequence[Run], ours: Sequence[Run]) -> dict[str, Any]:
    rates = [run.tokens_per_cpu_second for run in runs]
    ratios = [here.tokens_per_cpu_second / rate for here, rate in zip(ours, rates, strict=True)]
    first = sorted(seconds for run in runs for seconds in run.first)
    gaps = sorted(seconds for run in runs for seconds in run.gaps)
    return {
        "what": what,
        "tokens/CPU-s": statistics.median(rates),
        "lowest": min(rates),
        "highest": max(rates),
        "here/there": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "tokens/s": statistics.median(run.tokens / run.seconds for run in runs),
        "first p50 ms": 1e3 * statistics.median(first),
        "p95 ms": 1e3 * first[int(0.95 * len(first))],
        "gap p50 ms": 1e3 * statistics.median(gaps),
        "gap p95 ms": 1e3 * gaps[int(0.95 * len(gaps))],
        "runs": len(runs),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--checkpoint", type=Path, help="a folder as save_pretrained writes it")
    parser.add_argument(
        "--against", nargs=3, action="append", default=[], metavar=("NAME", "URL", "PID")
    )
    parser.add_argument("--threads", type=int, help="of wherry's engine; else its default")
    parser.add_argument("--cache-gb", type=float, default=1.07, help="of wherry's engine")
    options = parser.parse_args()
    with ExitStack() as stack:
        app = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "app.py"
        source = str(options.checkpoint or checkpoint_of_the_package())
        settings = {"name": "chat", "threads": options.threads, "cache_gb": options.cache_gb}
        app.write_text(f"from wherry.llm import LLM\nchat = LLM({source!r}, **{settings})\n")
        url, pid = stack.enter_context(server(str(app)))
        servers = [
            Server(name, url, int(pid), model_of(url))
            for name, url, pid in [(OURS, url, pid), *options.against]
        ]
        seen: dict[tuple[str, int, str], list[Run]] = {}
        for one in servers:  # whoever has something to compile does so now
            measure(one, jobs("mixed", 4, -1), 4)
        for number in range(options.rounds):
            for kind, streams in LOADS:
                work = jobs(kind, streams, number)
                for one in servers:
                    run = measure(one, work, streams)
                    seen.setdefault((kind, streams, one.name), []).append(run)
                    rate = f"{run.tokens_per_cpu_second:.1f} tokens per CPU-second"
                    print(f"{kind} {streams}: {one.name}: {rate}", file=sys.stderr, flush=True)
        rows = [
            row(f"{kind} {streams}: {name}", runs, seen[kind, streams, OURS])
            for (kind, streams, name), runs in seen.items()
        ]
        for one in servers:
            print(f"{one.name}: {memory_mb(one.pid):.0f} MB", file=sys.stderr)
    show(rows)
    if options.json is not None:
        options.json.write_text(json.dumps({**facts(), "title": TITLE, "rows": rows}, indent=1))


def show(rows: Sequence[dict[str, Any]]) -> None:
    print(TITLE)
    for row in rows:
        figures = "  ".join(f"{name} {row[name]:.4g}" for name in row if name != "what")
        print(f"{row['what']:28s} {figures}")


if __name__ == "__main__":
    main()
