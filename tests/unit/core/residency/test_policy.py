"""Which model sleeps so that another wakes: tables of single decisions."""

from itertools import combinations
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.core.residency.policy import DeviceTurns, ModelView

MIB = 1 << 20


def asleep(name: str, footprint: int = 4, **how: Any) -> ModelView:
    return ModelView(
        **{
            "name": name,
            "footprint": footprint,
            "state": "asleep",
            "wake_seconds": 5.0,
            "sleep_seconds": 1.0,
            **how,
        }
    )


def waits(name: str, footprint: int = 4, **how: Any) -> ModelView:
    return asleep(name, footprint, **{"queued": 1, "oldest_wait": 1.0, **how})


def ready(name: str, footprint: int = 4, **how: Any) -> ModelView:
    return asleep(name, footprint, **{"state": "ready", "last_arrival": 60.0, **how})


def busy(name: str, footprint: int = 4, **how: Any) -> ModelView:
    return ready(name, footprint, **{"queued": 9, "arrival_rate": 5.0, "last_arrival": 0.0, **how})


def test_a_model_wakes_when_a_request_waits_and_there_is_room() -> None:
    turns = DeviceTurns(10)
    decision = turns.decide([ready("a"), waits("b"), asleep("c")], 100.0)
    assert (decision.wake, decision.sleep, decision.look_again_at) == (["b"], [], None)
    assert decision.why == {"b": "wakes: there is room"}
    assert repr(turns) == "<DeviceTurns of 10 B: 1 waiting>"


def test_idle_models_stay_awake_while_nobody_needs_their_room() -> None:
    decision = DeviceTurns(10).decide([ready("a"), ready("b"), asleep("c")], 1e6)
    assert (decision.wake, decision.sleep) == ([], [])


def test_room_is_made_first_and_the_model_wakes_when_it_is_free() -> None:
    turns = DeviceTurns(8)
    a, b, c = ready("a"), ready("b", arrival_rate=1.0, last_arrival=1.0), waits("c")
    decision = turns.decide([a, b, c], 100.0)
    assert (decision.wake, decision.sleep) == ([], ["a"])
    assert decision.why["c"] == "waits until a sleeps"
    assert decision.why["a"].startswith("makes room for c: ")
    stopping = asleep("a", state="stopping")
    assert turns.decide([stopping, b, c], 100.1).wake == []
    assert turns.decide([asleep("a"), b, c], 101.0).wake == ["c"]


def test_a_wake_that_nobody_waits_for_any_more_is_given_up() -> None:
    turns = DeviceTurns(4)
    assert turns.decide([ready("a"), waits("b")], 100.0).sleep == ["a"]
    decision = turns.decide([asleep("a"), asleep("b")], 101.0)
    assert (decision.wake, decision.sleep) == ([], [])


def test_who_runs_to_its_end_for_nobody_takes_requests_again() -> None:
    turns = DeviceTurns(4)
    stream = ready("a", running=True)
    assert turns.decide([stream, waits("b")], 100.0).sleep == ["a"]
    ends = ready("a", running=True, state="stopping", queued=2, oldest_wait=0.5)
    assert turns.decide([ends, waits("b")], 101.0).wake == []
    assert turns.decide([ends, asleep("b")], 102.0).wake == ["a"]
    other = DeviceTurns(4)  # which has not told it to sleep: somebody unloads it
    assert other.decide([ends, asleep("b")], 102.0).wake == []


def test_who_is_told_to_sleep_is_not_taken_back_by_room_that_a_later_one_will_make() -> None:
    a, b = ready("a", 4, running=True), ready("b", 6)
    first, second = waits("c", 4, oldest_wait=9.0), waits("d", 2)
    decision = DeviceTurns(10).decide([a, b, first, second], 100.0)
    assert (decision.wake, decision.sleep) == ([], ["a"])


def test_always_resident_models_wake_first_without_requests_and_never_sleep() -> None:
    turns = DeviceTurns(8)
    a, b = asleep("a", always=True), waits("b", oldest_wait=50.0)
    assert turns.decide([b, a], 100.0).wake == ["a"]
    a = ready("a", always=True)
    decision = turns.decide([a, b, ready("c")], 200.0)
    assert decision.sleep == ["c"]
    decision = turns.decide([a, waits("big", 5)], 200.0)
    assert (decision.sleep, decision.wake, decision.look_again_at) == ([], [], None)
    assert decision.why["big"].startswith("never fits: ")
    assert turns.refused(waits("big", 5), 200.0) == inf


def test_a_model_above_the_whole_budget_is_named_and_does_not_stop_the_line() -> None:
    turns = DeviceTurns(8 * MIB)
    decision = turns.decide([waits("huge", 9 * MIB, oldest_wait=9.0), waits("b", MIB)], 0.0)
    assert decision.wake == ["b"]
    assert decision.why["huge"] == (
        "never fits: it takes 9 MiB, and of the device's 8 MiB at most 8 MiB can be free"
    )


