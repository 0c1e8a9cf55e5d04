"""Who computes the attention of a step: one thread, or all of them?"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from wherry.llm.engine import attention
from wherry.llm.engine.attention import Attention
from wherry.llm.engine.step_inputs import Context, StepInputs

HEADS, KV_HEADS, SIZE = 6, 2, 8
#: The longest context that one thread attends to alone.
LONGEST_ALONE = (attention.WORTH_THREADS - 1) // (HEADS * SIZE)


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def cache(tokens: int) -> Attention:
    shape: Any = SimpleNamespace(layers=1, kv_heads=KV_HEADS, head_size=SIZE)
    made = Attention(shape, tokens, torch.float32, torch.device("cpu"))
    torch.manual_seed(0)
    for tensor in (*made.keys, *made.values):
        tensor.normal_()
    return made


def decoding(*contexts: int) -> StepInputs:
    """A step of sequences that lie one behind the other, and have one row each."""
    starts = [sum(contexts[:number]) for number in range(len(contexts))]
    last = [start + context - 1 for start, context in zip(starts, contexts, strict=True)]
    return StepInputs(
        torch.zeros(len(contexts), dtype=torch.long),
        torch.tensor(contexts) - 1,
        torch.tensor(last),
        torch.arange(len(contexts)),
        [
            Context(row, 1, context, [(start, context)])
            for row, (start, context) in enumerate(zip(starts, contexts, strict=True))
        ],
    )


def attend(made: Attention, step: StepInputs) -> Tensor:
    rows = len(step.spans)
    torch.manual_seed(1)
    q, k, v = (torch.randn(rows, heads, SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS))
    return made(0, q, k, v, step, None)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many threads each call of torch's attention could use."""
    seen: list[int] = []
    attends = F.scaled_dot_product_attention

    def watched(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen.append(torch.get_num_threads())
        return attends(q, k, v)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    return seen


def test_short_contexts_are_attended_to_by_one_thread(threads: list[int]) -> None:
    attend(cache(100), decoding(10, 30, 60))
    assert threads == [1, 1, 1]
    assert torch.get_num_threads() == 2


def test_long_contexts_are_shared_by_all_threads_whoever_is_beside_them(
    threads: list[int],
) -> None:
    long = LONGEST_ALONE + 1
    attend(cache(2 * long + 10), decoding(10, long, LONGEST_ALONE))
    attend(cache(long), decoding(long))
    assert threads == [1, 2, 1, 2]
    assert torch.get_num_threads() == 2


def test_an_engine_of_one_thread_stays_so(threads: list[int]) -> None:
    torch.set_num_threads(1)
    made = cache(LONGEST_ALONE + 1)
    attend(made, decoding(LONGEST_ALONE + 1))
    assert threads == [1]
    assert torch.get_num_threads() == 1


def test_all_threads_are_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Tensor) -> Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(F, "scaled_dot_product_attention", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        attend(cache(10), decoding(10))
    assert torch.get_num_threads() == 2


def test_the_result_does_not_depend_on_who_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = attend(cache(200), decoding(7, 64, 129))
    monkeypatch.setattr(attention, "WORTH_THREADS", 0)
    torch.testing.assert_close(attend(cache(200), decoding(7, 64, 129)), alone)
