"""llm/engine/linear.py: products in each layout are the plain ones, and which layout is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from wherry.llm.engine import linear
from wherry.llm.engine.linear import (
    Linear,
    Packed,
    PlainLinear,
    Threads,
    best_for,
    halved,
    smallest,
)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_call_alone_has_one_thread_and_the_next_has_all() -> None:
    torch.set_num_threads(3)
    threads = Threads()
    threads.use(alone=True)
    assert torch.get_num_threads() == 1
    threads.use(alone=True)
    threads.use()
    assert torch.get_num_threads() == 3


def test_one_thread_is_never_more() -> None:
    torch.set_num_threads(1)
    threads = Threads()
    for alone in (True, False):
        threads.use(alone=alone)
        assert torch.get_num_threads() == 1


pytestmark = pytest.mark.skipif(
    "f16c" not in Path("/proc/cpuinfo").read_text().split(),
    reason="FBGEMM needs an x86 with AVX2 that reads half precision",
)

CPU = torch.device("cpu")


def refused(weight: Tensor, bias: Tensor | None) -> Linear:
    pytest.fail("half precision was not taken")


def as_stored(rows: int, columns: int, scale: float = 0.05) -> Tensor:
    """Weights as a checkpoint of bfloat16 has them; most have some next to nothing."""
    weight = torch.randn(rows, columns) * scale
    weight[0, :4] = torch.tensor([1e-7, -1e-9, 0.0, 3e-8]) * scale
    return weight.bfloat16().float()


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 0.05, 1.0, 5e6])
@pytest.mark.parametrize("biased", [False, True])
def test_a_weight_of_16_bits_is_multiplied_as_it_is(scale: float, biased: bool) -> None:
    torch.manual_seed(1)
    weight, x = as_stored(70, 48, scale), torch.randn(9, 48)
    bias = torch.randn(70) * scale if biased else None
    product = halved(weight, bias, refused)(x)
    wanted = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert (product.double() - wanted).abs().max() < 1e-6 * wanted.abs().max()


def test_each_number_down_to_a_small_part_of_the_largest_comes_out_as_it_is() -> None:
    numbers = torch.logspace(-20, 11, 32, base=2.0) * 1.9921875  # 8 bits each
    product = halved(torch.diag(numbers), None, refused)(torch.eye(32))
    assert torch.equal(product, torch.diag(numbers))


def test_a_row_does_not_depend_on_its_company_or_the_threads() -> None:
    torch.manual_seed(2)
    product, x = halved(as_stored(200, 96), None, refused), torch.randn(40, 96)
    together, threads = product(x), torch.get_num_threads()
    # FBGEMM's kernels of one and two rows add up in another order where there is no AVX-512.
    off = 0.0 if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else 1e-6
    for rows in (1, 2, 3, 7, 16, 33):
        assert torch.allclose(product(x[:rows]), together[:rows], rtol=0.0, atol=off)
    try:
        torch.set_num_threads(1)
        assert torch.equal(product(x), together)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda w: w + 1e-4, id="more than 16 bits"),
        pytest.param(lambda w: w.index_fill(0, torch.tensor([3]), float("inf")), id="infinite"),
        pytest.param(lambda w: w.index_fill(0, torch.tensor([3]), float("nan")), id="no number"),
        pytest.param(lambda w: torch.cat([w, w * 2.0**40]), id="too far apart"),
        pytest.param(lambda w: w * 2.0**-115, id="next to nothing"),
    ],
)
def test_a_weight_that_half_precision_would_change_is_kept_as_it_is(
    spoil: Callable[[Tensor], Tensor],
) -> None:
    torch.manual_seed(3)
    weight, given = spoil(torch.randn(8, 16).bfloat16().float()), []

    def otherwise(weight: Tensor, bias: Tensor | None) -> Linear:
        given.append(weight)
        return PlainLinear(weight, bias)

    halved(weight, None, otherwise)
    (kept,) = given
    assert kept is weight


def test_an_embedding_is_kept_in_16_bits_where_these_hold_it() -> None:
    torch.manual_seed(4)
    numbers = torch.randn(5000, 3)
    for dtype in (torch.bfloat16, torch.float16):
        rounded = numbers.to(dtype)
        kept = smallest(rounded.float())
        assert kept.dtype == dtype
        assert torch.equal(kept, rounded)
        assert smallest(rounded) is rounded
    numbers[:-1] = numbers[:-1].half().float()  # only the last row has more bits
    assert smallest(numbers) is numbers


def test_floats_are_multiplied_in_half_the_memory_on_a_cpu() -> None:
    weight = as_stored(32, 32)
    product = best_for(CPU, torch.float32)(weight, None)
    assert not isinstance(product, Packed)
    x = torch.randn(3, 32)
    assert torch.allclose(product(x), x @ weight.T, atol=1e-6)
    assert isinstance(best_for(CPU, torch.float32)(torch.randn(32, 32), None), Packed)


def test_bfloat16_is_packed_only_where_the_processor_multiplies_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linear, "_is_right", lambda make, dtype: True)  # else AVX-512 is needed
    monkeypatch.setattr(linear, "multiplies_bfloat16", lambda: False)
    assert best_for(CPU, torch.bfloat16) is PlainLinear
    monkeypatch.setattr(linear, "multiplies_bfloat16", lambda: True)
    assert best_for(CPU, torch.bfloat16) is Packed
    assert best_for(CPU, torch.float16) is PlainLinear
    assert best_for(torch.device("meta"), torch.float32) is PlainLinear


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, NotImplementedError])
def test_products_are_plain_where_torch_has_no_others(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> Tensor:
        raise error

    monkeypatch.setattr(Packed, "__init__", missing)
    monkeypatch.setattr(linear, "halved", missing)
    assert best_for(CPU, torch.float32) is PlainLinear


def test_products_are_plain_where_the_others_give_wrong_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(weight: Tensor, bias: Tensor | None) -> Linear:
        return PlainLinear(weight.clamp(min=2.0**-14), bias)  # as if small numbers were lost

    monkeypatch.setattr(linear, "Packed", wrong)
    monkeypatch.setattr(linear, "halved", wrong)
    assert best_for(CPU, torch.float32) is PlainLinear
