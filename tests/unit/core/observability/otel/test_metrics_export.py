"""How do the metrics that Prometheus scrapes reach a collector over OTLP?"""

from collections.abc import Iterable

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from wherry.core.observability.otel.metrics_export import SeriesPoints

SECOND = 10**9


def families(count: float, buckets: tuple[float, float]) -> Iterable[Metric]:
    counter = CounterMetricFamily("wherry_things", "Things.", labels=["model"])
    counter.add_metric(["m"], count)
    yield counter
    histogram = HistogramMetricFamily("wherry_wait_seconds", "Waits.", labels=["model"])
    histogram.add_metric(["m"], [("0.1", buckets[0]), ("+Inf", buckets[1])], sum_value=buckets[1])
    yield histogram
    yield GaugeMetricFamily("wherry_held_bytes", "Bytes.", value=7)


def told(points: SeriesPoints, count: float, buckets: tuple[float, float], now: int) -> str:
    """All points as text: name, unit, since when, until when, values."""
    lines = []
    for metric in points.metrics(families(count, buckets), now * SECOND):
        for point in metric.data.data_points:
            since = point.start_time_unix_nano // SECOND
            if hasattr(point, "value"):
                values = f"{point.value:g}"
            else:
                assert point.min is None
                values = f"{point.bucket_counts} {point.explicit_bounds} {point.sum:g}"
            lines.append(f"{metric.name} {metric.unit} {since} {values}")
    return "; ".join(lines)


def test_cumulative_points_count_since_the_export_began() -> None:
    points = SeriesPoints(delta=False, now=100 * SECOND)
    assert told(points, 3, (1, 4), 101) == (
        "wherry_things 1 100 3; wherry_wait_seconds s 100 [1, 3] [0.1] 4; wherry_held_bytes By 0 7"
    )
    assert told(points, 5, (2, 6), 102).startswith("wherry_things 1 100 5; wherry_wait_seconds s 1")


def test_a_series_that_begins_again_says_so() -> None:
    points = SeriesPoints(delta=False, now=100 * SECOND)
    told(points, 5, (1, 2), 101)
    assert told(points, 1, (1, 3), 102).startswith(
        "wherry_things 1 101 1; wherry_wait_seconds s 100 [1, 2]"
    )


def test_deltas_are_what_came_since_the_last_time() -> None:
    points = SeriesPoints(delta=True, now=100 * SECOND)
    told(points, 3, (1, 4), 101)
    assert told(points, 5, (2, 6), 102).startswith(
        "wherry_things 1 101 2; wherry_wait_seconds s 101 [1, 1] [0.1] 2; wherry_held_bytes By 0 7"
    )
