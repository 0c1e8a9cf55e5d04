"""observability/latency_summaries.py: quantiles of the last minute."""

from __future__ import annotations

import math

import pytest

from wherry.observability.latency_summaries import PARTS, WINDOW_SECONDS, LatencySummaries


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_quantiles_are_right_to_within_a_hundredth() -> None:
    kept = LatencySummaries(Clock())
    for us in range(1, 1001):
        kept.add(us * 1000.0, us * 500.0)
    assert kept.quantiles("request", [0.5, 0.9, 1.0]) == pytest.approx([500, 900, 1000], rel=0.011)
    assert kept.quantiles("queue", [0.5]) == pytest.approx([250], rel=0.011)
    assert all(math.isnan(one) for one in kept.quantiles("compute_infer", [0.5, 0.9]))


def test_what_is_older_than_a_minute_does_not_count() -> None:
    clock = Clock()
    kept = LatencySummaries(clock)
    kept.add(1e9)
    clock.now = WINDOW_SECONDS / 2
    kept.add(1e6)
    assert kept.quantiles("request", [1.0]) == pytest.approx([1e6], rel=0.011)
    clock.now = WINDOW_SECONDS
    assert kept.quantiles("request", [1.0]) == pytest.approx([1e3], rel=0.011)
    clock.now = 2 * WINDOW_SECONDS
    assert math.isnan(kept.quantiles("request", [1.0])[0])


def test_memory_is_bounded_by_the_spread_of_the_durations() -> None:
    clock = Clock()
    kept = LatencySummaries(clock)
    for second in range(1000):
        clock.now = float(second)
        kept.add(*(1e3 * (second % 10 + 1) for _ in PARTS))
    assert len(kept._slices) <= 6
    assert all(len(counts) <= 10 for _, parts in kept._slices for counts in parts)


def test_no_time_at_all_is_0() -> None:
    kept = LatencySummaries(Clock())
    kept.add(0.0)
    assert kept.quantiles("request", [0.5]) == [0.0]
