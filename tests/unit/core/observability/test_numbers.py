"""core/observability/numbers.py: rates and quantiles between two readings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.core.observability.load_meter import LoadMeter
from wherry.core.observability.numbers import (
    WINDOW,
    ModelTotals,
    Reading,
    Readings,
    known,
    quantiles,
    reading,
    significant,
    summed,
)
from wherry.core.observability.statistics import SECONDS_BUCKETS, Histogram, ModelStatistics
from wherry.core.values.errors import Cancelled, ModelFailed
from wherry.core.values.load import Load

TENTHS = tuple(n / 10 for n in range(1, 11))


def test_quantiles_lie_on_a_straight_line_within_their_bucket() -> None:
    assert quantiles([10] * 10 + [0], TENTHS) == pytest.approx([0.5, 0.95, 0.99])
    assert quantiles([0, 4] + [0] * 9, TENTHS)[0] == pytest.approx(0.15)


def test_quantiles_above_all_bounds_are_the_last_bound() -> None:
    assert quantiles([0] * 10 + [3], TENTHS) == [1.0, 1.0, 1.0]


@given(st.lists(st.floats(1e-5, 59.0), min_size=1, max_size=200))
def test_quantiles_are_in_the_bucket_of_the_true_ones(values: list[float]) -> None:
    histogram = Histogram()
    histogram.observe(values)

    for share, found in zip((0.5, 0.95, 0.99), quantiles(histogram.counts), strict=True):
        true = sorted(values)[math.ceil(share * len(values)) - 1]
        high = next(bound for bound in SECONDS_BUCKETS if true <= bound)
        low = max([bound for bound in SECONDS_BUCKETS if bound < true], default=0.0)
        assert low * 0.999 <= found <= high * 1.001


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
    assert window.now.totals.requests == 9
    for second in range(13, 20):
        counted.inlined(2_000_000)
        window = readings.add(float(second), reading(counted.fold(), {}))
    assert window.seconds == WINDOW
    assert window.per_second("requests") == 1.0
    assert window.per_second("failed") == 0.0
    assert all(0.001 < one <= 0.0025 for one in window.quantiles("request_seconds"))
    assert not math.isnan(window.quantiles("queue_seconds")[0])


def test_the_first_window_of_a_watch_reaches_back_to_the_last_look() -> None:
    readings = Readings()
    readings.begin(0.0)
    assert readings.add(3600.0, Reading(ModelTotals(requests=3600))).per_second("requests") == 1.0
    assert readings.add(7200.0, Reading(ModelTotals(requests=10800))).per_second("requests") == 2.0

    window = readings.add(7201.0, Reading(ModelTotals(requests=10801)))

    assert window.seconds == 1.0
    assert window.per_second("requests") == 1.0


def test_a_model_is_quiet_once_a_whole_window_has_counted_nothing() -> None:
    readings = Readings()
    readings.begin(0.0)
    assert not readings.quiet
    quiet = []
    for second in range(1, 9):
        readings.add(float(second), Reading(ModelTotals(requests=1)))
        quiet.append(readings.quiet)

    assert quiet == [False] * 5 + [True] * 3


def test_an_empty_histogram_has_no_quantiles() -> None:
    assert [known(one) for one in quantiles(Histogram().counts)] == [None] * 3


def test_a_model_that_was_restarted_counts_from_there() -> None:
    readings = Readings()
    readings.begin(0.0)
    readings.add(1.0, Reading(gauges={"tokens_total": 500.0}))
    for second in range(2, 7):
        window = readings.add(float(second), Reading(gauges={"tokens_total": 10.0}))

    assert window.gauge("tokens_total") == 10.0
    assert window.gauge("missing_total") == 0.0


def test_observed_times_are_of_the_window_where_it_has_some() -> None:
    readings = Readings()
    readings.begin(0.0)
    four = (1, 0, 8_000_000, 0)
    readings.add(100.0, Reading(batch_sizes={1: (10, 0, 10_000_000, 0), 4: four}))
    latest = Reading(batch_sizes={1: (12, 1_000_000, 14_000_000, 1_000_000), 4: four})
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


#: A full batch of 8 rows takes 0.4 s: 20 rows/s at most.
BATCHES = Load(ready=True, instances=1, full_rows=8, one_seconds=0.1, full_seconds=0.4)


@dataclass
class FakeRunner:
    now: Load = BATCHES
    told: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def load(self) -> Load:
        return self.now

    def gauges(self) -> Mapping[str, Mapping[str, float]]:
        return self.told


@dataclass
class FakeModel:
    name: str = "m"
    version: str = "1"
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    runner: FakeRunner = field(default_factory=FakeRunner)
    reason: str = ""

    def not_ready_reason(self) -> str:
        return self.reason

    def ran(self, rows: int, requests: int = 1) -> None:
        self.statistics.inference_count += rows
        self.statistics.success.count += requests


def test_utilisation_is_the_time_that_full_batches_of_the_rows_would_take() -> None:
    meter, model = LoadMeter(), FakeModel()
    meter.read([model], 0.0)
    for second in range(1, 9):
        model.ran(4, requests=2)  # alone in its batch each row took 0.1 s: 40 % of the time
        load = meter.read([model], float(second))
    assert load.utilisation == pytest.approx(0.2)
    assert load.requests_per_second == 2.0


def test_a_model_whose_first_batch_still_runs_is_busy() -> None:
    meter, model = LoadMeter(), FakeModel()
    model.runner.now = Load(ready=True, instances=2, busy=2, full_rows=8)
    for second in range(4):
        load = meter.read([model], float(second))
    assert load.utilisation == 1.0


def test_a_batch_that_runs_for_longer_than_the_window_is_work() -> None:
    meter, model = LoadMeter(), FakeModel()
    meter.read([model], 0.0)
    model.ran(8)
    model.runner.now = Load(
        ready=True, instances=2, busy=1, full_rows=8, one_seconds=60.0, full_seconds=60.0
    )
    for second in range(1, 20):
        load = meter.read([model], float(second))
    assert load.utilisation == 0.5


def test_rates_forget_what_is_older_than_the_window() -> None:
    meter, model = LoadMeter(), FakeModel()
    meter.read([model], 0.0)
    model.ran(100)
    assert meter.read([model], 1.0).utilisation == pytest.approx(5.0)
    for second in range(2, 8):
        load = meter.read([model], float(second))
    assert (load.utilisation, load.requests_per_second) == (0.0, 0.0)


@pytest.mark.parametrize("later", [None, 0.3, 60.0])
def test_without_a_reading_of_the_last_time_it_is_what_runs_now(later: float | None) -> None:
    meter, model = LoadMeter(), FakeModel()
    model.ran(1000)
    model.runner.now = Load(ready=True, instances=2, busy=1, full_rows=8, full_seconds=0.4)
    load = meter.read([model], 0.0)
    if later is not None:
        load = meter.read([model], later)
    assert (load.utilisation, load.requests_per_second) == (0.5, 0.0)


def test_failures_are_errors_but_not_the_callers_who_left() -> None:
    meter, model = LoadMeter(), FakeModel()
    meter.read([model], 0.0)
    for _ in range(6):
        model.statistics.failed(ModelFailed("no"), 0.1)
    model.statistics.failed(Cancelled("left"), 0.1)
    load = meter.read([model], 2.0)
    assert (load.errors_per_second, load.requests_per_second) == (3.0, 0.0)


def test_a_model_that_was_loaded_again_counts_from_its_load() -> None:
    meter, model = LoadMeter(), FakeModel()
    model.ran(1000)
    meter.read([model], 0.0)
    model.statistics = ModelStatistics()
    model.ran(8)
    assert meter.read([model], 2.0).utilisation == pytest.approx(0.2)


def test_of_several_models_the_busiest_and_slowest_count_and_rows_are_summed() -> None:
    busy = Load(
        ready=True, instances=1, busy=1, queued_rows=9, running_rows=8, free_after=0.2,
        full_rows=8, one_seconds=0.1, full_seconds=0.4,
    )  # fmt: skip
    models = [FakeModel("idle"), FakeModel("busy", runner=FakeRunner(busy))]
    load = LoadMeter().read(models, 0.0)
    assert (load.queued_rows, load.running_rows, load.free_slots) == (9, 8, 8)
    assert load.utilisation == 1.0
    assert load.wait_seconds == pytest.approx(0.6)
    assert load.answer_seconds == pytest.approx(busy.answer_seconds())


def test_a_model_that_is_not_ready_has_no_free_slots() -> None:
    load = LoadMeter().read([FakeModel(reason="stuck"), FakeModel("other")], 0.0)
    assert load.free_slots == 8


def test_kv_caches_of_all_instances_are_one_capacity_and_the_fullest_tells_the_use() -> None:
    told: dict[str, Any] = {
        "a": {"kv_blocks": 10, "kv_block_size": 16, "kv_cache_usage": 0.25},
        "b": {"kv_blocks": 10, "kv_block_size": 16, "kv_cache_usage": 0.75},
    }
    steps = Load(ready=True, instances=2, running_rows=3, full_rows=4, joins=True)
    load = LoadMeter().read([FakeModel(runner=FakeRunner(steps, told))], 0.0)
    assert (load.kv_cache_tokens, load.kv_cache_usage) == (320, 0.75)
    assert (load.utilisation, load.free_slots) == (0.375, 5)


def test_one_look_does_for_those_that_ask_at_the_same_time() -> None:
    meter, model = LoadMeter(), FakeModel()
    first = meter.read([model], 0.0)
    model.runner.now = Load()
    assert meter.read([model], 0.01) is first
    assert meter.read([model], 0.1).free_slots == 0
