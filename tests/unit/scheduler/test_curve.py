"""How long does a batch of so many rows take? What was learnt, and what is made of it."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.scheduler.curve import FORGOTTEN_AFTER, LOOKED_FOR_EACH, BatchCurve


def learnt(*samples: tuple[int, float]) -> BatchCurve:
    curve = BatchCurve()
    for rows, seconds in samples:
        curve.learn(rows, seconds)
    return curve


def means(curve: BatchCurve) -> list[tuple[int, float]]:
    return [(point.rows, point.seconds) for point in curve.points()]


def test_a_curve_without_a_batch_is_false_and_knows_no_fixed_part() -> None:
    curve = BatchCurve()
    assert not curve
    assert curve.fixed() is None
    assert curve.points() == []
    assert learnt((4, 1.0))


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        (0, 0.0),  # no batch
        (0.5, 1.0),  # half a batch of one
        (1, 2.0),  # below the smallest seen: as long as that one
        (2, 2.0),
        (3, 2.5),  # between two: a straight line
        (4, 3.0),
        (6, 4.0),
        (8, 5.0),
        (12, 7.0),  # beyond the largest: the last slope goes on
    ],
)
def test_between_the_sizes_seen_are_straight_lines(rows: float, seconds: float) -> None:
    assert learnt((2, 2.0), (4, 3.0), (8, 5.0)).seconds(rows) == pytest.approx(seconds)


def test_one_size_makes_larger_ones_look_free_so_that_they_are_tried() -> None:
    assert learnt((4, 3.0)).seconds(64) == 3.0


def test_a_larger_batch_never_looks_faster() -> None:
    curve = learnt((1, 5.0), (2, 3.0), (4, 6.0))
    assert [curve.seconds(rows) for rows in (1, 2, 4)] == [4.0, 4.0, 6.0]


def test_one_slow_batch_does_not_change_much_and_a_new_truth_is_learnt() -> None:
    curve = learnt(*[(4, 1.0)] * 20, (4, 2.0))
    assert curve.seconds(4) == pytest.approx(1.1)
    for _ in range(40):
        curve.learn(4, 2.0)
    assert curve.seconds(4) == pytest.approx(2.0, rel=0.02)


def test_large_sizes_share_places_an_eighth_of_an_octave_wide() -> None:
    curve = learnt(*[(rows, 1.0) for rows in (*range(1, 130), *range(130, 1025, 3))])
    assert [point.rows for point in curve.points()][:65] == [*range(1, 65), 72]
    assert len(curve.points()) <= 64 + 4 * 8 + 1


def test_a_place_for_large_sizes_ends_where_steps_of_devices_end() -> None:
    curve = learnt((64, 1.0), (65, 2.0), (72, 2.0), (128, 2.0), (129, 3.0))
    assert means(curve) == [(64, 1.0), (72, 2.0), (128, 2.0), (144, 3.0)]


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        (4, 3.0),  # this one was tried
        (16, 4.0),  # 12 was: it may cost as little
        (23, 4.0),
        (24, 20.0),  # 12 is too far away: by the straight line from 12 to 48
        (64, 52.0),
        (96, 116.0),  # beyond it
    ],
)
def test_a_size_that_was_never_tried_is_hoped_to_cost_what_a_smaller_one_does(
    rows: int, seconds: float
) -> None:
    assert learnt((3, 2.5), (4, 3.0), (12, 4.0), (48, 52.0)).hoped(rows) == pytest.approx(seconds)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_how_wrong_a_mean_may_be_is_learnt_from_the_noise(noise: float) -> None:
    rng, curves = random.Random(1), [BatchCurve() for _ in range(200)]
    for curve in curves:
        for _ in range(100):
            curve.learn(8, rng.lognormvariate(0, noise))
    real = statistics.stdev([curve.seconds(8) for curve in curves])
    assert statistics.mean([curve.error for curve in curves]) == pytest.approx(real, rel=0.2)


def test_the_first_batches_of_a_size_count_alike() -> None:
    assert learnt((4, 3.0), (4, 1.0), (4, 2.0)).seconds(4) == pytest.approx(2.0)


@pytest.mark.parametrize(("fixed", "row"), [(5e-3, 2e-4), (1e-4, 2e-3), (0.0, 1e-3), (7e-3, 0.0)])
def test_the_fixed_part_is_where_a_straight_line_starts(fixed: float, row: float) -> None:
    rng = random.Random(1)
    samples = [
        (n, (fixed + row * n) * rng.lognormvariate(0, 0.02)) for n in range(1, 33) for _ in range(9)
    ]
    assert learnt(*samples).fixed() == pytest.approx(fixed, rel=0.1, abs=1e-4)


def test_the_fixed_part_is_unknown_while_all_batches_are_alike() -> None:
    assert learnt(*[(8, 1.0)] * 5).fixed() is None


@given(
    samples=st.lists(
        st.tuples(st.integers(1, 3000), st.floats(1e-6, 100.0)), min_size=1, max_size=60
    ),
    rows=st.lists(st.floats(0, 5000), min_size=2, max_size=10),
)
def test_the_curve_never_falls_and_stays_within_what_was_seen(
    samples: list[tuple[int, float]], rows: list[float]
) -> None:
    curve = learnt(*samples)
    times = [curve.seconds(n) for n in sorted(rows)]
    assert times == sorted(times) or times == pytest.approx(sorted(times))
    seen = [seconds for _, seconds in samples]
    for _, seconds in means(curve):
        assert min(seen) * 0.999 <= seconds <= max(seen) * 1.001
    fixed = curve.fixed()
    assert fixed is None or fixed >= 0


def test_neighbours_that_noise_has_put_in_the_wrong_order_share_their_mean() -> None:
    curve = learnt((1, 5.0), (2, 4.0), (3, 3.0), (4, 6.0), (5, 5.0))
    assert means(curve) == [(1, 4.0), (2, 4.0), (3, 4.0), (4, 5.5), (5, 5.5)]


def test_the_line_gives_the_seconds_of_a_row() -> None:
    curve = learnt((4, 6.0), (8, 10.0), (16, 18.0))
    assert curve.fixed() == pytest.approx(2.0)
    assert curve.slope() == pytest.approx(1.0)
    assert learnt((4, 6.0)).slope() is None


def test_a_size_that_was_not_run_for_long_is_forgotten() -> None:
    curve = learnt((4, 1.0), (16, 60.0))
    for _ in range(FORGOTTEN_AFTER + LOOKED_FOR_EACH):
        curve.learn(4, 1.0)
    assert means(curve) == [(4, 1.0)]
    assert curve.seconds(16) == 1.0  # looks cheap again: it is tried, and the truth is learnt
    curve.learn(16, 2.0)
    assert means(curve) == [(4, 1.0), (16, 2.0)]


def test_sizes_that_are_run_now_and_then_are_kept() -> None:
    curve = BatchCurve()
    for batch in range(4 * FORGOTTEN_AFTER):
        if batch % (FORGOTTEN_AFTER // 2) == 0:
            curve.learn(16, 2.0)
            curve.learn(100, 5.0)
        curve.learn(4, 1.0)
    assert [point.rows for point in curve.points()] == [4, 16, 104]
