"""Does a generation that fails, or whose caller leaves, end alone and leave nothing behind?"""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import wherry
from wherry.core.models.step_model import Step
from wherry.llm import LLM
from wherry.llm.engine.engine import Engine, Event
from wherry.llm.engine.kv_cache import KVCache
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.scheduler import Chunk
from wherry.llm.engine.sequence import Sequence

VOCABULARY = 50


class BrokenForm:
    """A constraint that raises at its `at`-th token, when it masks or when it accepts."""

    def __init__(self, step: str, at: int) -> None:
        self.step, self.left = step, at

    def mask(self, allowed: Any) -> None:
        self._raise_if("mask")

    def accept(self, token: int) -> None:
        self._raise_if("accept")
        self.left -= 1

    def _raise_if(self, step: str) -> None:
        if step == self.step and self.left <= 0:
            raise RuntimeError(f"broken in {step}")


def stub_engine(*, blocks: int = 200, block_size: int = 4, **options: Any) -> Engine:
    """An engine whose next token is a function of the last one and its place."""

    def run(chunks: Any) -> torch.Tensor:
        rows = []
        for chunk in chunks:
            for place in range(chunk.start + chunk.count - chunk.logits, chunk.start + chunk.count):
                row = torch.zeros(VOCABULARY)
                row[(chunk.sequence.tokens[place] * 7 + place) % (VOCABULARY - 1) + 1] = 5.0
                rows.append(row)
        return torch.stack(rows) if rows else torch.zeros(0, VOCABULARY)

    return Engine(
        run,
        KVCache(blocks, block_size),
        name="stub",
        vocabulary=VOCABULARY,
        context_tokens=blocks * block_size,
        **options,
    )


def greedy(tokens: int, **fields: Any) -> Sampling:
    return Sampling(temperature=0.0, max_tokens=tokens, ignore_eos=True, **fields)


