"""Several models want the same device: whose batch runs next?"""

import random
from collections import Counter

import pytest

from tests.properties import seeds
from wherry.core.scheduler.device_share import Claim, DeviceShare

GPU = {"gpu": 1}


def claim(
    since: float, seconds: float = 1.0, needs: dict[str, int] | None = None, priority: int = 1
) -> Claim:
    return Claim(needs or GPU, since, seconds, priority)


def share(*models: dict[str, int], limits: dict[str, int] | None = None) -> DeviceShare[str]:
    made: DeviceShare[str] = DeviceShare(limits)
    for needs in models or (GPU,):
        assert made.admit(needs) == ""
    return made


def test_who_has_waited_longest_in_batches_of_its_own_goes_first() -> None:
    shared = share()
    shared.claim("quick", claim(since=9.0, seconds=0.1))
    shared.claim("slow", claim(since=0.0, seconds=10.0))
    assert shared.grant(now=10.0) == "quick"
    shared.release(GPU)
    shared.claim("quick", claim(since=9.95, seconds=0.1))
    assert shared.grant(now=10.0) == "slow"


def test_a_model_whose_time_is_never_known_waits_like_one_of_100_ms() -> None:
    shared = share()
    shared.claim("stream", claim(since=9.0, seconds=0.0))
    shared.claim("slower", claim(since=9.0, seconds=0.11))
    shared.claim("quicker", claim(since=9.0, seconds=0.09))
    granted = []
    while (who := shared.grant(now=10.0)) is not None:
        granted.append(who)
        shared.release(GPU)
    assert granted == ["quicker", "stream", "slower"]


def test_with_priority_2_waiting_counts_half() -> None:
    shared = share()
    shared.claim("second", claim(since=0.0, priority=2))
    shared.claim("first", claim(since=4.0))
    assert shared.grant(now=10.0) == "first"
    shared.release(GPU)
    shared.claim("first", claim(since=6.0))
    assert shared.grant(now=10.0) == "second"


def test_no_more_is_granted_than_there_is_and_a_release_makes_room() -> None:
    shared = share(limits={"gpu": 2})
    for who in "abc":
        shared.claim(who, claim(since=ord(who)))
    assert [shared.grant(200.0), shared.grant(200.0), shared.grant(200.0)] == ["a", "b", None]
    shared.release(GPU)
    assert shared.grant(200.0) == "c"
    assert shared.grant(200.0) is None


def test_what_a_model_that_needs_much_lacks_is_kept_for_it() -> None:
    shared = share({"gpu": 2, "memory": 1}, {"gpu": 1}, {"memory": 1}, {"disk": 1})
    shared.claim("small", claim(0.0))
    assert shared.grant(1.0) == "small"
    shared.claim("large", claim(1.0, needs={"gpu": 2, "memory": 1}))
    shared.claim("small", claim(2.0))
    shared.claim("remembers", claim(2.0, needs={"memory": 1}))
    shared.claim("elsewhere", claim(2.0, needs={"disk": 1}))
    assert shared.grant(3.0) == "elsewhere"
    assert shared.grant(3.0) is None
    shared.release(GPU)
    assert shared.grant(3.0) == "large"


def test_one_that_asks_for_itself_gets_nothing_that_a_more_urgent_one_is_waiting_for() -> None:
    shared = share(limits={"gpu": 2})
    shared.claim("urgent", claim(0.0))
    shared.claim("next", claim(1.0))
    shared.claim("last", claim(2.0))
    assert shared.grant(3.0, "last") is None
    assert shared.grant(3.0, "next") == "next"
    assert shared.grant(3.0) == "urgent"


def test_of_an_unnamed_resource_there_is_as_much_as_the_model_that_needs_most() -> None:
    shared = share({"gpu": 1}, {"gpu": 3}, {"gpu": 2})
    assert shared.limits["gpu"] == 3


def test_who_needs_more_than_there_is_can_never_run() -> None:
    shared: DeviceShare[str] = DeviceShare({"gpu": 1})
    assert shared.admit({"other": 5, "gpu": 2}) == "gpu"


def test_a_claim_that_is_withdrawn_is_never_granted() -> None:
    shared = share()
    shared.claim("a", claim(0.0))
    shared.withdraw("a")
    shared.withdraw("never claimed")
    assert shared.grant(1.0) is None
    assert repr(shared) == "<DeviceShare: gpu 0/1, 0 waiting>"


@pytest.mark.parametrize("seed", seeds(20))
def test_whatever_is_claimed_the_limits_hold_and_nobody_starves(seed: int) -> None:
    rng = random.Random(seed)
    limits = {"gpu": rng.randint(1, 3), "memory": rng.randint(1, 3)}
    models = {
        who: {name: rng.randint(1, most) for name, most in limits.items() if rng.random() < 0.7}
        or {"gpu": 1}
        for who in "abcdef"
    }
    seconds = {who: rng.choice([0.0, 0.1, 1.0, 10.0]) for who in models}
    shared: DeviceShare[str] = DeviceShare(limits)
    running: list[str] = []
    done: Counter[str] = Counter()
    for who, needs in models.items():
        assert shared.admit(needs) == ""
        shared.claim(who, Claim(needs, 0.0, seconds[who]))
    for now in range(1, 600):
        while (granted := shared.grant(now)) is not None:
            running.append(str(granted))
        assert running, "something is free and somebody waits"
        for name, most in limits.items():
            assert sum(models[who].get(name, 0) for who in running) <= most
        over = running.pop(rng.randrange(len(running)))
        done[over] += 1
        shared.release(models[over])
        shared.claim(over, Claim(models[over], now, seconds[over]))
    assert set(done) == set(models)
