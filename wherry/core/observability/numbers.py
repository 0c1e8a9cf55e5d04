"""What are the numbers of a server and its models? Prometheus, the dashboard, its history and
`wherry top` read these.

A `Reading` has all counters of a model at one moment. `ModelNumbers` and `ServerNumbers` are what
`GET /dashboard/numbers` returns; another version may leave members out. Times are seconds.

A quantile is interpolated linearly within a bucket of a histogram, so its error is at most
the width of that bucket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from math import isnan, nan
from typing import Any, Final, NamedTuple

import msgspec

from wherry.core.observability.statistics import SECONDS_BUCKETS, Histogram, ModelStatistics

#: Triton's reasons of failed requests.
REASONS: Final = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
#: Why a batch ended: see the policies in scheduler/.
CUT_REASONS: Final = (
    "full", "idle", "waited", "part", "slots", "preferred", "delay", "no_arrivals_expected",
    "mixed", "deadline",
)  # fmt: skip


class Buckets(NamedTuple):
    """A histogram as it was at one moment."""

    counts: tuple[int, ...] = (0,) * (len(SECONDS_BUCKETS) + 1)
    total: float = 0.0
    bounds: Sequence[float] = SECONDS_BUCKETS

    @classmethod
    def of(cls, histogram: Histogram) -> Buckets:
        return cls(tuple(histogram.counts), histogram.total, histogram.bounds)

    def since(self, before: Buckets) -> list[int]:
        return [now - then for now, then in zip(self.counts, before.counts, strict=True)]


class ModelTotals(msgspec.Struct, frozen=True):
    """Since the load."""

    requests: float = 0
    rows: float = 0
    batches: float = 0
    responses: float = 0
    #: Also those whose callers left; by Triton's reasons below.
    failed: float = 0
    failures: Mapping[str, float] = {}
    predicted_late: float = 0
    poisoned: float = 0
    cache_hits: float = 0
    cache_misses: float = 0
    worker_restarts: float = 0
    worker_deaths: Mapping[str, float] = {}


class Reading(msgspec.Struct, frozen=True):
    """The counters of one model version at one moment; those of a new one are all 0."""

    totals: ModelTotals = ModelTotals()
    request_ns: int = 0
    #: Of hits and misses in the response cache.
    cache_ns: tuple[int, int] = (0, 0)
    #: Of input, inference and output, where each request counts those of its batch.
    compute_ns: tuple[int, int, int] = (0, 0, 0)
    request_seconds: Buckets = Buckets()
    queue_seconds: Buckets = Buckets()
    #: Of models that work in steps: until the first response, and between responses.
    first_response_seconds: Buckets = Buckets()
    next_response_seconds: Buckets = Buckets()
    #: Executions by their rows: how many, and their nanoseconds of input, inference and output.
    batch_sizes: dict[int, tuple[int, int, int, int]] = {}
    cut_reasons: dict[str, int] = {}
    #: Totals that the model itself reports, summed over its instances.
    gauges: dict[str, float] = {}


def reading(counted: ModelStatistics, gauges: dict[str, float]) -> Reading:
    with counted.lock:
        compute = counted.compute
        return Reading(
            ModelTotals(
                requests=counted.success.count,
                rows=counted.inference_count,
                batches=counted.execution_count,
                responses=counted.responses,
                failed=counted.fail.count,
                failures=dict(counted.failures),
                predicted_late=counted.predicted_late,
                poisoned=counted.poisoned,
                cache_hits=counted.cache_hit.count,
                cache_misses=counted.cache_miss.count,
                worker_restarts=counted.worker_restarts,
                worker_deaths=dict(counted.worker_deaths),
            ),
            request_ns=counted.success.ns,
            cache_ns=(counted.cache_hit.ns, counted.cache_miss.ns),
            compute_ns=(compute.input_ns, compute.infer_ns, compute.output_ns),
            request_seconds=Buckets.of(counted.request_seconds),
            queue_seconds=Buckets.of(counted.queue_seconds),
            first_response_seconds=Buckets.of(counted.first_response_seconds),
            next_response_seconds=Buckets.of(counted.next_response_seconds),
            batch_sizes={
                rows: (one.count, one.input_ns, one.infer_ns, one.output_ns)
                for rows, one in counted.batch_sizes.items()
            },
            cut_reasons=dict(counted.cut_reasons),
            gauges=gauges,
        )


#: Seconds over which rates and quantiles are taken.
WINDOW: Final = 5.0
#: Seconds after which a reading does not begin a window if there is a later one, however young.
LONG_AGO: Final = 30.0


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
        (_, first), (_, last) = self._kept[0], self._kept[-1]
        return len(self._kept) > 1 and (first is last or first == last)


class RateWindow(NamedTuple):
    """What was counted in some seconds."""

    seconds: float
    before: Reading
    now: Reading

    def per_second(self, name: str) -> float:
        """The rate of a counter, by its name in `ModelTotals`."""
        grown: float = getattr(self.now.totals, name) - getattr(self.before.totals, name)
        return grown / (self.seconds or 1.0)

    def gauge(self, name: str) -> float:
        """By how much a total that the model reports has grown; after a restart, since then."""
        now = self.now.gauges.get(name, 0.0)
        grown = now - self.before.gauges.get(name, 0.0)
        return grown if grown >= 0 else now

    def quantiles(self, name: str) -> list[float]:
        """The QUANTILES of a histogram, by its name in `Reading`."""
        return quantiles(getattr(self.now, name).since(getattr(self.before, name)))

    def observed(self) -> list[tuple[int, float, int]]:
        """Rows, mean seconds and number of the executions of each size; without any since the
        load."""
        found = []
        for rows, (count, *ns) in sorted(self.now.batch_sizes.items()):
            count_then, *ns_then = self.before.batch_sizes.get(rows, (0, 0, 0, 0))
            took = sum(ns)
            if count > count_then:
                count, took = count - count_then, took - sum(ns_then)
            if count:
                found.append((rows, significant(took / count * 1e-9), count))
        return found


QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@cache
def _ranges(bounds: tuple[float, ...]) -> tuple[tuple[float, float], ...]:
    """The bounds of each bucket; the last ends where it begins."""
    return tuple(pairwise((0.0, *bounds, bounds[-1])))


def quantiles(counts: Sequence[int], bounds: tuple[float, ...] = SECONDS_BUCKETS) -> list[float]:
    """QUANTILES of a histogram, in one pass; NaN where it is empty, the last bound for what lies
    above it."""
    whole = sum(counts)
    if not whole:
        return [nan] * len(QUANTILES)
    ranks = [share * whole for share in QUANTILES.values()]
    found: list[float] = []
    below = 0
    for count, (low, high) in zip(counts, _ranges(bounds), strict=True):
        while count and len(found) < len(ranks) and below + count >= ranks[len(found)]:
            found.append(low + (high - low) * (ranks[len(found)] - below) / count)
        below += count
    return found


def significant(value: float) -> float:
    """With four digits: no more are shown, and the answer stays short."""
    return float(f"{value:.4g}")


def known(value: float) -> float | None:
    """With four digits; None for NaN, which means unknown."""
    return None if isnan(value) else significant(value)


def summed(gauges: Iterable[Mapping[str, float]]) -> dict[str, float]:
    whole: dict[str, float] = {}
    for one in gauges:
        for name, value in one.items():
            whole[name] = whole.get(name, 0.0) + value
    return whole


class Quantiles(msgspec.Struct, frozen=True):
    """Of the window; None if there was nothing in it."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class InstanceNumbers(msgspec.Struct, frozen=True):
    name: str = ""
    state: str = ""
    reason: str = ""
    device: str = ""
    pid: int | None = None
    resident_bytes: float | None = None
    running_rows: int = 0
    #: A Unix time.
    running_since: float | None = None


