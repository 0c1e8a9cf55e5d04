"""How do the metrics that Prometheus scrapes reach a collector over OTLP?

They are those of `core/observability/metrics.py`, read every OTEL_METRIC_EXPORT_INTERVAL
milliseconds in a thread of its own, under the same names but for Prometheus' suffix `_total`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

log = logging.getLogger("wherry")

#: Units by the end of a name, as UCUM has them.
UNITS: Final = (("_seconds", "s"), ("_bytes", "By"), ("_us", "us"), ("_ratio", "1"))

Labels = tuple[tuple[str, str], ...]
#: A counter's value, or a histogram's counts by bucket with the sum behind them.
Values = tuple[float, ...]


class MetricsExport:
    """Exports the metrics of one server. `collect` is called in a thread, and may block."""

    def __init__(
        self,
        collect: Callable[[], Iterable[Family]],
        version: str,
        exporters: Callable[[], Iterable[MetricExporter]],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._collect = collect
        self._scope = InstrumentationScope("wherry", version)
        self._make_exporters = exporters
        self._exporters: list[MetricExporter] = []
        self._interval = _milliseconds(environ, "OTEL_METRIC_EXPORT_INTERVAL", 60_000) / 1000
        self._timeout = _milliseconds(environ, "OTEL_METRIC_EXPORT_TIMEOUT", 30_000)
        preference = environ.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "")
        self._points = SeriesPoints(delta=preference.strip().lower() in ("delta", "lowmemory"))
        self._resource = Resource.create()
        self._ending, self._has_last = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="wherry-otel-metrics", daemon=True)

    def start(self) -> None:
        """Begin. May read files."""
        self._exporters = list(self._make_exporters())
        self._thread.start()

    def collect_last(self, timeout: float) -> None:
        """Read the metrics for the last time, while all that they are of is there. Blocks for
        `timeout` seconds at most; `close` follows."""
        self._ending.set()
        if self._thread.ident is not None:
            self._has_last.wait(timeout)

    def close(self, timeout: float) -> bool:
        """Export what was read last, and end; False if that took longer than `timeout` seconds."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
            for exporter in self._exporters:
                exporter.shutdown()  # which also ends a wait to try again
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ending.wait(self._interval):
            self._export()
        self._export()

    def _export(self) -> None:
        ends = self._ending.is_set()
        try:
            metrics = list(self._points.metrics(self._collect(), time.time_ns()))
            if ends:
                self._has_last.set()
            scope = ScopeMetrics(self._scope, metrics, "")
            data = MetricsData([ResourceMetrics(self._resource, [scope], "")])
            for exporter in self._exporters:
                exporter.export(data, timeout_millis=self._timeout)
        except Exception:  # a collector of the program's own, or our own bug
            log.exception("metrics could not be exported")


class SeriesPoints:
    """What was told before of each series: when it began, and its values then."""

    def __init__(self, *, delta: bool, now: int | None = None) -> None:
        self._delta = delta
        self._temporality = (
            AggregationTemporality.DELTA if delta else AggregationTemporality.CUMULATIVE
        )
        self._before: dict[tuple[str, Labels], tuple[int, Values]] = {}
        self._last_at = time.time_ns() if now is None else now

    def metrics(self, families: Iterable[Family], now: int) -> Iterator[Metric]:
        seen: dict[tuple[str, Labels], tuple[int, Values]] = {}
        for family in families:
            data: Any = None
            if family.type == "counter":
                points = [self._number(seen, family.name, s.labels, s.value, now)
                          for s in family.samples if s.name.endswith("_total")]  # fmt: skip
                data = Sum(points, self._temporality, True) if points else None
            elif family.type == "histogram":
                found = [self._histogram(seen, family.name, labels, buckets, total, now)
                         for labels, buckets, total in _series(family)]  # fmt: skip
                data = Histogram(found, self._temporality) if found else None
            elif family.samples:
                data = Gauge([NumberDataPoint(dict(s.labels), 0, now, float(s.value))
                              for s in family.samples])  # fmt: skip
            if data is not None:
                yield Metric(family.name, family.documentation, _unit(family.name), data)
        self._before, self._last_at = seen, now

    def _since(
        self, seen: dict[Any, Any], name: str, labels: Mapping[str, str], values: Values, now: int
    ) -> tuple[int, Values]:
        """Since when, and how much: a series that is new, or has begun again, counts from then."""
        key = name, tuple(sorted(labels.items()))
        began, before = self._before.get(key, (self._last_at, (0.0,) * len(values)))
        if len(before) != len(values) or any(a < b for a, b in zip(values, before, strict=True)):
            began, before = self._last_at, (0.0,) * len(values)
        if not self._delta:
            seen[key] = began, values
            return began, values
        seen[key] = now, values
        return began, tuple(a - b for a, b in zip(values, before, strict=True))

    def _number(
        self, seen: dict[Any, Any], name: str, labels: Mapping[str, str], value: float, now: int
    ) -> NumberDataPoint:
        began, (change,) = self._since(seen, name, labels, (value,), now)
        return NumberDataPoint(dict(labels), began, now, float(change))

    def _histogram(
        self,
        seen: dict[Any, Any],
        name: str,
        labels: Mapping[str, str],
        buckets: list[tuple[float, float]],
        total: float,
        now: int,
    ) -> HistogramDataPoint:
        buckets.sort()
        below = [count for _, count in buckets]
        each = [b - a for a, b in zip([0.0, *below], below, strict=False)]
        began, change = self._since(seen, name, labels, (*each, total), now)
        counts = [int(count) for count in change[:-1]]
        bounds = [bound for bound, _ in buckets[:-1]]
        unknown: Any = None  # the least and the most of it
        return HistogramDataPoint(
            dict(labels), began, now, sum(counts), change[-1], counts, bounds, unknown, unknown
        )


def _series(
    family: Family,
) -> Iterator[tuple[dict[str, str], list[tuple[float, float]], float]]:
    """The labels, cumulative buckets and sum of each series of a histogram."""
    buckets: dict[Labels, list[tuple[float, float]]] = {}
    sums: dict[Labels, float] = {}
    for sample in family.samples:
        labels = {name: text for name, text in sample.labels.items() if name != "le"}
        key = tuple(sorted(labels.items()))
        if sample.name.endswith("_bucket"):
            buckets.setdefault(key, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            sums[key] = sample.value
    for key, found in buckets.items():
        yield dict(key), found, sums.get(key, 0.0)


def _unit(name: str) -> str:
    return next((unit for end, unit in UNITS if name.endswith(end)), "1")


def _milliseconds(environ: Mapping[str, str], name: str, default: float) -> float:
    setting = environ.get(name, "")
    try:
        value = float(setting or default)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e12:
        problem = f"{name} {setting!r} is not a number of milliseconds above 0"
        log.warning(f"{problem}; it is {default:.0f}")
        return default
    return value
