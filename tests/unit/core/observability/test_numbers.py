"""core/observability/numbers.py: rates and quantiles between two readings."""

import math

from hypothesis import given
from hypothesis import strategies as st

from wherry.core.observability.numbers import (
    WINDOW,
    Reading,
    Readings,
    Seconds,
    quantile,
    reading,
    significant,
    summed,
    times,
)
from wherry.core.observability.statistics import SECONDS_BUCKETS, Histogram, ModelStatistics
from wherry.core.values.errors import ModelFailed

TENTHS = [n / 10 for n in range(1, 11)]


def test_a_quantile_lies_on_a_straight_line_within_its_bucket() -> None:
    counts = [10] * 10 + [0]

    assert quantile(counts, TENTHS, 0.5) == 0.5
    assert quantile(counts, TENTHS, 0.99) == 0.99
    assert quantile([0, 4] + [0] * 9, TENTHS, 0.5) == 0.15


def test_a_quantile_above_all_bounds_is_the_last_bound() -> None:
    assert quantile([0] * 10 + [3], TENTHS, 0.5) == 1.0


@given(st.lists(st.floats(1e-5, 59.0), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_quantile_is_in_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    histogram = Histogram()
    histogram.observe(values)
    true = sorted(values)[math.ceil(share * len(values)) - 1]
    high = next(bound for bound in SECONDS_BUCKETS if true <= bound)
    low = max([bound for bound in SECONDS_BUCKETS if bound < true], default=0.0)

    told = quantile(histogram.counts, SECONDS_BUCKETS, share)

    assert low * 0.999 <= told <= high * 1.001


def test_a_window_tells_only_of_what_lies_in_it() -> None:
    counted, readings = ModelStatistics(), Readings()
    readings.begin(0.0)
    counted.inlined(100_000_000)
    readings.add(10.0, reading(counted.fold(), {}))
    for _ in range(8):
        counted.inlined(2_000_000)
    counted.failed(ModelFailed("broken"), 0.1)

    window = readings.add(12.0, reading(counted.fold(), {}))

    assert window.seconds == 12.0  # the load is not long ago
    assert window.now.requests == 9
    for second in range(13, 20):
        counted.inlined(2_000_000)
        window = readings.add(float(second), reading(counted.fold(), {}))
    assert window.seconds == WINDOW
    assert window.per_second("requests") == 1.0
    assert window.per_second("failed") == 0.0
    assert window.times("request_seconds")["mean"] == 0.002
    assert window.times("queue_seconds")["p50"] is not None


def test_the_first_window_of_a_watch_reaches_back_to_the_last_look() -> None:
    readings = Readings()
    readings.begin(0.0)
    assert readings.add(3600.0, Reading(requests=3600)).per_second("requests") == 1.0
    assert readings.add(7200.0, Reading(requests=10800)).per_second("requests") == 2.0

    window = readings.add(7201.0, Reading(requests=10801))

    assert window.seconds == 1.0
    assert window.per_second("requests") == 1.0


def test_a_model_is_quiet_once_a_whole_window_has_counted_nothing() -> None:
    readings = Readings()
    readings.begin(0.0)
    assert not readings.quiet
    quiet = []
    for second in range(1, 9):
        readings.add(float(second), Reading(requests=1))
        quiet.append(readings.quiet)

    assert quiet == [False] * 5 + [True] * 3


def test_an_empty_histogram_has_no_times() -> None:
    assert set(times(Seconds.of(Histogram())).values()) == {None}


def test_a_model_that_was_restarted_counts_from_there() -> None:
    readings = Readings()
    readings.begin(0.0)
    readings.add(1.0, Reading(gauges={"tokens_total": 500.0}))
    for second in range(2, 7):
        window = readings.add(float(second), Reading(gauges={"tokens_total": 10.0}))

    assert window.gauge("tokens_total") == 10.0
    assert window.gauge_per_second("tokens_total") == 2.0
    assert window.gauge("missing_total") == 0.0


def test_observed_times_are_of_the_window_where_it_has_some() -> None:
    readings = Readings()
    readings.begin(0.0)
    readings.add(100.0, Reading(batch_sizes={1: (10, 10_000_000), 4: (1, 8_000_000)}))
    latest = Reading(batch_sizes={1: (12, 16_000_000), 4: (1, 8_000_000)})
    window = readings.add(101.0, latest)
    window = readings.add(102.0, latest)

    assert window.observed() == [(1, 0.003, 2), (4, 0.008, 1)]


def test_gauges_of_several_instances_are_summed() -> None:
    assert summed([{"running": 1.0}, {"running": 2.0, "kv_blocks": 8}]) == {
        "running": 3.0,
        "kv_blocks": 8.0,
    }


def test_numbers_have_four_digits() -> None:
    assert significant(0.123456) == 0.1235
    assert significant(123456.0) == 123500.0
