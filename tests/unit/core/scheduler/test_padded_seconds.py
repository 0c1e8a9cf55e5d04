"""Do the parts of a batch's seconds come out as they are?"""

import random

import pytest

from wherry.core.scheduler.costs import PaddedSeconds


@pytest.mark.parametrize(
    ("each", "by_row", "by_size", "by_work"),
    [(3, 0, 0, 0.016), (3, 0.5, 0, 0.008), (1, 0, 0.05, 0), (2, 0.1, 0.03, 0.004), (5, 0.3, 0, 0)],
)
def test_seconds_of_any_batch_are_known_from_those_of_others(
    each: float, by_row: float, by_size: float, by_work: float
) -> None:
    model, rng = PaddedSeconds(), random.Random(1)

    def seconds(rows: int, longest: float) -> float:
        return (each + by_row * rows + (by_size + by_work * rows) * longest) * 1e-3

    for _ in range(400):
        rows, longest = rng.randint(1, 16), rng.uniform(10, 300)
        model.learn(rows, longest, seconds(rows, longest) * rng.lognormvariate(0, 0.05))
    for rows, longest in ((4, 200.0), (8, 60.0), (16, 30.0), (16, 250.0)):
        assert model.seconds(rows, longest) == pytest.approx(seconds(rows, longest), rel=0.25)


def test_what_full_batches_do_not_tell_apart_is_taken_to_go_by_the_work() -> None:
    model, rng = PaddedSeconds(), random.Random(2)
    assert model.seconds(4, 10.0) == 0.0
    for _ in range(50):
        longest = rng.uniform(10, 300)
        model.learn(16, longest, 0.05e-3 * longest)
    assert model.by_work == pytest.approx(0.05e-3 / 16, rel=0.05)
    assert model.by_size == pytest.approx(0.0, abs=1e-6)
