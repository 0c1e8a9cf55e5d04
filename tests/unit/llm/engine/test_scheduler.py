"""Which sequences are in the next step, and how many tokens of each."""

import random

import pytest

from wherry.llm.engine.kv_cache import KVCache
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.scheduler import Chunk, StepPace, TokenScheduler
from wherry.llm.engine.sequence import Sequence

NUMBERS = iter(range(1_000_000))


def sequence(tokens: int, *, max_length: int = 1000) -> Sequence:
    number = next(NUMBERS)
    prompt = [1000 + number] * tokens  # nobody shares a prefix
    return Sequence(number, prompt, tokens, Sampling(), max_length=max_length)


def scheduler(
    *,
    blocks: int = 100,
    block_size: int = 4,
    max_running: int = 8,
    max_step_tokens: int = 32,
    prompt_share: float = 0.5,
) -> TokenScheduler:
    return TokenScheduler(
        KVCache(blocks, block_size),
        max_running=max_running,
        max_step_tokens=max_step_tokens,
        pace=StepPace(free_tokens=4.0),
        prompt_share=prompt_share,
    )


def run(s: TokenScheduler, chunks: list[Chunk]) -> None:
    """What an engine does with a step: everybody whose prompt is done has a token more."""
    last = [chunk.sequence for chunk in chunks if chunk.is_last]
    s.computed(chunks)
    for one in last:
        one.tokens.append(7)


def counts(chunks: list[Chunk]) -> list[int]:
    return [chunk.count for chunk in chunks]


def test_with_nobody_decoding_prompts_have_the_whole_step() -> None:
    s = scheduler(max_step_tokens=32)
    for tokens in (10, 10, 20):
        s.add(sequence(tokens))
    first = s.next_step()
    assert counts(first) == [10, 10, 12]
    run(s, first)
    assert counts(s.next_step()) == [1, 1, 6]


@pytest.mark.parametrize(
    ("share", "tokens"), [(0.0, 1), (1 / 3, 8), (1 / 2, 16), (0.75, 48), (1.0, 200)]
)
def test_a_prompt_has_its_share_of_the_duration_of_a_step(share: float, tokens: int) -> None:
    s = scheduler(max_step_tokens=1000, max_running=16, prompt_share=share)
    for _ in range(12):
        s.add(sequence(3))
    run(s, s.next_step())
    s.add(sequence(200))
    # Twelve decode, four tokens come nearly for nothing: sixteen more take as long again.
    assert counts(s.next_step()) == [1] * 12 + [tokens]


def test_the_prompts_share_grows_with_the_context_of_those_that_decode() -> None:
    s = TokenScheduler(
        KVCache(4000, 4),
        max_running=8,
        max_step_tokens=512,
        pace=StepPace(free_tokens=4.0),
        prompt_share=0.5,
        context_per_token=100,
    )
    s.add(sequence(400, max_length=500))
    run(s, s.next_step())
    s.add(sequence(200))
    assert counts(s.next_step()) == [1, 4 + 5]


def test_a_long_prompt_leaves_half_of_the_step_to_shorter_ones_behind_it() -> None:
    s = scheduler(max_step_tokens=64, blocks=1000)
    s.add(sequence(400))
    run(s, s.next_step())
    s.add(sequence(50))
    steps = [s.next_step()]
    run(s, steps[0])
    steps.append(s.next_step())
    assert [counts(step) for step in steps] == [[32, 32], [46, 18]]
    assert [step[1].is_last for step in steps] == [False, True]


def test_prompts_of_about_the_same_length_are_computed_one_after_the_other() -> None:
    s = scheduler(max_step_tokens=64, blocks=1000)
    s.add(sequence(100))
    s.add(sequence(80))
    first = s.next_step()
    run(s, first)
    second = s.next_step()
    assert (counts(first), counts(second)) == ([64], [36, 28])


