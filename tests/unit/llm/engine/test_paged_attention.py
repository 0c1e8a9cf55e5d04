"""All sequences of a step attend to the paged cache, recorded or not: the tokens are transformers'.

The runner's ways for a GPU run on the CPU here, with a log of calls in place of CUDA graphs: what
is recorded is the same calls on the same memory, and nothing of the host runs again with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.unit.llm.engine import tiny
from tests.unit.llm.engine.test_engine import (
    GREEDY,
    NEW,
    REPORTED,
    answer,
    assert_reported,
    engine_of,
    finish,
    log_softmax,
    prompts,
)
from wherry.llm.engine import attention as attending
from wherry.llm.engine.attention import MOST_BYTES, _most_bytes
from wherry.llm.engine.cuda_graphs import Replay
from wherry.llm.engine.kv_cache import KVCache
from wherry.llm.engine.linear import PlainLinear
from wherry.llm.engine.model import Decoder
from wherry.llm.engine.runner import ModelRunner, Recorded
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.scheduler import TokenScheduler
from wherry.llm.engine.sequence import Sequence

Find = Callable[..., Path]
META = torch.device("meta")


class Log(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down the calls of torch, with what they were given and where their results are."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        if reads_values(func, args):
            raise RuntimeError(f"{func} depends on values, which a recording does not see")
        result = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, result))
        return result


def reads_values(func: Any, args: Any) -> bool:
    """Whether what a call gives the host, or its result's shape, depends on values of tensors."""
    if func is torch.ops.aten.index.Tensor:
        return any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1])
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & {*func.tags})


