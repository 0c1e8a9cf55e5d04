"""Which counters does each model have, and what were its last errors of each kind?

Counters only grow and are updated before the answer is sent, so that a client may subtract two
snapshots (as perf tools do). Durations are nanoseconds. Compute durations count once for each
request of a batch, as in the V2 statistics extension.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from wherry.core.observability.records import ModelRecords
from wherry.core.values.errors import WherryError
from wherry.core.values.request import InferRequest

#: Errors that are kept of each kind: a flood of one kind hides no other.
KEPT: Final = 4
#: Characters of a text that are kept: it may quote a request.
MOST_TEXT: Final = 1 << 10


class RecentError(NamedTuple):
    """One error. `at` is a Unix time in seconds."""

    at: float
    kind: type[WherryError]
    text: str
    #: How many there were of its kind since the load.
    times: int


@dataclass(slots=True)
class _ErrorKind:
    count: int = 0
    last: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=KEPT))


class Failures(Counter[str]):
    """Failed requests by Triton's reason, and the texts of the last ones by the error's class.
    Not locked."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[type[WherryError], _ErrorKind] = {}

    def add(self, error: WherryError) -> None:
        self[error.reason] += 1
        kind = self._kinds.get(type(error)) or self._kinds.setdefault(type(error), _ErrorKind())
        kind.count += 1
        # Text only: an exception would keep alive what its traceback refers to.
        kind.last.append((time.time(), str(error)[:MOST_TEXT]))

    def last(self, most: int) -> list[RecentError]:
        """The last errors, newest first. A client that left is not an error."""
        found = sorted(self._each(), key=lambda one: -one.at)
        return found[:most]

    def _each(self) -> Iterator[RecentError]:
        for kind, kept in self._kinds.items():
            if kind.reason != "CANCELED":
                for at, text in kept.last:
                    yield RecentError(at, kind, text, kept.count)


#: Upper bounds in seconds, of both request latency and queue time.
SECONDS_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0
)  # fmt: skip


#: Responses of a stream with statistics of their own.
MAX_RESPONSE_POSITIONS = 256


@dataclass(slots=True)
class Duration:
    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        self.count += count
        self.ns += ns * count


@dataclass(slots=True)
class Histogram:
    """Counts by upper bound; the last count is for everything above."""

    bounds: Sequence[float] = SECONDS_BUCKETS
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, values: Sequence[float]) -> float:
        """Count values; return their sum."""
        counts, bounds = self.counts, self.bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        total = sum(values)
        self.total += total
        return total

    @property
    def duration(self) -> Duration:
        return Duration(sum(self.counts), round(self.total * 1e9))


@dataclass(slots=True)
class Compute:
    count: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    def add(self, input_ns: int, infer_ns: int, output_ns: int, count: int = 1) -> None:
        self.count += count
        self.input_ns += input_ns * count
        self.infer_ns += infer_ns * count
        self.output_ns += output_ns * count


@dataclass(slots=True)
class Inlined:
    """Rows that ran in their callers' threads."""

    count: int = 0
    infer_ns: int = 0
    #: Waits for an instance.
    waits: Duration = field(default_factory=Duration)


@dataclass(slots=True)
class ResponseStatistics:
    #: Time since the previous response or the batch's start.
    came: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    #: Requests that ended before this response.
    empty_response: Duration = field(default_factory=Duration)
    cancel: Duration = field(default_factory=Duration)