def test_a_short_prompt_that_cannot_start_takes_nothing_from_a_long_one() -> None:
    s = scheduler(max_step_tokens=64, blocks=1000, max_running=1)
    s.add(sequence(400))
    s.add(sequence(10))
    assert counts(s.next_step()) == [64]


def test_a_long_prompt_has_the_whole_step_if_the_shorter_one_finds_no_blocks() -> None:
    s = scheduler(max_step_tokens=64, blocks=105)
    s.add(sequence(400))
    run(s, s.next_step())
    s.add(sequence(50))
    assert counts(s.next_step()) == [64]
    assert len(s.waiting) == 1


def test_nobody_starts_beyond_max_running() -> None:
    s = scheduler(max_running=2)
    for _ in range(3):
        s.add(sequence(4))
    run(s, s.next_step())
    assert (len(s.running), len(s.waiting)) == (2, 1)
    s.remove(s.running[0])
    run(s, s.next_step())
    assert (len(s.running), len(s.waiting)) == (2, 0)


def test_when_blocks_run_out_the_last_comer_is_put_back_and_comes_again() -> None:
    s = scheduler(blocks=6, block_size=4)
    first, second = sequence(8), sequence(8)
    s.add(first)
    s.add(second)
    run(s, s.next_step())
    for _ in range(4):
        run(s, s.next_step())
    assert s.running == [first, second]
    while second in s.running:
        run(s, s.next_step())
    assert (s.running, s.waiting, s.preemptions) == ([first], [second], 1)
    assert second.computed == 0
    length = len(second.tokens)
    s.remove(first)
    step = s.next_step()
    assert step[0].sequence is second
    # Its full blocks were still known.
    assert (step[0].start, step[0].start + step[0].count) == (8, length)
    s.cache.check()


def test_a_prompt_starts_only_with_room_for_those_who_run_already() -> None:
    s = scheduler(blocks=4, block_size=4)
    s.add(sequence(8))
    run(s, s.next_step())
    s.add(sequence(8))  # fits exactly, and would be put back with the next token of the first
    run(s, s.next_step())
    assert (len(s.running), len(s.waiting), s.preemptions) == (1, 1, 0)


def test_the_chunks_of_a_long_prompt_hold_up_the_others_no_longer_at_its_end() -> None:
    def seconds(step: list[Chunk]) -> float:
        """As measured for SmolLM2 on one core: 40 ms, 2 ms a token, as much again at 1,750."""
        return sum((0.002 * c.count * (1 + c.start / 1750) for c in step), 0.040)

    def longest(context_per_token: float) -> tuple[float, int]:
        s = TokenScheduler(
            KVCache(4000, 4),
            max_running=32,
            max_step_tokens=512,
            prompt_share=1 / 3,
            context_per_token=context_per_token,
        )
        for _ in range(16):
            s.add(sequence(60, max_length=4000))
        alone: list[float] = []
        while len(alone) < 40:
            step = s.next_step()
            run(s, step)
            s.took(step, seconds(step))
            if len(step) == 16 == sum(counts(step)):
                alone.append(seconds(step))
        guest = sequence(1500)
        s.add(guest)
        joined = []
        while guest.generated_tokens == 0:
            step = s.next_step()
            run(s, step)
            s.took(step, seconds(step))
            joined.append(seconds(step))
        return max(joined) / alone[-1], len(joined)

    stretch, steps = longest(1750)
    assert 1.4 < stretch < 1.6
    unaware, fewer = longest(float("inf"))
    assert unaware > 1.15 * stretch
    assert steps < 2 * fewer


def test_a_prompt_that_holds_up_nobody_has_the_whole_step_however_long_it_is() -> None:
    s = TokenScheduler(KVCache(1000, 4), max_running=8, max_step_tokens=64, context_per_token=10)
    s.add(sequence(400))
    for start in (0, 64, 128):
        step = s.next_step()
        assert (step[0].start, step[0].count) == (start, 64)
        run(s, step)


