"""Do rows fare as well with several replicas as with one queue? In virtual time."""

import pytest

from benchmarks.pool.prompts import prompts
from benchmarks.pool.simulator import Case, Device, Result, central, simulate
from benchmarks.pool.ways import WAYS

BATCHES = Device()


def beside(case: Case, way: str = "predicted") -> tuple[Result, Result]:
    return simulate(case, WAYS[way], seed=1), central(case, seed=1)


@pytest.mark.parametrize(("owners", "fronts"), [(2, 1), (2, 16), (8, 1), (8, 4)])
def test_the_mean_is_near_that_of_a_central_queue(owners: int, fronts: int) -> None:
    case = Case([BATCHES] * owners, load=0.8, fronts=fronts, rows=4000)
    found, best = beside(case)
    assert len(found.seconds) == len(best.seconds) == 3000
    assert found.mean < 1.10 * best.mean
    assert found.quantile(0.99) < 1.35 * best.quantile(0.99)


@pytest.mark.parametrize(("owners", "factor"), [(2, 2), (2, 5), (8, 5)])
def test_the_slowest_answers_with_one_slow_replica_are_no_slower_than_of_a_central_queue(
    owners: int, factor: float
) -> None:
    devices = [BATCHES] * (owners - 1) + [BATCHES.slower(factor)]
    found, best = beside(Case(devices, load=0.7, fronts=2, rows=4000))
    assert found.mean < 1.15 * best.mean
    assert found.quantile(0.99) < 1.10 * best.quantile(0.99)
    assert found.owners[owners - 1] < min(found.owners[n] for n in range(owners - 1)) / factor**0.5


def test_rows_at_random_would_overload_a_slow_replica() -> None:
    devices = [BATCHES, BATCHES.slower(5)]
    found, best = beside(Case(devices, load=0.7, rows=4000), "random")
    assert found.mean > 3 * best.mean


def test_a_replica_that_stops_gets_hardly_more_rows_and_the_others_answer_all() -> None:
    case = Case([BATCHES] * 4, load=0.5, fronts=2, rows=16_000, stops=1)
    found = simulate(case, WAYS["predicted"], seed=1)
    blind = simulate(case, WAYS["round robin"], seed=1)
    assert len(found.seconds) == 12_000
    assert found.late < 100 < 1000 < blind.late
    assert found.quantile(0.98) < 0.05


def test_prompts_that_begin_alike_find_it_cached_and_do_not_crowd_one_replica() -> None:
    for skew in (1.0, 2.0):
        found = prompts(60, seed=1, count=2000, skew=skew)
        chosen = found["beginning and prediction"]
        assert chosen["hits"] > 0.9
        assert chosen["mean"] < 1.5 * min(one["mean"] for one in found.values())


def test_the_same_seed_gives_the_same_figures() -> None:
    case = Case([BATCHES] * 3, fronts=2, rows=500)
    first, second = (simulate(case, WAYS["predicted"], seed=5) for _ in range(2))
    assert first.seconds == second.seconds
