"""server/dashboard/history.py: which figures are kept, for how long, and how they are sent."""

import json
import math
from array import array
from base64 import b64decode
from typing import Any

import pytest

from wherry.core.observability.numbers import ModelTotals, Reading
from wherry.server.dashboard.history import Ring, Timeline, Totals

NAMES = ("requests_per_second", "request_seconds.p50")


def rows(ring: Ring, **bounds: Any) -> list[tuple[float, ...]]:
    columns = [array("f", b64decode(one)) for one in ring.columns(**bounds).values()]
    return list(zip(*columns, strict=True))


def passed(timeline: Timeline, ring: Ring, *seconds: tuple[float, float] | None) -> None:
    for figures in seconds:
        timeline.add(float(timeline.count))
        ring.put(figures)


def test_the_last_seconds_are_kept_oldest_first_and_older_ones_are_gone() -> None:
    timeline = Timeline(3)
    timeline.add(0.0)
    ring = Ring(timeline, NAMES)
    ring.put((0.0, 0.5))
    passed(timeline, ring, *[(float(second), 0.5) for second in range(1, 6)])

    assert [first for first, _ in rows(ring)] == [3.0, 4.0, 5.0]
    assert list(array("d", timeline.since(ring.first))) == [3.0, 4.0, 5.0]
    assert [first for first, _ in rows(ring, most=2)] == [4.0, 5.0]
    assert list(ring.columns(names=NAMES[:1])) == ["requests_per_second"]


def test_a_model_that_came_later_has_no_figures_of_the_time_before() -> None:
    timeline = Timeline(8)
    for second in range(5):
        timeline.add(float(second))
    ring = Ring(timeline, NAMES)
    ring.put((7.0, 0.1))
    passed(timeline, ring, (8.0, 0.1))

    assert [first for first, _ in rows(ring)] == [7.0, 8.0]
    assert list(array("d", timeline.since(ring.first))) == [4.0, 5.0]


def test_nothing_is_kept_of_a_model_before_something_happens_and_then_rates_were_zero() -> None:
    timeline = Timeline(8)
    timeline.add(0.0)
    ring = Ring(timeline, NAMES)
    passed(timeline, ring, None, None)
    assert ring.is_idle
    assert ring.columns() == {}

    passed(timeline, ring, (1.0, 0.25))
    *idle, (rate, median) = rows(ring)
    assert [one for one, _ in idle] == [0.0, 0.0, 0.0]
    assert all(math.isnan(one) for _, one in idle)
    assert (rate, median) == (1.0, 0.25)


@pytest.mark.parametrize("missed", [1, 2, 3, 50])
def test_seconds_of_which_a_model_was_not_read_are_idle_and_not_those_of_long_ago(
    missed: int,
) -> None:
    timeline = Timeline(4)
    timeline.add(0.0)
    ring = Ring(timeline, NAMES)
    passed(timeline, ring, *[(9.0, 9.0)] * 4)
    for _ in range(missed):
        timeline.add(float(timeline.count))

    found = [first for first, _ in rows(ring)]
    assert found == ([9.0] * 4 + [0.0] * missed)[-4:]


def test_totals_are_noted_when_they_have_changed_and_for_fifteen_minutes() -> None:
    totals = Totals()
    for minute in range(20):
        totals.note(minute * 60.0, Reading(ModelTotals(batches=minute // 2)))
    noted = json.loads(totals.all())

    assert [at for at, _ in noted] == [minute * 60.0 for minute in range(0, 20, 2)]
    for minute in range(20, 60):
        totals.note(minute * 60.0, Reading(ModelTotals(batches=minute)))
    assert len(json.loads(totals.all())) == 15