def finish(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while engine.busy:
        events += engine.step()
        engine.cache.check()
    return events


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong", ["nan", "inf", "-inf"])
def test_logits_that_are_no_numbers_end_their_own_generation_alone(
    wrong: str, temperature: float
) -> None:
    def wish() -> Sampling:
        return Sampling(temperature=temperature, seed=3, max_tokens=12, ignore_eos=True)

    alone, engine = stub_engine(), stub_engine()
    prompts = [[1 + n, 2, 3] for n in range(6)]
    expected = [alone.add(prompt, wish())[0] for prompt in prompts]
    finish(alone)
    sequences = [engine.add(prompt, wish())[0] for prompt in prompts]
    run = engine._run

    def poisoned(chunks: Any) -> torch.Tensor:
        logits = run(chunks)
        for row, chunk in enumerate(chunks):
            if chunk.sequence is sequences[2] and chunk.start >= 5:
                logits[row] = float(wrong)
        return logits

    engine._run = poisoned
    failed = [event for event in finish(engine) if event.error is not None]
    assert [event.sequence for event in failed] == [sequences[2]]
    assert "not numbers" in str(failed[0].error)
    for number, (one, other) in enumerate(zip(sequences, expected, strict=True)):
        assert one.tokens == other.tokens[: len(one.tokens)]
        assert (one.tokens == other.tokens) is (number != 2)
    assert engine.cache.used_blocks == 0


@pytest.mark.parametrize("step", ["mask", "accept"])
@pytest.mark.parametrize("at", [0, 3])
def test_a_constraint_that_raises_ends_its_own_generation_alone(step: str, at: int) -> None:
    alone = stub_engine()
    prompts = [[1 + n, 2, 3] for n in range(6)]
    expected = []
    for prompt in prompts:
        (sequence,) = alone.add(prompt, greedy(12))
        finish(alone)
        expected.append(sequence.tokens)
    engine = stub_engine()
    sequences: list[Sequence] = []
    for number, prompt in enumerate(prompts):
        constraints = [BrokenForm(step, at)] if number == 2 else []
        sequences += engine.add(prompt, greedy(12), constraints=constraints)
    events = finish(engine)
    failed = [event for event in events if event.error is not None]
    assert [event.sequence for event in failed] == [sequences[2]]
    assert str(failed[0].error) == f"broken in {step}"
    for number in (0, 1, 3, 4, 5):
        assert sequences[number].tokens == expected[number]
    assert engine.cache.used_blocks == 0


def test_the_further_answers_of_one_that_failed_go_on() -> None:
    engine = stub_engine()
    forms = [BrokenForm("mask", 0), BrokenForm("mask", 99), BrokenForm("mask", 99)]
    first, *others = engine.add([1, 2, 3], greedy(5, n=3), constraints=forms)
    events = finish(engine)
    assert [event.sequence for event in events if event.error] == [first]
    assert [one.generated_tokens for one in others] == [5, 5]
    assert engine.cache.used_blocks == 0


@pytest.fixture
def model(checkpoint: Callable[..., Path]) -> Iterator[LLM]:
    model = LLM(checkpoint(), name="tiny", cache_gb=0.01, threads=1, max_step_tokens=16)
    model.load(wherry.Device("cpu"))
    yield model
    model.unload()


def step_until_done(model: LLM, active: list[Any]) -> list[list[Step[Any]]]:
    """All steps of each request."""
    told: list[list[Step[Any]]] = [[] for _ in active]
    while left := [n for n, steps in enumerate(told) if not (steps and ended(steps[-1]))]:
        for number, step in zip(left, model.step([active[n] for n in left]), strict=True):
            told[number].append(step)
    return told


def ended(step: Step[Any]) -> bool:
    return step.done or step.error is not None


@pytest.mark.parametrize("part", ["text", "stops"])
def test_a_text_that_cannot_be_made_ends_its_own_request_alone(
    part: str, model: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = [
        model.start(token_ids=[65 + n] * 9, parameters=greedy(6), stream=bool(n % 2))
        for n in range(4)
    ]

    def broken(text: Any, **_: bool) -> str:
        raise ValueError("no such token")

    class Broken:
        push = flush = staticmethod(broken)
        found = None

    assert active[1].answers is not None
    setattr(active[1].answers[0], part, Broken())
    told = step_until_done(model, active)
    assert [str(steps[-1].error or "") for steps in told] == ["", "no such token", "", ""]
    assert model.engine.cache.used_blocks == 0
    assert not model._requests


def test_a_caller_that_leaves_within_its_prompt_frees_its_blocks_at_once(model: LLM) -> None:
    cache = model.engine.cache
    stays = model.start(token_ids=[66] * 5, parameters=greedy(30))
    model.step([stays])
    before = cache.used_blocks
    leaves = model.start(token_ids=[67] * 200, parameters=greedy(30, n=3))
    model.step([stays, leaves])
    assert leaves.answers is not None
    assert 0 < leaves.answers[0].sequence.computed < 200
    assert cache.used_blocks > before + 10
    model.stop(leaves)
    assert cache.used_blocks <= before + 1
    (steps,) = step_until_done(model, [stays])
    assert sum(len(delta.token_ids) for step in steps for delta in step.responses) == 28
    assert cache.used_blocks == 0
    assert not model._requests


@pytest.mark.slow
def test_thousands_of_requests_leave_no_block_no_sequence_and_no_memory() -> None:
    engine = stub_engine(blocks=60)

    def ask(first: int, count: int) -> None:
        for number in range(first, first + count):
            prompt = [number % 47 + 1, number % 43 + 1, 3] * (1 + number % 5)
            held = engine.add(prompt, Sampling(max_tokens=3, n=1 + number % 2, seed=number))
            engine.step()
            if number % 7 == 0:
                for sequence in held:
                    engine.remove(sequence)
        finish(engine)
        gc.collect()

    def sequences() -> int:
        return sum(isinstance(thing, (Sequence, Chunk)) for thing in gc.get_objects())

    tracemalloc.start()
    try:
        ask(0, 200)
        there, before = sequences(), tracemalloc.get_traced_memory()[0]
        ask(200, 1000)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert sequences() == there
    assert (engine.cache.used_blocks, engine._followers) == (0, {})
    assert grown < 60_000  # 60 bytes a request: a sequence has a thousand
