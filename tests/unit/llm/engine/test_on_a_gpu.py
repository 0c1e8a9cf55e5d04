"""The ways of a GPU, on one if there is one: recordings, prefixes, preemption, int8, adapters.

    python -m pytest -m gpu tests

Everywhere else the same tests run on the CPU, with recordings of calls: they hold the tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.llm.engine import tiny
from tests.unit.llm.engine.test_lora import adapter, merged
from tests.unit.llm.engine.test_paged_attention import Recorder, in_place
from wherry.llm.engine.engine import Engine
from wherry.llm.engine.loading import load_engine
from wherry.llm.engine.model import Shape
from wherry.llm.engine.runner import ModelRunner, Recorded, cache_bytes_per_token
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.sequence import Sequence

Find = Callable[..., Path]
GREEDY = Sampling(temperature=0.0, max_tokens=20, ignore_eos=True)
pytestmark = pytest.mark.slow


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


def loaded(
    folder: Path, device: str, *, blocks: int = 200, recorded: bool = True, **options: Any
) -> tuple[Engine, ModelRunner]:
    """An engine in float32 that attends in padded batches, and its runner."""
    from transformers import AutoConfig

    made: list[ModelRunner] = []

    def runner(*given: Any, **settings: Any) -> ModelRunner:
        replays = Recorded(Recorder(), in_place) if recorded and device == "cpu" else None
        made.append(ModelRunner(*given, **settings, paged=True, recorded=replays))
        if not recorded:
            made[0].graphs = None
        return made[0]

    per_token = cache_bytes_per_token(Shape.of(AutoConfig.from_pretrained(folder)), torch.float32)
    engine, _ = load_engine(
        str(folder), "m", device, dtype="float32", block_size=4, max_running=4,
        cache_gb=blocks * 4 * per_token / 1e9, make_runner=runner, **options,
    )  # fmt: skip
    return engine, made[0]


def said(engine: Engine, prompts: list[list[int]], **how: Any) -> list[list[int]]:
    sequences = [engine.add(prompt, GREEDY, **how)[0] for prompt in prompts]
    while engine.busy:
        engine.step()
        engine.cache.check()
    return [sequence.tokens[sequence.prompt_tokens :] for sequence in sequences]


def some_prompts(*lengths: int) -> list[list[int]]:
    return [[(11 * place + n) % 250 for place in range(size)] for n, size in enumerate(lengths)]


def test_decode_steps_are_recordings(device: str, checkpoint: Find) -> None:
    folder = checkpoint("llama")
    engine, runner = loaded(folder, device)
    asked = some_prompts(5, 40, 61)
    assert said(engine, asked) == [tiny.reference(folder, prompt, 20) for prompt in asked]
    assert runner.graphs is not None
    assert not runner.graphs.failed


@pytest.mark.parametrize("family", ["mistral", "qwen3"])
def test_known_prefixes_and_preemptions_change_nothing(
    family: str, device: str, checkpoint: Find
) -> None:
    folder = checkpoint(family)
    engine, _ = loaded(folder, device, blocks=30, context_tokens=100, max_step_tokens=12)
    asked = some_prompts(30, 25, 28, 20)
    asked += [[*asked[0][:16], 1, 2, 3], asked[0]]
    assert said(engine, asked) == [tiny.reference(folder, prompt, 20) for prompt in asked]
    gauges = engine.gauges()
    assert gauges["preemptions_total"] > 0
    assert gauges["prefix_cache_hits_total"] > 0


def test_8_bit_weights_are_recorded_as_they_are_called(device: str, checkpoint: Find) -> None:
    folder, asked = checkpoint("qwen3"), some_prompts(5, 40)
    engine, runner = loaded(folder, device, quantization="int8")
    called, _ = loaded(folder, device, quantization="int8", recorded=False)
    assert said(engine, asked) == said(called, asked)
    assert device == "cpu" or (runner.graphs is not None and not runner.graphs.failed)


def test_adapters_share_steps_and_recordings_do_not_forget_them(
    device: str, checkpoint: Find, tmp_path: Path
) -> None:
    base = checkpoint("qwen3")
    folder = adapter(tmp_path / "first", base, seed=1)
    engine, _ = loaded(base, device, adapted=True)
    assert engine.adapters is not None
    key = engine.adapters.attach(engine.adapters.read(folder), ())
    (prompt,) = some_prompts(30)
    plain = tiny.reference(base, prompt, 20)
    adapted = tiny.reference(merged(base, folder, tmp_path / "merged"), prompt, 20)
    for keys in (["", key], [key], [""], [key, "", "", key]):
        sequences = [engine.add(prompt, GREEDY, adapter=one)[0] for one in keys]
        while engine.busy:
            engine.step()
        answers = [sequence.tokens[sequence.prompt_tokens :] for sequence in sequences]
        assert answers == [adapted if one else plain for one in keys]


class Even:
    """A constraint that allows even tokens; it may raise at a token."""

    def __init__(self, raises_at: int | None) -> None:
        self.left = raises_at

    def mask(self, allowed: Any) -> None:
        if self.left == 0:
            raise RuntimeError("broken in mask")
        allowed &= 0x55

    def accept(self, token: int) -> None:
        assert token % 2 == 0
        if self.left:
            self.left -= 1


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("recorded", [True, False])
def test_sixty_four_of_every_kind_do_not_change_each_other(
    recorded: bool, device: str, checkpoint: Find, tmp_path: Path
) -> None:
    """Adapters, constraints that raise, log probabilities, seeds, preemption; storms of leavers."""
    base = checkpoint("qwen3")
    engine, _ = loaded(base, device, blocks=60, adapted=True, context_tokens=120, recorded=recorded)
    engine.scheduler.max_running = 64
    engine.scheduler.prompt_share = 1.0  # else how many run at once depends on the machine's pace
    assert engine.adapters is not None
    folder = adapter(tmp_path / "first", base, seed=1)
    key = engine.adapters.attach(engine.adapters.read(folder), ())
    system = [place % 250 for place in range(32)]

    def add(number: int) -> Sequence:
        dice = random.Random(number)
        wishes: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9} if number % 2 else {}
        wishes |= {"logprobs": 3} if number % 3 == 0 else {}
        wishes |= {"presence_penalty": 0.5, "logit_bias": {8: 2.0}} if number % 5 == 0 else {}
        kinds = {1: [Even(None)], 3: [Even(4)]}
        (made,) = engine.add(
            [*system, *(dice.randrange(250) for _ in range(dice.randrange(1, 50)))],
            Sampling(**{"temperature": 0.0, "seed": number, **wishes}, max_tokens=16),
            constraints=kinds.get(number % 7, []),
            adapter=key if number % 4 == 1 else "",
        )
        return made

    failed: set[Sequence] = set()

    def step() -> None:
        for event in engine.step():
            if event.error is not None:
                assert "broken in mask" in str(event.error)
                failed.add(event.sequence)
        engine.cache.check()

    def finish() -> None:
        while engine.busy:
            step()

    alone = []
    for number in range(64):
        alone.append(add(number))
        finish()
    fails = {number for number, sequence in enumerate(alone) if sequence in failed}
    assert 0 < len(fails) < 64
    for storm in range(3):
        sequences = [add(number) for number in range(64)]
        leaving = random.Random(storm).sample(range(64), 32 if storm else 0)
        for place, number in enumerate(leaving):
            if place % 4 == 0:
                step()
            engine.remove(sequences[number])
        finish()
        for number, (sequence, expected) in enumerate(zip(sequences, alone, strict=True)):
            if number in leaving:
                assert sequence.tokens == expected.tokens[: len(sequence.tokens)]
            else:
                assert sequence.tokens == expected.tokens
                assert (sequence in failed) is (number in fails)
        assert engine.cache.used_blocks == 0
    assert engine.gauges()["preemptions_total"] > 0
