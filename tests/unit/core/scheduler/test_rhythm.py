"""In which rhythm of batches are callers answered soonest? Loops that were worked out by hand."""

from itertools import pairwise

import pytest

from benchmarks.batching.callers import Arrivals, load
from benchmarks.batching.curves import CURVES, MS, Curve
from benchmarks.batching.device import Device
from benchmarks.batching.play import figures, play
from wherry.core.scheduler.callers import APART, MOST_LOAD, CallerLoop, ReturnTimes, turn
from wherry.core.scheduler.dynamic_batcher import DynamicBatcher
from wherry.core.scheduler.self_tuning_batcher import SelfTuningBatcher

GPU = CURVES["gpu"]  # 5 ms and 0.2 ms a row


def loop(
    callers: int, *back: float, curve: Curve = GPU, instances: int = 1, most: float = 64
) -> CallerLoop:
    """A loop in which the callers of a batch are back after these milliseconds, equally often."""

    def seconds(rows: float) -> float:
        return (curve.fixed + curve.row * rows) * MS

    returns = ReturnTimes([[ms * MS for ms in back]])
    return CallerLoop(callers, returns, seconds, instances, most)


def test_two_callers_that_are_soon_back_run_together() -> None:
    rhythm, at_once = loop(2, 0.25).best()
    assert rhythm.requests == 2
    assert 0.25 * MS <= rhythm.wait <= 0.5 * MS
    assert rhythm.answer == pytest.approx(5.4 * MS)  # and 0.25 ms on their way
    # In turns: each waits for what is left of the other's batch.
    assert at_once.wait == 0
    assert at_once.answer == pytest.approx((2 * 5.2 - 0.25) * MS)


def test_callers_whose_way_back_is_much_longer_than_a_batch_run_at_once() -> None:
    rhythm, at_once = loop(4, 20.0, 60.0, 100.0).best()
    assert rhythm == at_once
    assert rhythm.wait == 0


def test_callers_that_are_never_here_at_the_same_time_cannot_run_together() -> None:
    assert loop(4, 20.0, 60.0, 100.0).together() is None


def test_a_batch_of_all_waits_for_the_last_of_them() -> None:
    together = loop(4, 0.1, 0.2, 0.3, 0.9).together()
    assert together is not None
    assert together.answer == pytest.approx((0.9 + 5.8 - 0.375) * MS)
    assert together.wait == pytest.approx(2 * 0.9 * MS)  # at most, if they are late


@pytest.mark.parametrize("callers", [2, 4, 16])
def test_waiting_for_callers_gains_nothing_if_a_batch_costs_only_by_the_row(callers: int) -> None:
    rhythm, at_once = loop(callers, 0.25, curve=Curve(fixed=0.0, row=2.0)).best()
    assert rhythm.answer <= 1.02 * at_once.answer
    assert rhythm.wait <= 0.5 * MS


def test_a_rhythm_never_has_more_requests_than_fit_in_a_batch() -> None:
    rhythm, at_once = loop(64, 0.25, most=8).best()
    assert rhythm.requests <= 8 or rhythm.wait == 0
    assert at_once.answer == pytest.approx((64 / 8 * 6.6 - 0.25) * MS)  # the device is never free


def test_instances_have_equal_parts_of_the_callers() -> None:
    together = loop(16, 0.25, instances=2).together()
    assert together is not None
    assert together.requests == 8


@pytest.mark.parametrize("instances", [1, 2, 4])
@pytest.mark.parametrize("callers", [5, 8, 16, 40])
@pytest.mark.parametrize("back", [(0.25,), (0.1, 0.5, 0.9), (1.0, 3.0), (0.2, 30.0)])
def test_the_best_rhythm_is_not_clearly_worse_than_the_other(
    callers: int, instances: int, back: tuple[float, ...]
) -> None:
    one = loop(callers, *back, instances=instances)
    rhythm, at_once = one.best()
    together = one.together()
    assert at_once == one.at_once()
    assert rhythm in (at_once, together)
    assert rhythm.answer <= 1.021 * min(at_once.answer, (together or at_once).answer)
    assert min(rhythm.answer, at_once.answer) > 0
    assert rhythm.wait >= 0


def played(
    scheduler: DynamicBatcher | SelfTuningBatcher, callers: int, curve: Curve, back: float
) -> float:
    """The mean answer time of callers that are back after so many milliseconds, simulated."""
    device = Device(curve)
    arrivals = Arrivals(callers=callers, back=back * MS, sigma=0.01)
    trace = play(
        scheduler, lambda rows, *_: curve.seconds(rows), load(arrivals, device, "1", 2000), 1
    )
    return figures(trace, closed=True).mean


@pytest.mark.parametrize(("callers", "back"), [(4, 0.25), (16, 1.0), (32, 2.0)])
def test_the_answer_time_of_callers_that_run_together_is_what_a_simulation_says(
    callers: int, back: float
) -> None:
    together = loop(callers, back).together()
    assert together is not None
    assert together.wait > 0
    simulated = played(SelfTuningBatcher(max_batch_size=64), callers, GPU, back)
    assert together.answer == pytest.approx(simulated, rel=0.05)


@pytest.mark.parametrize(("callers", "back"), [(4, 0.25), (16, 1.0), (32, 2.0)])
def test_the_answer_time_of_callers_that_run_at_once_is_what_a_simulation_says(
    callers: int, back: float
) -> None:
    at_once = loop(callers, back).at_once()
    simulated = played(DynamicBatcher(max_batch_size=64), callers, GPU, back)
    assert at_once.answer == pytest.approx(simulated, rel=0.05)


@pytest.mark.parametrize(
    ("fixed", "slope", "rate", "instances", "seconds"),
    [
        (5 * MS, 0.2 * MS, 0.0, 4, APART * 1.25 * MS),  # no load: as for one row
        (5 * MS, 0.2 * MS, 10_000, 4, APART * 2.5 * MS),  # half of the time is the rows'
        (5 * MS, 0.2 * MS, 10_000, 2, APART * 2.5 * MS / (1 - MOST_LOAD)),  # more than there is
        (0.0, 2 * MS, 100, 4, 0.0),  # nothing is won by more rows
    ],
)
def test_the_seconds_of_a_turn(
    fixed: float, slope: float, rate: float, instances: int, seconds: float
) -> None:
    assert turn(fixed, slope, rate, instances) == pytest.approx(seconds)


def test_turns_grow_with_the_load_up_to_a_limit() -> None:
    loads = [share / 20 for share in range(25)]
    turns = [turn(5 * MS, 0.2 * MS, share * 4 / (0.2 * MS), 4) for share in loads]
    assert turns == sorted(turns)
    assert len({round(seconds, 9) for seconds in turns}) == 18  # 0 to 0.85: no longer beyond
    assert all(b <= 2 * a for a, b in pairwise(turns))