def test_a_turn_lasts_until_its_swap_has_paid_while_requests_wait() -> None:
    turns = DeviceTurns(4)
    a, b = busy("a", awake_since=100.0), waits("b")
    decision = turns.decide([a, b], 102.0)
    assert (decision.sleep, decision.look_again_at) == ([], 106.0)
    assert decision.why["b"] == "waits 4 s for the end of the turn of a"
    assert turns.refused(b, 102.0) == 9.0
    assert turns.decide([a, b], 106.0).sleep == ["a"]


def test_of_several_turns_the_first_end_is_when_to_look_again() -> None:
    first, second = busy("a", awake_since=100.0), busy("b", awake_since=101.0)
    decision = DeviceTurns(8).decide([first, second, waits("c"), waits("d")], 102.0)
    assert decision.why["d"] == "waits 5 s for the end of the turn of b"
    assert decision.look_again_at == 106.0


def test_a_turn_ends_early_when_nothing_waits_and_nothing_is_expected_before_its_end() -> None:
    def after(seconds: float, **how: Any) -> tuple[list[str], float | None]:
        a = ready("a", awake_since=100.0, **how)
        decision = DeviceTurns(4).decide([a, waits("b")], 100.0 + seconds)
        return decision.sleep, decision.look_again_at

    assert after(0.1) == (["a"], None)  # nobody asks it any more
    assert after(0.1, arrival_rate=0.1, last_arrival=0.1) == (["a"], None)
    assert after(1.0, arrival_rate=1.5, last_arrival=0.0) == ([], 102.25)  # its burst may be over
    assert after(2.25, arrival_rate=1.5, last_arrival=1.25) == (["a"], None)
    assert after(2.0, arrival_rate=0.7, last_arrival=0.0) == (["a"], None)


def test_what_runs_is_not_work_that_waits() -> None:
    a = ready("a", running=True, work_seconds=60.0, awake_since=99.0)
    assert DeviceTurns(4).decide([a, waits("b")], 100.0).sleep == ["a"]


def test_the_model_that_asked_first_wakes_first_and_one_at_a_time() -> None:
    turns = DeviceTurns(8)
    b, c = waits("b", oldest_wait=1.0), waits("c", oldest_wait=2.0)
    decision = turns.decide([b, c], 100.0)
    assert decision.wake == ["c"]
    assert decision.why["b"] == "waits for c, which is waking"
    waking = asleep("c", state="waking", awake_since=100.0, queued=1)
    assert turns.decide([b, waking], 103.0).wake == []
    assert turns.refused(waking, 103.0) == 2.0
    assert turns.refused(b, 103.0) == 7.0
    assert turns.refused(asleep("d", wake_seconds=1.0), 103.0) == 8.0
    assert turns.refused(ready("d"), 103.0) == 0.0


def test_a_short_load_runs_beside_a_long_one() -> None:
    slow = asleep("slow", state="waking", wake_seconds=20.0, awake_since=100.0, queued=1)
    quick = waits("quick", wake_seconds=2.0, sleep_seconds=0.5)
    unused, used = ready("unused", last_arrival=600.0), ready("used", last_arrival=60.0)
    assert DeviceTurns(8).decide([slow, used, quick], 105.0).sleep == []
    turns = DeviceTurns(8)
    assert turns.decide([slow, unused, quick], 105.0).sleep == ["unused"]
    assert turns.decide([slow, quick], 105.1).wake == ["quick"]
    # Not one that takes long against what is left, whose load is not known, or a third one.
    assert DeviceTurns(8).decide([slow, quick], 111.0).wake == []
    unknown = waits("unknown", wake_seconds=0.0, sleep_seconds=0.0)
    assert DeviceTurns(8).decide([slow, unknown], 105.0).wake == []
    third = asleep("third", state="waking", wake_seconds=2.0, awake_since=104.0, queued=1)
    assert DeviceTurns(12).decide([slow, third, quick], 105.0).wake == []


def test_priority_2_counts_as_waiting_half_as_long() -> None:
    b, c = waits("b", oldest_wait=3.0, priority=2), waits("c", oldest_wait=2.0)
    assert DeviceTurns(8).decide([b, c], 100.0).wake == ["c"]
    b = waits("b", oldest_wait=5.0, priority=2)
    assert DeviceTurns(8).decide([b, c], 100.0).wake == ["b"]


