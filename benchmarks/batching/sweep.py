"""Which fixed pair of a size and a delay is the best in a scenario, and what does it reach?

A pair runs as `DynamicBatcher(always_wait=True)` does in simulator.py, in a plain loop that has no
request objects: a sweep of a hundred pairs takes a second.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from math import inf

from benchmarks.batching.callers import Load
from benchmarks.batching.curves import MS
from benchmarks.batching.device import BatchSeconds
from benchmarks.batching.play import Figures, Trace, figures, play
from benchmarks.batching.scenarios import ELECTION_SEED, Scenario
from wherry.scheduler.dynamic_batcher import DynamicBatcher

Pair = tuple[int, float]
DELAYS = (0.0, 0.5 * MS, 1 * MS, 2 * MS, 5 * MS, 10 * MS, 20 * MS, 50 * MS)
#: Pairs are compared on so many requests first, and the best of them on the whole run.
SHORT, FINALISTS = 1500, 12
#: Pairs within this share of the best throughput are as good; the least p95 decides.
ALIKE = 0.02


def run_pair(scenario: Scenario, pair: Pair, seed: int, noise: object = None) -> Figures:
    """What a fixed pair reaches; with another seed for the device's noise, if it is given."""
    return measured(scenario, pair, scenario.load(seed), seed if noise is None else noise)


def measured(scenario: Scenario, pair: Pair, load: Load, seed: object) -> Figures:
    seconds = scenario.batch_seconds(seed, load.total)
    if load.within:
        size, delay = pair
        batcher = DynamicBatcher(max_batch_size=size, max_queue_delay=delay, always_wait=True)
        trace = play(batcher, seconds, load, scenario.instances)
    else:
        trace = plain(pair, seconds, load, scenario.instances)
    return figures(trace, scenario.closed)


def best_pair(scenario: Scenario) -> Pair:
    """The pair with the least p95 of those within 2 % of the best throughput."""
    pairs = [(1, 0.0)]
    pairs += [(size, delay) for size in sizes(scenario) for delay in DELAYS]
    short = scenario.load(ELECTION_SEED, SHORT)
    rated = {pair: measured(scenario, pair, short, ELECTION_SEED) for pair in pairs}
    top = max(f.rate for f in rated.values())

    def badness(pair: Pair) -> tuple[float, float]:
        """Too slow first, then by p95: short runs are too rough for the exact rule."""
        rate = rated[pair].rate
        return max(0.0, 1 - 2 * ALIKE - rate / top), rated[pair].p95

    finalists = sorted(pairs, key=badness)[:FINALISTS]
    finalists += sorted(pairs, key=lambda pair: -rated[pair].rate)[:2]
    whole = scenario.load(ELECTION_SEED)
    final = {pair: measured(scenario, pair, whole, ELECTION_SEED) for pair in finalists}
    top = max(f.rate for f in final.values())
    good = [pair for pair, f in final.items() if f.rate >= (1 - ALIKE) * top]
    return min(good, key=lambda pair: final[pair].p95)


def sizes(scenario: Scenario) -> list[int]:
    """Powers of two, the limit, the callers, a group of them, ends of steps."""
    limit, n = scenario.limit, scenario.arrivals.callers
    some = {2**power for power in range(1, 9)} | {limit, n, n // scenario.instances}
    some.add(-(-n // scenario.instances))
    seconds = scenario.device.curve.seconds
    rises = [rows for rows in range(2, limit) if seconds(rows + 1) > seconds(rows)]
    if len(rises) < limit / 2:  # the ends of steps
        some.update(rises[:2] + rises[len(rises) // 2 : len(rises) // 2 + 1] + rises[-1:])
    return sorted(size for size in some if 1 < size <= limit)


def plain(pair: Pair, seconds: BatchSeconds, load: Load, instances: int) -> Trace:
    """A run of a fixed pair, without deadlines."""
    loop = one_row_open if not load.first and load.rows is None else in_general
    return loop(pair, seconds, load, instances)


def one_row_open(pair: Pair, seconds: BatchSeconds, load: Load, instances: int) -> Trace:
    """Strangers only, a row each: batch by batch."""
    size, delay = pair
    at, lengths, total = load.strangers, load.lengths, load.total
    free = [0.0] * instances
    batches: list[tuple[float, int, int]] = []
    head = 0
    while head < total:
        last = head + size - 1
        leaves = at[head] + delay
        if last < total and at[last] < leaves:
            leaves = at[last]
        start = free[0]
        if leaves > start:
            start = leaves
        stop = bisect_right(at, start, head, min(head + size, total))
        longest = max(lengths[head:stop]) if lengths else 1
        arrived = bisect_right(at, start, stop, total) if stop == head + size else stop
        end = start + seconds(stop - head, longest, arrived)
        heapq.heapreplace(free, end)
        batches.append((end, head, stop))
        head = stop
    return traced(batches, at, None)


def in_general(pair: Pair, seconds: BatchSeconds, load: Load, instances: int) -> Trace:
    """Callers, strangers or both."""
    size, delay = pair
    total, rows, lengths, pauses = load.total, load.rows, load.lengths, load.pauses
    heappush, heappop = heapq.heappush, heapq.heappop
    returns, strangers = list(load.first), load.strangers
    #: When the n-th request arrived, and whether from a caller.
    at: list[float] = []
    mine: list[bool] = []
    running: list[tuple[float, int, int]] = []
    batches: list[tuple[float, int, int]] = []
    made = len(returns) + bool(strangers)
    new = strangers[0] if strangers else inf
    head = waiting = following = paused = 0
    idle = instances
    now = 0.0
    while True:
        while idle and waiting and (waiting >= size or now >= at[head] + delay):
            if rows is None:
                stop = head + (waiting if waiting < size else size)
                taken = stop - head
            else:
                stop, taken = head + 1, rows[head]
                while stop < len(at) and taken + rows[stop] <= size:
                    taken += rows[stop]
                    stop += 1
            longest = max(lengths[head:stop]) if lengths else 1
            end = now + seconds(taken, longest, len(at))
            heappush(running, (end, head, stop))
            batches.append((end, head, stop))
            waiting -= taken
            head = stop
            idle -= 1
        ends = running[0][0] if running else inf
        until = ends
        if idle and waiting and at[head] + delay < ends:
            until = at[head] + delay
        # Arrivals that let no batch start are taken in at once.
        while True:
            back = returns[0] if returns else inf
            now = back if back < new else new
            if now > until or now == inf:
                now = until
                break
            if back < new:
                heappop(returns)
                mine.append(True)
            else:
                mine.append(False)
                following += 1
                new = strangers[following] if made < total else inf
                made += 1
            at.append(now)
            waiting += rows[len(at) - 1] if rows else 1
            if idle:
                if waiting >= size or not delay:
                    break
                if head == len(at) - 1 and now + delay < until:
                    until = now + delay
        if now == inf:
            return traced(batches, at, rows)
        if now == ends:
            _, first, stop = heappop(running)
            idle += 1
            for request in range(first, stop):
                if mine[request] and made < total:
                    made += 1
                    heappush(returns, now + pauses[paused])
                    paused += 1


def traced(batches: list[tuple[float, int, int]], at: list[float], rows: list[int] | None) -> Trace:
    """The trace of these batches: (end, first request, the request after the last)."""
    trace = Trace()
    for end, first, stop in sorted(batches):
        trace.arrived += at[first:stop]
        trace.ended += [end] * (stop - first)
        trace.rows += rows[first:stop] if rows else [1] * (stop - first)
    return trace
