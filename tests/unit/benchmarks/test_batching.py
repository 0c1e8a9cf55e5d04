"""benchmarks.batching: the simulations agree with each other and with what can be calculated."""

from dataclasses import replace

import pytest

from benchmarks.batching.callers import CALLER_KINDS, Arrivals, load
from benchmarks.batching.curves import CURVE_KINDS, MS, Curve
from benchmarks.batching.device import BEHAVIOURS, Device
from benchmarks.batching.judge import AGAIN, GREEDY, compared, run_policy
from benchmarks.batching.lockin import LIVES, another_world, lock_in, slow_start
from benchmarks.batching.page import held_out
from benchmarks.batching.pairs import Pair, run
from benchmarks.batching.play import Figures, play
from benchmarks.batching.recovery import recovery, shifting
from benchmarks.batching.scenarios import Scenario, drawn
from benchmarks.batching.sweep import best_pair, run_pair
from benchmarks.batching.tables import Row, groups, report, summary, worst
from wherry.core.scheduler.dynamic_batcher import DynamicBatcher

DYNAMIC = "wherry.core.scheduler.dynamic_batcher:DynamicBatcher"
SOME = [replace(s, total=700) for s in drawn(11, 40)]


def fixed(pair: Pair) -> DynamicBatcher:
    size, delay = pair
    return DynamicBatcher(max_batch_size=size, max_queue_delay=delay, always_wait=True)