def test_pace_learns_how_many_tokens_come_nearly_for_nothing() -> None:
    pace = StepPace()
    dice = random.Random(1)
    for _ in range(200):
        tokens = dice.choice([1, 4, 16, 40, 200])
        pace.observe(tokens, 0.050 + 0.002 * tokens)
    assert 24 < pace.free_tokens < 26
    assert pace.tokens_beside(decoding=15, share=0.5) == pytest.approx(40, abs=0.5)


def test_pace_believes_nothing_of_steps_that_are_all_alike() -> None:
    pace = StepPace(free_tokens=16)
    for _ in range(100):
        pace.observe(8, 0.05)
    assert pace.free_tokens == 16


def test_everybody_ends_and_no_step_is_too_large_whatever_comes() -> None:
    dice = random.Random(3)
    for _ in range(20):
        size = dice.randint(1, 5)
        blocks = dice.randint(16, 40)
        s = scheduler(
            blocks=blocks,
            block_size=size,
            max_running=dice.randint(1, 6),
            max_step_tokens=dice.randint(4, 40),
        )
        most = blocks * size
        coming = [
            sequence(tokens, max_length=min(most, tokens + dice.randint(1, 12)))
            for tokens in (dice.randint(1, most - 1) for _ in range(25))
        ]
        for _ in range(100_000):
            if coming and dice.random() < 0.3:
                s.add(coming.pop())
            step = s.next_step()
            s.cache.check()
            assert sum(counts(step)) <= s.max_step_tokens
            assert len({chunk.sequence for chunk in step}) == len(step)
            assert bool(step) == bool(s.running)
            run(s, step)
            for chunk in step:
                one = chunk.sequence
                if one in s.running and len(one.tokens) >= one.max_length:
                    s.remove(one)
            if not (coming or s.running or s.waiting):
                break
        assert not coming
        assert s.cache.used_blocks == 0


@pytest.mark.parametrize("share", [1 / 3, 1 / 2, 2 / 3, 0.8])
def test_the_share_bounds_both_the_wait_for_a_first_token_and_the_gaps(share: float) -> None:
    def seconds(step: list[Chunk]) -> float:
        return 0.040 + 0.002 * sum(counts(step))

    def played(share: float, guests: int) -> tuple[float, float]:
        """The time to the guest's first token, and the longest step of the others."""
        s = TokenScheduler(KVCache(4000, 4), max_running=32, max_step_tokens=4096)
        s.prompt_share = share
        for _ in range(8):
            s.add(sequence(30, max_length=4000))
        while not (s.running and all(one.generated_tokens > 30 for one in s.running)):
            if len(s.running) == 8 and s.running[0].generated_tokens == 10:
                s.add(sequence(100, max_length=101))  # a pace is learnt from different steps
            step = s.next_step()
            run(s, step)
            s.took(step, seconds(step))
            for one in list(s.running):
                if len(one.tokens) >= one.max_length:
                    s.remove(one)
        guest, waited, longest = sequence(3000), 0.0, 0.0
        if guests:
            s.add(guest)
        for _ in range(500):
            step = s.next_step()
            run(s, step)
            waited += seconds(step)
            longest = max(longest, seconds(step))
            if guest.generated_tokens:
                break
        return waited, longest

    first, _ = played(1.0, 1)
    _, alone = played(share, 0)
    waited, gap = played(share, 1)
    assert waited < 1.05 * first / share
    assert gap < 1.05 * alone / (1 - share)


def test_a_step_takes_what_it_may_but_never_nothing_of_a_prompt() -> None:
    s = scheduler(max_running=8, max_step_tokens=8, prompt_share=0.0, blocks=500)
    for _ in range(7):
        s.add(sequence(1))
    run(s, s.next_step())
    late = sequence(60)
    s.add(late)
    for computed in range(60):
        assert late.computed == computed
        run(s, s.next_step())
    assert late.generated_tokens == 1
