"""The simulated devices of `benchmarks.full_batches`: 5 ms and 0.2 ms a row, up to 32 rows."""

import itertools
import time

import wherry

#: Batches of more than FEW rows that take SLOW seconds longer, at the start of `slow_start`.
SLOW_BATCHES, FEW, SLOW = 12, 4, 0.060

large_batches = itertools.count()


@wherry.model(max_batch_size=32)
def device(text: list[str]) -> list[str]:
    """Take the device's time, without using the processor."""
    time.sleep(0.005 + 0.0002 * len(text))
    return text


@wherry.model(max_batch_size=32)
def slow_start(text: list[str]) -> list[str]:
    """Do the same, but compile: the first large batches are slow."""
    slow = len(text) > FEW and next(large_batches) < SLOW_BATCHES
    time.sleep(0.005 + 0.0002 * len(text) + SLOW * slow)
    return text
