"""How does the CPU time of a parser grow with its input?

`assert_linear` doubles an input and holds the cost to at most 2.5 times at each doubling. It counts
CPU time of this thread, so that other programs do not matter, and takes the least of several runs.
"""

import gc
import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import settings

T = TypeVar("T")

#: What "linear" allows for one doubling of the input.
MOST_PER_DOUBLING = 2.5
#: A run below this many seconds of CPU is too short to be compared: with the 100 examples of
#: `make test-full`; `make test`, which tries 25, compares runs of a quarter of it.
SHORTEST = 0.002
DOUBLINGS = 2
RUNS = 3
TRIES = 4


def assert_linear(
    run: Callable[[T], Any],
    make: Callable[[int], T],
    *,
    smallest: int = 64,
    largest: int = 2**20,
) -> None:
    """Fail if `run(make(2 * n))` costs more than 2.5 times the CPU of `run(make(n))`.

    `n` starts at `smallest` and doubles until a run can be timed. An input of size `largest` that
    still costs too little to be timed passes: it was refused early. `make` is not timed; `run`
    swallows the errors that it expects.
    """
    shortest = SHORTEST * min(max(25, settings().max_examples) / 100, 1)
    size = smallest
    value = make(size)
    while (seconds := _cpu_seconds(run, value)) < shortest:
        if size >= largest:
            return
        size *= 2
        value = make(size)
    # The larger of the two ratios hides in noise; growth over both doublings does not.
    most = MOST_PER_DOUBLING**DOUBLINGS
    for _ in range(TRIES):
        least = min(_cpu_seconds(run, value) for _ in range(RUNS))
        value = make(size << DOUBLINGS)
        more = math.inf
        for _ in range(RUNS):  # noise only adds: one run that is quick enough is proof
            more = min(more, _cpu_seconds(run, value))
            growth = more / max(least, shortest / 2)
            if growth <= most:
                return
        size *= 2  # what fits into a cache is cheaper: once more, well beyond
        value = make(size)
    size //= 2
    raise AssertionError(
        f"{1 << DOUBLINGS} times the input costs {growth:.1f} times the CPU"
        f" ({least * 1e3:.1f} ms at {size}, {more * 1e3:.1f} ms at {size << DOUBLINGS};"
        f" first seen {seconds * 1e3:.1f} ms); at most {most:.1f} times is linear"
    )


def _cpu_seconds(run: Callable[[T], Any], value: T) -> float:
    collects = gc.isenabled()
    gc.disable()  # its walks over the tests' own heap are not a cost of the parser
    try:
        started = time.thread_time()
        run(value)
        return time.thread_time() - started
    finally:
        if collects:
            gc.enable()
