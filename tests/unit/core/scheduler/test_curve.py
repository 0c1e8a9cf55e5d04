"""How long does a batch of so many rows take? What was learnt, and what is made of it."""

import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from wherry.core.scheduler.curve import (
    FORGOTTEN_AFTER,
    HALVED_AFTER,
    RENEWED_EACH,
    BatchCurve,
)


def learnt(*samples: tuple[int, float]) -> BatchCurve:
    curve = BatchCurve()
    for rows, seconds in samples:
        curve.learn(rows, seconds)
    return curve


def means(curve: BatchCurve) -> list[tuple[int, float]]:
    return [(point.rows, point.seconds) for point in curve.points()]


def test_a_curve_without_a_batch_knows_no_fixed_part() -> None:
    curve = BatchCurve()
    assert not curve.batches
    assert curve.fixed() is None
    assert curve.points() == []
    assert learnt((4, 1.0)).batches


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
    one, two, four = [curve.seconds(rows) for rows in (1, 2, 4)]
    assert one <= two <= four
    assert 3.0 < one < four < 6.0


def test_one_slow_batch_does_not_change_much_and_a_new_truth_is_learnt() -> None:
    curve = learnt(*[(4, 1.0)] * 20, (4, 1.4), *[(4, 1.0)] * RENEWED_EACH)
    assert curve.seconds(4) == pytest.approx(1.0, rel=0.04)
    for _ in range(60):
        curve.learn(4, 1.4)  # too little to be a change of the device
    assert curve.seconds(4) == pytest.approx(1.4, rel=0.02)


@pytest.mark.parametrize("slow", [2.0, 60.0])
def test_after_eight_batches_one_counts_at_most_twice_of_what_was_expected(slow: float) -> None:
    curve, twice = learnt(*[(4, 1.0)] * 9), learnt(*[(4, 1.0)] * 9)
    curve.learn(4, slow)
    twice.learn(4, 2.0)
    for each in (curve, twice):
        for _ in range(RENEWED_EACH):
            each.learn(4, 1.0)
    assert curve.seconds(4) == twice.seconds(4)


def test_a_new_size_that_stalls_counts_at_most_twice_of_what_was_expected_too() -> None:
    curve = learnt(*[(4, 1.0), (8, 2.0)] * 5, (16, 60.0))
    assert curve.seconds(16) <= 8.0


def test_the_slow_first_batch_of_a_size_is_replaced_by_the_second() -> None:
    curve = learnt((4, 60.0), (4, 1.0))
    assert curve.seconds(4) == 1.0
    curve = learnt((4, 1.4), (4, 1.0), (4, 1.0), (4, 1.0))  # within what is usual: a mean
    assert curve.seconds(4) > 1.05


def test_a_size_may_be_late_by_accident_but_not_twice_early() -> None:
    slow = learnt(*[(4, 2.0), (8, 2.2)] * 20, (4, 1.0))
    slow.learn(8, 2.2)
    assert slow.seconds(4) > 1.8  # noise, as far as one batch tells
    slow.learn(4, 1.0)  # what was 2.0 was an accident
    assert slow.seconds(4) == pytest.approx(1.0, rel=0.05)


def test_of_neighbours_in_the_wrong_order_the_older_one_counts_less() -> None:
    curve = learnt(*[(4, 3.0)] * 40, *[(8, 1.0)] * (4 * HALVED_AFTER))
    assert curve.seconds(4) == curve.seconds(8) == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize(("factor", "batches"), [(3.0, 3), (2.0, 3), (1 / 2, 2), (1 / 3, 2)])
@pytest.mark.parametrize("sizes", [(1, 2, 4), (4, 4, 4)])
def test_a_device_that_became_slower_or_faster_is_seen_after_three_or_two_batches(
    factor: float, batches: int, sizes: tuple[int, ...]
) -> None:
    curve = learnt(*[(rows, 1.0 + rows / 8) for rows in (1, 2, 4, 8)] * 25)
    for rows in sizes[: batches - 1]:
        curve.learn(rows, (1.0 + rows / 8) * factor)
    assert [point.rows for point in curve.points()] == [1, 2, 4, 8]
    last = sizes[batches - 1]
    curve.learn(last, (1.0 + last / 8) * factor)
    assert [point.rows for point in curve.points()] == [last]  # the others are wrong now
    assert curve.seconds(last) == pytest.approx((1.0 + last / 8) * factor)


