"""When does a batch leave, and who is in it, if nobody has set anything? Time is an argument."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.batching.callers import Load
from benchmarks.batching.play import play
from benchmarks.batching.simulator import CURVES, MS, Arrivals, Curve, Result, simulate
from tests.fakes import Call
from tests.properties import examples, seeds
from wherry.core.scheduler.callers import APART, MOST_LOAD
from wherry.core.scheduler.dynamic_batcher import DynamicBatcher
from wherry.core.scheduler.policy import Action, Dispatch, Idle, Wait
from wherry.core.scheduler.self_tuning_batcher import RETRIED_EACH, SelfTuningBatcher
from wherry.core.values.errors import Cancelled
from wherry.core.values.request import InferRequest

GPU = CURVES["gpu"]  # 5 ms and 0.2 ms a row
BACK = 0.25 * MS


def request(
    id: str = "x",
    rows: int = 1,
    *,
    priority: int = 5,
    deadline: float | None = None,
    key: object = None,
    cost: float = 1.0,
) -> InferRequest:
    one = Call(*[id] * rows, priority=priority, deadline=deadline, shape_key=key).request
    one.cost = cost
    return one


def dispatched(action: Action) -> tuple[InferRequest, ...]:
    assert isinstance(action, Dispatch), action
    return action.batch.requests


def ids(action: Action) -> list[str]:
    return [one.id for one in dispatched(action)]


def reason(action: Action) -> str:
    assert isinstance(action, Dispatch), action
    return action.batch.reason


@dataclass
class Story:
    """A batcher, and what has happened to it so far."""

    batcher: SelfTuningBatcher
    now: float = 0.0
    curve: Curve = GPU
    finished: list[tuple[InferRequest, ...]] = field(default_factory=list)

    def closed_loop(self, callers: int, batches: int = 30, back: float = BACK) -> "Story":
        """So many callers come back together, run together, and are answered together."""
        for _ in range(batches):
            self.arrive(callers, back)
            self.run()
        return self

    def arrive(self, callers: int, after: float = 0.0, **options: float) -> None:
        for n in range(callers):
            at = self.now + after + n * 1e-7
            assert self.batcher.enqueue(request(str(n), **options), at)  # type: ignore[arg-type] # deadline, cost
        self.now += after + callers * 1e-7

    def ask(self) -> Action:
        return self.batcher.next_action(self.now)

    def run(self) -> tuple[InferRequest, ...]:
        """Wait as long as the batcher wants to, run one batch to its end."""
        action = self.ask()
        if isinstance(action, Wait):
            self.now = action.until
            action = self.ask()
        batch = dispatched(action)
        self.end(batch, self.curve.seconds(sum(one.rows for one in batch)))
        return batch

    def end(self, batch: tuple[InferRequest, ...], seconds: float) -> None:
        self.now += seconds
        self.batcher.finished(batch, seconds, self.now)


def story(**options: Any) -> Story:
    return Story(SelfTuningBatcher(**{"max_batch_size": 64, **options}))


# A free instance takes what waits


def test_an_empty_queue_is_idle() -> None:
    b = SelfTuningBatcher(max_batch_size=4)
    assert b.next_action(0.0) == Idle()
    assert repr(b) == "<SelfTuningBatcher: 0 queued, 0 running>"


def test_before_anything_is_learnt_a_free_instance_takes_what_waits() -> None:
    s = story(max_batch_size=4)
    s.arrive(6)
    full, rest = s.ask(), s.ask()
    assert (ids(full), reason(full)) == (list("0123"), "full")
    assert (ids(rest), reason(rest)) == (list("45"), "idle")
    assert s.ask() == Idle()
    assert repr(s.batcher) == "<SelfTuningBatcher: 0 queued, 2 running>"


def test_a_lone_caller_never_waits() -> None:
    s = story()
    for _ in range(50):
        s.arrive(1, BACK)
        action = s.ask()
        assert ids(action) == ["0"]
        assert isinstance(action, Dispatch)
        s.end(action.batch.requests, 5.2 * MS)
    assert s.batcher.may_run_alone(s.now + BACK)


def test_one_batch_is_not_split_by_one_that_does_not_fit() -> None:
    s = story(max_batch_size=8)
    for name, rows in (("a", 5), ("b", 5), ("c", 3)):
        s.batcher.enqueue(request(name, rows), 0.0)
    assert [ids(s.ask()), ids(s.ask())] == [["a"], ["b", "c"]]


def test_a_request_larger_than_a_batch_runs_by_itself() -> None:
    s = story(max_batch_size=4)
    s.batcher.enqueue(request("big", 9), 0.0)
    s.arrive(1)
    assert [ids(s.ask()), ids(s.ask())] == [["big"], ["0"]]


# ... unless callers are about to come back


def test_the_first_of_two_callers_is_kept_until_the_second_is_back() -> None:
    s = story().closed_loop(2)
    s.arrive(1, BACK)
    wait = s.ask()
    assert isinstance(wait, Wait)
    assert s.now < wait.until < s.now + 2 * MS
    s.arrive(1, 0.01 * MS)
    both = s.ask()
    assert (ids(both), reason(both)) == (["0", "0"], "waited")


def test_the_wait_ends_when_nobody_has_come() -> None:
    s = story().closed_loop(2)
    s.arrive(1, BACK)
    wait = s.ask()
    assert isinstance(wait, Wait)
    assert s.batcher.next_action((s.now + wait.until) / 2) == wait
    assert ids(s.batcher.next_action(wait.until)) == ["0"]


def test_everybody_is_waited_for_and_nobody_else() -> None:
    s = story().closed_loop(8)
    for present in range(1, 8):
        s.arrive(1, BACK if present == 1 else 0.0)
        assert isinstance(s.ask(), Wait), present
    s.arrive(1)
    assert len(dispatched(s.ask())) == 8


def test_a_full_batch_does_not_wait() -> None:
    s = story(max_batch_size=4).closed_loop(4)
    s.arrive(1, BACK)
    assert isinstance(s.ask(), Wait)
    s.batcher.enqueue(request("large", 3), s.now)
    assert ids(s.ask()) == ["0", "large"]


def test_a_caller_alone_may_not_begin_while_others_are_about_to_come() -> None:
    s = story().closed_loop(2)
    assert not s.batcher.may_run_alone(s.now + BACK)
    assert s.batcher.may_run_alone(s.now + 1.0)


def test_a_row_that_ran_in_its_callers_thread_is_learnt_from() -> None:
    b = SelfTuningBatcher(max_batch_size=4)
    assert b.may_run_alone(0.0)
    b.ran_alone(5 * MS, 5 * MS)
    assert repr(b) == "<SelfTuningBatcher: 0 queued, 0 running>"
    assert [(p.rows, p.seconds) for p in b.curve.points()] == [(1, 5 * MS)]
    b.enqueue(request(), 0.02)
    assert not b.may_run_alone(0.02)


@pytest.mark.parametrize("after", [0.0, 0.02 * MS])
def test_a_deadline_is_never_waited_past(after: float) -> None:
    s = story().closed_loop(4)
    s.arrive(1, BACK)
    wait = s.ask()
    assert isinstance(wait, Wait)
    s.arrive(1, after, deadline=wait.until - 0.01 * MS)
    assert ids(s.ask()) == ["0", "0"]


def test_a_deadline_of_another_shape_is_not_waited_past_either() -> None:
    s = story().closed_loop(4)
    s.arrive(1, BACK)
    wait = s.ask()
    assert isinstance(wait, Wait)
    s.batcher.enqueue(request("other", key=1, deadline=wait.until), s.now)
    assert [ids(s.ask()), ids(s.ask())] == [["0"], ["other"]]


def test_a_late_deadline_does_not_cut_a_wait_short() -> None:
    s = story().closed_loop(4)
    s.arrive(1, BACK, deadline=s.now + 1.0)
    assert isinstance(s.ask(), Wait)


# In simulation: what was slow once


@dataclass
class SlowAtFirst:
    """A curve whose first batches above a number of rows take longer."""

    curve: Curve
    batches: int
    above: int
    longer: float

    def seconds(self, rows: int, longest: int = 1) -> float:
        slow = rows > self.above and self.batches > 0
        self.batches -= slow
        return self.curve.seconds(rows, longest) + slow * self.longer


@pytest.mark.parametrize(
    ("name", "callers", "fewer", "instances", "batches", "above", "longer"),
    [
        ("gpu", 16, 4, 1, 3, 4, 0.06),
        ("gpu", 16, 4, 1, 12, 4, 0.06),
        ("gpu", 16, 1, 1, 12, 8, 0.06),
        ("tile8", 10, 4, 1, 1, 4, 0.06),
        ("flat", 24, 2, 1, 40, 1, 0.01),
        ("gpu", 6, 1, 1, 12, 4, 0.06),
        ("gpu", 40, 2, 2, 40, 2, 0.06),
        ("gpu", 40, 1, 2, 3, 1, 0.01),
    ],
)
def test_a_slow_start_of_large_batches_is_not_held_against_them_for_ever(
    name: str, callers: int, fewer: int, instances: int, batches: int, above: int, longer: float
) -> None:
    def loop(callers: int, total: int, start: float = 0.0) -> Result:
        arrivals = Arrivals(callers=callers)
        return simulate(b, slow, arrivals, total=total, instances=instances, noise=0.0, start=start)

    b = SelfTuningBatcher(max_batch_size=32, instances=instances)
    slow: Any = CURVES[name]
    never_slow = loop(callers, 4000)

    b = SelfTuningBatcher(max_batch_size=32, instances=instances)
    slow = SlowAtFirst(CURVES[name], batches, above, longer)
    loop(callers, 1500)
    if fewer:
        loop(fewer, 1200, start=200.0)
    loop(callers, 7000, start=400.0)
    assert loop(callers, 4000, start=600.0).rate > 0.95 * never_slow.rate


@pytest.mark.parametrize("batches", [0, 3, 12])
def test_after_a_slow_start_and_other_callers_all_callers_run_together_again(batches: int) -> None:
    b = SelfTuningBatcher(max_batch_size=32)
    slow = SlowAtFirst(GPU, batches, above=4, longer=0.06)
    now, rate = 0.0, 0.0
    for callers, total in ((16, 3000), (4, 1500), (16, 5000), (64, 1500), (16, 5000)):
        pauses = [0.6 * MS + n % callers * 0.04 * MS for n in range(total)]
        first = [n * 0.02 * MS for n in range(callers)]
        trace = play(
            b, lambda n, *_: slow.seconds(n), Load(total, first, pauses, [], None, None, 0), 1, now
        )
        seconds = trace.ended[-callers - 1] - trace.ended[total // 2]
        rate = (total - callers - 1 - total // 2) / seconds
        now = trace.ended[-1] + 0.01
    assert rate > 0.95 * 1702  # 16 rows in 8.2 ms, and 1.2 ms until all are back


@examples(0.3)
@given(
    name=st.sampled_from(["gpu", "flat", "tile8", "fast"]),
    faster=st.floats(0.1, 10.0),
    before=st.integers(0, 40),
    rate=st.sampled_from([0.0, 200.0]),
    callers=st.integers(1, 12),
    back=st.sampled_from([0.25, 1.0, 4.0]),
    seed=st.integers(0, 1000),
)
def test_a_steady_loop_reaches_what_it_would_have_without_the_past(
    name: str,
    faster: float,
    before: int,
    rate: float,
    callers: int,
    back: float,
    seed: int,
) -> None:
    usual = CURVES[name]
    other = replace(usual, fixed=usual.fixed / faster, row=usual.row / faster)
    loop = Arrivals(callers=callers, back=back * MS)

    def lived(
        b: SelfTuningBatcher, curve: Curve, load: Arrivals, total: int, start: float
    ) -> float:
        return simulate(b, curve, load, total=total, start=start, seed=seed).rate

    experienced, new = (SelfTuningBatcher(max_batch_size=32) for _ in range(2))
    if before or rate:
        lived(experienced, other, Arrivals(callers=before, back=BACK, rate=rate), 500, 0.0)
    rates = []
    for b in (experienced, new):
        lived(b, usual, loop, 60 * callers, 100.0)
        rates.append(lived(b, usual, loop, 60 * callers, 200.0))
    assert rates[0] > 0.92 * rates[1]


# In simulation: who is waited for


def run(arrivals: Arrivals, curve: Curve = GPU, instances: int = 1, seed: int = 1) -> Result:
    b = SelfTuningBatcher(max_batch_size=64, instances=instances)
    return simulate(b, curve, arrivals, total=3000, instances=instances, seed=seed)


def greedy(arrivals: Arrivals, curve: Curve = GPU, instances: int = 1, seed: int = 1) -> Result:
    b = DynamicBatcher(max_batch_size=64)
    return simulate(b, curve, arrivals, total=3000, instances=instances, seed=seed)


@pytest.mark.parametrize("seed", seeds(5))
@pytest.mark.parametrize("callers", [2, 3, 4, 10, 64])
def test_callers_in_a_loop_end_up_in_one_batch(callers: int, seed: int) -> None:
    result = run(Arrivals(callers=callers), seed=seed)
    ideal = callers / (GPU.seconds(callers) + 0.25 * MS * 1.2 + callers * 0.01 * MS)
    assert result.mean_batch > 0.9 * callers
    assert result.rate > 0.93 * ideal


@pytest.mark.parametrize("curve", ["gpu", "flat", "tile8", "fast"])
@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
def test_strangers_are_not_waited_for(curve: str, load: float) -> None:
    cost = CURVES[curve]
    arrivals = Arrivals(rate=load * 64 / cost.seconds(64))
    assert run(arrivals, cost).p95 < 1.05 * greedy(arrivals, cost).p95


def test_bursts_are_not_read_as_a_closed_loop() -> None:
    arrivals = Arrivals(rate=1500, on=0.05, off=0.15)
    assert run(arrivals).p95 < 1.03 * greedy(arrivals).p95


def test_what_costs_only_by_the_row_is_not_batched_among_strangers() -> None:
    cost = CURVES["linear"]  # 0.1 ms and 2 ms a row
    arrivals = Arrivals(rate=250)
    assert run(arrivals, cost).p95 < 0.9 * greedy(arrivals, cost).p95
    assert run(arrivals, cost).mean_batch < 1.3


def test_what_costs_only_by_the_row_is_run_in_parts_even_if_too_many_come() -> None:
    result = run(Arrivals(rate=600), CURVES["linear"])  # for 500 rows/s
    assert result.rate > 0.98 * 500
    assert result.mean_batch < 32


def test_what_costs_by_the_batch_is_batched_among_strangers() -> None:
    arrivals = Arrivals(rate=2000)
    assert run(arrivals).mean_batch == pytest.approx(greedy(arrivals).mean_batch, rel=0.1)


@pytest.mark.parametrize("back", [0.5 * MS, 1 * MS, 1.5 * MS])
def test_nobody_in_a_loop_is_left_behind_if_all_are_back_soon_enough(back: float) -> None:
    result = run(Arrivals(callers=16, back=back))
    assert result.mean_batch > 14
    assert result.p95 < 1.2 * result.p50  # whoever is left behind waits for two batches


def test_a_loop_that_can_only_be_half_together_takes_turns_without_waiting() -> None:
    arrivals = Arrivals(callers=48, back=0.25 * MS)  # all are back by 0.6 ms
    ours, other = run(arrivals, CURVES["fast"]), greedy(arrivals, CURVES["fast"])  # 0.2 ms fixed
    assert ours.rate > 0.98 * other.rate


@pytest.mark.parametrize("instances", [2, 4])
def test_several_instances_share_callers_in_a_loop(instances: int) -> None:
    arrivals = Arrivals(callers=16 * instances)
    ours, other = run(arrivals, instances=instances), greedy(arrivals, instances=instances)
    assert ours.rate > 1.15 * other.rate
    assert 12 < ours.mean_batch < 20


@pytest.mark.parametrize(("instances", "load"), [(4, 0.3), (4, 0.8), (8, 0.8)])
def test_several_instances_take_turns_among_strangers(instances: int, load: float) -> None:
    arrivals = Arrivals(rate=load * instances * 64 / GPU.seconds(64))
    ours, other = run(arrivals, instances=instances), greedy(arrivals, instances=instances)
    assert ours.p95 < 0.9 * other.p95


def test_a_free_instance_leaves_the_others_their_part() -> None:
    s = story(instances=2)
    s.arrive(1)
    s.run()  # before anything is learnt the first one takes all
    s.arrive(8)
    assert [len(dispatched(s.ask())), len(dispatched(s.ask()))] == [4, 4]


def test_a_curve_that_changes_while_running_is_learnt_anew() -> None:
    s = story().closed_loop(4)
    assert s.batcher.curve.seconds(4) == pytest.approx(GPU.seconds(4))
    s.curve = CURVES["linear"]
    s.closed_loop(4, batches=60)
    assert s.batcher.curve.seconds(4) == pytest.approx(8.1 * MS, rel=0.05)


# Steps


STEPS = Curve(fixed=2, row=1.8, tile=16)


def taught_steps(**options: Any) -> Story:
    """A batcher that has run batches of many sizes on a device that rounds up to 16 rows."""
    s = story(**options)
    s.curve = STEPS
    for callers in (1, 5, 13, 16, 20, 30, 32, 40, 48, 60) * 10:
        s.arrive(callers)
        while s.batcher.queue.queued_requests:
            s.run()
        s.now += 1.0  # strangers
    return s


@pytest.mark.parametrize(("waiting", "rows"), [(5, 5), (16, 16), (17, 16), (36, 32), (47, 47)])
def test_a_batch_ends_with_a_step_if_the_next_one_would_be_nearly_empty(
    waiting: int, rows: int
) -> None:
    s = taught_steps()
    s.arrive(waiting)
    action = s.ask()
    assert len(dispatched(action)) == rows
    assert reason(action) == ("idle" if rows == waiting else "part")


def test_one_cut_in_so_many_is_left_out_as_what_looks_bad_may_have_changed() -> None:
    s = taught_steps()
    sizes = []
    for _ in range(3 * RETRIED_EACH):
        s.arrive(17)
        sizes.append(len(s.run()))
        s.batcher.clear()
        s.now += 1.0
    assert 2 <= sizes.count(17) <= 3
    assert sizes.count(16) == len(sizes) - sizes.count(17)


def test_a_full_batch_is_cut_at_a_step_too() -> None:
    s = taught_steps(max_batch_size=34)
    s.arrive(40)
    action = s.ask()
    assert len(dispatched(action)) == 32
    assert reason(action) == "part"


def test_a_step_is_filled_with_whole_requests() -> None:
    s = taught_steps()
    for name, rows in (("a", 10), ("b", 5), ("c", 4)):
        s.batcher.enqueue(request(name, rows), s.now)
    assert ids(s.ask()) == ["a", "b"]


def test_whoever_cannot_be_cut_is_not() -> None:
    s = taught_steps()
    s.batcher.enqueue(request("large", 33), s.now)
    assert ids(s.ask()) == ["large"]


@pytest.mark.parametrize(("tile", "share"), [(4, 0.9), (16, 0.9), (32, 1.05)])
def test_near_saturation_steps_decide_whether_the_queue_stays_short(
    tile: int, share: float
) -> None:
    cost = Curve(fixed=2, row=1.8, tile=tile)
    arrivals = Arrivals(rate=0.9 * tile / cost.seconds(tile))
    assert run(arrivals, cost).p95 < share * greedy(arrivals, cost).p95


def test_what_is_noise_is_no_step() -> None:
    arrivals = Arrivals(rate=0.9 * 64 / GPU.seconds(64))

    def simulated(b: SelfTuningBatcher | DynamicBatcher) -> Result:
        return simulate(b, GPU, arrivals, total=3000, noise=0.3)

    ours, other = (
        simulated(SelfTuningBatcher(max_batch_size=64)),
        simulated(DynamicBatcher(max_batch_size=64)),
    )
    assert ours.p95 < 1.1 * other.p95


# Padded rows


def taught_costs() -> Story:
    """A batcher that has run texts of every length: 3 ms and 0.04 ms a token."""
    s, rng = story(max_batch_size=8), random.Random(1)
    for _ in range(200):
        costs = sorted(rng.uniform(10, 500) for _ in range(rng.randint(1, 8)))
        batch = tuple(request(cost=cost) for cost in costs)
        for one in batch:
            s.batcher.enqueue(one, s.now)
        while s.batcher.queue.queued_requests:
            run = dispatched(s.ask())
            longest = max(one.cost for one in run)
            s.end(run, (3 + 0.04 * len(run) * longest) * MS)
        s.now += 1.0  # strangers
    return s


def test_rows_of_like_length_run_together_around_the_oldest() -> None:
    s = taught_costs()
    for n, cost in enumerate((500, 20, 480, 22, 510, 18)):
        s.batcher.enqueue(request(str(cost), cost=cost), s.now + n * 1e-6)
    assert ids(s.ask()) == ["500", "480", "510"]
    assert ids(s.ask()) == ["20", "22", "18"]


def test_the_oldest_is_in_the_next_batch_however_odd_its_length() -> None:
    s = taught_costs()
    s.batcher.enqueue(request("odd", cost=512), s.now)
    for n in range(30):
        s.batcher.enqueue(request(str(n), cost=10), s.now + 1e-6)
    assert "odd" in ids(s.ask())


# What goes wrong


def test_a_batch_that_died_leaves_the_counts_right_and_teaches_nothing() -> None:
    s = story(max_batch_size=2)
    s.arrive(2)
    batch = dispatched(s.ask())
    s.batcher.finished(batch, None, 1.0)
    assert repr(s.batcher) == "<SelfTuningBatcher: 0 queued, 0 running>"
    assert not s.batcher.curve.batches
    for one in batch:
        s.batcher.requeue(one, 1.0, alone=True)
    assert [ids(s.ask()), ids(s.ask())] == [["0"], ["1"]]
    assert repr(s.batcher) == "<SelfTuningBatcher: 0 queued, 2 running>"


def test_a_clock_that_has_not_moved_is_no_reason_to_fail() -> None:
    s = story()
    for _ in range(20):
        s.arrive(2, BACK)
        batch = dispatched(s.ask())
        s.batcher.finished(batch, 0.0, s.now)
    assert repr(s.batcher) == "<SelfTuningBatcher: 0 queued, 0 running>"


def test_a_request_whose_worker_died_comes_back_alone_even_into_a_full_queue() -> None:
    b = SelfTuningBatcher(max_batch_size=4, max_queue_size=1)
    lost = request("lost")
    b.enqueue(lost, 0.0)
    b.next_action(0.0)
    b.enqueue(request("next"), 1.0)
    b.requeue(lost, 2.0, alone=True)
    assert b.queue.queued_requests == 2
    assert [ids(b.next_action(2.0)), ids(b.next_action(2.0))] == [["lost"], ["next"]]


def test_a_full_queue_refuses_and_a_cancelled_request_makes_room() -> None:
    b = SelfTuningBatcher(max_batch_size=4, max_queue_size=2)
    first, further = request("a"), request("part")
    further.follows = True
    assert b.enqueue(first, 0.0)
    assert b.enqueue(request("b"), 0.0)
    assert not b.enqueue(request("c"), 0.0)
    assert b.enqueue(further, 0.0)
    assert b.cancel(first)
    assert not b.cancel(first)
    assert ids(b.next_action(0.0)) == ["b", "part"]


def test_clear_empties_the_queue() -> None:
    b = SelfTuningBatcher(max_batch_size=4)
    requests = [request("a"), request("b", key=1)]
    for one in requests:
        b.enqueue(one, 0.0)
    assert list(b.clear()) == requests
    assert b.next_action(0.0) == Idle()


def test_shapes_and_priorities_never_share_a_batch() -> None:
    b = SelfTuningBatcher(max_batch_size=8)
    for name, key, priority in (("a", 1, 5), ("b", 2, 5), ("c", 1, 5), ("first", 1, 1)):
        b.enqueue(request(name, key=key, priority=priority), 0.0)
    assert [ids(b.next_action(0.0)) for _ in range(3)] == [["first"], ["a", "c"], ["b"]]


# Whatever happens


@dataclass(frozen=True)
class World:
    """Callers, strangers and instances, with deaths, cancels and deadlines."""

    curve: Curve
    instances: int
    max_batch_size: int
    callers: int
    rate: float
    back: float
    costs: bool
    shapes: int
    mixed: bool
    patience: float | None
    dies: float
    leaves: float
    seed: int


worlds = st.builds(
    World,
    curve=st.sampled_from([*CURVES.values(), Curve(0.0, 0.5), Curve(30.0)]),
    instances=st.sampled_from([1, 1, 2, 3, 8]),
    max_batch_size=st.sampled_from([1, 2, 8, 64]),
    callers=st.sampled_from([0, 1, 2, 5, 20]),
    rate=st.sampled_from([1.0, 50.0, 500.0, 5000.0]),
    back=st.sampled_from([0.0, 0.05, 0.25, 2.0, 50.0]),
    costs=st.booleans(),
    shapes=st.sampled_from([1, 1, 2]),
    mixed=st.booleans(),
    patience=st.sampled_from([None, None, 1 * MS, 20 * MS]),
    dies=st.sampled_from([0.0, 0.0, 0.1]),
    leaves=st.sampled_from([0.0, 0.0, 0.2]),
    seed=st.integers(0, 10_000),
)


@examples(1.5)
@given(world=worlds)
def test_every_request_leaves_once_and_no_instance_idles_longer_than_was_decided(
    world: World,
) -> None:
    total = 150
    rng = random.Random(world.seed)
    b = SelfTuningBatcher(max_batch_size=world.max_batch_size, instances=world.instances)
    events: list[tuple[float, int, Callable[[], None]]] = []
    made, order, now = 0, 0, 0.0
    idle = world.instances
    last_end = last_start = float("-inf")
    fixed = slowest = 0.0  # the most that was learnt so far
    waiting: dict[InferRequest, bool] = {}  # and whether it runs alone
    ended: list[InferRequest] = []

    def at(when: float, do: Callable[[], None]) -> None:
        nonlocal order
        order += 1
        heappush(events, (when, order, do))

    def arrive(comes_back: bool) -> None:
        nonlocal made
        if made == total:
            return
        made += 1
        deadline = now + world.patience if world.patience and rng.random() < 0.5 else None
        one = request(
            str(made),
            rng.choice([1, 1, 3, 9]) if world.mixed else 1,
            deadline=deadline,
            key=rng.randrange(world.shapes),
            cost=rng.uniform(5, 500) if world.costs else 1.0,
        )
        one.parameters = {"comes_back": comes_back}
        waiting[one] = False
        assert b.enqueue(one, now)
        if rng.random() < world.leaves:
            at(now + rng.expovariate(1000), lambda: cancel(one))
        if not comes_back:
            at(now + rng.expovariate(world.rate), lambda: arrive(False))

    def end(one: InferRequest) -> None:
        ended.append(one)
        one.reply.settle(Cancelled("whatever"))
        assert one.parameters is not None
        if one.parameters["comes_back"]:
            at(now + world.back * MS * rng.lognormvariate(0, 0.5), lambda: arrive(True))

    def cancel(one: InferRequest) -> None:
        if b.cancel(one):
            del waiting[one]
            end(one)

    def finish(batch: tuple[InferRequest, ...], seconds: float) -> None:
        nonlocal idle, last_end
        idle += 1
        last_end = now
        if rng.random() < world.dies:
            b.finished(batch, None, now)
            for one in batch:
                if one.reply.settled:
                    continue  # expired
                waiting[one] = True
                b.requeue(one, now, alone=True)
            return
        for one in batch:
            if not one.reply.settled:
                end(one)
        b.finished(batch, seconds, now)

    def check(wait: Wait) -> None:
        """Finite, in the future, before any deadline, and no later than the reasons to wait.

        These are the last end and the last start, which no wait moves: so all waits have an end.
        """
        assert isfinite(wait.until)
        assert wait.until > now
        turn = APART * fixed / (1 - MOST_LOAD) / world.instances
        assert wait.until <= max(last_end + 2 * slowest, last_start + turn) + 1e-9
        assert all(one.deadline is None or wait.until < one.deadline for one in waiting)

    for _ in range(world.callers):
        at(rng.random() * MS, lambda: arrive(True))
    at(0.0, lambda: arrive(False))
    while events:
        now = max(now, events[0][0])
        heappop(events)[2]()
        for one in b.expire(now):
            if waiting.pop(one, None) is not None or not one.reply.settled:
                end(one)
        if (deadline := b.next_deadline()) is not None:
            at(deadline, lambda: None)
        fixed = max(fixed, b.curve.fixed() or 0.0)
        if (times := b.callers.times()) is not None:
            slowest = max(slowest, times.last)
        while idle:
            action = b.next_action(now)
            if isinstance(action, Wait):
                check(action)
                at(action.until, lambda: None)
                break
            if isinstance(action, Idle):
                assert not waiting
                break
            batch = action.batch
            assert batch.rows == sum(one.rows for one in batch.requests)
            assert batch.rows <= world.max_batch_size or len(batch.requests) == 1
            assert len({one.shape_key for one in batch.requests}) == 1
            assert not any(waiting.pop(one) for one in batch.requests[1:])  # else it runs alone
            waiting.pop(batch.requests[0])
            idle -= 1
            last_start = now
            longest = max(one.cost for one in batch.requests)
            seconds = world.curve.seconds(batch.rows, int(longest)) * rng.lognormvariate(0, 0.2)
            at(now + seconds, lambda made=batch.requests, took=seconds: finish(made, took))  # type: ignore[misc] # defaults
    assert (b.queue.queued_requests, idle) == (0, world.instances)
    assert repr(b) == "<SelfTuningBatcher: 0 queued, 0 running>"
    assert not waiting
    assert len(ended) == len({id(one) for one in ended}) == made == total
