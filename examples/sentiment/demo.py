"""What does wherry do with 64 callers at once? `make demo` shows it on a real model.

Serves app.py, sends it 400 real sentences from 64 concurrent callers over HTTP, then one after
another, then from 64 threads to the same model in this process.
"""

import itertools
import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import wherry
from wherry.testing import running_server

APP = Path(__file__).with_name("app.py")
SENTENCES = Path(__file__).with_name("sentences.txt")
CALLERS = 64
SHOWN, WIDTH = 8, 76

console = Console(highlight=False)


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    label: str
    score: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """All sentences sent once in one way."""

    name: str
    answers: list[Answer]
    seconds: float

    @property
    def rate(self) -> float:
        return len(self.answers) / self.seconds

    def percentile_ms(self, share: float) -> float:
        ordered = sorted(answer.seconds for answer in self.answers)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def send(name: str, infer: Callable[..., Any], sentences: list[str], callers: int) -> Run:
    """Every caller is a thread that sends its next sentence when it has its answer.

    `infer` is that of a client or of a runtime: a caller cannot tell them apart.
    """

    def ask(text: str) -> Answer:
        start = time.perf_counter()
        row = infer("sentiment", text=text)
        return Answer(text, row["label"], row["score"], time.perf_counter() - start)

    with ThreadPoolExecutor(callers) as pool:
        start = time.perf_counter()
        answers = list(pool.map(ask, sentences))
        return Run(name, answers, time.perf_counter() - start)


def batches(url: str) -> dict[int, int]:
    """How many batches of each size the server's model has run so far."""
    with urllib.request.urlopen(f"{url}/v2/models/sentiment/stats") as reply:
        (model,) = json.load(reply)["model_stats"]
    return {b["batch_size"]: b["compute_infer"]["count"] for b in model["batch_stats"]}


def show_answers(answers: list[Answer]) -> None:
    table = Table(title="what it says", box=None, pad_edge=False)
    table.add_column("sentence", no_wrap=True, overflow="ellipsis")
    table.add_column("positive", justify="right")
    for answer in answers[:SHOWN]:
        colour = "green" if answer.label == "positive" else "red"
        table.add_row(answer.text, f"[{colour}]{answer.score:.2f}")
    console.print(table, "")


def show_batches(made: dict[int, int]) -> None:
    """The sizes in classes, with bars by sentences: in what company did one run?"""
    table = Table(title="how the sentences were batched", box=None, pad_edge=False)
    for column in ("batch size", "batches", "sentences"):
        table.add_column(column, justify="right")
    table.add_column("")
    total = sum(size * count for size, count in made.items())
    for low, high in itertools.pairwise([1, 2, 5, 9, 13, 17, 21, 25, 29, 33]):
        sizes = [size for size in made if low <= size < high]
        if sizes:
            rows = sum(size * made[size] for size in sizes)
            name = str(low) if high == low + 1 else f"{low}-{high - 1}"
            count = sum(made[size] for size in sizes)
            table.add_row(name, str(count), str(rows), "█" * max(1, round(40 * rows / total)))
    console.print(table, "")


def show_runs(runs: list[Run]) -> None:
    table = Table(title="how fast", box=None, pad_edge=False)
    table.add_column("")
    for column in ("sentences/s", "p50 ms", "p95 ms"):
        table.add_column(column, justify="right")
    for run in runs:
        p50, p95 = run.percentile_ms(0.50), run.percentile_ms(0.95)
        table.add_row(run.name, f"{run.rate:.0f}", f"{p50:.1f}", f"{p95:.1f}")
    console.print(table, "")


def main() -> None:
    # End as by Ctrl-C, so that the server is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sentences = SENTENCES.read_text().splitlines()
    console.print(f"{len(sentences)} sentences, {CALLERS} callers, {os.cpu_count()} cores\n")

    start = time.perf_counter()
    with (
        console.status("starting the server, sending sentences over HTTP"),
        running_server(str(APP)) as url,
        wherry.Client(url) as client,
    ):
        ready = time.perf_counter() - start
        before = batches(url)
        many = send(f"HTTP, {CALLERS} callers", client.infer, sentences, CALLERS)
        after = batches(url)
        one = send("HTTP, one at a time", client.infer, sentences, 1)

    from examples.sentiment.app import sentiment  # only now: onnxruntime takes a moment

    with console.status("the same in-process"), wherry.Runtime(sentiment) as runtime:
        local = send(f"in-process, {CALLERS} threads", runtime.infer, sentences, CALLERS)

    console.print(f"wherry serve {APP.name} was ready after {ready:.1f} s\n")
    show_answers([answer for answer in many.answers if len(answer.text) <= WIDTH])
    show_batches({n: after[n] - before.get(n, 0) for n in after if after[n] > before.get(n, 0)})
    show_runs([many, local, one])
    console.print(
        f"the same sentences one at a time: [bold]{many.rate / one.rate:.1f} x slower[/bold]"
        f" ({one.seconds:.1f} s instead of {many.seconds:.1f} s)"
    )
    wherry_command = relative(Path(sys.executable).with_name("wherry"))
    console.print(
        f"""
[bold]what to try next[/bold]
  {wherry_command} serve {relative(APP)}    and then, elsewhere:
  {wherry_command} call sentiment "what a lovely day"
  curl -s localhost:8000/v2/models/sentiment/infer -d \\
    '{{"inputs": [{{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["so dull"]}}]}}'
  open http://127.0.0.1:8000/ in a browser, read {relative(APP)}""",
        soft_wrap=True,
    )


def relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    main()
