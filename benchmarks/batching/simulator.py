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
from typing import Any

from wherry.scheduler.policy import Dispatch, Scheduler, Wait
from wherry.values.reply import Reply
from wherry.values.request import InferRequest, InferResponse

MS = 1e-3


@dataclass(frozen=True)
class Curve:
    """How long a batch takes: milliseconds fixed, for each row, for each token of padded rows."""

    fixed: float
    row: float = 0.0
    token: float = 0.0
    #: Rows are rounded up to a multiple of this.
    tile: int = 1
    #: A batch takes at least this long: flat up to the knee.
    floor: float = 0.0

    def seconds(self, rows: int, longest: int = 1) -> float:
        """Of a batch of so many rows whose longest has so many tokens."""
        padded = ceil(rows / self.tile) * self.tile
        each = self.row + self.token * longest
        return max(self.floor, self.fixed + each * padded) * MS


CURVES = {
    "gpu": Curve(fixed=5, row=0.2),
    "flat": Curve(fixed=1, row=0.3, floor=6),
    "linear": Curve(fixed=0.1, row=2),
    "tile8": Curve(fixed=5, row=0.2, tile=8),
    "fast": Curve(fixed=0.2, row=0.01),
    "token": Curve(fixed=3, token=0.004),
}


@dataclass(frozen=True)
class Arrivals:
    """Callers in a closed loop, strangers at `rate`/s (Poisson, or on and off), or both."""

    callers: int = 0
    #: Seconds between an answer and the caller's next request: log-normal around this.
    back: float = 0.25 * MS
    #: Mean of a further exponential pause.
    think: float = 0.0
    #: Strangers, who never come back.
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


def one_row(rng: random.Random) -> int:
    return 1


def mixed_rows(rng: random.Random) -> int:
    return 16 if rng.random() < 0.1 else 1


def text_lengths(rng: random.Random) -> int:
    """Tokens of a text: most have 30 to 200, a few fill the model."""
    return int(min(512, max(8, rng.lognormvariate(4.4, 0.9))))


def strangers(arrivals: Arrivals, rng: random.Random) -> Callable[[], float]:
    """A function that gives the moment of the next one each time it is called."""
    when, rate, hot_until = 0.0, arrivals.rate, float("inf")
    if arrivals.on:
        rate *= (arrivals.on + arrivals.off) / arrivals.on
        hot_until = rng.expovariate(1 / arrivals.on)

    def following() -> float:
        nonlocal when, hot_until
        when += rng.expovariate(rate)
        if when > hot_until:
            when = hot_until + rng.expovariate(1 / arrivals.off)
            hot_until = when + rng.expovariate(1 / arrivals.on)
        return when

    return following


def simulate(
    scheduler: Scheduler,
    curve: Curve,
    arrivals: Arrivals,
    *,
    total: int = 5000,
    seed: int = 1,
    instances: int = 1,
    rows: Callable[[random.Random], int] = one_row,
    length: Callable[[random.Random], int] | None = None,
    noise: float = 0.02,
    start: float = 0.0,
) -> Result:
    """From `start` on, so that a scheduler may live through several loads one after another."""
    # Each in a stream of its own: policies are compared under the same arrivals.
    rng, requests_rng, noise_rng = (random.Random(f"{seed} {name}") for name in "arn")
    events: list[tuple[float, int, str, Any]] = []
    order = 0

    def push(when: float, kind: str, what: Any = None) -> None:
        nonlocal order
        order += 1
        heapq.heappush(events, (when, order, kind, what))

    made = arrivals.callers
    for caller in range(arrivals.callers):
        push(start + rng.random() * 2 * MS, "arrival", caller)
    next_stranger = strangers(arrivals, random.Random(f"{seed} strangers"))
    if arrivals.rate:
        made += 1
        push(start + next_stranger(), "arrival")

    idle = instances
    done: list[tuple[float, float, int]] = []
    batches = decisions = 0
    busy_seconds = 0.0
    wake = -1.0
    callers: dict[int, int | None] = {}
    now = start
    while events:
        now, _, kind, what = heapq.heappop(events)
        if kind == "arrival":
            request = InferRequest({}, rows(requests_rng), Reply[InferResponse](lambda _: None))
            if length is not None:
                request.cost = float(length(requests_rng))
            request.enqueued_at = now
            callers[id(request)] = what
            scheduler.enqueue(request, now)
            if what is None and made < total:
                made += 1
                push(start + next_stranger(), "arrival")
        elif kind == "finished":
            batch, seconds = what
            idle += 1
            for request in batch.requests:
                done.append((request.enqueued_at, now, request.rows))
                request.reply.settle(InferResponse({}))
                back = callers.pop(id(request))
                if back is not None and made < total:
                    made += 1
                    pause = arrivals.back * rng.lognormvariate(0, 0.4)
                    if arrivals.think:
                        pause += rng.expovariate(1 / arrivals.think)
                    push(now + pause, "arrival", back)
            scheduler.finished(batch.requests, seconds, now)
        elif what != wake:
            continue
        while idle:
            decisions += 1
            action = scheduler.next_action(now)
            if isinstance(action, Dispatch):
                batch = action.batch
                longest = max(int(r.cost) for r in batch.requests) if length else 1
                seconds = curve.seconds(batch.rows, longest)
                seconds *= noise_rng.lognormvariate(0, noise)
                idle -= 1
                batches += 1
                busy_seconds += seconds
                push(now + seconds, "finished", (batch, seconds))
                continue
            if isinstance(action, Wait):
                wake = max(action.until, now + 1e-6)
                push(wake, "wake", wake)
            break

    # The first fifth is warm-up; in a closed loop the last callers have less company than usual.
    warm = done[len(done) // 5 : (9 * len(done)) // 10 if arrivals.callers else None]
    latencies = sorted(end - start for start, end, _ in warm)
    if arrivals.callers:
        span = warm[-1][1] - done[len(done) // 5 - 1][1]
        rate = sum(n for *_, n in warm) / span
    else:
        rate = sum(n for *_, n in done) / (done[-1][1] - start)
    count = len(latencies)
    return Result(
        rate,
        latencies[count // 2],
        latencies[int(count * 0.95)],
        latencies[int(count * 0.99)],
        sum(n for *_, n in done) / batches,
        busy_seconds / instances / (now - start),
        decisions,
    )


def capacity(curve: Curve, limit: int, length: Callable[[random.Random], int] | None) -> float:
    """The best rows/s of any fixed batch size, in order of arrival."""
    if length is None:
        return max(n / curve.seconds(n) for n in range(1, limit + 1))
    rng = random.Random(0)
    tokens = [length(rng) for _ in range(4096)]
    return max(in_batches(curve, tokens, size) for size in SIZES if size <= limit)


def sorted_offline(curve: Curve, limit: int, length: Callable[[random.Random], int]) -> float:
    """Rows/s if all requests were known beforehand, and run in order of length."""
    rng = random.Random(0)
    tokens = sorted(length(rng) for _ in range(4096))
    return max(in_batches(curve, tokens, size) for size in SIZES if size <= limit)


SIZES = (1, 2, 4, 8, 10, 16, 32, 64, 128, 256)


def in_batches(curve: Curve, tokens: list[int], size: int) -> float:
    batches = [tokens[i : i + size] for i in range(0, len(tokens), size)]
    return len(tokens) / sum(curve.seconds(len(batch), max(batch)) for batch in batches)
