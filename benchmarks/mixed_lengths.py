"""Does the batcher beat padding? A real sentence encoder on texts of mixed lengths.

    python -m benchmarks.mixed_lengths [--json benchmarks/results/mixed_lengths.json]

MiniLM on one CPU thread, rows padded to the longest of their batch, at most 16 rows: offline (one
by one, in order of arrival, sorted by length), and called by 4 to 64 threads through the batcher:
greedy, by itself, and by itself knowing each row's cost (its characters). What is learnt first, on
`LEARNING` texts, is not measured. Figures are words/s, and CPU ms a text.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import wherry
from benchmarks.harness import ROOT, arguments, report
from examples.sentiment.app import encoder

CALLERS, ROWS = 32, 16
#: Texts that the batcher learns from before it is measured.
LEARNING = 1000


def texts(seed: int, count: int) -> list[str]:
    """Texts of 5 to 120 words, cut out of the example's sentences."""
    rng = random.Random(seed)
    lines = (ROOT / "examples" / "sentiment" / "sentences.txt").read_text().split()
    lengths = [max(5, min(120, round(rng.lognormvariate(3.2, 0.8)))) for _ in range(count)]
    starts = [rng.randrange(len(lines) - 120) for _ in lengths]
    return [" ".join(lines[s : s + n]) for s, n in zip(starts, lengths, strict=True)]


def embed_padded(text: Sequence[str]) -> list[float]:
    """The network on all rows at once, padded to the longest: no grouping of its own."""
    network = encoder()
    tokens = [encoding.ids for encoding in network.tokenizer.encode_batch(list(text))]
    return [float(row[0, 0]) for row in network._pool(tokens)]


def offline(samples: Sequence[str], size: int) -> Callable[[], None]:
    def run() -> None:
        for start in range(0, len(samples), size):
            embed_padded(samples[start : start + size])

    return run


@contextmanager
def embedding(callers: int, **settings: Any) -> Iterator[Callable[[Sequence[str]], None]]:
    """A loaded model; the function calls it with these texts from so many threads."""

    @wherry.model(**{"max_batch_size": ROWS, "name": "embed", **settings})
    def embed(text: list[str]) -> list[float]:
        return embed_padded(text)

    def call(samples: Sequence[str]) -> None:
        waiting = iter(samples)
        lock = threading.Lock()

        def caller() -> None:
            while True:
                with lock:
                    text = next(waiting, None)
                if text is None:
                    return
                embed.infer(text)

        threads = [threading.Thread(target=caller) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with wherry.Runtime(embed):
        yield call


def through_the_batcher(
    samples: Sequence[str], callers: int = CALLERS, **settings: Any
) -> Callable[[], None]:
    def run() -> None:
        with embedding(callers, **settings) as call:
            call(samples)

    return run


def samples_of(count: int) -> list[str]:
    """Texts, with the network loaded and warm."""
    samples = texts(1, count)
    embed_padded(samples[:4])
    return samples


def cpu_ms_a_text(run: Callable[[], None], count: int) -> float:
    started = time.process_time()
    run()
    return (time.process_time() - started) / count * 1e3


def measured(run: Callable[[], None]) -> tuple[float, float]:
    """Seconds of the clock, and of the CPU."""
    started, cpu_started = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - started, time.process_time() - cpu_started


def measured_when_learnt(
    samples: Sequence[str], callers: int, settings: dict[str, Any]
) -> tuple[float, float]:
    with embedding(callers, **settings) as call:
        call(texts(2, LEARNING))
        return measured(lambda: call(samples))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--texts", type=int, default=600, help="texts in each run")
    parser.add_argument("--callers", type=int, nargs="+", default=[4, 16, 32, 64])
    options = parser.parse_args()
    samples = samples_of(options.texts)
    words = sum(len(text.split()) for text in samples)
    by_length = sorted(samples, key=len)
    plan: list[tuple[str, Callable[[], tuple[float, float]]]] = [
        ("offline, one by one", partial(measured, offline(samples, 1))),
        ("offline, batches of 16 as they come", partial(measured, offline(samples, ROWS))),
        ("offline, batches of 16 sorted by length", partial(measured, offline(by_length, ROWS))),
    ]
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("greedy", {"max_queue_delay": 0.0}),
        ("self-tuning", {}),
        ("self-tuning, cost=len", {"cost": len}),
    ]
    plan += [
        (f"{callers} callers, {what}", partial(measured_when_learnt, samples, callers, settings))
        for callers in options.callers
        for what, settings in kinds
    ]
    rates: dict[str, list[float]] = {what: [] for what, _ in plan}
    cpu: dict[str, list[float]] = {what: [] for what, _ in plan}
    for _ in range(options.rounds):  # interleaved: the machine's mood is the same for all
        for what, measure in plan:
            seconds, cpu_seconds = measure()
            rates[what].append(words / seconds)
            cpu[what].append(cpu_seconds / len(samples) * 1e3)
    limit = statistics.median(cpu["offline, batches of 16 sorted by length"])
    rows = [
        {
            "what": what,
            "words/s": round(statistics.median(rates[what])),
            "CPU ms/text": round(statistics.median(cpu[what]), 2),
            "% of sorted offline (CPU)": round(100 * limit / statistics.median(cpu[what]), 1),
        }
        for what, _ in plan
    ]
    report("MiniLM, texts of 5 to 120 words, one instance of one thread", rows, options.json)


if __name__ == "__main__":
    main()
