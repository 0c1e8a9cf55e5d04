"""Are the simulated figures of first tokens and gaps those of their seed, and of all requests?"""

import pytest

from benchmarks.llm_first_token.simulator import (
    CPU,
    FormerScheduler,
    SharedScheduler,
    Traffic,
    play,
)
from wherry.llm.engine.scheduler import TokenScheduler


@pytest.mark.parametrize("kind", ["short", "shared", "mixed", "long"])
def test_every_request_has_all_its_tokens_and_each_run_is_the_same(kind: str) -> None:
    arrivals = Traffic(kind, bursts=True).arrivals(seed=1, count=8, rate=2.0)
    asked = sum(one.new_tokens for one in arrivals)

    def schedulers() -> list[TokenScheduler]:
        return [SharedScheduler(CPU, 0.5), FormerScheduler(CPU, 0.0)]

    for scheduler, again in zip(schedulers(), schedulers(), strict=True):
        played = play(scheduler, CPU, arrivals)
        assert (len(played.first), len(played.gaps)) == (8, asked - 8)
        assert min(played.first) >= CPU.fixed
        assert min(played.gaps) >= CPU.fixed
        assert play(again, CPU, arrivals) == played
        assert scheduler.cache.used_blocks == 0
