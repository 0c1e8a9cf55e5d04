"""Does the engine generate what transformers does, whatever else goes on beside it?"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.llm.engine import tiny
from wherry.core.values.errors import InvalidRequest
from wherry.llm.engine.engine import Engine
from wherry.llm.engine.loading import load_engine
from wherry.llm.engine.model import Shape
from wherry.llm.engine.runner import cache_bytes_per_token
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.sequence import Sequence

Find = Callable[..., Path]
NEW = 30
GREEDY = Sampling(temperature=0.0, max_tokens=NEW, ignore_eos=True)


def engine_of(folder: Path, *, blocks: int = 200, block_size: int = 4, **options: Any) -> Engine:
    from transformers import AutoConfig

    shape = Shape.of(AutoConfig.from_pretrained(folder))
    per_token = cache_bytes_per_token(shape, torch.float32)
    engine, _ = load_engine(
        str(folder),
        "tiny",
        "cpu",
        cache_gb=blocks * block_size * per_token / 1e9,
        block_size=block_size,
        **options,
    )
    return engine


def prompts(*lengths: int) -> list[list[int]]:
    dice = torch.Generator().manual_seed(4)
    return [torch.randint(0, 250, (length,), generator=dice).tolist() for length in lengths]


def finish(engine: Engine, coming: Iterable[tuple[list[int], Sampling]] = ()) -> list[Sequence]:
    """Steps until all is done, with one newcomer before each step."""
    waiting, started = list(coming), []
    while waiting or engine.busy:
        if waiting:
            started += engine.add(*waiting.pop(0))
        engine.step()
        engine.cache.check()
    return started


def answer(sequence: Sequence) -> list[int]:
    return sequence.tokens[sequence.prompt_tokens :]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_greedy_tokens_are_those_of_transformers_for_each_family(
    family: str, checkpoint: Find
) -> None:
    folder = checkpoint(family)
    engine = engine_of(folder, max_step_tokens=16)  # longer prompts go in chunks
    asked = prompts(5, 40, 61, 1)
    answers = finish(engine, [(prompt, GREEDY) for prompt in asked])
    for prompt, sequence in zip(asked, answers, strict=True):
        assert answer(sequence) == tiny.reference(folder, prompt, NEW), (family, len(prompt))


def log_softmax(folder: Path, prompt: list[int]) -> torch.Tensor:
    """How probable transformers finds each token, after each of the prompt's."""
    with torch.inference_mode():
        logprobs: torch.Tensor = (
            tiny.reference_network(folder)(torch.tensor([prompt])).logits[0].log_softmax(-1)
        )
    return logprobs


def assert_reported(sequence: Sequence, logprobs: torch.Tensor, alternatives: int) -> None:
    """All of the prompt but its first token, each with the best that could have been there."""
    prompt = sequence.tokens[: sequence.prompt_tokens]
    assert [said.token for said in sequence.prompt_report] == prompt[1:]
    for place, said in enumerate(sequence.prompt_report):
        assert said.logprob == pytest.approx(float(logprobs[place, said.token]), abs=1e-4)
        best = logprobs[place].topk(alternatives)
        assert [token for token, _ in said.alternatives] == best.indices.tolist()
        assert [value for _, value in said.alternatives] == pytest.approx(
            best.values.tolist(), abs=1e-4
        )


REPORTED = Sampling(temperature=0.0, max_tokens=3, ignore_eos=True, echo=True, logprobs=2)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_how_probable_a_prompt_is_is_what_transformers_says_for_each_family(
    family: str, checkpoint: Find
) -> None:
    folder = checkpoint(family)
    engine = engine_of(folder, max_step_tokens=16)  # longer prompts go in chunks
    asked = prompts(5, 40, 61, 1, 16, 17)
    others = [(prompt, GREEDY) for prompt in prompts(9, 30)]
    answers = finish(engine, [*others, *((prompt, REPORTED) for prompt in asked)])[len(others) :]
    for prompt, sequence in zip(asked, answers, strict=True):
        assert_reported(sequence, log_softmax(folder, prompt), 2)
        assert answer(sequence) == tiny.reference(folder, prompt, 3)


def test_a_known_prefix_is_computed_again_for_its_log_probabilities(checkpoint: Find) -> None:
    folder = checkpoint()
    engine = engine_of(folder)
    base = prompts(50)[0]
    finish(engine, [(base, GREEDY)])
    again, plain = finish(engine, [(base, REPORTED), (base, GREEDY)])
    assert (again.cached_tokens, plain.cached_tokens) == (0, 48)
    assert_reported(again, log_softmax(folder, base), 2)
    assert answer(again) == answer(plain)[:3]


