"""Does the batcher beat padding? A real sentence encoder on texts of mixed lengths.

    python -m benchmarks.mixed_lengths [--json benchmarks/results/mixed_lengths.json]

MiniLM on one CPU thread, rows padded to the longest of their batch, at most 16 rows: offline (one
by one, in order of arrival, sorted by length) and called by 32 threads through the batcher:
greedy, with a delay of 5 ms, by itself, and by itself knowing each row's cost (its characters).
Every text is `--copies` times in the load; figures are words/s, and CPU ms a text.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import wherry
from benchmarks.harness import ROOT, arguments, report
from examples.sentiment.app import encoder

CALLERS, ROWS = 32, 16


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


def through_the_batcher(
    samples: Sequence[str], callers: int = CALLERS, **settings: Any
) -> Callable[[], None]:
    @wherry.model(**{"max_batch_size": ROWS, "name": "embed", **settings})
    def embed(text: list[str]) -> list[float]:
        return embed_padded(text)

    def run() -> None:
        waiting = iter(samples)
        lock = threading.Lock()

        def caller() -> None:
            while True:
                with lock:
                    text = next(waiting, None)
                if text is None:
                    return
                embed.infer(text)

        with wherry.Runtime(embed):
            threads = [threading.Thread(target=caller) for _ in range(callers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

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


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--texts", type=int, default=600, help="texts in each run")
    options = parser.parse_args()
    samples = texts(1, options.texts)
    words = sum(len(text.split()) for text in samples)
    by_length = sorted(samples, key=len)
    embed_padded(samples[:4])
    plan: list[tuple[str, Callable[[], None]]] = [
        ("offline, one by one", offline(samples, 1)),
        ("offline, batches of 16 as they come", offline(samples, ROWS)),
        ("offline, batches of 16 sorted by length", offline(by_length, ROWS)),
        ("32 callers, greedy", through_the_batcher(samples, max_queue_delay=0.0)),
        ("32 callers, delay 5 ms", through_the_batcher(samples, max_queue_delay=0.005)),
        ("32 callers, self-tuning", through_the_batcher(samples)),
        ("32 callers, self-tuning, cost=len", through_the_batcher(samples, cost=len)),
    ]
    rates: dict[str, list[float]] = {what: [] for what, _ in plan}
    cpu: dict[str, list[float]] = {what: [] for what, _ in plan}
    for _ in range(options.rounds):  # interleaved: the machine's mood is the same for all
        for what, run in plan:
            started, cpu_started = time.perf_counter(), time.process_time()
            run()
            rates[what].append(words / (time.perf_counter() - started))
            cpu[what].append((time.process_time() - cpu_started) / len(samples) * 1e3)
    limit = min(statistics.median(cpu[what]) for what, _ in plan[:3])
    rows = [
        {
            "what": what,
            "words/s": round(statistics.median(rates[what])),
            "CPU ms/text": round(statistics.median(cpu[what]), 2),
            "% of the best offline (CPU)": round(100 * limit / statistics.median(cpu[what]), 1),
        }
        for what, _ in plan
    ]
    report("MiniLM, texts of 5 to 120 words, one instance of one thread", rows, options.json)


if __name__ == "__main__":
    main()
