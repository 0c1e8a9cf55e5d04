"""Which values does one model have at a scrape, and how do they become Prometheus metrics?"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Protocol

from wherry.core.observability.custom_metrics import CustomFamily, CustomMetrics, Kind
from wherry.core.observability.load_meter import MeasuredModel
from wherry.core.observability.numbers import CUT_REASONS, REASONS, Buckets, reading
from wherry.core.values.load import Load

if TYPE_CHECKING:
    from prometheus_client.core import Metric

LABELS: Final = ("model", "version")
BATCH_SIZE_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Counting(Protocol):
    """A model that may define metrics."""

    custom_metrics: CustomMetrics | None
    metric_labels: Mapping[str, str]

    def variants(self) -> Sequence[str]: ...


class Loaded(MeasuredModel, Protocol):
    """A loaded model, as its metrics are read from it."""

    load_seconds: float

    @property
    def model(self) -> Counting: ...
    @property
    def cache(self) -> object | None: ...


class ModelValues:
    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.counted = reading(loaded.statistics, {})
        self.labels = [loaded.name, loaded.version]
        self.triton_labels = {
            "model": loaded.name, "version": loaded.version, **loaded.model.metric_labels
        }  # fmt: skip
        runner = loaded.runner
        #: Including those assigned to an instance that has not begun them.
        self.queued = runner.queued_requests + sum(
            len(batch.requests) for one in runner.instances for batch in _ahead(one)
        )
        self.learnt = runner.explain()
        #: Of a model that may sleep: see Runner.
        self.residence: Mapping[str, Any] = runner.residence()
        #: The gauges() of a StepModel, by instance.
        self.gauges = runner.gauges()
        self.load: Load = runner.load()

    @property
    def rss_bytes(self) -> dict[str, int]:
        sizes = {one.name: one.rss_bytes for one in self.loaded.runner.instances}
        return {name: size for name, size in sizes.items() if size is not None}

    @property
    def generates(self) -> bool:
        return any("running" in measured for measured in self.gauges.values())

    @property
    def failures(self) -> dict[str, float]:
        return {reason: self.counted.totals.failures.get(reason, 0) for reason in REASONS}

    @property
    def cuts(self) -> dict[str, int]:
        return {**dict.fromkeys(CUT_REASONS, 0), **self.counted.cut_reasons}

    @property
    def busy_seconds(self) -> dict[str, float]:
        phases = zip(*self.counted.batch_sizes.values(), strict=True)
        _, *ns = [sum(phase) for phase in phases] or (0, 0, 0, 0)
        return dict(zip(("input", "infer", "output"), [one * 1e-9 for one in ns], strict=True))

    @property
    def batch_sizes(self) -> Buckets:
        counts, total, bounds = [0] * (len(BATCH_SIZE_BUCKETS) + 1), 0, BATCH_SIZE_BUCKETS
        for rows, (count, *_) in self.counted.batch_sizes.items():
            counts[bisect_left(bounds, rows)] += count
            total += rows * count
        return Buckets(tuple(counts), total, bounds)


def _ahead(instance: Any) -> Sequence[Any]:
    return list(getattr(instance, "batches", ()))[1:]


def cumulative(buckets: Buckets) -> tuple[list[tuple[str, float]], float]:
    """Prometheus' cumulative buckets, and the sum."""
    names = [*(str(float(bound)) for bound in buckets.bounds), "+Inf"]
    return list(zip(names, accumulate(buckets.counts), strict=True)), buckets.total


def family(
    kind: str,
    name: str,
    help: str,
    samples: Iterable[tuple[Sequence[str], Any]],
    labels: Sequence[str] = (),
) -> Metric:
    """A metric with a value for each of some labels' values; None is left out."""
    from prometheus_client import core

    made: Any = getattr(core, f"{kind}MetricFamily")(name, help, labels=labels)
    for values, measured in samples:
        if isinstance(measured, Buckets):
            made.add_metric(values, *cumulative(measured))
        elif measured is not None:
            made.add_metric(values, measured)
    metric: Metric = made
    return metric


def gauge(name: str, help: str, value: float | None) -> Metric:
    return family("Gauge", name, help, [((), value)])


def bare(name: str, help: str, kind: str) -> Metric:
    """A metric without samples, which are added under their own names."""
    from prometheus_client.core import Metric

    return Metric(name, help, kind)


def custom_metric(custom: CustomFamily) -> Metric:
    name, kind = custom.name, custom.kind.name.lower()
    if custom.kind is Kind.COUNTER:
        # Counters without `_total` keep their names: as untyped.
        kind = "counter" if name.endswith("_total") else "unknown"
        name = name.removesuffix("_total")
    metric = bare(name, custom.description, kind)
    for labels, line in custom.lines.items():
        if custom.kind is Kind.HISTOGRAM:
            counts, total = cumulative(Buckets(tuple(line.counts), line.value, custom.bounds))
            for bound, count in counts:  # whole bounds without a point, as Triton writes them
                le = bound.removesuffix(".0")
                metric.add_sample(f"{name}_bucket", {**dict(labels), "le": le}, count)
            metric.add_sample(f"{name}_count", dict(labels), counts[-1][1])
            metric.add_sample(f"{name}_sum", dict(labels), total)
        else:
            metric.add_sample(custom.name, dict(labels), line.value)
    return metric
