"""The engine computes where its weights are, and waits for the device once in a step.

Without a GPU the device "meta" stands for one: it computes shapes only, and refuses tensors of
another device. Those marked `gpu` need a GPU: `python -m pytest -m gpu tests`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.unit.llm.engine import tiny
from tests.unit.llm.engine.choices import sample
from tests.unit.llm.engine.test_paged_attention import Calls
from wherry.core.values.errors import ConfigError
from wherry.llm.engine import sampler as adjusting
from wherry.llm.engine import sequence as sequences
from wherry.llm.engine.attention import _most_bytes
from wherry.llm.engine.kv_cache import KVCache
from wherry.llm.engine.linear import best_for
from wherry.llm.engine.loading import EngineSettings, _cache_bytes, load_engine
from wherry.llm.engine.model import Decoder
from wherry.llm.engine.runner import ModelRunner
from wherry.llm.engine.sampler import adjusted, choose
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.scheduler import TokenScheduler
from wherry.llm.engine.sequence import Sequence, TokenLists

META = torch.device("meta")
#: What a request may ask of sampling, one by one.
WISHES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "random": {"seed": 1},
    "filtered": {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "seed": 1},
    "penalised": {"temperature": 0.0, "repetition_penalty": 1.2, "presence_penalty": 0.4},
    "biased": {"temperature": 0.0, "logit_bias": {3: 1.0}},
    "allowed": {"temperature": 0.0, "allowed_token_ids": (5, 6)},
    "early": {"temperature": 0.0, "min_tokens": 5},
    "reported": {"temperature": 0.0, "logprobs": 3},
}


def sequence(number: int, **wishes: Any) -> Sequence:
    sampling, ends = Sampling(max_tokens=8, **wishes), frozenset((tiny.END,))
    return Sequence(
        id=number,
        tokens=[(7 * place + number) % 250 for place in range(20 + number)],
        prompt_tokens=20 + number,
        sampling=sampling,
        max_length=64,
        ends=ends,
        lists=TokenLists(sampling, ends),
    )


@torch.inference_mode()
def test_a_step_has_all_its_tensors_on_the_device() -> None:
    from transformers import LlamaConfig

    def weights(name: str, *shape: int) -> Tensor:
        return torch.empty(shape, device=META, dtype=torch.bfloat16)

    net = Decoder(LlamaConfig(**tiny.SIZES), weights, best_for(META, torch.bfloat16))
    runner = ModelRunner(net, cache_tokens=256, block_size=16, dtype=torch.bfloat16, device=META)
    scheduler = TokenScheduler(KVCache(16, 16), max_running=4, max_step_tokens=32)
    for number in range(3):
        scheduler.add(sequence(number))
    for _ in range(5):  # chunks of prompts alone, beside answers, and answers alone
        chunks = scheduler.next_step()
        logits = runner.run(chunks)
        assert logits.device == META
        assert logits.shape == (sum(chunk.logits for chunk in chunks), tiny.VOCABULARY)
        scheduler.computed(chunks)
        for chunk in chunks:
            if chunk.is_last:
                chunk.sequence.tokens.append(5)


@pytest.mark.parametrize("wish", WISHES)
def test_what_a_request_changes_is_changed_on_the_device(wish: str) -> None:
    logits = torch.empty(2, tiny.VOCABULARY, device=META)
    sequences = [sequence(0, **WISHES[wish]), sequence(1)]
    assert adjusted(logits, sequences).device == META


class Waits:
    """Counts how often a program waits for a device: it reads numbers of a tensor."""

    METHODS = ("tolist", "item", "__bool__", "__int__", "__float__", "numpy", "cpu", "nonzero")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in self.METHODS:
            monkeypatch.setattr(torch.Tensor, name, self._counted(getattr(torch.Tensor, name)))

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(tensor: Tensor, *rest: Any, **options: Any) -> Any:
            self.count += 1
            return method(tensor, *rest, **options)

        return counted


#: How often sampling waits, whatever the number of sequences. Log probabilities are three tensors;
#: whether more candidates are needed is one.
WAITS = {"filtered": 2, "reported": 4}


@pytest.mark.parametrize("wish", WISHES)
def test_sampling_waits_for_the_device_once(wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    for count in (1, 2, 64):
        logits = torch.randn(count, tiny.VOCABULARY)
        sequences = [sequence(number, **WISHES[wish]) for number in range(count)]
        with monkeypatch.context() as patched:
            waits = Waits(patched)
            sample(logits, sequences)
        assert waits.count <= WAITS.get(wish, 1)


@pytest.mark.parametrize("wish", WISHES)
def test_what_many_requests_change_takes_the_calls_of_two(wish: str) -> None:
    counts = []
    for number in (2, 64):
        logits = torch.randn(number, tiny.VOCABULARY, generator=torch.Generator().manual_seed(0))
        sequences = [sequence(place, **WISHES[wish]) for place in range(number)]
        sample(logits, sequences)  # what is made once
        with Calls() as made, torch.inference_mode():
            sample(logits, sequences)
        made.count.pop("aten.lift_fresh", None)  # a list becomes a tensor
        counts.append(made.count)
    assert counts[0] == counts[1]


class Odd:
    """A constraint that allows odd tokens."""

    def mask(self, allowed: Any) -> None:
        allowed &= 0xAA

    def accept(self, token: int) -> None: ...


def of_size(size: int) -> dict[str, dict[str, Any]]:
    """Wishes whose lists have so many tokens."""
    many = tuple(range(size))
    return {
        "allowed": {"allowed_token_ids": many * 50},
        "biased": {"logit_bias": dict.fromkeys(many, 1.0)},
        "early": {"min_tokens": 5000, "stop_token_ids": many},
        "reported": {"logprobs": 20},
        "penalised": {
            "repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.1
        },
        "formed": {},
    }  # fmt: skip


@pytest.mark.parametrize("wish", of_size(1))
def test_a_step_takes_the_same_calls_whatever_is_asked_for_and_by_how_many(
    wish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it reads no list, and no text, from the second step on."""
    counts, read = [], list[int]()

    def watched(tokens: Any) -> Any:
        read.append(len(tokens))
        return sequences.array_of(tokens)

    monkeypatch.setattr(adjusting, "array_of", watched)
    for rows, size, length in ((2, 2, 10), (2, 60, 10), (2, 2, 2000), (40, 60, 2000)):
        sampling = Sampling(temperature=0.0, ignore_eos=True, **of_size(size)[wish])
        ends = frozenset(sampling.stop_token_ids)
        some = [
            Sequence(n, [7] * length, 1, sampling, ends=ends, lists=TokenLists(sampling, ends),
                     constraint=Odd() if wish == "formed" else None)
            for n in range(rows)
        ]  # fmt: skip
        logits = torch.randn(rows, tiny.VOCABULARY, generator=torch.Generator().manual_seed(0))
        sample(logits, some)
        for one in some:
            one.tokens.append(7)
        read.clear()
        with Calls() as made:
            sample(logits, some)
        made.count.pop("aten.lift_fresh", None)  # a list becomes a tensor
        counts.append(made.count)
        assert sum(read) == rows * (wish == "penalised")
    assert counts == [counts[0]] * len(counts)