class ModelStatistics:
    """The counters of one model version. Safe from any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        #: Unix time in seconds.
        self.last_inference_at = 0.0
        self.inference_count = 0
        self.execution_count = 0
        self.success = Duration()
        self.fail = Duration()
        #: Each request counts the duration of its batch.
        self.compute = Compute()
        #: Executions by number of rows.
        self.batch_sizes: dict[int, Compute] = {}
        self.cut_reasons: Counter[str] = Counter()
        self.failures = Failures()
        self.responses = 0
        #: By position in the stream; the last one counts all further responses.
        self.response_places: list[ResponseStatistics] = []
        self.cache_hit = Duration()
        self.cache_miss = Duration()
        self.worker_restarts = 0
        #: By cause: a signal's name, or one word.
        self.worker_deaths: Counter[str] = Counter()
        #: Requests refused because they crash workers.
        self.poisoned = 0
        #: Requests refused because they were predicted to be late.
        self.predicted_late = 0
        self._inlined = Inlined()
        self.request_seconds = Histogram()
        self.queue_seconds = Histogram()
        #: Until the first response of a stream, and between responses of StepModels.
        self.first_response_seconds = Histogram()
        self.next_response_seconds = Histogram()
        #: Where each request is recorded while a dashboard shows them.
        self.records: ModelRecords | None = None

    @property
    def queue(self) -> Duration:
        return self.queue_seconds.duration

    def executed(
        self,
        requests: Sequence[InferRequest],
        executed_rows: Sequence[int],
        reason: str,
        started: float,
        input_ns: int,
        infer_ns: int,
        output_ns: int,
    ) -> None:
        """Count a batch that has run, whatever its outcomes. `started` is by the runtime's
        clock."""
        executions = len(executed_rows)
        compute_ns = (input_ns, infer_ns, output_ns)
        queue, counted, waited = self.queue_seconds.counts, 0, 0.0
        # Written flat, as `succeeded`: every batch and every request passes here.
        with self.lock:
            for request in requests:
                request.started_at = started
                request.compute_ns = compute_ns
                if request.whole is None:
                    counted += 1
                    seconds = started - request.enqueued_at
                    waited += seconds
                    queue[bisect_left(SECONDS_BUCKETS, seconds)] += 1
            self.queue_seconds.total += waited
            self.execution_count += executions
            self.cut_reasons[reason] += 1
            compute = self.compute
            compute.count += counted
            compute.input_ns += input_ns * counted
            compute.infer_ns += infer_ns * counted
            compute.output_ns += output_ns * counted
            for rows in executed_rows:
                compute = self.batch_sizes.get(rows) or self.batch_sizes.setdefault(rows, Compute())
                compute.count += 1
                compute.input_ns += input_ns // executions
                compute.infer_ns += infer_ns // executions
                compute.output_ns += output_ns // executions

    def succeeded(self, requests: Iterable[InferRequest], now: float) -> None:
        """Count requests about to be answered with outputs."""
        counts, counted, rows, took = self.request_seconds.counts, 0, 0, 0.0
        with self.lock:
            for request in requests:
                if request.whole is None:
                    counted += 1
                    rows += request.rows
                    seconds = now - request.enqueued_at
                    took += seconds
                    counts[bisect_left(SECONDS_BUCKETS, seconds)] += 1
            self.last_inference_at = time.time()
            self.inference_count += rows
            self.request_seconds.total += took
            self.success.count += counted
            self.success.ns += int(took * 1e9)

    def joined(self, request: InferRequest, error: WherryError | None, now: float) -> None:
        """Count a request that ran in parts, about to be answered or failed with this `error`.

        Of the parts only the batches were counted. Its queue time ended when the first part ran.
        """
        ran = [part for part in request.parts if part.started_at is not None]
        started = min([part.started_at or 0.0 for part in ran], default=None)
        request.started_at = started
        took = [sum(ns) for ns in zip(*(part.compute_ns for part in ran), strict=True)]
        if started is not None:
            request.compute_ns = (took[0], took[1], took[2])
        if request.whole is not None:
            return  # a part itself
        if started is not None:
            with self.lock:
                self.compute.add(*request.compute_ns)
                self.queue_seconds.observe([started - request.enqueued_at])
        if error is None:
            self.succeeded([request], now)
        else:
            self.failed(error, now - request.enqueued_at)

    def stepped(self, active_requests: int, ns: int) -> None:
        with self.lock:
            self.execution_count += 1
            self.batch_sizes.setdefault(active_requests, Compute()).add(0, ns, 0)

    def responded(self, seconds: float, *, first: bool) -> None:
        """Count a response of a stream. `seconds` is the time since the request's arrival for the
        first one, else since the previous one."""
        with self.lock:
            histogram = self.first_response_seconds if first else self.next_response_seconds
            histogram.observe([seconds])

    def finished(self, request: InferRequest, started: float, now: float) -> None:
        request.started_at, request.compute_ns = started, (0, int((now - started) * 1e9), 0)
        with self.lock:
            self.queue_seconds.observe([started - request.enqueued_at])
            self.compute.add(*request.compute_ns)
        self.succeeded([request], now)

    def response_came(self, place: int, ns: int) -> None:
        with self.lock:
            self.responses += 1
            came = self._place(place).came
            came.count += 1
            came.ns += ns

    def stream_ended(self, place: int, ns: int, error_reason: str | None) -> None:
        """Count the end of a stream in place of response number `place`."""
        with self.lock:
            at = self._place(place)
            if error_reason is None:
                at.empty_response.add(ns)
            elif error_reason == "CANCELED":
                at.cancel.add(ns)
            else:
                at.fail.add(ns)

    def _place(self, place: int) -> ResponseStatistics:
        places = self.response_places
        if place >= len(places):
            if len(places) == MAX_RESPONSE_POSITIONS:
                return places[-1]
            places.append(ResponseStatistics())
        return places[place]

    def looked_up(self, ns: int, *, hit: bool, seconds: float) -> None:
        """Count a lookup in the response cache. A hit is a success but no inference."""
        with self.lock:
            if not hit:
                self.cache_miss.add(ns)
                return
            self.cache_hit.add(ns)
            self.last_inference_at = time.time()
            self.success.add(int(seconds * 1e9))
            self.request_seconds.observe([seconds])

    def failed(self, error: WherryError, seconds: float) -> None:
        with self.lock:
            self.failures.add(error)
            self.fail.add(int(seconds * 1e9))

    def inlined(self, infer_ns: int, waited_ns: int = 0) -> None:
        """Count one row that ran in its caller's thread, which had waited for an instance. Cheap:
        `fold` spreads it to the counters."""
        with self.lock:
            self._inlined.count += 1
            self._inlined.infer_ns += infer_ns
            self.request_seconds.observe([(infer_ns + waited_ns) * 1e-9])
            if waited_ns:
                self._inlined.waits.add(waited_ns)
                self.queue_seconds.observe([waited_ns * 1e-9])

    def fold(self) -> ModelStatistics:
        """Bring all counters up to date, before they are read."""
        with self.lock:
            count, ns, waits = self._inlined.count, self._inlined.infer_ns, self._inlined.waits
            if count:
                self._inlined = Inlined()
                self.last_inference_at = time.time()
                self.inference_count += count
                self.execution_count += count
                self.cut_reasons["idle"] += count
                self.success.count += count
                self.success.ns += ns + waits.ns
                for compute in (self.compute, self.batch_sizes.setdefault(1, Compute())):
                    compute.count += count
                    compute.infer_ns += ns
                self.queue_seconds.counts[0] += count - waits.count
        return self


class ResponseCount:
    """Counts the responses of one streaming request. For one thread."""

    __slots__ = ("_place", "_since", "_statistics")

    def __init__(self, statistics: ModelStatistics, started: float) -> None:
        self._statistics = statistics
        self._since = started
        self._place = 0

    @property
    def is_empty(self) -> bool:
        return self._place == 0

    def responded(self, now: float) -> None:
        self._statistics.response_came(self._place, self._ns(now))
        self._place += 1

    def go_on(self, now: float) -> None:
        """Continue after a wait for the reader, which does not count as the model's time."""
        self._since = now

    def ended(self, now: float, error_reason: str | None = None) -> None:
        self._statistics.stream_ended(self._place, self._ns(now), error_reason)

    def _ns(self, now: float) -> int:
        since, self._since = self._since, now
        return int((now - since) * 1e9)
