"""Which values has one model at one moment, which rates and quantiles lie between two readings of
its counters, and how busy is the whole server? (Load balancers read that.)

Pure. A quantile is read from a histogram: within a bucket it is drawn as a straight line, so it is
right to the width of that bucket. Times are seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from wherry.core.observability.custom_metrics import CustomMetrics
from wherry.core.observability.statistics import (
    SECONDS_BUCKETS,
    Compute,
    Histogram,
    ModelStatistics,
)
from wherry.core.values.load import Load

LABELS: Final = ("model", "version")
#: Triton's reasons of failed requests.
REASONS: Final = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
#: Why a batch ended: see the policies in scheduler/.
CUT_REASONS: Final = (
    "full", "idle", "waited", "part", "slots", "preferred", "delay", "no_arrivals_expected",
    "mixed", "deadline",
)  # fmt: skip
BATCH_SIZE_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Counting(Protocol):
    """A model that may define metrics."""

    custom_metrics: CustomMetrics | None
    metric_labels: Mapping[str, str]

    def variants(self) -> Sequence[str]: ...


class MeasuredModel(Protocol):
    """What the load of a server is read from."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def statistics(self) -> ModelStatistics: ...
    @property
    def runner(self) -> Any: ...
    def not_ready_reason(self) -> str: ...


class Loaded(MeasuredModel, Protocol):
    """A loaded model, as its metrics are read from it."""

    load_seconds: float

    @property
    def model(self) -> Counting: ...
    @property
    def cache(self) -> object | None: ...


class ModelValues:
    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.ready = not loaded.not_ready_reason()
        runner = loaded.runner
        self.next_try = runner.next_try()
        #: Also those that an instance has been given, and has not begun.
        self.queued = runner.queued_requests + sum(
            len(batch.requests) for one in runner.instances for batch in _ahead(one)
        )
        self.running = len(runner.running())
        sizes = {one.name: one.rss_bytes for one in runner.instances}
        self.rss_bytes = {name: size for name, size in sizes.items() if size is not None}
        self.learnt = runner.explain()
        #: Of a model that may sleep: see Runner.
        self.residence: Mapping[str, Any] = runner.residence()
        #: The gauges() of a StepModel, by instance.
        self.gauges = runner.gauges()
        counted = loaded.statistics
        with counted.lock:
            self.success, self.queue = replace(counted.success), counted.queue
            self.compute = replace(counted.compute)
            self.inference_count = counted.inference_count
            self.execution_count = counted.execution_count
            self.responses = counted.responses
            #: Lookups in the response cache, how many and how long; empty without one.
            self.cached = (
                {
                    "hit": (counted.cache_hit.count, counted.cache_hit.ns),
                    "miss": (counted.cache_miss.count, counted.cache_miss.ns),
                }
                if loaded.cache is not None
                else {}
            )
            self.worker_restarts = counted.worker_restarts
            self.worker_deaths = dict(counted.worker_deaths)
            self.poisoned = counted.poisoned
            self.predicted_late = counted.predicted_late
            self.failures = {reason: counted.failures[reason] for reason in REASONS}
            self.cuts = {**dict.fromkeys(CUT_REASONS, 0), **counted.cut_reasons}
            self.request_seconds = cumulative(counted.request_seconds)
            self.queue_seconds = cumulative(counted.queue_seconds)
            self.first_response_seconds = cumulative(counted.first_response_seconds)
            self.next_response_seconds = cumulative(counted.next_response_seconds)
            in_ms = counted.first_response_seconds.in_ms
            self.first_response_ms = None if in_ms is None else cumulative(in_ms)
            self.batch_sizes = _batch_size_buckets(counted.batch_sizes)
            self.busy_ns = _parts(counted.batch_sizes.values())

    @property
    def labels(self) -> list[str]:
        return [self._loaded.name, self._loaded.version]

    @property
    def generates(self) -> bool:
        return any("running" in measured for measured in self.gauges.values())

    def variants(self) -> Sequence[str]:
        """The names of its adapters. May read files."""
        return self._loaded.model.variants()

    @property
    def triton_labels(self) -> dict[str, str]:
        one = self._loaded
        return {"model": one.name, "version": one.version, **one.model.metric_labels}

    @property
    def load(self) -> Load:
        load: Load = self._loaded.runner.load()
        return load

    @property
    def load_seconds(self) -> float:
        return self._loaded.load_seconds


