"""How often is a thing found to differ from itself, and how often is a difference found?"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from wherry.bench.interval import paired, student, turns, unpaired

Noise = Callable[[np.random.Generator, int], Any]
#: 100, and 400 in `make test-full`; what is drawn is the same each time.
COMPARISONS = 4 * settings().max_examples
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