class Recorder:
    """Records the calls of torch that a function makes, and counts how often they are replayed."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        compute()
        with Log() as log:
            result = compute()
        self.recorded += 1

        def replay() -> Tensor:
            self.replayed += 1
            for func, args, kwargs, before in log.calls:
                again = func(*args, **kwargs)
                for new, old in zip(tree_leaves(again), tree_leaves(before), strict=True):
                    if isinstance(new, Tensor) and new.data_ptr() != old.data_ptr():
                        old.copy_(new)  # a view of the same memory, or the same, has it already
            return result

        return replay


def in_place(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    rows: Tensor,
    positions: Tensor,
    block_size: int,
    window: int | None,
) -> Tensor:
    """What the kernel computes, in calls of torch on the whole table."""
    places = table[rows].long()[:, :, None] * block_size + torch.arange(block_size)
    columns = torch.arange(places[0].numel())
    seen = columns <= positions[:, None]
    if window is not None:
        seen &= columns > positions[:, None] - window
    unseen = ~seen[:, :, None, None]
    k, v = (
        cache[places.flatten(1)].masked_fill(unseen, 0.0).transpose(1, 2)
        for cache in (keys, values)
    )
    out = F.scaled_dot_product_attention(
        q[:, :, None], k, v, attn_mask=seen[:, None, None], enable_gqa=True
    )
    return out[:, :, 0]


class Made:
    """Makes runners with a paged cache, and keeps the last one."""

    def __init__(self, record: Recorder | None = None) -> None:
        self.record = record
        self.runner: ModelRunner

    def __call__(self, *given: Any, **options: Any) -> ModelRunner:
        recorded = None if self.record is None else Recorded(self.record, in_place)
        self.runner = ModelRunner(*given, **options, paged=True, recorded=recorded)
        return self.runner


@pytest.mark.slow
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_greedy_tokens_are_those_of_transformers_for_each_family(
    family: str, checkpoint: Find
) -> None:
    folder = checkpoint(family)
    asked = prompts(5, 40, 61, 1)
    expected = [tiny.reference(folder, prompt, NEW) for prompt in asked]
    for record in (None, Recorder()):
        engine = engine_of(folder, max_step_tokens=16, max_running=4, make_runner=Made(record))
        answers = finish(engine, [(prompt, GREEDY) for prompt in asked])
        assert [answer(sequence) for sequence in answers] == expected, record
        assert record is None or record.replayed >= NEW


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mistral", "qwen3"])  # with a window, and without
@pytest.mark.parametrize("recorded", [False, True])
def test_prefixes_preemptions_and_scattered_blocks_change_nothing(
    family: str, recorded: bool, checkpoint: Find
) -> None:
    folder = checkpoint(family)
    made = Made(Recorder() if recorded else None)
    engine = engine_of(
        folder, blocks=40, context_tokens=100, max_step_tokens=12, max_running=4, make_runner=made
    )
    base = prompts(30, 25, 28, 20)
    asked = [*base, [*base[0][:16], 1, 2, 3], base[0]]
    pieces = 0
    running = [engine.add(prompt, GREEDY)[0] for prompt in asked]
    (reported,) = engine.add(base[1], REPORTED)
    while engine.busy:
        engine.step()
        pieces = max([pieces, *(len(s.table.extents) for s in engine.scheduler.running)])
        engine.cache.check()
    gauges = engine.gauges()
    assert gauges["preemptions_total"] > 0
    assert gauges["prefix_cache_hits_total"] > 0
    assert pieces > 1
    for prompt, sequence in zip(asked, running, strict=True):
        assert answer(sequence) == tiny.reference(folder, prompt, NEW)
    assert_reported(reported, log_softmax(folder, base[1]), 2)


def test_what_is_no_number_elsewhere_in_the_cache_is_not_multiplied(checkpoint: Find) -> None:
    """A poisoned request leaves it in its blocks, which others get after it."""
    folder, made = checkpoint("mistral"), Made()
    engine = engine_of(folder, make_runner=made)
    for tensor in (*made.runner.attention.keys, *made.runner.attention.values):
        tensor[:] = float("nan")
    asked = prompts(5, 33)
    answers = finish(engine, [(prompt, GREEDY) for prompt in asked])
    for prompt, sequence in zip(asked, answers, strict=True):
        assert answer(sequence) == tiny.reference(folder, prompt, NEW)


@pytest.mark.parametrize("family", ["llama", "mistral"])  # without a window, and with
def test_long_prompts_attend_in_parts_where_memory_is_short(
    family: str, checkpoint: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(family)
    expected = [tiny.reference(folder, prompt, 5) for prompt in prompts(100, 7)]
    wish = Sampling(temperature=0.0, max_tokens=5, ignore_eos=True)
    monkeypatch.setattr(attending, "MOST_PAIRS", 700)  # some rows of the long one
    engine = engine_of(folder, max_step_tokens=30, make_runner=Made())
    answers = finish(engine, [(prompt, wish) for prompt in prompts(100, 7)])
    assert [answer(sequence) for sequence in answers] == expected


# What a step costs


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the calls of torch, and the copies to another device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: Counter[str] = Counter()
        self.copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count[str(func.overloadpacket)] += 1
        if isinstance(result, Tensor) and result.device == META:
            given = [one for one in args if isinstance(one, Tensor)]
            self.copies += any(one.device.type == "cpu" for one in given)
        return result


def steps(*contexts: int, running: int = 64) -> tuple[ModelRunner, TokenScheduler]:
    """A runner of a device that computes shapes only, and a scheduler with prompts so long."""
    from transformers import LlamaConfig

    def weights(name: str, *shape: int) -> Tensor:
        return torch.empty(shape, device=META)

    net = Decoder(
        LlamaConfig(**{**tiny.SIZES, "max_position_embeddings": 4096}), weights, PlainLinear
    )
    runner = ModelRunner(net, cache_tokens=1 << 16, block_size=16, dtype=torch.float32, device=META)
    scheduler = TokenScheduler(KVCache(1 << 12, 16), max_running=running, max_step_tokens=1 << 15)
    for number, context in enumerate(contexts):
        wish = Sampling(max_tokens=8)
        scheduler.add(Sequence(number, [number] * context, context, wish, max_length=4096))
    return runner, scheduler


@torch.inference_mode()
def calls(*contexts: int) -> list[Calls]:
    """The calls of two steps: all prompts, and a token of each."""
    runner, scheduler = steps(*contexts)
    counted = []
    for _ in range(2):
        chunks = scheduler.next_step()
        assert len(chunks) == len(contexts)
        with Calls() as made:
            logits = runner.run(chunks)
        assert logits.shape == (len(contexts), tiny.VOCABULARY)
        counted.append(made)
        scheduler.computed(chunks)
        for chunk in chunks:
            chunk.sequence.tokens.append(5)
    return counted


def test_a_step_has_one_copy_and_a_call_of_attention_for_each_sequence() -> None:
    for contexts in ((70, 80), (20, 200, 900, 1800, 30)):
        for made in calls(*contexts):
            attended = made.count["aten.scaled_dot_product_attention"] / 3  # layers
            assert (attended, made.copies) == (len(contexts), 1)


def test_a_call_on_a_large_gpu_may_take_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else prompts after 2,000 known tokens each would attend one by one on an H100: the keys and
    values of 64 take 0.5 GB of a model with 8 heads of 128 features."""
    about = SimpleNamespace(total_memory=80 * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    most = _most_bytes(torch.device("cuda"))
    assert 64 * 2000 * 2 * 8 * 128 * 2 < most < 0.02 * about.total_memory
    about.total_memory = 4 * 10**9
    assert _most_bytes(torch.device("cuda")) == MOST_BYTES == _most_bytes(META)