def cumulative(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    """Prometheus' cumulative buckets, and the sum."""
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip([*histogram.bounds, float("inf")], histogram.counts, strict=True):
        below += count
        buckets.append((_bound(bound), below))
    return buckets, histogram.total


def _ahead(instance: Any) -> Sequence[Any]:
    return list(getattr(instance, "batches", ()))[1:]


def _parts(computed: Collection[Compute]) -> dict[str, int]:
    return {
        "input": sum(one.input_ns for one in computed),
        "infer": sum(one.infer_ns for one in computed),
        "output": sum(one.output_ns for one in computed),
    }


def _batch_size_buckets(
    batch_sizes: dict[int, Compute],
) -> tuple[list[tuple[str, float]], float]:
    counts = {size: batch.count for size, batch in batch_sizes.items()}
    buckets: list[tuple[str, float]] = [
        (_bound(bound), sum(count for size, count in counts.items() if size <= bound))
        for bound in (*BATCH_SIZE_BUCKETS, float("inf"))
    ]
    return buckets, sum(size * count for size, count in counts.items())


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(float(bound))


#: Seconds over which rates and quantiles are taken.
WINDOW: Final = 5.0
#: Seconds after which a look does not begin a window if there is a later one, however young.
LONG_AGO: Final = 30.0
QUANTILES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))

Times = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Seconds:
    """A histogram as it was at one moment."""

    counts: tuple[int, ...]
    total: float

    @classmethod
    def of(cls, histogram: Histogram) -> Seconds:
        return cls(tuple(histogram.counts), histogram.total)

    def since(self, before: Seconds) -> Seconds:
        counts = [now - then for now, then in zip(self.counts, before.counts, strict=True)]
        return Seconds(tuple(counts), self.total - before.total)


NO_SECONDS: Final = Seconds((0,) * (len(SECONDS_BUCKETS) + 1), 0.0)


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters of one model version at one moment; those of a new one are all 0."""

    requests: int = 0
    rows: int = 0
    batches: int = 0
    failed: int = 0
    responses: int = 0
    request_seconds: Seconds = NO_SECONDS
    queue_seconds: Seconds = NO_SECONDS
    #: Of models that work in steps: until the first response, and between responses.
    first_response_seconds: Seconds = NO_SECONDS
    next_response_seconds: Seconds = NO_SECONDS
    #: Executions by their rows: how many, and their nanoseconds in all.
    batch_sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: Totals that the model tells of itself, summed over its instances.
    gauges: dict[str, float] = field(default_factory=dict)


def reading(counted: ModelStatistics, gauges: dict[str, float]) -> Reading:
    with counted.lock:
        return Reading(
            counted.success.count,
            counted.inference_count,
            counted.execution_count,
            counted.fail.count,
            counted.responses,
            Seconds.of(counted.request_seconds),
            Seconds.of(counted.queue_seconds),
            Seconds.of(counted.first_response_seconds),
            Seconds.of(counted.next_response_seconds),
            {
                rows: (one.count, one.input_ns + one.infer_ns + one.output_ns)
                for rows, one in counted.batch_sizes.items()
            },
            gauges,
        )


class Readings:
    """The last readings of one model version, as far back as a window reaches."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Reading]] = deque()

    def add(self, now: float, latest: Reading) -> RateWindow:
        """Note a reading. Return what lies between it and the one that is a window older, or the
        oldest there is."""
        kept = self._kept
        kept.append((now, latest))
        # Half a tick of tolerance: a timer may be late, and the window must not grow by a tick.
        enough = now - WINDOW + 0.5
        while len(kept) > 2 and (kept[1][0] <= enough or kept[0][0] < now - LONG_AGO):
            kept.popleft()
        then, before = kept[0]
        return RateWindow(now - then, before, latest)

    def begin(self, at: float) -> None:
        """Begin with the load of the model, when it had counted nothing."""
        self._kept.append((at, Reading()))

    @property
    def quiet(self) -> bool:
        """Whether nothing has been counted in the whole window."""
        return len(self._kept) > 1 and self._kept[0][1] == self._kept[-1][1]


