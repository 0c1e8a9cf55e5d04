"""How sure is it that two kinds of runs differ? (Pure.)

Each run gives one figure: neighbouring pieces of a run share their noise, runs share less of it.
The figures' logarithms are compared, so that "twice" and "half" weigh the same, by Student's t:

- runs measured in turns as pairs: what changes slowly, as other load on the machine does, is in
  both halves of a pair, and cancels. Which half comes first is drawn (`turns`), so that what comes
  and goes in step with the runs falls on both sides;
- runs of two reports, one recorded after the other, as two groups (Welch's test: the groups may
  have different noise). What changed on the machine in between is in no group: SESSION is added
  for it, and the drift that the groups show. RUN stands in where a group has too few runs to show
  how runs differ.

Several figures are looked at, and each may differ by chance. The intervals are therefore so wide
that all of them together hold the true values in 95 of 100 comparisons (Bonferroni).

Sources: Student's t and Welch's degrees of freedom as in B. L. Welch, Biometrika 34 (1947), 28-35;
why runs, and not requests, are the sample: A. Georges, D. Buytaert and L. Eeckhout, "Statistically
Rigorous Java Performance Evaluation", OOPSLA 2007.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

#: How sure all intervals of a comparison are together.
CONFIDENCE: Final = 0.95
#: Runs of one side from which on their own differences say how large the noise is.
FEWEST_RUNS: Final = 3
#: The noise between two recordings (a standard deviation, as a share), besides that of their runs.
SESSION: Final = 0.03
#: The noise between two runs, assumed where there are too few of them to tell.
RUN: Final = 0.10


def turns(pairs: int, seed: int = 0) -> list[tuple[int, int]]:
    """The order (0, 1 or 1, 0) in which each pair is run; each of the two begins half of them."""
    firsts = np.arange(pairs) % 2
    np.random.default_rng(seed).shuffle(firsts)
    return [(int(first), 1 - int(first)) for first in firsts]


def paired(before: Sequence[float], after: Sequence[float], figures: int) -> tuple[float, float]:
    """The interval of the change, as a share, of `figures` looked at; pairs by their place.

    At least two pairs, of figures above zero.
    """
    differences = np.log(after) - np.log(before)
    count = len(differences)
    error = float(differences.std(ddof=1)) / math.sqrt(count)
    return _around(float(differences.mean()), error, count - 1, figures)


def unpaired(
    before: Sequence[float], after: Sequence[float], figures: int, noisier: float = 1.0
) -> tuple[float, float]:
    """The interval of the change between two groups of runs, each of at least one.

    `noisier`: how many times the assumed noise this kind of figure has, a high percentile for one.
    """
    groups = np.log(before), np.log(after)
    difference = float(groups[1].mean() - groups[0].mean())
    if min(map(len, groups)) < FEWEST_RUNS:
        spread = max((float(group.std(ddof=1)) for group in groups if len(group) > 1), default=0.0)
        spread = max(spread, RUN * noisier)
        error = spread * math.sqrt(sum(1 / len(group) for group in groups))
        return _around(difference, math.hypot(error, SESSION * noisier), math.inf, figures)
    parts = [float(group.var(ddof=1)) / len(group) for group in groups]
    # Welch's degrees of freedom; the assumed part of the variance is known, it has none of its own.
    drift = sum(map(_drift, groups))
    total = sum(parts) + 2 * (SESSION * noisier) ** 2 + drift**2
    known = sum(part**2 / (len(group) - 1) for part, group in zip(parts, groups, strict=True))
    freedom = total**2 / known if known > 0 else math.inf
    return _around(difference, math.sqrt(total), freedom, figures)


def _drift(group: npt.NDArray[np.float64]) -> float:
    """The mean of a group's second half less that of its first."""
    half = len(group) // 2
    return float(group[-half:].mean() - group[:half].mean())


def _around(middle: float, error: float, freedom: float, figures: int) -> tuple[float, float]:
    reach = error * student(1 - (1 - CONFIDENCE) / (2 * figures), freedom)
    return math.expm1(middle - reach), math.expm1(min(middle + reach, 700.0))


def student(probability: float, freedom: float) -> float:
    """The quantile of Student's t: what a t is below with this probability (above one half)."""
    low, high = 0.0, 1.0
    while _below(high, freedom) < probability and high < 1e9:
        low, high = high, 2 * high
    for _ in range(40):  # 12 digits
        middle = (low + high) / 2
        low, high = (middle, high) if _below(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def _below(t: float, freedom: float) -> float:
    """The probability of a value below `t`, by the incomplete beta function."""
    if freedom > 1e6:
        return 0.5 * math.erfc(-t / math.sqrt(2))
    x = freedom / (freedom + t * t)
    return 1 - 0.5 * _incomplete_beta(freedom / 2, 0.5, x)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised, by its continued fraction (Numerical Recipes, section 6.4; Lentz's method)."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    c, d, fraction = 1.0, 1 / (1 - (a + b) * x / (a + 1)), 1 / (1 - (a + b) * x / (a + 1))
    for m in range(1, 300):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + numerator * d)
            c = 1 + numerator / c
            fraction *= c * d
        if abs(c * d - 1) < 1e-13:
            break
    return front * fraction / a
