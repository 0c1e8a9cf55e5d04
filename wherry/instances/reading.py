"""Which thread reads a worker's answers: its serving thread, or the event loop that waits?

An event loop that reads itself spares two threads' wake-ups for each batch. But a loop may be
blocked, or have ended, and while it is at its requests, the worker idles.
"""

from __future__ import annotations

from collections.abc import Sequence

from wherry.values.request import InferRequest, Reader

#: A loop reads while batches have so few requests on average. To larger ones the wake-ups are a
#: trifle, and a worker that waits for its next batch is not.
FEW_REQUESTS = 4.0
#: How much of that average the last batch is: the reader is not to change with each.
LAST_SHARE = 0.1
#: What comes more seldom than this (seconds) is not worth it; and what a loop has not read in this
#: time, the serving thread reads.
OFTEN = 0.1
#: A loop that has met with something else than a small answer tries it again after this.
RETRY = 1.0


class Reading:
    """For one worker. A loop is chosen when it waits for the second batch in a row."""

    def __init__(self) -> None:
        self._requests = 1.0
        self._last: Reader | None = None
        self._last_at = self._not_before = float("-inf")

    def chosen(self, requests: Sequence[InferRequest], now: float) -> Reader | None:
        """Which loop is to read the answer to this batch; None: the serving thread."""
        self._requests += LAST_SHARE * (len(requests) - self._requests)
        reader = requests[0].reader if self._requests <= FEW_REQUESTS else None
        often = reader is self._last and now < self._last_at + OFTEN
        self._last, self._last_at = reader, now
        return reader if often and now >= self._not_before else None

    def failed(self, now: float) -> None:
        """What came was no small answer."""
        self._not_before = now + RETRY