@dataclass(frozen=True, slots=True)
class RateWindow:
    """What was counted in some seconds."""

    seconds: float
    before: Reading
    now: Reading

    def per_second(self, name: str) -> float:
        """The rate of a counter, by its name in `Reading`."""
        return rate(getattr(self.now, name) - getattr(self.before, name), self.seconds)

    def gauge_per_second(self, name: str) -> float:
        """The rate of a total that the model tells of itself."""
        return rate(self.gauge(name), self.seconds)

    def gauge(self, name: str) -> float:
        """By how much a total of the model's own has grown; after a restart since that."""
        now = self.now.gauges.get(name, 0.0)
        grown = now - self.before.gauges.get(name, 0.0)
        return grown if grown >= 0 else now

    def times(self, name: str) -> Times:
        """Mean and quantiles of a histogram, by its name in `Reading`."""
        return times(getattr(self.now, name).since(getattr(self.before, name)))

    def observed(self) -> list[tuple[int, float, int]]:
        """Rows, mean seconds and number of the executions of each size; without any since the
        load."""
        found = []
        for rows, (count, ns) in sorted(self.now.batch_sizes.items()):
            count_then, ns_then = self.before.batch_sizes.get(rows, (0, 0))
            if count > count_then:
                count, ns = count - count_then, ns - ns_then
            if count:
                found.append((rows, significant(ns / count * 1e-9), count))
        return found


def rate(count: float, seconds: float) -> float:
    return significant(max(0.0, count) / seconds) if seconds > 0 else 0.0


def times(seconds: Seconds, bounds: Sequence[float] = SECONDS_BUCKETS) -> Times:
    """Mean and quantiles of a histogram; None where it is empty."""
    count = sum(seconds.counts)
    summary: Times = {"mean": significant(seconds.total / count) if count else None}
    for name, share in QUANTILES:
        summary[name] = quantile(seconds.counts, bounds, share) if count else None
    return summary


def quantile(counts: Sequence[int], bounds: Sequence[float], share: float) -> float:
    """The value below which this share of a histogram lies; the last bound where it lies above.
    There must be a count."""
    rank = share * sum(counts)
    below = 0
    for place, count in enumerate(counts[:-1]):
        if count and below + count >= rank:
            low = bounds[place - 1] if place else 0.0
            part = (rank - below) / count
            return significant(low + part * (bounds[place] - low))
        below += count
    return bounds[-1]


def significant(value: float) -> float:
    """With four digits: what is shown has no more, and what is sent is short."""
    return float(f"{value:.4g}")