def test_two_stalls_in_a_row_are_no_change() -> None:
    curve = learnt(*[(4, 1.0), (8, 1.2)] * 25, (4, 3.0), (4, 3.0), (4, 1.0), (4, 3.0))
    assert [point.rows for point in curve.points()] == [4, 8]


def test_after_a_change_all_sizes_follow_at_once() -> None:
    curve = learnt(*[(rows, 1.0) for rows in (1, 2, 4, 8)] * 25)
    for _ in range(6):
        for rows in (2, 4, 8):
            curve.learn(rows, 3.0)
    assert all(seconds == pytest.approx(3.0, rel=0.05) for _, seconds in means(curve))


@examples(1)
@given(
    fixed=st.floats(1e-4, 0.1),
    row=st.floats(0.0, 0.01),
    noise=st.floats(0.0, 0.2),
    shift=st.sampled_from([3.0, 1 / 3]),
    sizes=st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True),
    seed=st.integers(0, 1000),
)
def test_a_threefold_change_is_followed_within_fifty_batches(
    fixed: float, row: float, noise: float, shift: float, sizes: list[int], seed: int
) -> None:
    curve, rng = BatchCurve(), random.Random(seed)
    for factor, batches in ((1.0, 100), (shift, 50)):
        for _ in range(batches):
            rows = rng.choice(sizes)
            curve.learn(rows, factor * (fixed + row * rows) * rng.lognormvariate(0, noise))
    for rows, seconds, _, _ in curve.points():
        # Noise of 20 %, and a mean of a few batches.
        assert seconds == pytest.approx(shift * (fixed + row * rows), rel=0.6)


def test_sizes_seen_once_with_noise_lie_nearer_to_the_line_than_what_they_took() -> None:
    def off(seconds: Callable[[int], float]) -> float:
        return sum((seconds(rows) / (5 + rows / 5) - 1) ** 2 for rows in range(1, 25))

    ours = theirs = 0.0
    for seed in range(5):
        rng, curve = random.Random(seed), learnt(*[(32, 11.4), (1, 5.2)] * 10)
        took = {rows: (5 + rows / 5) * rng.lognormvariate(0, 0.2) for rows in range(1, 25)}
        for rows, seconds in took.items():
            curve.learn(rows, seconds)
        for _ in range(RENEWED_EACH):
            curve.learn(32, 11.4 * rng.lognormvariate(0, 0.2))
        ours += off(curve.seconds)
        theirs += off(took.__getitem__)
    assert ours < 0.12 * theirs  # that it does not decrease explains about 0.2 of it


def test_steps_are_not_noise_and_stay() -> None:
    rng, curve = random.Random(1), BatchCurve()

    def steps(rows: int) -> float:
        return 2.0 + 28.8 * -(-rows // 16)

    for rows in [*range(1, 65, 3), 16, 32, 48] * 8:
        curve.learn(rows, steps(rows) * rng.lognormvariate(0, 0.03))
    for rows in (16, 19, 32, 34, 49):
        assert curve.seconds(rows) == pytest.approx(steps(rows), rel=0.08), rows


def test_large_sizes_share_places_an_eighth_of_an_octave_wide() -> None:
    curve = learnt(*[(rows, 1.0) for rows in (*range(1, 130), *range(130, 1025, 3))])
    assert [point.rows for point in curve.points()][:65] == [*range(1, 65), 72]
    assert len(curve.points()) <= 64 + 4 * 8 + 1


def test_a_place_for_large_sizes_ends_where_steps_of_devices_end() -> None:
    curve = learnt((64, 1.0), (65, 2.0), (72, 2.0), (128, 2.0), (129, 3.0))
    assert [point.rows for point in curve.points()] == [64, 72, 128, 144]


@given(
    samples=st.lists(st.tuples(st.integers(1, 300), st.floats(1e-3, 1.0)), min_size=1, max_size=120)
)
def test_efficient_sizes_are_known_and_give_more_rows_a_second_than_smaller_ones(
    samples: list[tuple[int, float]],
) -> None:
    curve = BatchCurve()
    for rows, seconds in samples:
        curve.learn(rows, seconds)
        known = means(curve)
        assert set(curve.efficient) <= set(known)
        best = 0.0
        for rows, seconds in known:
            assert ((rows, seconds) in curve.efficient) == (rows / seconds > best)
            best = max(best, rows / seconds)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.2])