class Copies:
    """Refuses what waits for a GPU before numbers are read: copies of ordinary memory to it, which
    `torch.tensor` with a device and `to` without `non_blocking` are, and lists as indices."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made, moved, found = torch.tensor, Tensor.to, Tensor.__getitem__

        def tensor(*given: Any, **options: Any) -> Tensor:
            assert "device" not in options
            return made(*given, **options)

        def to(this: Tensor, *given: Any, **options: Any) -> Tensor:
            result = moved(this, *given, **options)
            assert result.device == this.device or options.get("non_blocking")
            return result

        def getitem(this: Tensor, index: Any) -> Any:
            places = index if isinstance(index, tuple) else (index,)
            assert not any(isinstance(place, list) for place in places)
            return found(this, index)

        monkeypatch.setattr(torch, "tensor", tensor)
        monkeypatch.setattr(Tensor, "to", to)
        monkeypatch.setattr(Tensor, "__getitem__", getitem)


@pytest.mark.parametrize("wish", WISHES)
def test_copies_to_a_device_do_not_wait_for_it(wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.empty(3, tiny.VOCABULARY, device=META)
    sequences = [sequence(0, **WISHES[wish]), sequence(1), sequence(2, seed=4)]
    for one in sequences:
        one.sorts_all = False
    with monkeypatch.context() as patched:
        Copies(patched)
        # The device "meta" has no numbers that could be read.
        assert choose(logits, sequences).tokens.device == META


def test_what_constraints_allow_crosses_in_one_copy_of_a_bit_for_each_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And it is made before anything waits for the device, which computes the step meanwhile."""
    copied, moved, waited = list[int](), Tensor.to, list[int]()

    def to(this: Tensor, *device: Any, **options: Any) -> Tensor:
        if this.dtype is torch.uint8:
            copied.append(this.nbytes)
        return moved(this, *device, **options)

    class Noting(Odd):
        def mask(self, allowed: Any) -> None:
            waited.append(waits.count)
            super().mask(allowed)

    logits = torch.empty(4, tiny.VOCABULARY, device=META)
    some = [sequence(number, temperature=0.0) for number in range(4)]
    for one in some[:3]:
        one.constraint = Noting()
    monkeypatch.setattr(Tensor, "to", to)
    waits = Waits(monkeypatch)
    adjusted(logits, some)
    assert waited == [0, 0, 0]
    assert waits.count == 0
    assert copied == [3 * -(-tiny.VOCABULARY // 8)]


def test_bits_become_booleans_on_a_device_as_on_the_cpu() -> None:
    dice = np.random.default_rng(3)
    for vocabulary in (1, 8, 300, 1023):
        bits = dice.integers(0, 256, (5, -(-vocabulary // 8)), np.uint8)
        expected = adjusting._unpacked(bits, vocabulary, torch.device("cpu"))
        assert torch.equal(adjusting._of_bits(torch.from_numpy(bits))[:, :vocabulary], expected)
        with Calls() as made:
            adjusting._of_bits(torch.from_numpy(bits))
        assert sum(made.count.values()) <= 8


def test_the_warning_that_debugging_is_a_prototype_is_no_synchronization(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def set_mode(mode: str) -> None:
        warnings.warn(
            "Synchronization debug mode is a prototype feature and does not yet detect all"
            " synchronizing operations",
            stacklevel=1,
        )

    def call() -> None:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    assert synchronizations(call) == 2
    assert synchronizations(lambda: None) == 0


@pytest.mark.parametrize(
    ("share", "free", "expected"),
    [
        (None, 60, 51.0),
        (0.5, 60, 0.85 * 26),  # of 80, without the 14 of the weights
        (0.9, 20, 17.0),  # others have more of it than 0.1
        (0.1, 60, 0),
    ],
)
def test_a_cache_leaves_what_is_not_its_share_of_a_gpu(
    share: float | None, free: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    gb = 10**9
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free * gb, 80 * gb))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 14 * gb)
    found = _cache_bytes(EngineSettings(gpu_memory=share), torch.device("cuda"))
    assert found == pytest.approx(expected * gb)
    assert _cache_bytes(EngineSettings(cache_gb=2.0), torch.device("cuda")) == 2 * gb


@pytest.mark.parametrize(
    "wrong", [{"gpu_memory": 0.0}, {"gpu_memory": 80}, {"gpu_memory": 0.5, "cache_gb": 1.0}]
)
def test_a_share_of_a_gpu_is_a_share_and_the_only_bound(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="gpu_memory"):
        EngineSettings(**wrong).check("m")  # type: ignore[arg-type]


# On a GPU


def synchronizations(call: Callable[[], object]) -> int:
    """How often `call` waits for the GPU, as torch counts it."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")  # warns itself
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return len([one for one in seen if "called a synchronizing" in str(one.message)])


@pytest.mark.gpu
@pytest.mark.parametrize("wish", WISHES)
def test_a_gpu_is_waited_for_once_in_sampling(wish: str) -> None:
    logits = torch.randn(64, 5000, device="cuda")
    sequences = [sequence(number, **WISHES[wish]) for number in range(64)]
    sample(logits, sequences)
    waits = synchronizations(lambda: sample(logits, sequences))
    assert waits <= WAITS.get(wish, 1)
    for one in sequences:
        one.sorts_all = False
    assert synchronizations(lambda: choose(logits, sequences)) == 0


@pytest.mark.gpu
def test_a_gpu_samples_what_a_cpu_samples() -> None:
    torch.manual_seed(5)
    logits = torch.randn(len(WISHES), 5000) * 4
    sequences = [sequence(number, **wish) for number, wish in enumerate(WISHES.values())]
    here = sample(logits, sequences)
    there = sample(logits.to("cuda"), sequences)
    assert [one.token for one in there] == [one.token for one in here]
    for one, other in zip(there, here, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [token for token, _ in one.alternatives] == [t for t, _ in other.alternatives]


def tokens(folder: Path, device: str, **options: Any) -> list[list[int]]:
    engine, _ = load_engine(str(folder), "m", device, cache_gb=0.01, **options)
    found: dict[Sequence, list[int]] = {}
    for number in range(6):
        prompt = [(11 * place + number) % 250 for place in range(30 + 20 * number)]
        wishes: dict[str, Any] = {"temperature": 0.8 * (number % 2), "seed": number}
        (made,) = engine.add(prompt, Sampling(max_tokens=12, ignore_eos=True, **wishes))
        found[made] = []
    while engine.busy:
        for event in engine.step():
            if event.sampled is not None:
                found[event.sequence].append(event.sampled.token)
    return list(found.values())


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "gemma"])
def test_a_gpu_says_what_a_cpu_says(family: str, checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint(family)
    expected = tokens(folder, "cpu", dtype="float32")
    assert tokens(folder, "cuda", dtype="float32", max_step_tokens=32) == expected
    assert [len(one) for one in tokens(folder, "cuda", dtype="bfloat16")] == [12] * 6


@pytest.mark.gpu
def test_half_precision_gives_the_logits_of_floats_nearly(
    checkpoint: Callable[[str], Path],
) -> None:
    """Kernels with a mask in bfloat16; prompts in pieces, recordings, a window."""
    found = []
    for device, dtype in (("cpu", "float32"), ("cuda", "bfloat16")):
        engine, _ = load_engine(
            str(checkpoint("mistral")), "m", device, dtype=dtype, cache_gb=0.01, max_step_tokens=32
        )
        wish = Sampling(max_tokens=2, temperature=0.0, prompt_logprobs=0)
        made = [engine.add([(n * place) % 250 for place in range(90)], wish)[0] for n in (3, 7)]
        while engine.busy:
            engine.step()
        said = [one.logprob for sequence in made for one in sequence.prompt_report]
        found.append(torch.tensor([one for one in said if one is not None]))
    assert (found[0] - found[1]).abs().max() < 0.15


@pytest.mark.gpu
def test_by_default_a_cache_leaves_memory_for_what_steps_compute(
    checkpoint: Callable[[str], Path],
) -> None:
    load_engine(str(checkpoint("llama")), "m", "cuda", cache_gb=0.01)
    free, _ = torch.cuda.mem_get_info()
    assert _cache_bytes(EngineSettings(), torch.device("cuda")) == pytest.approx(
        0.85 * free, rel=0.01
    )
    assert 0.15 * free > _most_bytes(torch.device("cuda"))


@pytest.mark.gpu
def test_a_cache_takes_the_memory_that_it_is_given(checkpoint: Callable[[str], Path]) -> None:
    before = torch.cuda.memory_allocated()
    engine, _ = load_engine(str(checkpoint("llama")), "m", "cuda", cache_gb=0.1)
    assert torch.cuda.memory_allocated() - before < 0.2e9
    assert engine.cache.total_blocks > 0
