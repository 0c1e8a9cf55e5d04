"""Prompts attend packed, without padding, where torch has attention for that: on a GPU.

torch's has no CPU form. Here stands what it is by its documentation, called as it is called.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import varlen as of_torch

from tests.unit.llm.engine import tiny
from tests.unit.llm.engine.test_engine import (
    GREEDY,
    NEW,
    REPORTED,
    answer,
    assert_reported,
    engine_of,
    log_softmax,
    prompts,
)
from tests.unit.llm.engine.test_paged_attention import META, Calls, Recorder, in_place
from wherry.llm.engine.attention import varlen
from wherry.llm.engine.kv_cache import KVCache
from wherry.llm.engine.linear import PlainLinear
from wherry.llm.engine.model import Decoder
from wherry.llm.engine.runner import ModelRunner, Recorded, _or_none
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.scheduler import TokenScheduler
from wherry.llm.engine.sequence import Sequence

Find = Callable[..., Path]
SIGNATURE = inspect.signature(of_torch.varlen_attn)


class Reference:
    """varlen_attn of torch on a CPU. `shift` moves the diagonal, as another version might."""

    def __init__(self, shift: int = 0) -> None:
        self.calls, self.shift = 0, shift

    def __call__(self, *given: Any, **options: Any) -> Tensor:
        self.calls += 1
        asked = SIGNATURE.bind(*given, **options).arguments
        q, k, v = asked["query"], asked["key"], asked["value"]
        ends, contexts = asked["cu_seq_q"], asked["cu_seq_k"]
        assert ends.dtype == contexts.dtype == torch.int32
        assert (len(q), len(k)) == (ends[-1], contexts[-1])
        assert asked["max_q"] == ends.diff().max()
        assert asked["max_k"] == contexts.diff().max()
        left, right = asked["window_size"]
        assert right == 0
        out = []
        for place in range(len(ends) - 1):
            rows = q[ends[place] : ends[place + 1]]
            keys, values = (t[contexts[place] : contexts[place + 1]] for t in (k, v))
            seen = torch.ones(len(rows), len(keys), dtype=torch.bool)
            last = len(keys) - len(rows) + self.shift  # the last row sees all
            seen = seen.tril(last) if left < 0 else seen.tril(last).triu(last - left)
            rows, keys, values = (t.transpose(0, 1)[None] for t in (rows, keys, values))
            attended = F.scaled_dot_product_attention(
                rows, keys, values, attn_mask=seen, enable_gqa=asked["enable_gqa"]
            )
            out.append(attended[0].transpose(0, 1))
        return torch.cat(out)


class Made:
    """Makes runners whose prompts attend packed."""

    def __init__(self, *, recorded: bool) -> None:
        self.attend = Reference()
        self.recorded = Recorded(Recorder(), in_place) if recorded else None

    def __call__(self, *given: Any, **options: Any) -> ModelRunner:
        recorded, attend = self.recorded, self.attend
        return ModelRunner(*given, **options, paged=True, recorded=recorded, of_packed=attend)


@pytest.mark.parametrize("recorded", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("family", ["mistral", "qwen3"])  # with a window, and without
def test_tokens_are_those_of_transformers_with_prefixes_pieces_and_preemptions(
    family: str, recorded: bool, checkpoint: Find
) -> None:
    folder, made = checkpoint(family), Made(recorded=recorded)
    engine = engine_of(
        folder, blocks=40, context_tokens=100, max_step_tokens=24, max_running=4, make_runner=made
    )
    base = prompts(30, 25, 28, 20)
    asked = [*base, [*base[0][:16], 1, 2, 3], base[0]]
    running = [engine.add(prompt, GREEDY)[0] for prompt in asked]
    (reported,) = engine.add(base[1], REPORTED)
    while engine.busy:
        engine.step()
        engine.cache.check()
    gauges = engine.gauges()
    assert gauges["preemptions_total"] > 0
    assert gauges["prefix_cache_hits_total"] > 0
    assert made.attend.calls > 30
    for prompt, sequence in zip(asked, running, strict=True):
        assert answer(sequence) == tiny.reference(folder, prompt, NEW)
    assert_reported(reported, log_softmax(folder, base[1]), 2)


def test_contexts_that_have_no_room_beside_the_cache_attend_one_by_one(
    checkpoint: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wherry.llm.engine.attention.MOST_BYTES", 10_000)
    folder, made = checkpoint("llama"), Made(recorded=False)
    engine = engine_of(folder, max_step_tokens=16, max_running=4, make_runner=made)
    asked = prompts(12, 60)
    running = [engine.add(prompt, GREEDY)[0] for prompt in asked]
    while engine.busy:
        engine.step()
    for prompt, sequence in zip(asked, running, strict=True):
        assert answer(sequence) == tiny.reference(folder, prompt, NEW)
    assert 0 < made.attend.calls < 20  # 3 layers of the first steps


@torch.inference_mode()
def test_a_step_of_many_prompts_has_the_calls_of_one_with_two() -> None:
    """And one copy, which does not wait for the device."""
    from transformers import LlamaConfig

    def weights(name: str, *shape: int) -> Tensor:
        return torch.empty(shape, device=META)

    net = Decoder(
        LlamaConfig(**{**tiny.SIZES, "max_position_embeddings": 4096}), weights, PlainLinear
    )
    counted = []
    for count in (2, 50):
        runner = ModelRunner(
            net, cache_tokens=1 << 16, block_size=16, dtype=torch.float32, device=META,
            of_packed=lambda q, *_, **__: torch.empty_like(q),
        )  # fmt: skip
        scheduler = TokenScheduler(KVCache(1 << 12, 16), max_running=64, max_step_tokens=1 << 13)
        for number in range(count):
            wish = Sampling(max_tokens=8)
            scheduler.add(Sequence(number, [number] * (number + 66), number + 66, wish))
        for _ in range(2):  # all of it their own; after what is in the cache
            chunks = scheduler.next_step()
            assert len(chunks) == count
            with Calls() as made:
                assert runner.run(chunks).shape == (count, tiny.VOCABULARY)
            scheduler.computed(chunks)
            for chunk in chunks:
                chunk.sequence.tokens.append(5)
            counted.append(made)
    assert counted[0].count == counted[2].count
    assert counted[1].count == counted[3].count
    assert {made.copies for made in counted} == {1}


def test_attention_is_tried_at_the_load(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cpu, sizes = torch.device("cpu"), (6, 2, 8, torch.float32)
    reference = Reference()
    monkeypatch.setattr(of_torch, "varlen_attn", reference)
    assert varlen(*sizes, cpu) is reference
    caplog.set_level(logging.WARNING)
    for wrong in (Reference(-1), Reference(-4), lambda q, k, v: q):
        monkeypatch.setattr(of_torch, "varlen_attn", wrong)
        assert _or_none(lambda: varlen(*sizes, cpu), "padded") is None
    assert [one.message for one in caplog.records] == ["padded"] * 3