class LastError(msgspec.Struct, frozen=True):
    """The last of its kind, and how many there were since the load."""

    at: float = 0.0
    kind: str = ""
    message: str = ""
    count: float = 0


class GenerationNumbers(msgspec.Struct, frozen=True):
    """What a language model reports; another model that works in steps may report some of it."""

    running: float | None = None
    waiting: float | None = None
    tokens_per_second: float | None = None
    prompt_tokens_per_second: float | None = None
    first_response_seconds: Quantiles = Quantiles()
    next_response_seconds: Quantiles = Quantiles()
    kv_cache_usage: float | None = None
    kv_blocks: float | None = None
    kv_blocks_used: float | None = None
    prefix_hit_share: float | None = None
    preemptions: float | None = None


class ModelHead(msgspec.Struct, frozen=True):
    """All that is known of a model that is not loaded."""

    name: str = ""
    version: str = ""
    state: str = ""
    reason: str = ""
    #: What runs its requests: batches, steps or a pipeline.
    kind: str = ""


class ModelNumbers(ModelHead, frozen=True, kw_only=True):
    streams: bool = False
    max_batch_size: int = 0
    window_seconds: float | None = None
    requests_per_second: float | None = None
    rows_per_second: float | None = None
    batches_per_second: float | None = None
    failures_per_second: float | None = None
    responses_per_second: float | None = None
    request_seconds: Quantiles = Quantiles()
    queue_seconds: Quantiles = Quantiles()
    queued_requests: float | None = None
    running_batches: int = 0
    running_rows: int = 0
    totals: ModelTotals = ModelTotals()
    #: Executions by their rows, and batches by why they left, since the load.
    batch_sizes: list[tuple[float, float]] = []
    cut_reasons: Mapping[str, float] = {}
    errors: list[LastError] = []
    batching: Mapping[str, Any] = {}
    instances: list[InstanceNumbers] = []
    next_try_seconds: float | None = None
    residence: Mapping[str, Any] = {}
    generation: GenerationNumbers | None = None


class LoopStalls(msgspec.Struct, frozen=True):
    longest_seconds: float | None = None
    p99_seconds: float | None = None
    last_seconds: float | None = None


class ProcessUse(msgspec.Struct, frozen=True):
    cpu_share: float | None = None
    resident_bytes: float | None = None
    open_files: int | None = None


class MachineUse(msgspec.Struct, frozen=True):
    cpu_share: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None


class FrontNumbers(msgspec.Struct, frozen=True):
    number: int = 0
    connections: float = 0
    calls: float = 0
    refused: int = 0
    longest_stall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    resident_bytes: int | None = None


class ServerNumbers(msgspec.Struct, frozen=True):
    name: str = ""
    version: str = ""
    started_at: float | None = None
    draining: bool = False
    requests_in_flight: float = 0
    request_bytes: int = 0
    refused: float = 0
    refused_per_second: float = 0.0
    loop_stall: LoopStalls = LoopStalls()
    viewers: int = 0
    process: ProcessUse | None = None
    machine: MachineUse | None = None
    fronts: list[FrontNumbers] = []


class Numbers(msgspec.Struct, frozen=True):
    """The answer of `GET /dashboard/numbers`."""

    at: float
    server: ServerNumbers
    models: list[ModelNumbers]