def test_room_for_a_large_model_is_not_taken_by_small_ones_that_came_later() -> None:
    turns = DeviceTurns(10)
    large, small = waits("large", 10, oldest_wait=2.0), waits("small", 2)
    a = busy("a", 6, awake_since=99.0)
    decision = turns.decide([a, large, small], 100.0)
    assert (decision.wake, decision.look_again_at) == ([], 105.0)
    decision = turns.decide([a, waits("large", 8, oldest_wait=2.0), small], 100.0)
    assert decision.wake == ["small"], "the large one does not need this room"
    waking = asleep("w", 4, state="waking", awake_since=100.0)
    assert turns.decide([waking, large, small], 101.0).wake == []


def test_a_model_whose_turn_has_ended_waits_behind_those_that_waited_meanwhile() -> None:
    turns = DeviceTurns(4)
    a, b = busy("a", awake_since=90.0, oldest_wait=30.0), waits("b")
    assert turns.decide([a, b], 100.0).sleep == ["a"]
    stopped = asleep("a", queued=9, oldest_wait=31.0)
    assert turns.decide([stopped, b], 101.0).wake == ["b"]
    waking = asleep("b", state="waking", awake_since=101.0, queued=1)
    assert turns.decide([stopped, waking], 103.0).wake == []
    b = busy("b", awake_since=106.0)
    assert turns.decide([stopped, b], 107.0).look_again_at == 112.0


def test_who_sleeps_is_who_is_not_expected_soon_not_who_was_used_last() -> None:
    often = ready("often", arrival_rate=1.0, last_arrival=2.0)
    seldom = ready("seldom", arrival_rate=1 / 3600, last_arrival=0.5)
    assert DeviceTurns(8).decide([often, seldom, waits("c")], 1e6).sleep == ["seldom"]
    burst = ready("burst", arrival_rate=20.0, last_arrival=90.0)
    steady = ready("steady", arrival_rate=0.1, last_arrival=3.0)
    assert DeviceTurns(8).decide([burst, steady, waits("c")], 1e6).sleep == ["burst"]


def test_who_sleeps_costs_little_to_wake_again_and_ends_soon() -> None:
    slow = ready("slow", wake_seconds=20.0, arrival_rate=0.02, last_arrival=9.0)
    quick = ready("quick", wake_seconds=0.2, arrival_rate=0.05, last_arrival=9.0)
    assert DeviceTurns(8).decide([slow, quick, waits("c")], 1e6).sleep == ["quick"]
    stream = ready("stream", running=True, work_seconds=600.0)
    other = ready("other", arrival_rate=0.05, last_arrival=3.0)
    assert DeviceTurns(8).decide([stream, other, waits("c")], 1e6).sleep == ["other"]


def test_others_wake_while_a_stream_runs_to_its_end() -> None:
    turns = DeviceTurns(8)
    stream = ready("stream", 6, running=True, work_seconds=3600.0, state="stopping")
    large, small = waits("large", 8, oldest_wait=9.0), waits("small", 2)
    decision = turns.decide([stream, large, small], 1e6)
    assert decision.why["large"] == "waits for room that is being made"
    assert decision.wake == [], "it would be one more in the way of the large one"
    large = waits("large", 6, oldest_wait=9.0)
    assert turns.decide([stream, large, small], 1e6).wake == ["small"]


def test_footprints_that_have_grown_above_the_budget_cost_the_cheapest_their_room() -> None:
    turns = DeviceTurns(12)
    a, b = busy("a", awake_since=99.0), ready("b")
    liar = busy("liar", 6, awake_since=99.0)
    assert turns.decide([a, b, liar], 100.0).sleep == ["b"]
    liar = busy("liar", 13, awake_since=99.0)
    decision = turns.decide([asleep("b"), liar], 101.0)
    assert decision.sleep == ["liar"]
    assert decision.why["liar"].startswith("the models take more than the device's budget: ")
    decision = turns.decide([asleep("b"), waits("liar", 13)], 102.0)
    assert (decision.wake, decision.why["liar"][:10]) == ([], "never fits")


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.floats(0.1, 20.0), st.floats(1.0, 500.0)),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 30),
)
def test_room_is_made_by_the_cheapest_set(those: list[tuple[int, float, float]], need: int) -> None:
    models = [
        ready(str(n), size, wake_seconds=wake, last_arrival=last)
        for n, (size, wake, last) in enumerate(those)
    ]
    total = sum(model.footprint for model in models)
    turns = DeviceTurns(max(total, need))
    decision = turns.decide([*models, waits("new", need)], 1e6)
    lacks = need - (max(total, need) - total)
    if lacks <= 0:
        assert (decision.sleep, decision.wake) == ([], ["new"])
        return
    cost = {model.name: model.cost_of_sleep for model in models}
    sets = [
        sum(cost[model.name] for model in some)
        for count in range(1, len(models) + 1)
        for some in combinations(models, count)
        if sum(model.footprint for model in some) >= lacks
    ]
    assert sum(cost[name] for name in decision.sleep) == pytest.approx(min(sets))
