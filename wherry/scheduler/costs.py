"""Which queued requests share a batch, if its rows are padded to the longest?

A row has a cost: what a model's `cost()` says of it (tokens, characters, pixels), or 1. The work of
a batch is its rows times the highest cost among them. Pure.
"""

from __future__ import annotations

from itertools import islice

from wherry.scheduler.queue import Lane
from wherry.values.request import InferRequest


class RowCosts:
    """Learns what rows cost on average, and chooses requests of similar cost."""

    def __init__(self) -> None:
        #: Work of a batch divided by its rows, a moving average; 1 for models without costs.
        self.per_row = 1.0

    @property
    def differ(self) -> bool:
        """Whether costs other than 1 have been seen: requests are then chosen by `alike`."""
        return self.per_row != 1.0

    def learn(self, highest: float) -> None:
        """A batch has run whose highest cost was this."""
        if highest != self.per_row:
            self.per_row += 0.1 * (highest - self.per_row)

    def alike(
        self, lane: Lane, most: int, fixed: float | None, slope: float | None
    ) -> list[InferRequest]:
        """Choose the oldest request of `lane` and those of similar cost, of at most `most` rows.

        A batch takes `fixed` seconds and `slope` for each unit of work; None: not known yet.
        From the oldest outwards in the order of cost, as long as real work per second grows, or
        the padding costs less than those left behind would save of a batch of their own.
        """
        waiting = list(islice(lane.in_turn(), 4 * most))
        oldest = waiting[0]
        if fixed is None or slope is None:  # half and half
            fixed, slope = self.per_row, 1.0
        left = sum([request.rows for request in waiting]) - oldest.rows
        waiting.sort(key=lambda request: request.cost)
        low = high = waiting.index(oldest)
        rows, real, longest = oldest.rows, oldest.rows * oldest.cost, oldest.cost
        while True:
            seconds = fixed + slope * rows * longest
            best, found = 0.0, None
            for i in (low - 1, high + 1):
                if not 0 <= i < len(waiting):
                    continue
                more = waiting[i]
                total, work = rows + more.rows, more.rows * more.cost
                worst = max(longest, more.cost)
                longer = slope * (total * worst - rows * longest)
                value = (real + work) / (seconds + longer)
                pays = value > real / seconds or longer <= slope * work + fixed * more.rows / left
                if total <= most and pays and value > best:
                    best, found = value, (i, total, real + work, worst)
            if found is None:
                return waiting[low : high + 1]
            i, total, real, longest = found
            left, rows = left - total + rows, total
            low, high = min(low, i), max(high, i)
