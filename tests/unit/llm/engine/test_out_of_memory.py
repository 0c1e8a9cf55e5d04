"""A step that finds no memory ends no stream: the next has less in it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Any

import pytest
import torch
from torch import Tensor

from wherry.core.values.errors import ConfigError, ModelFailed
from wherry.llm.engine.engine import Engine, Event
from wherry.llm.engine.kv_cache import KVCache
from wherry.llm.engine.loading import load_engine
from wherry.llm.engine.sampler import choose
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.scheduler import MOST_FAILURES, STEPS_OF_CAUTION, Chunk
from wherry.llm.engine.sequence import Sequence

VOCABULARY = 50
TEXT = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.2 GiB\nmore"
)
WISH = Sampling(temperature=0.0, max_tokens=12, ignore_eos=True)


class Device:
    """Computes the next token from all before it, for which there may be no memory."""

    def __init__(self, fits: Callable[[Many[Chunk]], bool], error: Exception | None = None) -> None:
        self.fits = fits
        self.error = error or torch.OutOfMemoryError(TEXT)
        self.failed = self.computed = 0

    def run(self, chunks: Many[Chunk]) -> Tensor:
        if not self.fits(chunks):
            self.failed += 1
            raise self.error
        self.computed += 1
        return logits_after([c.sequence.tokens[: c.start + c.count] for c in chunks if c.logits])


def logits_after(texts: Many[Many[int]]) -> Tensor:
    rows = [[(sum(text) * 7 + len(text)) % VOCABULARY] for text in texts]
    made = torch.zeros(len(rows), VOCABULARY)
    return made.scatter_(1, torch.tensor(rows, dtype=torch.long).view(-1, 1), 1.0)


class States:
    """Keeps a state of each sequence, which counts the tokens it has seen, as a cache does."""

    def __init__(self, most: int) -> None:
        self.most, self.failed = most, 0

    def run(self, chunks: Many[Chunk]) -> Tensor:
        texts = []
        for place, chunk in enumerate(chunks):
            if place >= self.most:
                self.failed += 1
                raise torch.OutOfMemoryError(TEXT)
            seen = [] if chunk.sequence.table.held is None else chunk.sequence.table.held
            begin = chunk.start if seen else 0
            seen += chunk.sequence.tokens[begin : chunk.start + chunk.count]  # in place
            chunk.sequence.table.held = seen
            assert seen == chunk.sequence.tokens[: chunk.start + chunk.count]
            texts += [seen] if chunk.logits else []
        return logits_after(texts)


def engine(run: Callable[[Many[Chunk]], Tensor], **options: Any) -> Engine:
    cache = KVCache(400, 4, shares_prefixes=not options.pop("stateful", False))
    sizes = {"max_running": 16, "max_step_tokens": 64, "prompt_share": 1.0, **options}
    return Engine(run, cache, name="chat", vocabulary=VOCABULARY, context_tokens=400, **sizes)


def expected(prompt: list[int]) -> list[int]:
    text = [*prompt]
    for _ in range(12):
        text.append(int(logits_after([text]).argmax()))
    return text


def finish(made: Engine, sequences: Many[Sequence]) -> list[Event]:
    failed = []
    for _ in range(3000):
        failed += [event for event in made.step() if event.error is not None]
        made.cache.check()
        if not made.busy:
            break
    assert not made.busy
    assert made.cache.used_blocks == 0
    return failed


def tokens(chunks: Many[Chunk]) -> int:
    return sum(chunk.count for chunk in chunks)


PROMPTS = [[(place * 3 + number) % VOCABULARY for place in range(20)] for number in range(16)]


@pytest.mark.parametrize("most", [40, 16, 9, 1])
def test_every_stream_goes_on_with_as_many_tokens_as_there_is_memory_for(most: int) -> None:
    device = Device(lambda chunks: tokens(chunks) <= most)
    made = engine(device.run)
    sequences = [made.add(prompt, WISH)[0] for prompt in PROMPTS]
    assert finish(made, sequences) == []
    assert [s.tokens for s in sequences] == [expected(prompt) for prompt in PROMPTS]
    assert 0 < device.failed < 10 + device.computed / 20


def test_the_newest_streams_wait_when_tokens_of_answers_alone_are_too_many() -> None:
    device = Device(lambda chunks: True)
    made = engine(device.run)
    sequences = [made.add(prompt, WISH)[0] for prompt in PROMPTS]
    while any(s.to_compute > 1 for s in sequences):
        made.step()
    device.fits = lambda chunks: tokens(chunks) <= 8
    made.step()
    made.step()
    assert made.scheduler.running == sequences[:8]
    assert made.gauges()["preemptions_total"] == 8
    assert finish(made, sequences) == []
    assert [s.tokens for s in sequences] == [expected(prompt) for prompt in PROMPTS]


def test_when_there_is_memory_again_steps_are_as_large_as_before() -> None:
    device = Device(lambda chunks: tokens(chunks) <= 16)
    made = engine(device.run)
    made.add(PROMPTS[0], WISH)
    made.step()
    device.fits = lambda chunks: True
    sizes: list[int] = []
    while made.busy or len(sizes) < 3 * STEPS_OF_CAUTION:
        if not made.busy:
            made.add([len(sizes) % VOCABULARY] * 90, WISH)
        made.step()
        sizes.append(made.scheduler._token_limit)
    assert sizes[0] < sizes[-1] == 64


@pytest.mark.parametrize("most", [8, 3, 1])
def test_states_of_a_failed_step_are_computed_again(most: int) -> None:
    """Some of them have seen its tokens already."""
    device = States(most)
    made = engine(device.run, stateful=True)
    sequences = [made.add(prompt, WISH)[0] for prompt in PROMPTS[:9]]
    assert finish(made, sequences) == []
    assert [s.tokens for s in sequences] == [expected(prompt) for prompt in PROMPTS[:9]]
    assert device.failed


def test_one_that_fits_nowhere_ends_alone_with_an_error_that_says_what_to_do() -> None:
    def fits(chunks: Many[Chunk]) -> bool:
        return all(chunk.start + chunk.count < 100 for chunk in chunks)

    device = Device(fits)
    made = engine(device.run)
    sequences = [made.add(prompt, WISH)[0] for prompt in PROMPTS[:4]]
    (long,) = made.add([1] * 150, WISH)
    (failed,) = finish(made, sequences)
    assert failed.sequence is long
    assert isinstance(failed.error, ModelFailed)
    said = str(failed.error)
    for part in ("'chat'", "150 tokens", "79.2 GiB", "cache_gb", "free memory"):
        assert part in said
    assert "more" not in said.replace("more free memory", "")
    assert [s.tokens for s in sequences] == [expected(prompt) for prompt in PROMPTS[:4]]


def test_a_prompt_that_is_computed_as_a_whole_is_not_tried_for_ever() -> None:
    """Smaller pieces do not help where the last computes them all."""

    def fits(chunks: Many[Chunk]) -> bool:
        return not any(c.sequence.prompt_tokens == 300 and c.is_last for c in chunks)

    device = Device(fits)
    made = engine(device.run)
    (long,) = made.add([1] * 300, WISH)
    (failed,) = finish(made, [long])
    assert failed.sequence is long
    assert device.failed <= MOST_FAILURES


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory"
        ),
        MemoryError(),
    ],
)
def test_memory_is_missing_in_other_words(error: Exception) -> None:
    device = Device(lambda chunks: tokens(chunks) <= 8, error)
    made = engine(device.run)
    sequences = [made.add(prompt, WISH)[0] for prompt in PROMPTS[:3]]
    assert finish(made, sequences) == []
    assert [s.tokens for s in sequences] == [expected(prompt) for prompt in PROMPTS[:3]]


def test_what_else_fails_is_raised() -> None:
    device = Device(lambda chunks: False, RuntimeError("CUDA error: device-side assert triggered"))
    made = engine(device.run)
    made.add(PROMPTS[0], WISH)
    with pytest.raises(RuntimeError, match="device-side assert"):
        made.step()


def test_memory_that_is_missing_for_the_choice_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(lambda chunks: True)
    monkeypatch.setattr("wherry.llm.engine.engine.choose", _few)
    made = engine(device.run)
    sequences = [made.add(prompt, WISH)[0] for prompt in PROMPTS[:9]]
    assert finish(made, sequences) == []
    assert [s.tokens for s in sequences] == [expected(prompt) for prompt in PROMPTS[:9]]


def _few(logits: Tensor, sequences: Many[Sequence]) -> Any:
    if len(sequences) > 4:
        raise torch.OutOfMemoryError(TEXT)
    return choose(logits, sequences)


def test_cudnn_plans_no_attention_on_a_gpu(tmp_path: Any) -> None:
    """It would for each shape anew, for half a second."""
    is_enabled: Callable[[], bool] = torch.backends.cuda.cudnn_sdp_enabled
    enabled = is_enabled()
    try:
        for device, expected in (("cpu", True), ("cuda:1", False)):
            torch.backends.cuda.enable_cudnn_sdp(True)
            with pytest.raises(ConfigError):
                load_engine(str(tmp_path / "none"), "m", device)
            assert is_enabled() is expected
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)