def test_who_is_put_back_within_a_prompt_or_after_it_reports_it_once(checkpoint: Find) -> None:
    folder = checkpoint()
    engine = engine_of(folder, blocks=30, context_tokens=100, max_step_tokens=12)
    wish = Sampling(temperature=0.0, max_tokens=25, ignore_eos=True, echo=True, logprobs=2)
    asked = prompts(30, 25, 28, 20)
    sequences = [engine.add(prompt, wish)[0] for prompt in asked]
    put_back: set[int] = set()
    while engine.busy:
        engine.step()
        halfway = [s for s in engine.scheduler.running if s.reports_prompt and s.prompt_report]
        if halfway and len(put_back) < 2:  # as if somebody else's growth had needed its room
            engine.scheduler._preempt(halfway[-1])
            put_back.add(halfway[-1].id)
        engine.cache.check()
    assert put_back
    assert engine.gauges()["preemptions_total"] > len(put_back)
    for prompt, sequence in zip(asked, sequences, strict=True):
        assert_reported(sequence, log_softmax(folder, prompt), 2)
        assert answer(sequence) == tiny.reference(folder, prompt, 25)


def test_a_prompt_alone_may_fill_the_context_and_has_no_answer(checkpoint: Find) -> None:
    folder = checkpoint()
    engine = engine_of(folder, context_tokens=64)
    alone = Sampling(temperature=0.0, max_tokens=0, echo=True, logprobs=0, n=2)
    prompt = prompts(64)[0]
    first, second = engine.add(prompt, alone)
    events = []
    while engine.busy:
        events += engine.step()
    assert [(e.sequence, e.sampled, e.finish_reason) for e in events] == [
        (first, None, "length"),
        (second, None, "length"),
    ]
    assert_reported(first, log_softmax(folder, prompt), 0)
    assert (second.prompt_report, second.cached_tokens) == ([], 60)
    assert (first.generated_tokens, engine.gauges()["generation_tokens_total"]) == (0, 0)
    assert engine.cache.used_blocks == 0
    with pytest.raises(InvalidRequest, match="65 tokens"):
        engine.add([*prompt, 1], alone)


def test_streams_that_join_and_leave_do_not_change_each_others_tokens(checkpoint: Find) -> None:
    folder = checkpoint()
    engine = engine_of(folder, max_running=6)
    asked = prompts(*range(3, 63, 4))
    running = []
    for number, prompt in enumerate(asked):
        running += engine.add(prompt, GREEDY)
        engine.step()
        if number % 4 == 3:
            engine.remove(running[number - 1])
    finish(engine)
    for number, sequence in enumerate(running):
        expected = tiny.reference(folder, asked[number], NEW)
        got = answer(sequence)
        assert got == expected[: len(got)]
        assert len(got) == NEW or number % 4 == 2
    assert engine.cache.used_blocks == 0


def test_a_prefix_that_is_known_gives_the_same_tokens(checkpoint: Find) -> None:
    folder = checkpoint()
    engine = engine_of(folder)
    base = prompts(50)[0]
    finish(engine, [(base, GREEDY)])
    asked = [[*base[:40], 1, 2, 3], base, base[:33]]
    sequences = finish(engine, [(prompt, GREEDY) for prompt in asked])
    assert [sequence.cached_tokens for sequence in sequences] == [40, 48, 32]
    for prompt, sequence in zip(asked, sequences, strict=True):
        assert answer(sequence) == tiny.reference(folder, prompt, NEW)
    # Blocks of another sequence and own ones: not all in one piece.
    assert engine.gauges()["prefix_cache_hits_total"] == 120


def test_a_sequence_that_was_put_back_goes_on_as_if_nothing_had_been(checkpoint: Find) -> None:
    folder = checkpoint()
    engine = engine_of(folder, blocks=30, context_tokens=100)
    asked = prompts(30, 25, 28, 20)
    sequences = finish(engine, [(prompt, GREEDY) for prompt in asked])
    assert engine.gauges()["preemptions_total"] > 0
    for prompt, sequence in zip(asked, sequences, strict=True):
        assert answer(sequence) == tiny.reference(folder, prompt, NEW)