def test_how_wrong_a_mean_may_be_is_learnt_from_the_noise(noise: float) -> None:
    rng, curves = random.Random(1), [BatchCurve() for _ in range(200)]
    for curve in curves:
        for _ in range(100):
            curve.learn(8, rng.lognormvariate(0, noise))
    real = statistics.stdev([curve.seconds(8) for curve in curves])
    errors = [curve.points()[0].error for curve in curves]
    assert statistics.mean(errors) == pytest.approx(real, rel=0.2)


def test_the_points_have_the_age_of_the_last_batch_of_a_size() -> None:
    curve = learnt(*[(4, 1.0)] * 3, *[(8, 1.5)] * 7)
    assert [(point.rows, point.age) for point in curve.points()] == [(4, 7), (8, 0)]


def test_a_size_run_less_often_is_known_less_well() -> None:
    rng, curve = random.Random(1), BatchCurve()
    for _ in range(100):
        for rows in (1, 8, 8, 8, 8):
            curve.learn(rows, rng.lognormvariate(0, 0.1))
    curve.learn(16, 1.0)
    once, often = [point.error / point.seconds for point in curve.points()][::-1][:2]
    assert once == pytest.approx(often * 19**0.5, rel=0.01)


def test_the_first_batches_of_a_size_count_alike() -> None:
    assert learnt((4, 3.0), (4, 2.4), (4, 2.1)).seconds(4) == pytest.approx(2.5)


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
def test_the_curve_never_falls_and_its_times_are_positive(
    samples: list[tuple[int, float]], rows: list[float]
) -> None:
    curve = learnt(*samples)
    times = [curve.seconds(n) for n in sorted(rows)]
    assert times == sorted(times) or times == pytest.approx(sorted(times))
    most = max(seconds for _, seconds in samples)
    for _, seconds, error, age in curve.points():
        assert 0 < seconds < 3000 * most
        assert error >= 0
        assert 0 <= age < FORGOTTEN_AFTER
    for part in (curve.fixed(), curve.slope()):
        assert part is None or part >= 0


def test_neighbours_that_noise_has_put_in_the_wrong_order_share_their_mean() -> None:
    curve = learnt(*[(1, 4.5), (2, 4.0), (3, 3.5), (40, 20.6), (41, 20.4)] * 50)
    one, two, three, forty, more = [seconds for _, seconds in means(curve)]
    assert one == two == three == pytest.approx(4.0, rel=0.03)
    assert forty == more == pytest.approx(20.5, rel=0.03)


def test_the_line_gives_the_seconds_of_a_row() -> None:
    curve = learnt((4, 6.0), (8, 10.0), (16, 18.0))
    assert curve.fixed() == pytest.approx(2.0)
    assert curve.slope() == pytest.approx(1.0)
    assert learnt((4, 6.0)).slope() is None


def test_a_size_that_was_not_run_for_long_is_forgotten() -> None:
    curve = learnt((4, 1.0), (16, 60.0))
    for _ in range(FORGOTTEN_AFTER + RENEWED_EACH):
        curve.learn(4, 1.0)
    assert [point.rows for point in curve.points()] == [4]
    assert curve.seconds(16) == pytest.approx(1.0)  # looks cheap: it is run, and the truth learnt
    curve.learn(16, 2.0)
    assert [point.rows for point in curve.points()] == [4, 16]
    assert (curve.seconds(4), curve.seconds(16)) == pytest.approx((1.0, 2.0))


def test_sizes_that_are_run_now_and_then_are_kept() -> None:
    curve = BatchCurve()
    for batch in range(4 * FORGOTTEN_AFTER):
        if batch % (FORGOTTEN_AFTER // 2) == 0:
            curve.learn(16, 2.0)
            curve.learn(100, 5.0)
        curve.learn(4, 1.0)
    assert [point.rows for point in curve.points()] == [4, 16, 104]
