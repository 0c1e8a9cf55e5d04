"""Are sixty-four chats at once, and long prompts beside them, answered as if each were alone?"""

from pathlib import Path

import pytest
import torch

from tests.unit.llm import tiny
from tests.unit.llm.test_engine import answer, engine_of
from wherry.llm.engine import Engine
from wherry.llm.sampling import Sampling
from wherry.llm.sequence import Sequence

NEW = 24
GREEDY = Sampling(temperature=0.0, max_tokens=NEW, ignore_eos=True)
LONG = 8192


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with room for 8,192 tokens."""
    torch.manual_seed(3)
    name, fields = tiny.FAMILIES["llama"]
    sizes = {**tiny.SIZES, **fields, "max_position_embeddings": LONG + 256}
    made = tmp_path_factory.mktemp("long") / "tiny-long"
    tiny.network((name, sizes)).eval().save_pretrained(made)
    tiny.tokenizer().save_pretrained(made)
    return made


def tokens(count: int, seed: int) -> list[int]:
    dice = torch.Generator().manual_seed(seed)
    return [int(token) for token in torch.randint(0, 250, (count,), generator=dice)]


def chats() -> list[list[int]]:
    """Behind three system prompts, each with a question of its own."""
    return [tokens(100, n % 3) + tokens(3 + n % 37, 10 + n) for n in range(64)]


def together(engine: Engine, prompts: list[list[int]]) -> tuple[list[Sequence], int]:
    """Eight newcomers before each step; the most that ran at a time."""
    sequences: list[Sequence] = []
    most = 0
    while len(sequences) < len(prompts) or engine.busy:
        for prompt in prompts[len(sequences) : len(sequences) + 8]:
            sequences += engine.add(prompt, GREEDY)
        engine.step()
        engine.cache.check()
        most = max(most, len(engine.scheduler.running))
    return sequences, most


@pytest.mark.full
def test_each_of_sixty_four_chats_has_its_own_tokens_also_when_blocks_run_out(folder: Path) -> None:
    prompts = chats()
    alone = engine_of(folder, blocks=100, block_size=16)
    expected = [answer(together(alone, [prompt])[0][0]) for prompt in prompts]
    for number in (0, 63):
        assert expected[number] == tiny.reference(folder, prompts[number], NEW)

    roomy = engine_of(folder, blocks=1000, block_size=16)
    sequences, most = together(roomy, prompts)
    assert [answer(one) for one in sequences] == expected
    gauges = roomy.gauges()
    assert (most, gauges["preemptions_total"]) == (64, 0)
    # All but those that came before the first blocks of their system prompt were there.
    assert gauges["prefix_cache_hits_total"] > 50 * 96

    long = tokens(LONG, 9)
    tight = engine_of(folder, blocks=590, block_size=16)
    sequences, most = together(tight, [*prompts[:10], long, *prompts[10:]])
    assert answer(sequences.pop(10)) == tiny.reference(folder, long, NEW)
    assert [answer(one) for one in sequences] == expected
    assert tight.gauges()["preemptions_total"] > 0
    assert most > 16
    assert tight.cache.used_blocks == 0