def summed(gauges: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """What several instances tell of themselves, summed."""
    whole: dict[str, float] = {}
    for one in gauges:
        for name, value in one.items():
            whole[name] = whole.get(name, 0.0) + value
    return whole


#: Seconds for which one look at the models does for all that ask.
FRESH: Final = 0.05
#: Seconds between two readings of the counters that are kept.
STEP: Final = 0.5


class LoadReport(msgspec.Struct, frozen=True, array_like=True):
    """The load of all models of a server at a moment. Seconds that are not known yet are 0.0."""

    #: Share of the time of its instances that the busiest model would need with full batches; of
    #: models that work in steps, the share of their slots in use.
    utilisation: float = 0.0
    #: Requests answered and requests failed a second, without those whose callers left.
    requests_per_second: float = 0.0
    errors_per_second: float = 0.0
    #: Rows that wait, and rows that run.
    queued_rows: int = 0
    running_rows: int = 0
    #: Rows that could come now and be in the next batches.
    free_slots: int = 0
    #: Of the model with the longest: seconds until a row that comes now runs, and is answered.
    wait_seconds: float = 0.0
    answer_seconds: float = 0.0
    #: Of the slowest model: what a batch of one row takes, and a full one.
    one_seconds: float = 0.0
    full_seconds: float = 0.0
    #: Of the slowest model: what a row takes of the time of all its instances, in full batches.
    row_seconds: float = 0.0
    #: Tokens that the KV caches of language models hold at most, and the share in use of the
    #: fullest.
    kv_cache_tokens: int = 0
    kv_cache_usage: float = 0.0


class Counts(NamedTuple):
    """Counters of one model: rows, requests and errors since its load."""

    rows: int = 0
    requests: int = 0
    errors: int = 0


class LoadMeter:
    """Reads the load of a server's models. For one thread."""

    def __init__(self) -> None:
        self._latest = LoadReport()
        self._read_at = -FRESH
        self._kept: deque[tuple[float, Mapping[tuple[str, str], Counts]]] = deque()

    def read(self, models: Iterable[MeasuredModel], now: float) -> LoadReport:
        """The load at `now`. Rates are those of the last WINDOW seconds, as far as it was read in
        them; without an earlier reading, or a batch that has ended, what runs at the moment tells
        how busy the server is."""
        if now - self._read_at >= FRESH:
            self._read_at = now
            self._latest = self._read([one for one in models if not one.not_ready_reason()], now)
        return self._latest

    def _read(self, models: Sequence[MeasuredModel], now: float) -> LoadReport:
        counts = {(one.name, one.version): _counts(one.statistics) for one in models}
        seconds, before = self._before(now, counts)
        grown = [_grown(before.get(key, Counts()), new) for key, new in counts.items()]
        loads = [one.runner.load() for one in models]
        busy = [
            rate(more.rows, seconds) * load.row_seconds
            if seconds and load.row_seconds and not load.joins and (more.rows or not load.busy)
            else load.busy_share  # also while a batch runs for longer than the window
            for load, more in zip(loads, grown, strict=True)
        ]
        kept = [gauges for one in models for gauges in one.runner.gauges().values()]
        return LoadReport(
            utilisation=max(busy, default=0.0),
            requests_per_second=rate(sum(one.requests for one in grown), seconds),
            errors_per_second=rate(sum(one.errors for one in grown), seconds),
            queued_rows=sum(load.queued_rows for load in loads),
            running_rows=sum(load.running_rows for load in loads),
            free_slots=sum(load.free_slots for load in loads),
            wait_seconds=max((load.wait_seconds for load in loads), default=0.0),
            answer_seconds=max((load.answer_seconds() for load in loads), default=0.0),
            one_seconds=max((load.one_seconds for load in loads), default=0.0),
            full_seconds=max((load.full_seconds for load in loads), default=0.0),
            row_seconds=max((load.row_seconds for load in loads), default=0.0),
            kv_cache_tokens=round(
                sum(one.get("kv_blocks", 0.0) * one.get("kv_block_size", 0.0) for one in kept)
            ),
            kv_cache_usage=max((one.get("kv_cache_usage", 0.0) for one in kept), default=0.0),
        )

    def _before(
        self, now: float, counts: Mapping[tuple[str, str], Counts]
    ) -> tuple[float, Mapping[tuple[str, str], Counts]]:
        """Keep a reading. Return the one that is a window older, or the oldest there is, and how
        many seconds ago that was; 0.0: it is too young for a rate."""
        kept = self._kept
        while kept and kept[0][0] < now - LONG_AGO:
            kept.popleft()
        if not kept or now - kept[-1][0] >= STEP:
            kept.append((now, counts))
        while len(kept) > 2 and kept[1][0] <= now - WINDOW:
            kept.popleft()
        then, before = kept[0]
        return (now - then if now - then >= STEP else 0.0), before


def _counts(counted: ModelStatistics) -> Counts:
    with counted.lock:
        errors = counted.fail.count - counted.failures["CANCELED"]
        return Counts(counted.inference_count, counted.success.count, errors)


def _grown(before: Counts, now: Counts) -> Counts:
    """What was counted since; a model that was loaded again has begun at 0."""
    grown = Counts(*(new - old for new, old in zip(now, before, strict=True)))
    return now if min(grown) < 0 else grown
