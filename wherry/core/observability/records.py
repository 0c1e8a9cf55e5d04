"""When did each of the last requests arrive, run and end, on which instance and in which batch?

Nothing is recorded unless a dashboard shows it: `ModelStatistics.records` is None otherwise.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from wherry.core.values.request import InferRequest

#: Requests that are kept, and that are recorded in one second: a chart shows no more.
KEPT: Final = 2000
MOST_A_SECOND: Final = 400
#: Requests of one batch that are recorded.
MOST_OF_A_BATCH: Final = 64
#: Characters of an id that are kept: a client may send one of two megabytes.
MOST_OF_AN_ID: Final = 128


class RecordedRequest(NamedTuple):
    """Times are seconds of the runtime's clock."""

    id: str
    enqueued_at: float
    rows: int


class RecordedBatch(NamedTuple):
    """Requests that ran together, or one that failed before it ran: without an instance then."""

    #: From 1, without gaps.
    number: int
    model: str
    version: str
    instance: str
    reason: str
    started: float
    #: Seconds of its parts, and when its requests were about to be answered.
    input_seconds: float
    infer_seconds: float
    output_seconds: float
    ended: float
    requests: tuple[RecordedRequest, ...]
    #: Rows of all its requests, including those left out above.
    rows: int
    error: str


class Records:
    """The last requests of all models of a server. Safe from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        #: Requests that were not recorded, as there were too many in their second.
        self.left_out = 0
        self._lock = threading.Lock()
        self._kept: deque[RecordedBatch] = deque()
        self._requests = 0
        self._number = 0
        self._second, self._in_second = 0, 0

    def of(self, name: str, version: str) -> ModelRecords:
        return ModelRecords(self, name, version)

    def add(
        self, model: ModelRecords, where: str, reason: str, started: float,
        ns: tuple[int, int, int], requests: Sequence[InferRequest], error: str = "",
    ) -> None:  # fmt: skip
        now, count = self.clock(), min(len(requests), MOST_OF_A_BATCH)
        with self._lock:
            if int(now) != self._second:
                self._second, self._in_second = int(now), 0
            self._in_second += count
            if self._in_second > MOST_A_SECOND:
                self.left_out += len(requests)
                return
            self._number += 1
            rows = sum([one.rows for one in requests])
            recorded = tuple([_recorded(one) for one in requests[:count]])
            seconds = ns[0] * 1e-9, ns[1] * 1e-9, ns[2] * 1e-9
            self._kept.append(
                RecordedBatch(
                    self._number, model.name, model.version, where, reason, started, *seconds,
                    now, recorded, rows, error,
                )
            )  # fmt: skip
            self._requests += count
            while self._requests > KEPT:
                self._requests -= len(self._kept.popleft().requests)

    def since(self, number: int) -> list[RecordedBatch]:
        """The batches after this one that are kept, oldest first."""
        with self._lock:
            found = []
            for one in reversed(self._kept):
                if one.number <= number:
                    break
                found.append(one)
        return found[::-1]

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._requests = self.left_out = 0


class ModelRecords(NamedTuple):
    records: Records
    name: str
    version: str

    def ran(
        self, where: str, reason: str, started: float, ns: tuple[int, int, int],
        requests: Sequence[InferRequest],
    ) -> None:  # fmt: skip
        """Record a batch that has run, before it is answered."""
        self.records.add(self, where, reason, started, ns, requests)

    def failed(self, request: InferRequest, error: str) -> None:
        """Record a request that has failed, unless it has run: it is recorded already then."""
        self.records.add(self, "", "", self.records.clock(), (0, 0, 0), [request], error)


def _recorded(request: InferRequest) -> RecordedRequest:
    whole = request.whole or request
    return RecordedRequest(whole.id[:MOST_OF_AN_ID], whole.enqueued_at, request.rows)
