"""What would a scheduler do? A deterministic discrete-event simulation of callers and instances.

It drives the very objects that the product runs (wherry.scheduler.policy.Scheduler): time is an
argument, so virtual seconds do. Seed in, figures out.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from wherry.reply import Reply
from wherry.request import Batch, InferRequest, InferResponse
from wherry.scheduler.policy import Dispatch, Scheduler, Wait

MS = 1e-3
#: Seconds for a batch of so many rows whose longest row has so many tokens.
Cost = Callable[[int, int], float]

CURVES: dict[str, Cost] = {
    "gpu": lambda n, m: (5 + 0.2 * n) * MS,
    "flat": lambda n, m: max(6.0, 1 + 0.3 * n) * MS,
    "linear": lambda n, m: (0.1 + 2.0 * n) * MS,
    "tile8": lambda n, m: (5 + 1.6 * ceil(n / 8)) * MS,
    "fast": lambda n, m: (0.2 + 0.01 * n) * MS,
    "token": lambda n, m: (3 + 0.004 * n * m) * MS,
}


@dataclass(frozen=True)
class Arrivals:
    """Callers in a closed loop (`callers` > 0), or a Poisson or on-off process at `rate`/s."""

    callers: int = 0
    #: Seconds between an answer and the caller's next request: log-normal around this.
    back: float = 0.25 * MS
    #: Mean of a further exponential pause.
    think: float = 0.0
    rate: float = 0.0
    on: float = 0.0
    off: float = 0.0


@dataclass(frozen=True)
class Result:
    rate: float
    p50: float
    p95: float
    p99: float
    mean_batch: float
    busy: float
    decisions: int


def lengths(rng: random.Random) -> int:
    return int(min(512, max(8, rng.lognormvariate(4.4, 0.9))))


def simulate(
    scheduler: Scheduler,
    curve: Cost,
    arrivals: Arrivals,
    *,
    total: int = 5000,
    seed: int = 1,
    instances: int = 1,
    rows: Callable[[random.Random], int] = lambda rng: 1,
    length: Callable[[random.Random], int] | None = None,
    noise: float = 0.02,
) -> Result:
    rng = random.Random(seed)
    events: list[tuple[float, int, str, object]] = []
    order = 0

    def push(when: float, kind: str, what: object = None) -> None:
        nonlocal order
        order += 1
        heapq.heappush(events, (when, order, kind, what))

    made = 0
    if arrivals.callers:
        for caller in range(arrivals.callers):
            push(rng.random() * 2 * MS, "arrival", caller)
            made += 1
    else:
        when, hot_until = 0.0, float("inf")
        rate = arrivals.rate
        if arrivals.on:
            rate *= (arrivals.on + arrivals.off) / arrivals.on
            hot_until = rng.expovariate(1 / arrivals.on)
        for _ in range(total):
            when += rng.expovariate(rate)
            if when > hot_until:
                when = hot_until + rng.expovariate(1 / arrivals.off)
                hot_until = when + rng.expovariate(1 / arrivals.on)
            push(when, "arrival", None)
        made = total

    idle = instances
    done: list[tuple[float, float, int]] = []
    batches = decisions = 0
    busy_seconds = 0.0
    wake = -1.0
    callers: dict[int, object] = {}
    now = 0.0
    while events:
        now, _, kind, what = heapq.heappop(events)
        if kind == "arrival":
            request = InferRequest({}, rows(rng), Reply[InferResponse](lambda _: None))
            if length is not None:
                request.cost = float(length(rng))
            request.enqueued_at = now
            callers[id(request)] = what
            scheduler.enqueue(request, now)
        elif kind == "finished":
            batch, seconds = what  # type: ignore[misc]
            idle += 1
            for request in batch.requests:
                done.append((request.enqueued_at, now, request.rows))
                request.reply.settle(InferResponse({}))
                caller = callers.pop(id(request))
                if arrivals.callers and made < total:
                    made += 1
                    pause = arrivals.back * rng.lognormvariate(0, 0.4)
                    if arrivals.think:
                        pause += rng.expovariate(1 / arrivals.think)
                    push(now + pause, "arrival", caller)
            scheduler.finished(batch.requests, seconds, now)
        elif what != wake:
            continue
        while idle:
            decisions += 1
            action = scheduler.next_action(now)
            if isinstance(action, Dispatch):
                made_batch: Batch = action.batch
                longest = max(int(r.cost) for r in made_batch.requests) if length else 1
                seconds = curve(made_batch.rows, longest) * rng.lognormvariate(0, noise)
                idle -= 1
                batches += 1
                busy_seconds += seconds
                push(now + seconds, "finished", (made_batch, seconds))
                continue
            if isinstance(action, Wait):
                wake = max(action.until, now + 1e-6)
                push(wake, "wake", wake)
            break

    warm = done[len(done) // 5 : (9 * len(done)) // 10 if arrivals.callers else None]
    latencies = sorted(end - start for start, end, _ in warm)
    if arrivals.callers:
        span = warm[-1][1] - done[len(done) // 5 - 1][1]
        rate = sum(n for *_, n in warm) / span
    else:
        rate = sum(n for *_, n in done) / done[-1][1]
    k = len(latencies)
    return Result(
        rate,
        latencies[k // 2],
        latencies[int(k * 0.95)],
        latencies[int(k * 0.99)],
        sum(n for *_, n in done) / batches,
        busy_seconds / instances / now,
        decisions,
    )


def capacity(curve: Cost, limit: int = 256) -> float:
    """The best rows/s of any fixed batch size."""
    return max(n / curve(n, 1) for n in range(1, limit + 1))
