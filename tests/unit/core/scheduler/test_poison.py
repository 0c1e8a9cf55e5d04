"""Which requests kill workers? Keys, moments and verdicts; no thread, no clock."""

import random

from wherry.core.scheduler.poison import Poisons


def test_one_death_proves_nothing() -> None:
    poisons: Poisons[str] = Poisons()
    assert not poisons.died(["a"], 0, now=0.0).poison
    assert not poisons.refused_for("a", now=0.0)


def test_two_deaths_one_of_them_alone_are_proof_and_excuse_the_first() -> None:
    poisons: Poisons[str] = Poisons()
    assert not poisons.died(["a", "b", "c"], 7, now=0.0).poison
    verdict = poisons.died(["b"], 1, now=1.0)
    assert verdict.poison == {"b"}
    assert verdict.excused == (7,)
    assert poisons.refused_for("b", now=1.0) == 60.0
    assert not poisons.refused_for("a", now=1.0)


def test_neighbours_need_a_third_death() -> None:
    poisons: Poisons[str] = Poisons()
    poisons.died(["a", "b"], 0, now=0.0)
    assert not poisons.died(["a", "c"], 0, now=1.0).poison
    assert poisons.died(["a", "d"], 0, now=2.0).poison == {"a"}


def test_one_beside_another_model_in_the_same_process_is_not_alone() -> None:
    poisons: Poisons[str] = Poisons()
    poisons.died(["a"], 0, now=0.0, alone=False)
    assert not poisons.died(["a"], 0, now=1.0, alone=False).poison
    assert poisons.died(["a"], 0, now=2.0, alone=True).poison == {"a"}


def test_a_death_is_excused_once() -> None:
    poisons: Poisons[str] = Poisons()
    poisons.died(["a", "b"], 0, now=0.0)
    assert poisons.died(["a"], 0, now=1.0).excused == (0,)
    assert poisons.died(["b"], 0, now=2.0).excused == ()


def test_a_request_that_is_answered_is_innocent() -> None:
    poisons: Poisons[str] = Poisons()
    for now in range(10):
        assert not poisons.died(["a"], 0, now=now).poison
        poisons.survived("a")
    assert len(poisons) == 0


def test_each_further_death_doubles_the_time_up_to_an_hour() -> None:
    poisons: Poisons[str] = Poisons()
    now, seconds = 0.0, []
    poisons.died(["a"], 0, now)
    for _ in range(9):
        poisons.died(["a"], 0, now)
        seconds.append(poisons.refused_for("a", now))
        now += seconds[-1]
        assert not poisons.refused_for("a", now)
    assert seconds == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_what_was_long_ago_is_forgotten() -> None:
    poisons: Poisons[str] = Poisons()
    poisons.died(["a"], 0, now=0.0)
    poisons.died(["b"], 0, now=1.0)
    poisons.died(["b"], 0, now=1.0)
    poisons.forget(now=600.0)
    assert list(poisons) == ["b"]
    poisons.forget(now=661.0)
    assert not list(poisons)


def test_the_number_of_remembered_requests_is_bounded() -> None:
    poisons: Poisons[int] = Poisons(most=100)
    rng = random.Random(1)
    for now in range(1000):
        poisons.died([rng.randrange(10**9) for _ in range(8)], 0, now * 0.01)
        assert len(poisons) <= 100