def test_scattered_blocks_give_the_same_tokens(checkpoint: Find) -> None:
    folder = checkpoint()
    engine = engine_of(folder, blocks=40, block_size=2, context_tokens=70)
    holders = [engine.add(prompt, GREEDY)[0] for prompt in prompts(9, 8, 7, 6, 5)]
    for _ in range(3):
        engine.step()
    for holder in holders[::2]:
        engine.remove(holder)
    asked = prompts(20)[0]
    sequence = engine.add(asked, GREEDY)[0]
    pieces = 0
    while engine.busy:
        engine.step()
        pieces = max(pieces, len(sequence.table.extents))
    assert pieces > 1
    assert answer(sequence) == tiny.reference(folder, asked, NEW)


def test_the_same_seed_gives_the_same_tokens_in_any_company(checkpoint: Find) -> None:
    engine = engine_of(checkpoint(), blocks=60, context_tokens=100)
    mine = Sampling(seed=7, max_tokens=20, ignore_eos=True, top_p=0.95)
    prompt, *others = prompts(12, 30, 25, 20)
    alone = answer(finish(engine, [(prompt, mine)])[0])
    company = [(other, Sampling(max_tokens=25, ignore_eos=True)) for other in others]
    for place in range(4):
        together = finish(engine, [*company[:place], (prompt, mine), *company[place:]])
        assert answer(together[place]) == alone
    unseeded = Sampling(max_tokens=20, ignore_eos=True)
    one, other = finish(engine, [(prompt, unseeded), (prompt, unseeded)])
    assert answer(one) != answer(other)


def test_n_answers_differ_and_compute_their_prompt_once(checkpoint: Find) -> None:
    engine = engine_of(checkpoint())
    prompt = prompts(41)[0]
    wish = Sampling(seed=1, n=4, max_tokens=12, ignore_eos=True)
    first = finish(engine, [(prompt, wish)])
    assert len({tuple(answer(sequence)) for sequence in first}) == 4
    assert [sequence.cached_tokens for sequence in first] == [0, 40, 40, 40]
    again = finish(engine, [(prompt, wish)])
    assert [answer(s) for s in again] == [answer(s) for s in first]


def test_followers_start_even_if_the_first_answer_leaves(checkpoint: Find) -> None:
    engine = engine_of(checkpoint())
    first, second, third = engine.add(prompts(9)[0], Sampling(n=3, max_tokens=3, ignore_eos=True))
    engine.remove(second)
    engine.remove(first)
    finish(engine)
    assert [s.generated_tokens for s in (first, second, third)] == [0, 0, 3]
    assert engine.cache.used_blocks == 0


def test_an_answer_ends_at_an_end_token_at_its_length_or_where_the_context_does(
    checkpoint: Find,
) -> None:
    folder = checkpoint()
    engine = engine_of(folder, context_tokens=64)
    prompt = prompts(20)[0]
    expected = tiny.reference(folder, prompt, NEW)
    stop = expected[6]

    def last(sampling: Sampling) -> tuple[str, int]:
        sequence = engine.add(prompt, sampling)[0]
        while True:
            for event in engine.step():
                if event.finish_reason:
                    return event.finish_reason, sequence.generated_tokens

    place = expected.index(stop) + 1
    assert last(Sampling(temperature=0.0, stop_token_ids=(stop,))) == ("stop", place)
    assert last(Sampling(temperature=0.0, max_tokens=4, ignore_eos=True)) == ("length", 4)
    assert last(Sampling(temperature=0.0, ignore_eos=True)) == ("length", 44)
    assert engine.cache.used_blocks == 0


def test_prompts_that_cannot_be_used_are_refused(checkpoint: Find) -> None:
    engine = engine_of(checkpoint(), context_tokens=64)
    for prompt, problem in (
        ([], "the prompt is empty"),
        ([1] * 64, "64 tokens, which leaves none for an answer"),
        ([1] * 100_000, "100000 tokens"),
        ([1, tiny.VOCABULARY], "between 0 and 299"),
        ([-1], "between 0 and 299"),
    ):
        with pytest.raises(InvalidRequest, match=problem):
            engine.add(prompt, GREEDY)
    assert not engine.busy


def test_nothing_of_a_request_remains_when_it_is_done(checkpoint: Find) -> None:
    import gc
    import weakref

    class Watched:
        def mask(self, allowed: Any) -> None: ...
        def accept(self, token: int) -> None: ...

    engine = engine_of(checkpoint())
    watched = Watched()
    gone = weakref.ref(watched)
    engine.add(prompts(10)[0], GREEDY, constraints=[watched])
    del watched
    finish(engine)
    gc.collect()
    assert gone() is None
