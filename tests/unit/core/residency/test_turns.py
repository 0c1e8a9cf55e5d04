"""The turns of models on a device in virtual time: traces by hand, and any order of events."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from benchmarks.residency.simulator import Arrival, Run, Spec, bound
from tests.properties import examples
from wherry.core.residency.policy import DeviceTurns, ModelView, Swaps

BUDGET = 10
#: Seconds of the longest batch, and of the longest stream.
BATCH, STREAM = 0.2, 8.0


class Checked(DeviceTurns):
    """Every decision is checked by what must hold of each."""

    def decide(self, models: Sequence[ModelView], now: float) -> Swaps:
        swaps = super().decide(models, now)
        view = {model.name: model for model in models}
        awake = sum(model.footprint for model in models if model.state != "asleep")
        waiting = {m.name for m in models if m.state == "asleep" and (m.queued or m.always)}
        for name in swaps.sleep:
            model = view[name]
            assert model.state == "ready"
            assert not model.always
            if awake <= self.budget_bytes:
                assert waiting, "it sleeps for nobody"
                assert not model.queued or now >= model.awake_since + model.swap_seconds - 1e-6
        for name in swaps.wake:
            model = view[name]
            if model.state == "stopping":
                assert model.running
                continue
            assert name in waiting
            awake += model.footprint
            assert awake <= self.budget_bytes
        assert len([name for name in swaps.wake if view[name].state == "asleep"]) <= 1
        assert swaps.look_again_at is None or swaps.look_again_at > now
        assert waiting <= swaps.why.keys()
        return swaps


def played(specs: Sequence[Spec], arrivals: Sequence[Arrival], until: float, budget: int) -> Run:
    run = Run(specs, Checked(budget), budget=budget)
    run.play(sorted(arrivals), until)
    return run


def every(seconds: float, model: str, until: float, start: float = 0.0) -> list[Arrival]:
    count = int((until - start) / seconds)
    return [Arrival(start + n * seconds, model) for n in range(count)]


def test_two_models_that_fit_only_alone_asked_in_turns_swap_once_for_each_request() -> None:
    a, b = Spec("a", 6, wake=2.0, sleep=0.5), Spec("b", 6, wake=2.0, sleep=0.5)
    in_turns = [Arrival(10.0 * n, "ab"[n % 2]) for n in range(60)]
    run = played([a, b], in_turns, 610.0, BUDGET)
    assert (run.wakes, run.served) == (60, 60)
    assert max(run.answer_seconds) < 2.0 + 0.5 + BATCH
    quick = [Arrival(0.1 * n, "ab"[n % 2]) for n in range(600)]
    run = played([a, b], quick, 90.0, BUDGET)
    assert run.served == 600
    assert run.wakes <= 2 + 60 / 4.4, "a swap, and a turn but for three requests"


def test_a_flood_does_not_starve_a_model_that_fits_only_alone() -> None:
    a, b = Spec("a", 6, wake=4.0, sleep=0.5), Spec("b", 6, wake=2.0, sleep=0.5)
    flood = every(0.004, "a", 120.0)  # more than a device can do
    run = played([a, b], [*flood, *every(7.0, "b", 120.0, 1.0)], 140.0, BUDGET)
    waits = [wait.seconds for wait in run.waits if wait.model == "b"]
    assert len(waits) > 5
    assert max(waits) <= 0.5 + 4.0 + 4.5 + BATCH + 0.5  # its own sleep, and all of the other one
    assert run.busy_seconds > 0.4 * 120


def test_a_model_asked_once_an_hour_is_who_sleeps_and_nobody_sleeps_without_need() -> None:
    specs = [Spec(name, 4, wake=5.0) for name in ("hourly", "a", "b")]
    arrivals = [
        *(Arrival(3600.0 * n + 1, "hourly") for n in range(4)),
        *every(20.0, "a", 14000.0),
        *every(30.0, "b", 14000.0),
    ]
    run = played(specs, arrivals, 14100.0, BUDGET)
    assert run.served == len(arrivals)
    # Each hour it wakes, and one of the others once again.
    assert 8 <= run.wakes <= 3 + 2 * 4
    assert max(wait.seconds for wait in run.waits) < 12.0


def test_bursts_of_three_models_of_which_two_fit_cost_a_swap_for_each_burst() -> None:
    specs = [Spec(name, 5, wake=1.0) for name in "abc"]
    arrivals = [
        request for n in range(30) for request in every(0.05, "abc"[n % 3], 20.0 * n + 10, 20.0 * n)
    ]
    run = played(specs, arrivals, 620.0, BUDGET)
    assert run.served == len(arrivals)
    assert 16 <= run.wakes <= 30


def test_a_stream_of_an_hour_is_not_cut_and_the_others_go_on() -> None:
    specs = [Spec("stream", 6, wake=2.0), Spec("a", 6, wake=1.0), Spec("b", 4, wake=1.0)]
    run = Run(specs, Checked(BUDGET), budget=BUDGET)
    run.play([Arrival(0.0, "stream", 3600.0), *every(1.0, "b", 100.0, 5.0)], 100.0)
    assert run.served == 96
    run.arrive(Arrival(100.0, "a"))
    assert run.models["stream"].state == "stopping"
    run.arrive(Arrival(100.0, "stream"))
    run.run_until(200.0)
    assert run.models["stream"].running == 1
    run.leave("a")  # its caller had a timeout
    assert (run.models["stream"].state, len(run.models["stream"].queue)) == ("ready", 0)
    run.arrive(Arrival(200.0, "a"))
    run.run_until(3700.0)
    assert not run.still_waiting()
    assert (run.wakes, run.served) == (3, 98)


def test_a_model_that_grows_while_awake_makes_somebody_sleep_and_then_never_fits() -> None:
    specs = [Spec("liar", 4, wake=1.0), Spec("a", 3, wake=1.0), Spec("b", 3, wake=1.0)]
    run = Run(specs, Checked(BUDGET))
    run.play([*(Arrival(0.0, name) for name in "ab"), *every(0.1, "liar", 10.0)], 10.0)
    assert run.used() == BUDGET
    run.models["liar"].footprint = 6
    run.decide()
    run.run_until(11.0)
    assert run.used() == 9, "who is asked most stays"
    run.models["liar"].footprint = 12
    run.decide()
    run.run_until(12.0)
    assert run.used() == 3, "its own sleep is enough"
    for name in ("liar", "a", "b"):
        run.arrive(Arrival(12.0, name))
    run.run_until(20.0)
    assert [model.state for model in run.models.values()] == ["asleep", "ready", "ready"]
    assert run.last.why["liar"].startswith("never fits")


def test_a_failed_wake_is_tried_again_and_keeps_its_place() -> None:
    specs = [Spec("a", 6, wake=2.0), Spec("b", 6, wake=1.0)]
    run = Run(specs, Checked(BUDGET), budget=BUDGET)
    run.arrive(Arrival(0.0, "a"))
    run.run_until(0.5)
    run.arrive(Arrival(0.5, "b"))
    run.fail_wake("a")
    assert (run.models["a"].state, run.models["b"].state) == ("waking", "asleep")
    run.run_until(10.0)
    assert (run.served, run.wakes) == (2, 3)


MOMENTS = st.lists(
    st.tuples(st.floats(0.0, 60.0), st.sampled_from("ab"), st.integers(1, 300)),
    min_size=1,
    max_size=12,
)
LOADS = st.tuples(st.floats(0.1, 6.0), st.floats(0.0, 1.0))


@examples(2)
@given(MOMENTS, LOADS, LOADS)
def test_of_two_that_fit_only_alone_each_waits_two_swaps_and_a_turn_at_most(
    moments: list[tuple[float, str, int]],
    of_a: tuple[float, float],
    of_b: tuple[float, float],
) -> None:
    a, b = Spec("a", 6, *of_a, each=0.01), Spec("b", 6, *of_b, each=0.01)
    arrivals = [
        Arrival(moment + 0.001 * n, name) for moment, name, count in moments for n in range(count)
    ]
    run = played([a, b], arrivals, 900.0, BUDGET)
    assert run.served == len(arrivals)
    for wait in run.waits:
        mine, other = (a, b) if wait.model == "a" else (b, a)
        out, back = BATCH + mine.sleep + other.wake, BATCH + other.sleep
        assert wait.seconds <= out + other.wake + other.sleep + back + 1e-6


class AnyOrder(RuleBasedStateMachine):
    """Whatever comes: the budget holds, nobody waits longer than the bound, and at the end all
    that waited was served."""

    @initialize(
        sizes=st.lists(st.integers(1, BUDGET - 2), min_size=2, max_size=6),
        wakes=st.lists(st.floats(0.1, 10.0), min_size=6, max_size=6),
        always=st.booleans(),
    )
    def begin(self, sizes: list[int], wakes: list[float], always: bool) -> None:
        specs = [
            Spec(f"m{n}", size, wake=wakes[n], sleep=wakes[n] / 10, each=0.01)
            for n, size in enumerate(sizes)
        ]
        if always:
            specs.append(Spec("always", 2, wake=1.0, always=True))
        self.specs = {spec.name: spec for spec in specs}
        self.names = [*self.specs]
        self.run = Run(specs, Checked(BUDGET), budget=BUDGET)
        self.run.decide()
        self.came = 0
        #: Nothing has failed yet, so that the bound holds.
        self.smooth = True

    def name(self, which: int) -> str:
        return self.names[which % len(self.names)]

    def come(self, which: int, stream: float = 0.0) -> None:
        self.run.run_until(self.run.now + 0.001)
        self.run.arrive(Arrival(self.run.now, self.name(which), stream))
        self.came += 1

    @rule(which=st.integers(0, 99), count=st.sampled_from([1, 1, 2, 40, 400]))
    def requests_come(self, which: int, count: int) -> None:
        for _ in range(count):
            self.come(which)

    @rule(which=st.integers(0, 99), seconds=st.floats(0.1, STREAM))
    def a_stream_comes(self, which: int, seconds: float) -> None:
        self.come(which, seconds)

    @rule(seconds=st.sampled_from([0.01, 0.3, 2.0, 15.0]))
    def time_passes(self, seconds: float) -> None:
        self.run.run_until(self.run.now + seconds)

    @rule(which=st.integers(0, 99))
    def callers_leave(self, which: int) -> None:
        self.came -= len(self.run.models[self.name(which)].queue)
        self.run.leave(self.name(which))

    @precondition(lambda self: any(m.state == "waking" for m in self.run.models.values()))
    @rule()
    def a_wake_fails(self) -> None:
        waking = [name for name, m in self.run.models.items() if m.state == "waking"]
        self.run.fail_wake(waking[0])
        self.smooth = False

    @invariant()
    def the_budget_holds(self) -> None:
        assert self.run.used() <= BUDGET

    @invariant()
    def nobody_waits_longer_than_the_bound(self) -> None:
        if self.smooth:
            for wait in [*self.run.waits, *self.run.still_waiting()]:
                assert wait.seconds <= bound(wait, self.specs, STREAM) + 0.01, wait

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.run_until(self.run.now + 5000.0)
            assert self.run.served == self.came
            assert all(not m.queue and not m.running for m in self.run.models.values())
            if "always" in self.specs:
                assert self.run.models["always"].state == "ready"


AnyOrder.TestCase.settings = examples(2)
TestAnyOrder = AnyOrder.TestCase
