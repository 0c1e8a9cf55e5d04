"""What does a fixed pair of a size and a delay do?

The same as `DynamicBatcher(always_wait=True)` in play.py, request for request, in plain loops
without request objects: in a tenth of the time.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from math import inf

from benchmarks.batching.callers import Load
from benchmarks.batching.device import BatchSeconds
from benchmarks.batching.play import Trace

#: Most rows of a batch, and the seconds that its oldest request waits for others.
Pair = tuple[int, float]


def run(pair: Pair, seconds: BatchSeconds, load: Load, instances: int) -> Trace:
    """A run of a fixed pair."""
    if load.within:
        return with_deadlines(pair, seconds, load, instances)
    if not load.first and load.rows is None:
        return strangers_of_one_row(pair, seconds, load, instances)
    return in_general(pair, seconds, load, instances)


def strangers_of_one_row(pair: Pair, seconds: BatchSeconds, load: Load, instances: int) -> Trace:
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
    """Callers, strangers or both, without deadlines."""
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


def with_deadlines(pair: Pair, seconds: BatchSeconds, load: Load, instances: int) -> Trace:
    """Callers or strangers, a row each, who give up the same time after their arrival."""
    size, delay = pair
    if load.within <= delay:
        delay = 0.0  # a wait would make the request late: it leaves at once
    heappush, heappop = heapq.heappush, heapq.heappop
    pauses, lengths, within, total = load.pauses, load.lengths, load.within, load.total
    arrivals = list(load.first or load.strangers)
    comes_back = bool(load.first)
    made = len(arrivals)
    trace = Trace()
    at: list[float] = []
    answered = bytearray(total)
    running: list[tuple[float, int, int]] = []
    head = due = paused = 0
    idle = instances

    def leave(request: int, now: float, rows: int) -> None:
        nonlocal made, paused
        answered[request] = True
        trace.arrived.append(at[request])
        trace.ended.append(now)
        trace.rows.append(rows)
        if comes_back and made < total:
            made += 1
            heappush(arrivals, now + pauses[paused])
            paused += 1

    while True:
        while due < len(at) and answered[due]:
            due += 1
        ends = running[0][0] if running else inf
        comes = arrivals[0] if arrivals else inf
        late = at[due] + within if due < len(at) else inf
        leaves = at[head] + delay if idle and head < len(at) else inf
        now = min(ends, comes, late, leaves)
        if now == inf:
            return trace
        if now == ends:
            _, first, stop = heappop(running)
            idle += 1
            for request in range(first, stop):
                if not answered[request]:
                    leave(request, now, 1)
        elif now == comes:
            at.append(heappop(arrivals))
        elif now == late:
            trace.late += 1
            leave(due, now, 0)
            head = max(head, due + 1)  # those that wait longest are late first
        while idle and head < len(at) and (len(at) - head >= size or now >= at[head] + delay):
            stop = min(len(at), head + size)
            longest = max(lengths[head:stop]) if lengths else 1
            heappush(running, (now + seconds(stop - head, longest, len(at)), head, stop))
            head = stop
            idle -= 1


def traced(batches: list[tuple[float, int, int]], at: list[float], rows: list[int] | None) -> Trace:
    """The trace of these batches: (end, first request, the request after the last)."""
    trace = Trace()
    for end, first, stop in sorted(batches):
        trace.arrived += at[first:stop]
        trace.ended += [end] * (stop - first)
        trace.rows += rows[first:stop] if rows else [1] * (stop - first)
    return trace
