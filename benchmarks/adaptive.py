"""Is the gain of the batcher real in the real runtime, beside greedy and the best pair of a sweep?

    python -m benchmarks.adaptive [--quick] [--json benchmarks/results/adaptive.json]
    python -m benchmarks.adaptive --real    # a transformer on texts of 5 to 120 words

Simulated device: 5 ms and 0.2 ms a row, at most 64 rows (3596 rows/s), called by 1 to 256 callers
in a loop, and by strangers at 10 to 98 % of what it can do. A pair is a max_batch_size with a
max_queue_delay; the best is the one with the least 95th percentile of those within 2 % of the best
rate. All run in turns, several times; figures are medians, to be compared within a row.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import wherry
from benchmarks.harness import arguments, report

LIMIT = 64
CAPACITY = LIMIT / (0.005 + 0.0002 * LIMIT)
CALLERS = (1, 2, 4, 10, 64, 256)
LOADS = (0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
Settings = dict[str, Any]

OURS: Settings = {"max_batch_size": LIMIT}
GREEDY: Settings = {"max_batch_size": LIMIT, "max_queue_delay": 0.0}


@dataclass(frozen=True)
class Figures:
    rate: float
    p95_ms: float


def pairs(callers: int) -> list[Settings]:
    """A sweep by hand: usual sizes and delays, and the number of callers where it is known."""
    sizes = {2, 8, 16, 32, LIMIT} | ({callers} if 1 < callers < LIMIT else set())
    return [{"max_batch_size": 1, "max_queue_delay": 0.0}] + [
        {"max_batch_size": size, "max_queue_delay": delay}
        for size in sorted(sizes)
        for delay in (0.002, 0.010)
    ]


def device(settings: Settings) -> wherry.Model:
    @wherry.model(name="device", **settings)
    def device(n: list[int]) -> list[int]:
        time.sleep(0.005 + 0.0002 * len(n))
        return n

    return device


async def in_a_loop(
    call: Callable[[], Coroutine[Any, Any, Any]], callers: int, seconds: float
) -> Figures:
    """So many callers, each asking again as soon as it has its answer."""
    took: list[float] = []
    warm_at = time.perf_counter() + seconds / 4
    stop_at = warm_at + seconds

    async def caller() -> None:
        while (began := time.perf_counter()) < stop_at:
            await call()
            if warm_at <= began and (now := time.perf_counter()) <= stop_at:
                took.append(now - began)

    await asyncio.gather(*(caller() for _ in range(callers)))
    return Figures(len(took) / seconds, percentile_ms(took))


async def by_strangers(
    call: Callable[[], Coroutine[Any, Any, Any]], rate: float, seconds: float, seed: int
) -> Figures:
    """Independent callers at a mean rate; a late one is counted from when it was due."""
    rng = random.Random(seed)
    took: list[float] = []
    tasks: set[asyncio.Task[None]] = set()
    began = due = time.perf_counter()

    async def ask(due: float) -> None:
        try:
            await call()
        except wherry.Overloaded:
            return  # too much for this pair: its rate says so
        if due > began + seconds / 4:
            took.append(time.perf_counter() - due)

    while (due := due + rng.expovariate(rate)) < began + 1.25 * seconds:
        if (ahead := due - time.perf_counter()) > 0:
            await asyncio.sleep(ahead)
        task = asyncio.create_task(ask(due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return Figures(len(took) / seconds, percentile_ms(took))


def percentile_ms(seconds: Sequence[float], share: float = 0.95) -> float:
    return 1e3 * sorted(seconds)[int(share * len(seconds))] if seconds else float("nan")


def measured(settings: Settings, load: float, seconds: float, seed: int) -> Figures:
    """Callers if the load is a whole number, else a share of the capacity."""

    async def run() -> Figures:
        async def call() -> None:
            await runtime.ainfer("device", n=1)

        if load >= 1:
            return await in_a_loop(call, round(load), seconds)
        return await by_strangers(call, load * CAPACITY, seconds, seed)

    with wherry.Runtime(device(settings)) as runtime:
        return asyncio.run(run())


def median(figures: Sequence[Figures]) -> Figures:
    return Figures(
        statistics.median(one.rate for one in figures),
        statistics.median(one.p95_ms for one in figures),
    )


def elected(tried: dict[str, Figures]) -> str:
    top = max(figures.rate for figures in tried.values())
    good = {name: one.p95_ms for name, one in tried.items() if one.rate >= 0.98 * top}
    return min(good, key=lambda name: good[name])


def row(load: float, sweep_seconds: float, seconds: float, rounds: int) -> dict[str, Any]:
    """The best pair is elected first, in shorter runs, and then measured with the others."""
    candidates = pairs(round(load) if load >= 1 else 0)
    names = {f"{p['max_batch_size']}, {p['max_queue_delay'] * 1e3:g} ms": p for p in candidates}
    best = elected({name: measured(p, load, sweep_seconds, 1) for name, p in names.items()})
    plans = {"ours": OURS, "greedy": GREEDY, "pair": names[best]}
    seen: dict[str, list[Figures]] = {name: [] for name in plans}
    for seed in range(rounds):
        for name, settings in plans.items():
            seen[name].append(measured(settings, load, seconds, seed + 2))
    ours, greedy, pair = (median(seen[name]) for name in plans)
    return {
        "what": f"{load:.0f} callers" if load >= 1 else f"strangers at {load:.0%}",
        "rows/s": round(ours.rate),
        "p95 ms": round(ours.p95_ms, 1),
        "greedy rows/s": round(greedy.rate),
        "greedy p95 ms": round(greedy.p95_ms, 1),
        "best pair": best,
        "pair rows/s": round(pair.rate),
        "pair p95 ms": round(pair.p95_ms, 1),
        "of the pair's rate %": round(100 * ours.rate / pair.rate, 1),
        "of its p95 %": round(100 * ours.p95_ms / pair.p95_ms, 1),
    }


def simulated(quick: bool, seconds: float, rounds: int) -> list[dict[str, Any]]:
    loads = (1, 4, 64, 0.3, 0.9) if quick else (*CALLERS, *LOADS)
    if quick:
        seconds, rounds = min(seconds, 0.5), 1
    return [row(load, min(0.4, seconds), seconds, rounds) for load in loads]


def real(quick: bool, texts: int, rounds: int) -> list[dict[str, Any]]:
    """CPU ms a text through the batcher, by the number of callers, beside the same offline."""
    from benchmarks.mixed_lengths import (
        ROWS,
        cpu_ms_a_text,
        offline,
        samples_of,
        through_the_batcher,
    )

    samples = samples_of(60 if quick else texts)
    by_length = sorted(samples, key=len)
    rows: list[dict[str, Any]] = []
    for callers in (4, 32) if quick else (1, 4, 16, 64):
        plans: dict[str, Callable[[], None]] = {
            "ours": through_the_batcher(samples, callers, cost=len),
            "greedy": through_the_batcher(samples, callers, max_queue_delay=0.0),
            **{
                f"{size}, {delay:g} ms": through_the_batcher(
                    samples, callers, max_batch_size=size, max_queue_delay=delay / 1e3
                )
                for size, delay in ((1, 0), (4, 5), (ROWS, 5))
            },
            "sorted offline": offline(by_length, ROWS),
            "one by one offline": offline(samples, 1),
        }
        seen: dict[str, list[float]] = {name: [] for name in plans}
        for _ in range(1 if quick else rounds):
            for name, run in plans.items():
                seen[name].append(cpu_ms_a_text(run, len(samples)))
        cost = {name: statistics.median(times) for name, times in seen.items()}
        best = min([name for name in plans if name.endswith(" ms")], key=lambda name: cost[name])
        limit = min(cost["sorted offline"], cost["one by one offline"])
        rows.append(
            {
                "what": f"{callers} callers",
                "CPU ms/text": round(cost["ours"], 2),
                "greedy": round(cost["greedy"], 2),
                "best pair": best,
                "pair": round(cost[best], 2),
                "sorted offline": round(cost["sorted offline"], 2),
                "of the offline limit %": round(100 * limit / cost["ours"], 1),
            }
        )
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(seconds=0.8)
    parser.add_argument("--quick", action="store_true", help="a look in under a minute")
    parser.add_argument("--real", action="store_true", help="a transformer, not a simulated device")
    parser.add_argument("--texts", type=int, default=200, help="texts in each run of --real")
    options = parser.parse_args()
    if options.real:
        rows = real(options.quick, options.texts, options.rounds)
        title = "MiniLM on texts of 5 to 120 words, one instance of one thread: CPU time"
    else:
        rows = simulated(options.quick, options.seconds, options.rounds)
        title = "a device of 5 ms + 0.2 ms a row, in this process"
    report(title, rows, options.json)


if __name__ == "__main__":
    main()
