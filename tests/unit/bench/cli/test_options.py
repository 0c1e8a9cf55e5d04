"""What the flags of `wherry bench` mean."""

from __future__ import annotations

import pytest

from wherry.bench.cli.flags import counts, seconds
from wherry.bench.cli.options import BenchOptions
from wherry.bench.plan import Closed, Rate
from wherry.server.cli import parser


def asked(*words: str) -> BenchOptions:
    return BenchOptions.of(parser().parse_args(["bench", "http://x", *words]))


def test_by_default_callers_are_swept_for_five_seconds_each() -> None:
    found = asked()
    assert [load for _, load in found.loads] == [Closed(callers=n) for n in (1, 4, 16, 64)]
    assert (found.plan.duration, found.plan.warmup, found.plan.requests) == (5.0, 1.0, None)


def test_count_modes_measure_every_request() -> None:
    found = asked("--callers", "5", "--loops", "20")
    assert [load for _, load in found.loads] == [Closed(callers=5, loops=20)]
    assert (found.plan.duration, found.plan.warmup) == (None, 0.0)
    assert asked("--requests", "100").plan.requests == 100


def test_open_loads_are_rates() -> None:
    assert asked("--rate", "50,1e3", "--ramp", "2").loads == [
        ({"rate": 50.0}, Rate(rate=50, ramp=2)),
        ({"rate": 1000.0}, Rate(rate=1000, ramp=2)),
    ]


def test_settings_are_swept_in_all_combinations() -> None:
    found = asked("--set", "max_batch_size=8,32", "--set", "max-queue-delay=0,5ms,auto")
    assert len(found.settings) == 6
    assert found.settings[1] == {"max_batch_size": 8, "max_queue_delay": 0.005}
    assert found.settings[5] == {"max_batch_size": 32, "max_queue_delay": "auto"}


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5.0), (".5s", 0.5), ("200ms", 0.2), ("50us", 5e-5), ("2m", 120), ("1h", 3600)],
)
def test_seconds_have_units(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


def test_counts_are_lists_or_double() -> None:
    assert counts("1,4,16") == [1, 4, 16]
    assert counts("1..64") == [1, 2, 4, 8, 16, 32, 64]
    assert counts("3..10") == [3, 6, 10]
    assert counts("5..5") == [5]
