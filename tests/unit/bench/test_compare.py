"""Whether a change is more than noise, and how sure that is."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from tests.unit.bench.reports import point, report
from wherry.bench.compare import Change, compare, paired, student, turns, unmatched, unpaired


def verdicts(changes: list[Change]) -> dict[str, str]:
    return {change.metric: change.verdict for change in changes}


def test_a_change_far_beyond_the_noise_has_a_direction() -> None:
    changes = compare(report(point(100, 0.010)), report(point(150, 0.005, seed=1)))
    found = verdicts(changes)
    assert found["requests/s"] == found["p50 ms"] == found["mean ms"] == "better"
    back = verdicts(compare(report(point(150, 0.005)), report(point(100, 0.010, seed=1))))
    assert back["requests/s"] == back["p50 ms"] == "worse"
    by_name = {change.metric: change for change in changes}
    assert abs(by_name["requests/s"].share - 0.5) < 0.05
    low, high = by_name["requests/s"].interval or (0, 0)
    assert 0 < low < 0.5 < high


def test_the_same_thing_twice_is_no_difference() -> None:
    wrong = 0
    for seed in range(40):
        found = verdicts(
            compare(report(point(noise=0.1, seed=seed)), report(point(noise=0.1, seed=1000 + seed)))
        )
        wrong += set(found.values()) != {"no difference"}
    assert wrong <= 2  # 1 in 20


def test_noise_between_runs_counts_when_runs_are_repeated() -> None:
    """Each run is steady in itself, and the runs differ by 10 %: one cannot tell 4 % apart."""
    before = [point(rate, noise=0.001, repeat=n) for n, rate in enumerate((90, 100, 110))]
    after = [point(rate, noise=0.001, repeat=n) for n, rate in enumerate((94, 104, 114))]
    found = compare(report(*before), report(*after))
    assert verdicts(found)["requests/s"] == "no difference"
    assert found[0].runs == (3, 3)


def test_in_turns_the_runs_are_pairs_and_what_both_share_is_no_noise() -> None:
    rates = (90, 100, 110, 80, 120)
    before = report(*(point(r, 1 / r, noise=0.001, repeat=n) for n, r in enumerate(rates)))
    after = report(
        *(point(1.1 * r, 1 / r, noise=0.001, repeat=n, seed=9) for n, r in enumerate(rates))
    )
    found = verdicts(compare(before, after, in_turns=True))
    assert found["requests/s"] == "better"
    assert found["mean ms"] == "no difference"
    assert verdicts(compare(before, after))["requests/s"] == "no difference"


def test_a_server_that_takes_twice_the_cpu_is_told_though_its_answers_are_as_fast() -> None:
    before = report(*(point(cores=0.5 + 0.02 * n, repeat=n, seed=n) for n in range(10)))
    after = report(*(point(cores=1.0 + 0.02 * n, repeat=n, seed=90 + n) for n in range(10)))
    by_name = {change.metric: change for change in compare(before, after, in_turns=True)}
    assert by_name.pop("server CPU ms/request").verdict == "worse"
    assert {change.verdict for change in by_name.values()} == {"no difference"}


def test_cpu_time_is_that_of_a_request() -> None:
    """Twice the requests with twice the cores is no more CPU."""
    found = compare(
        report(*(point(100, cores=0.5, repeat=n, seed=n) for n in range(10))),
        report(*(point(200, cores=1.0, repeat=n, seed=n) for n in range(10))),
        in_turns=True,
    )
    changes = {change.metric: change for change in found}
    cpu = changes["server CPU ms/request"]
    assert cpu.verdict == "no difference"
    assert 4.5 < cpu.before < 5.5
    assert changes["requests/s"].verdict == "better"


def test_a_server_elsewhere_has_no_cpu_time_to_compare() -> None:
    changes = compare(report(point(cores=None)), report(point(seed=1)))
    assert "server CPU ms/request" not in {change.metric for change in changes}


def test_the_last_pair_may_lack_its_second_half() -> None:
    before = report(*(point(100, repeat=n, seed=n) for n in range(4)))
    after = report(*(point(100, repeat=n, seed=10 + n) for n in range(3)))
    assert compare(before, after, in_turns=True)[0].runs == (3, 3)


def test_a_figure_that_one_run_lacks_is_unknown_and_not_left_out() -> None:
    runs = [point(cores=0.5, repeat=n, seed=n) for n in range(4)]
    lacking = [*runs[:3], point(cores=0.0, repeat=3, seed=3)]
    for before, after in ((runs, lacking), (lacking, runs)):
        found = {c.metric: c for c in compare(report(*before), report(*after), in_turns=True)}
        assert found["server CPU ms/request"].verdict == "unknown"
        assert abs(found["server CPU ms/request"].share) < 0.2
        assert found["mean ms"].verdict == "no difference"


def test_a_run_that_is_too_short_says_nothing() -> None:
    changes = compare(report(point(100, pieces=5)), report(point(200, pieces=5)))
    assert {change.verdict for change in changes} == {"unknown"}


def test_a_tiny_change_is_of_no_interest_however_certain() -> None:
    found = compare(report(point(1000, noise=0.0001)), report(point(1005, noise=0.0001, seed=2)))
    assert verdicts(found)["requests/s"] == "no difference"


def test_points_are_matched_by_their_settings() -> None:
    one = report(point(callers=1), point(callers=2))
    two = report(point(callers=2), point(callers=3))
    assert {change.point for change in compare(one, two)} == {"callers 2"}
    assert unmatched(one, two) == ["only in A: callers 1", "only in B: callers 3"]


def test_comparing_again_gives_the_same_intervals() -> None:
    one, two = report(point(noise=0.2)), report(point(noise=0.2, seed=5))
    assert compare(one, two) == compare(one, two)


Noise = Callable[[np.random.Generator, int], Any]
#: 100, and 400 in `make test-full`; what is drawn is the same each time.
COMPARISONS = 4 * max(25, settings().max_examples)
PAIRS = 10
#: Figures of one run: they share the machine's noise and have a little of their own.
FIGURES = 7


def autocorrelated(draw: np.random.Generator, runs: int) -> Any:
    noise = 0.05 * draw.standard_normal(runs)
    for n in range(1, runs):
        noise[n] = 0.8 * noise[n - 1] + 0.6 * noise[n]
    return noise


def drifting(draw: np.random.Generator, runs: int) -> Any:
    return 0.03 * draw.standard_normal(runs) + np.linspace(0, 0.3 * draw.standard_normal(), runs)


def in_step(draw: np.random.Generator, runs: int) -> Any:
    """It comes and goes with a period of some runs."""
    waves = np.sin(np.arange(runs) * draw.uniform(0.2, 3.1) + draw.uniform(0, 6))
    return 0.02 * draw.standard_normal(runs) + 0.05 * waves


NOISES: dict[str, Noise] = {
    "independent": lambda draw, runs: 0.03 * draw.standard_normal(runs),
    "autocorrelated": autocorrelated,
    "drifting": drifting,
    "heavy tails": lambda draw, runs: 0.02 * draw.standard_t(2, runs),
    "bursts": lambda draw, runs: (
        0.02 * draw.standard_normal(runs) - 0.3 * (draw.random(runs) < 0.05)
    ),
    "in step with the runs": in_step,
}


def comparisons(noise: Noise, share: float, *, in_turns: bool) -> list[list[tuple[float, float]]]:
    """The intervals of each comparison of a thing with what is `share` more of it."""
    found = []
    for seed in range(COMPARISONS):
        draw = np.random.default_rng(seed)
        order = np.array(turns(PAIRS, seed)).ravel() if in_turns else np.arange(2 * PAIRS) // PAIRS
        shared = noise(draw, 2 * PAIRS)
        intervals = []
        for _ in range(FIGURES):
            runs = np.exp(shared + 0.01 * draw.standard_normal(2 * PAIRS))
            sides = runs[order == 0], runs[order == 1] * (1 + share)
            intervals.append((paired if in_turns else unpaired)(*sides, FIGURES))
        found.append(intervals)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("in_turns", [True, False], ids=["in turns", "one after the other"])
@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_a_thing_does_not_differ_from_itself_in_19_of_20_comparisons(
    noise: Noise, in_turns: bool
) -> None:
    wrong = [
        any(low > 0 or high < 0 for low, high in intervals)
        for intervals in comparisons(noise, 0.0, in_turns=in_turns)
    ]
    assert sum(wrong) <= COMPARISONS / 20


@pytest.mark.parametrize(
    ("noise", "found_in"),
    [
        ("independent", 0.95),
        ("autocorrelated", 0.95),
        ("drifting", 0.95),
        ("heavy tails", 0.8),
        ("in step with the runs", 0.8),
    ],
)
def test_ten_percent_are_found_in_turns(noise: str, found_in: float) -> None:
    found = [intervals[0][0] > 0 for intervals in comparisons(NOISES[noise], 0.1, in_turns=True)]
    assert sum(found) >= found_in * COMPARISONS


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.30265),
        (0.975, 9, 2.26216),
        (0.995, 9, 3.24984),
        (0.9995, 3, 12.9240),
        (0.95, 30, 1.69726),
        (0.975, float("inf"), 1.95996),
    ],
)
def test_students_quantiles_are_those_of_the_tables(
    probability: float, freedom: float, quantile: float
) -> None:
    assert student(probability, freedom) == pytest.approx(quantile, rel=1e-5)


@pytest.mark.parametrize("pairs", [1, 2, 7, 10])
def test_each_of_the_two_begins_half_of_the_pairs(pairs: int) -> None:
    drawn = turns(pairs, seed=3)
    assert all(sorted(pair) == [0, 1] for pair in drawn)
    assert sum(first == 0 for first, _ in drawn) == (pairs + 1) // 2
    assert turns(pairs, seed=3) == drawn


def test_more_runs_and_fewer_figures_make_the_interval_smaller() -> None:
    def width(runs: int, figures: int) -> float:
        sides = [100 + 5 * (n % 2) for n in range(runs)], [100 + n % 3 for n in range(runs)]
        low, high = paired(*sides, figures)
        return high - low

    assert all(more < less for less, more in pairwise(width(runs, 6) for runs in (3, 10, 30)))
    assert width(10, 1) < width(10, 6) < width(10, 60)


@pytest.mark.parametrize("runs", [1, 2])
def test_too_few_runs_say_only_what_is_large(runs: int) -> None:
    same = unpaired([100.0] * runs, [110.0] * runs, 6)
    assert same[0] < 0 < same[1]
    assert unpaired([100.0] * runs, [200.0] * runs, 6)[0] > 0
