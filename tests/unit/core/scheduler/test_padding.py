"""Is it learnt that padding costs time where it does, and nowhere else?"""

import random
from collections.abc import Callable
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.core.scheduler.padding import PaddingTest

Sizes = list[int]
Seconds = Callable[[Sizes], float]

#: Seconds by the rows alone, whatever their sizes.
BY_ROWS: dict[str, Seconds] = {
    "constant": lambda sizes: 5.0,
    "affine": lambda sizes: 5 + 0.3 * len(sizes),
    "by the row": lambda sizes: 0.05 + 2.0 * len(sizes),
    "steps of 8": lambda sizes: 5 + 0.2 * ceil(len(sizes) / 8) * 8,
    "convex": lambda sizes: 1 + 0.02 * len(sizes) ** 2,
    "flat, then linear": lambda sizes: max(6.0, 1 + 0.3 * len(sizes)),
}
BY_SUM: dict[str, Seconds] = {
    "sum": lambda sizes: 1 + 0.01 * sum(sizes),
    "large fixed part and sum": lambda sizes: 5 + 0.001 * sum(sizes),
}
BY_LONGEST: dict[str, Seconds] = {
    "padded": lambda sizes: 3 + 0.004 * len(sizes) * max(sizes),
    "padded, no fixed part": lambda sizes: 0.3 + 0.016 * len(sizes) * max(sizes),
    "padded, with a part by the row": lambda s: 3 + 0.5 * len(s) + 0.008 * len(s) * max(s),
    "longest alone": lambda sizes: 1 + 0.05 * max(sizes),
    "quadratic": lambda s: 3 + 0.004 * len(s) * max(s) + 1e-5 * len(s) * max(s) ** 2,
}
TEXTS: dict[str, Callable[[random.Random], int]] = {
    "log-normal": lambda rng: int(min(512, max(8, rng.lognormvariate(4.4, 0.9)))),
    "uniform": lambda rng: rng.randint(10, 200),
    "two lengths": lambda rng: rng.choice((20, 20, 20, 400)),
    "digits": lambda rng: rng.randint(1, 6),
}
ROWS: dict[str, Callable[[random.Random], int]] = {
    "full": lambda rng: 16,
    "any": lambda rng: rng.randint(2, 16),
    "large": lambda rng: int(min(200, 2 + rng.expovariate(0.02))),
}


def run(test: PaddingTest, world: Seconds, text: str, rows: str, noise: float, batches: int) -> int:
    """Run batches; how many until padding was believed to cost time (or all)."""
    rng = random.Random(f"{text} {rows} {noise}")
    for batch in range(batches):
        sizes = [TEXTS[text](rng) for _ in range(ROWS[rows](rng))]
        seconds = world(sizes) * rng.lognormvariate(0, noise) * 1e-3
        test.learn(len(sizes), sum(sizes) / len(sizes), max(sizes), seconds)
        if test.believed:
            return batch
    return batches


@given(
    st.sampled_from(sorted(BY_ROWS | BY_SUM)),
    st.sampled_from(sorted(TEXTS)),
    st.sampled_from(sorted(ROWS)),
    st.sampled_from((0.02, 0.1, 0.2, 0.3, 0.5)),
)
def test_where_seconds_go_by_rows_or_by_the_sum_padding_is_never_believed_to_cost(
    world: str, text: str, rows: str, noise: float
) -> None:
    assert run(PaddingTest(), (BY_ROWS | BY_SUM)[world], text, rows, noise, 500) == 500


@pytest.mark.parametrize("world", BY_LONGEST)
@pytest.mark.parametrize(
    ("rows", "noise", "batches"), [("full", 0.02, 16), ("full", 0.1, 40), ("any", 0.1, 120)]
)
def test_where_rows_are_padded_that_is_known_after_so_many_batches(
    world: str, rows: str, noise: float, batches: int
) -> None:
    assert run(PaddingTest(), BY_LONGEST[world], "log-normal", rows, noise, batches) < batches


@pytest.mark.parametrize("after", ["affine", "sum"])
def test_a_change_of_the_model_is_followed(after: str) -> None:
    test = PaddingTest()
    assert run(test, BY_LONGEST["padded"], "log-normal", "any", 0.05, 200) < 200
    rng = random.Random(2)
    for _ in range(300):
        sizes = [TEXTS["log-normal"](rng) for _ in range(rng.randint(2, 16))]
        seconds = (BY_ROWS | BY_SUM)[after](sizes) * rng.lognormvariate(0, 0.05) * 1e-3
        test.learn(len(sizes), sum(sizes) / len(sizes), max(sizes), seconds)
        if after == "affine":
            test.in_order()
        elif test.doubted:
            test.seen(padded=False)
    assert not test.believed
    assert run(test, BY_LONGEST["padded"], "log-normal", "any", 0.05, 300) < 300


def test_sizes_that_were_not_seen_to_matter_lately_still_do_while_similar_ones_run_together() -> (
    None
):
    test = PaddingTest()
    assert run(test, BY_LONGEST["padded"], "log-normal", "any", 0.05, 200) < 200
    rng = random.Random(2)
    for _ in range(300):
        test.learn(8, 20.0, 20.0, rng.lognormvariate(0, 0.05) * 1e-3)
    assert test.believed


def test_one_size_says_nothing() -> None:
    test, rng = PaddingTest(), random.Random(3)
    for _ in range(300):
        test.learn(8, 50.0, 50.0, rng.lognormvariate(0, 0.2))
    assert (test.believed, test.power, test.suspected) == (False, 0.0, False)


def test_a_stall_of_the_machine_does_not_shake_what_is_known() -> None:
    test, rng = PaddingTest(), random.Random(4)
    assert run(test, BY_LONGEST["padded"], "log-normal", "full", 0.05, 200) < 200
    for batch in range(600):
        sizes = [TEXTS["log-normal"](rng) for _ in range(16)]
        seconds = BY_LONGEST["padded"](sizes) * 1e-3 + (batch % 50 == 0) * 0.5
        test.learn(16, sum(sizes) / 16, max(sizes), seconds)
        assert test.believed