@pytest.mark.parametrize("scenario", SOME, ids=lambda s: s.about)
@pytest.mark.parametrize("delay", [0.0, 2 * MS, 20 * MS])
def test_the_plain_loop_does_what_the_scheduler_does(scenario: Scenario, delay: float) -> None:
    drawn_load, k = scenario.load(2), scenario.instances
    for size in (scenario.limit // 4, scenario.limit):
        quick = run((size, delay), scenario.batch_seconds(2), drawn_load, k)
        general = play(fixed((size, delay)), scenario.batch_seconds(2), drawn_load, k)
        assert quick.arrived == general.arrived
        assert quick.ended == general.ended
        assert quick.rows == general.rows
        assert quick.late == general.late


def test_every_kind_is_drawn_equally_often_whatever_the_count() -> None:
    scenarios = list(drawn(3, 120))
    for k in (1, 2, 4, 8):
        assert sum(s.instances == k for s in scenarios) == 30
    for kind in CURVE_KINDS:
        assert sum(s.device.kind == kind for s in scenarios) == 20
    for kind in CALLER_KINDS:
        assert sum(s.arrivals.kind == kind for s in scenarios) == 15
    for behaviour in BEHAVIOURS:
        assert sum(s.device.behaviour == behaviour for s in scenarios[:100]) == 8
    assert scenarios[:30] == list(drawn(3, 30))
    assert [s.about for s in drawn(4, 30)] != [s.about for s in scenarios[:30]]


def test_the_same_seed_gives_the_same_figures() -> None:
    scenario = replace(next(drawn(5, 1)), total=500)
    assert run_policy((scenario, DYNAMIC, 2)) == run_policy((scenario, DYNAMIC, 2))
    first, second = run_policy((scenario, DYNAMIC, 2))
    assert first != second


def test_two_callers_alternate_on_one_instance_of_one_row() -> None:
    """Each waits while the other runs: an answer takes two batches less the pause between."""
    device = Device(Curve(fixed=10), noise=0.0)
    arrivals = Arrivals(callers=2, back=4 * MS, sigma=0.0)
    scenario = Scenario("two", device, arrivals, instances=1, limit=1, total=400)
    found = run_pair(scenario, (1, 0.0), 2)
    assert found.rate == pytest.approx(100)
    assert found.mean == pytest.approx(16 * MS)
    assert found.p95 == pytest.approx(16 * MS)


def test_strangers_wait_as_the_formula_for_a_queue_of_fixed_service_says() -> None:
    """M/D/1 at a load of a half: the mean wait is half a service time."""
    device = Device(Curve(fixed=10), noise=0.0)
    scenario = Scenario("m/d/1", device, Arrivals(rate=50), instances=1, limit=1, total=60_000)
    found = run_pair(scenario, (1, 0.0), 2)
    assert found.mean == pytest.approx(15 * MS, rel=0.02)
    assert found.rate == pytest.approx(50, rel=0.02)


def test_the_sweep_elects_what_holds_a_loop_together() -> None:
    device = Device(Curve(fixed=5, row=0.1))
    scenario = Scenario("loop", device, Arrivals(callers=12), instances=1, limit=32, total=1500)
    size, delay = best_pair(scenario)
    greedy = run_pair(scenario, (32, 0.0), 2)
    assert size == 12
    assert delay > 0
    assert run_pair(scenario, (size, delay), 2).rate > 1.3 * greedy.rate


@pytest.mark.parametrize(("callers", "within", "late"), [(2, 20, 0), (1, 5, 90)])
def test_what_is_not_answered_by_its_deadline_is_late_and_not_counted_as_done(
    callers: int, within: float, late: int
) -> None:
    device = Device(Curve(fixed=10), noise=0.0)
    arrivals = Arrivals(callers, back=4 * MS, sigma=0.0, within=within * MS)
    drawn_load = load(arrivals, device, "late", 90)
    trace = play(fixed((1, 0.0)), device.run("late", 90), drawn_load, 1)
    assert len(trace.ended) == 90
    assert trace.late == late
    assert sum(trace.rows) == 90 - late
    assert max(e - a for a, e in zip(trace.arrived, trace.ended, strict=True)) < 20 * MS


def test_a_policy_is_compared_with_the_pair_and_its_cold_start_with_greedy() -> None:
    pair = Figures(rate=100, p95=0.2, mean=0.1, late=0.0, cold_rate=80, cold_mean=0.1)
    ours = Figures(rate=98, p95=0.21, mean=0.1, late=0.01, cold_rate=45, cold_mean=0.1)
    greedy = Figures(rate=90, p95=0.3, mean=0.2, late=0.0, cold_rate=50, cold_mean=0.2)
    assert compared([ours], [pair], [greedy]) == {
        "rate": -2.0, "p95": 5.0, "mean": 0.0, "late": 1.0,
        "cold rate": [-10.0], "cold mean": [-50.0],
    }  # fmt: skip


def row(name: str, instances: int, rate: float, p95: float) -> Row:
    def figures_of(rate: float, p95: float) -> Row:
        cold = {"cold rate": [-11.0, 5.0], "cold mean": [0.0, 0.0]}
        return {"rate": rate, "p95": p95, "mean": 0.0, "late": 0.0, **cold}

    return {
        "name": name, "about": f"{name}: about", "instances": instances, "curve": "affine",
        "callers": "closed", "behaviour": "noise", "pair": "8, 1 ms", "rate": 100.0, "p95 ms": 1.0,
        GREEDY: figures_of(-4.0, 4.0), AGAIN: figures_of(0.0, 0.0), "ours": figures_of(rate, p95),
    }  # fmt: skip


def test_the_report_counts_who_is_within_in_both_and_puts_the_worst_first() -> None:
    rows = [row("a", 1, -1.0, 1.0), row("b", 1, -3.0, 1.0), row("c", 2, -1.0, 30.0)]
    found = {name: summary(some, "ours") for name, some in groups(rows)}
    assert found["all"]["within 2"] == 33
    assert found["all"]["within 5"] == 67
    assert found["instances 1"]["within 5"] == 100
    assert found["instances 2 to 8"]["worst p95"] == 30.0
    assert found["all"]["worse than greedy"] == 33
    assert [each["name"] for each in worst(rows, "ours")] == ["c", "b", "a"]
    assert "50.0 % of the runs more than 10 % worse" in report(rows, "ours")
    assert "| one instance (2) | self-tuning | 50 % | 100 % | -3 % | +1 % |" in held_out(
        rows, "ours", seed=7
    )


def test_a_policy_that_learns_nothing_is_not_locked_in() -> None:
    device = Device(Curve(fixed=5, row=0.2))
    scenario = Scenario("4 callers", device, Arrivals(callers=4), instances=1, limit=4, total=400)
    found = lock_in((scenario, DYNAMIC))
    assert another_world(scenario) == another_world(scenario) != slow_start(scenario)
    for life in LIVES:
        assert abs(found[life]["rate"]) < 5


def test_after_a_shift_the_best_is_reached_at_once_where_there_is_one_caller() -> None:
    scenario = replace(next(shifting(6, 1)), arrivals=Arrivals(1), total=400, instances=1)
    found = recovery((scenario, DYNAMIC))
    assert found["reached"]
    assert found["batches"] <= 2
