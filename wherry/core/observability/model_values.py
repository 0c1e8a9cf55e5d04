"""Which values has one model at one moment, for the metrics of a server?"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from wherry.core.observability.custom_metrics import CustomMetrics
from wherry.core.observability.statistics import Compute, Histogram, ModelStatistics
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


class Gauged(Protocol):
    """What runs a loaded model's requests."""

    @property
    def queued_requests(self) -> int: ...
    @property
    def instances(self) -> Sequence[Any]: ...
    def running(self) -> list[tuple[str, int, float]]: ...
    def explain(self) -> dict[str, Any]: ...
    def load(self) -> Load: ...


class Counting(Protocol):
    """A model that may define metrics."""

    custom_metrics: CustomMetrics | None
    metric_labels: Mapping[str, str]

    def variants(self) -> Sequence[str]: ...


class Loaded(Protocol):
    """The parts of a loaded model that are measured."""

    load_seconds: float

    @property
    def model(self) -> Counting: ...
    @property
    def name(self) -> str: ...
    @property
    def cache(self) -> object | None: ...
    @property
    def version(self) -> str: ...
    @property
    def statistics(self) -> ModelStatistics: ...
    @property
    def runner(self) -> Gauged: ...
    def not_ready_reason(self) -> str: ...


class ModelValues:
    """The values of one model at one moment."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.ready = not loaded.not_ready_reason()
        runner = loaded.runner
        self.next_try = getattr(runner, "next_try", lambda: None)()
        #: Also those that an instance has been given, and has not begun.
        self.queued = runner.queued_requests + sum(
            len(batch.requests) for one in runner.instances for batch in _ahead(one)
        )
        self.running = len(runner.running())
        sizes = {one.name: one.rss_bytes for one in runner.instances}
        self.rss_bytes = {name: size for name, size in sizes.items() if size is not None}
        self.learnt = runner.explain()
        #: The gauges() of a StepModel, by instance.
        self.gauges = runner.gauges() if hasattr(runner, "gauges") else {}
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
        """Of LABELS."""
        return [self._loaded.name, self._loaded.version]

    @property
    def generates(self) -> bool:
        """Whether it is a language model."""
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
        return self._loaded.runner.load()

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
