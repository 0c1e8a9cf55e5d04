"""Do the scheduler and its KV cache hold what they promise, whatever comes in whatever order?"""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from wherry.llm.kv_cache import KVCache
from wherry.llm.sampling import Sampling
from wherry.llm.scheduler import Chunk, TokenScheduler
from wherry.llm.sequence import Sequence

#: What happens between two steps: nothing, a newcomer (which system prompt, own tokens, answer,
#: priority), or one that leaves (its number among those that are there).
NEWCOMERS = st.tuples(
    st.integers(0, 2), st.integers(1, 40), st.integers(1, 12), st.sampled_from([1, 5, 5, 5, 9])
)
EVENTS = st.lists(st.one_of(st.none(), NEWCOMERS, NEWCOMERS, st.integers(0, 99)), max_size=60)
SETTINGS = st.fixed_dictionaries(
    {
        "blocks": st.integers(14, 40),
        "max_running": st.integers(1, 8),
        "max_step_tokens": st.integers(1, 40),
        "prompt_share": st.sampled_from([0.0, 0.3, 2 / 3, 1.0]),
    }
)
BLOCK = 4
SYSTEM = 10


class Life:
    """The scheduler, those that are there, and what was seen of them."""

    def __init__(self, *, blocks: int, max_running: int, max_step_tokens: int, prompt_share: float):
        self.scheduler = TokenScheduler(
            KVCache(blocks, BLOCK),
            max_running=max_running,
            max_step_tokens=max_step_tokens,
            prompt_share=prompt_share,
        )
        self.there: list[Sequence] = []
        self.came = 0

    def happen(self, event: tuple[int, int, int, int] | int | None) -> None:
        if isinstance(event, tuple):
            system, own, answer, priority = event
            self.came += 1
            tokens = [system] * SYSTEM + [100 * self.came + n for n in range(own)]
            one = Sequence(
                self.came,
                tokens,
                len(tokens),
                Sampling(),
                priority=priority,
                max_length=min(len(tokens) + answer, self.scheduler.cache.total_blocks * BLOCK),
            )
            self.scheduler.add(one)
            self.there.append(one)
        elif event is not None and self.there:
            self.leave(self.there[event % len(self.there)])

    def leave(self, one: Sequence) -> None:
        self.scheduler.remove(one)
        self.there.remove(one)
        assert not one.table.blocks

    def step(self) -> list[Chunk]:
        """A step; what it did is checked before and after."""
        scheduler = self.scheduler
        preempted = scheduler.preemptions
        oldest = min(scheduler.running, key=lambda s: (s.priority, s.id), default=None)
        chunks = scheduler.next_step()
        assert bool(chunks) == bool(self.there)
        assert sum(chunk.count for chunk in chunks) <= scheduler.max_step_tokens
        assert len({chunk.sequence for chunk in chunks}) == len(chunks)
        # Preemption ends: it takes from the newest, and the oldest keeps its place and its blocks.
        assert scheduler.preemptions - preempted < max(1, scheduler.max_running)
        assert oldest is None or oldest in scheduler.running
        for chunk in chunks:
            one = chunk.sequence
            assert chunk.count >= 1
            assert chunk.start == one.computed
            assert scheduler.cache.blocks_for(chunk.start + chunk.count) <= len(one.table.blocks)
        # No prompt starves: of those that have begun, the first has a part of every step.
        prompts = [one for one in scheduler.running if one.to_compute > 1]
        assert not prompts or prompts[0] in {chunk.sequence for chunk in chunks}
        self.check_blocks()
        last = [chunk.sequence for chunk in chunks if chunk.is_last]
        scheduler.computed(chunks)
        for one in last:
            one.tokens.append(-len(one.tokens))
            if len(one.tokens) >= one.max_length:
                self.leave(one)
        return chunks

    def check_blocks(self) -> None:
        """No block is lost, and those that two have hold the same tokens for both."""
        cache = self.scheduler.cache
        cache.check()
        owners = Counter(block for one in self.there for block in one.table.blocks)
        assert cache.used_blocks == len(owners)
        content: dict[int, tuple[int, ...]] = {}
        for one in self.there:
            assert one in self.scheduler.running or not one.table.blocks
            for place, block in enumerate(one.table.blocks):
                tokens = tuple(one.tokens[: (place + 1) * BLOCK])
                if owners[block] > 1:
                    assert content.setdefault(block, tokens) == tokens


@pytest.mark.slow
@examples(2)
@given(SETTINGS, EVENTS)
def test_no_block_is_lost_nobody_starves_and_everybody_ends(
    settings: dict[str, Any], events: list[tuple[int, int, int, int] | int | None]
) -> None:
    life = Life(**settings)
    for event in events:
        life.happen(event)
        life.step()
    # With nobody new, all end within the steps that all their tokens take one by one.
    most = sum(one.max_length for one in life.there) * (1 + life.scheduler.max_running)
    for _ in range(most):
        if not life.there:
            break
        life.step()
    assert not life.there
    assert life.scheduler.cache.used_blocks == 0
