"""What does a scheduler do? A deterministic discrete-event simulation of callers and instances.

It drives the very objects that the product runs (wherry.core.scheduler.policy.Scheduler): time is
an argument, so virtual seconds do.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import inf

import numpy as np

from benchmarks.batching.callers import Load
from benchmarks.batching.device import BatchSeconds
from wherry.core.scheduler.policy import Dispatch, Scheduler, Wait
from wherry.core.values.reply import Reply
from wherry.core.values.request import Batch, InferRequest, InferResponse

#: A `Wait` until a moment that is over is asked again after this.
LEAST_WAIT = 1e-6
#: The requests of a cold start.
COLD = 200


@dataclass
class Trace:
    """What happened in a run. One entry for each request, in order of the answers."""

    arrived: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    #: Rows answered: none of a late request.
    rows: list[int] = field(default_factory=list)
    #: Requests that were not answered by their deadline.
    late: int = 0
    #: In order of the starts, if a scheduler has made them: when, and its seconds.
    batches: list[tuple[float, float, Batch]] = field(default_factory=list)


@dataclass(frozen=True)
class Figures:
    """Of one run. Rows a second; seconds of an answer."""

    rate: float
    p95: float
    mean: float
    late: float
    #: Of the first requests of the run.
    cold_rate: float
    cold_mean: float


def figures(trace: Trace, closed: bool, start: float = 0.0) -> Figures:
    """The first fifth is warm-up; in a closed loop the last callers have less company than usual,
    so that the last tenth does not count either. A batch counts whole or not at all."""
    arrived, ended, rows = map(np.array, (trace.arrived, trace.ended, trace.rows))
    taken, count = ended - arrived, len(ended)
    if closed:
        since, until = ended[count // 5], ended[(9 * count) // 10]
        counted = (ended > since) & (ended <= until)
        if not counted.any():
            counted[:] = True
            since = start
        rate = rows[counted].sum() / (until - since)
    else:
        counted = np.arange(count) >= count // 5
        rate = rows.sum() / (ended[-1] - start)
    some = taken[counted]
    cold = min(COLD, count)
    return Figures(
        rate=float(rate),
        p95=float(np.quantile(some, 0.95, method="lower")),
        mean=float(some.mean()),
        late=trace.late / count,
        cold_rate=float(rows[:cold].sum() / (ended[cold - 1] - start)),
        cold_mean=float(taken[:cold].mean()),
    )


def play(
    scheduler: Scheduler,
    seconds: BatchSeconds,
    load: Load,
    instances: int,
    start: float = 0.0,
) -> Trace:
    """From `start` on, so that a scheduler may live through several loads one after another."""
    trace = Trace()
    total, sizes, lengths, pauses = load.total, load.rows, load.lengths, load.pauses
    #: When callers send next; when strangers do, the next one last.
    returns = [start + when for when in load.first]
    strangers = [start + when for when in reversed(load.strangers)]
    #: When the running batches end, in what time, and whose they are.
    running: list[tuple[float, int, float, Batch]] = []
    open_requests: set[InferRequest] = set()  # of callers, not of strangers
    #: Requests that have arrived or are on their way.
    made = len(returns)
    if strangers:
        made += 1
    arrived = batches = paused = 0
    idle, wake, deadline = instances, inf, inf
    within = load.within
    heappush, heappop = heapq.heappush, heapq.heappop

    def answered(request: InferRequest, now: float, rows: int) -> None:
        nonlocal made, paused
        trace.arrived.append(request.enqueued_at)
        trace.ended.append(now)
        trace.rows.append(rows)
        if request in open_requests:
            open_requests.discard(request)
            if made < total:
                made += 1
                heappush(returns, now + pauses[paused])
                paused += 1

    while True:
        ends = running[0][0] if running else inf
        back = returns[0] if returns else inf
        new = strangers[-1] if strangers else inf
        now = min(ends, back, new, wake, deadline)
        if now == inf:
            break
        if now == ends:
            _, _, took, batch = heappop(running)
            idle += 1
            scheduler.finished(batch.requests, took, now)
            for request in batch.requests:
                if request.reply.settle(RESPONSE):
                    answered(request, now, request.rows)
        elif now in (back, new):
            request = InferRequest({}, sizes[arrived] if sizes else 1, Reply(ignore))
            if lengths:
                request.cost = float(lengths[arrived])
            if within:
                request.deadline = now + within
            request.enqueued_at = now
            arrived += 1
            if now == back:
                heappop(returns)
                open_requests.add(request)
            else:
                strangers.pop()
                if made >= total:
                    strangers.clear()
                made += 1
            scheduler.enqueue(request, now)
        elif now == deadline:
            for request in scheduler.expire(now):
                if request.reply.settle(RESPONSE):
                    trace.late += 1
                    answered(request, now, 0)
        else:
            wake = inf
        if within:
            deadline = scheduler.next_deadline() or inf
        while idle:
            action = scheduler.next_action(now)
            if isinstance(action, Dispatch):
                batch = action.batch
                longest = max(int(r.cost) for r in batch.requests) if lengths else 1
                took = seconds(batch.rows, longest, arrived)
                idle -= 1
                batches += 1
                heappush(running, (now + took, batches, took, batch))
                trace.batches.append((now, took, batch))
                continue
            wake = inf
            if isinstance(action, Wait):
                wake = action.until if action.until > now else now + LEAST_WAIT
            break
        if not idle:
            wake = inf
    return trace


RESPONSE = InferResponse({})


def ignore(_: Reply[InferResponse]) -> None:
    """Callers of a simulation come back without being told."""
