"""Are products in 8 bits nearly those in floats, whatever comes in, and the same in any batch?"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import wherry
from tests.unit.llm.engine import tiny
from tests.unit.llm.engine.test_engine import GREEDY, answer, engine_of, finish, prompts
from tests.unit.llm.engine.test_fallback import OTHERS, saved
from wherry.llm import LLM
from wherry.llm.engine import int8
from wherry.llm.engine.checkpoint import Checkpoint
from wherry.llm.engine.linear import Linear
from wherry.llm.engine.runner import first_step, load_network

CPU = torch.device("cpu")
MAKERS = [pytest.param(int8.dequantizing_linear, id="dequantizing")]
if int8.exact_here():
    MAKERS.append(pytest.param(int8.Int8, id="onednn"))
needs_quick = pytest.mark.skipif(not int8.exact_here(), reason="no 8-bit products on this CPU")


def off_by(got: Tensor, wanted: Tensor) -> float:
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


def case(rows: int, *, outliers: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """What comes in, a weight and a bias."""
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, 192), torch.randn(80, 192)
    if outliers:
        x[:, [5, 77, 150]] *= 60
        weight[:, [5, 77, 150]] *= 0.05  # the others are what matters
    return x, weight, torch.randn(80)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("rows", [1, 16, 17, 150])
def test_a_product_is_nearly_that_of_floats(make: Callable[..., Linear], rows: int) -> None:
    x, weight, bias = case(rows)
    for given in (None, bias):
        product = make(weight, given)
        wanted = F.linear(x, weight, given)
        for _ in range(2):  # the first time it is learning
            got = product(x)
            assert got.shape == wanted.shape
            assert off_by(got, wanted) < 0.015


@needs_quick
def test_small_products_are_one_threads_and_large_ones_all_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    multiply = torch.ops.onednn.qlinear_pointwise

    def watched(*given: object) -> Tensor:
        seen.append(torch.get_num_threads())
        product: Tensor = multiply(*given)
        return product

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        monkeypatch.setattr(torch.ops.onednn, "qlinear_pointwise", watched)
        product = int8.onednn_linear(torch.randn(1024, 512), None, torch.ones(512))
        for rows in (1, 200):
            product(torch.randn(rows, 512))
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2]


@needs_quick
def test_large_features_do_not_drown_the_others() -> None:
    x, weight, _ = case(40, outliers=True)
    wanted = F.linear(x, weight)
    learnt = int8.onednn_linear(weight, None, x.abs().amax(0))
    unaware = int8.onednn_linear(weight, None, torch.ones(192))
    assert off_by(learnt(x), wanted) < 0.03
    assert off_by(unaware(x), wanted) > 3 * off_by(learnt(x), wanted)


@needs_quick
def test_a_row_has_the_same_product_in_any_company() -> None:
    x, weight, bias = case(150, outliers=True)
    product = int8.onednn_linear(weight, bias, x.abs().amax(0))
    together = product(x)
    for rows in (1, 3, 16, 33):
        assert torch.equal(product(x[:rows]), together[:rows])
    x[1:] *= 1e6
    assert torch.equal(product(x)[0], together[0])


@pytest.mark.parametrize("make", MAKERS)
def test_nothing_and_far_too_much_give_numbers(make: Callable[..., Linear]) -> None:
    x, weight, _ = case(4)
    weight[3] = 0
    product = make(weight, None)
    product(x)
    x[0], x[1], x[2] = 0, 1e-30, 1e30
    got = product(x)
    assert torch.isfinite(got).all()
    assert not got[0].any()
    assert not got[:, 3].any()
    assert off_by(got[2], F.linear(x, weight)[2]) < 0.02


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", MAKERS)
def test_other_precisions_keep_their_own(make: Callable[..., Linear], dtype: torch.dtype) -> None:
    x, weight, bias = (tensor.to(dtype) for tensor in case(5))
    product = make(100 * weight, bias)
    for _ in range(2):
        got = product(x)
        assert got.dtype == dtype
        assert off_by(got, F.linear(x.float(), 100 * weight.float(), bias.float())) < 0.02


def test_columns_are_as_many_as_the_largest_features_need() -> None:
    feature, share, place = int8._columns([1.0] * 254 + [100.0, 50.0])
    counts = torch.bincount(feature)
    assert len(feature) == 288  # an eighth more
    assert len(int8._columns([1.0] * 576)[0]) == 640  # of 648, so many are even
    assert counts[:254].tolist() == [1] * 254
    assert counts[254:].tolist() == [23, 11]
    assert torch.zeros(256).index_add(0, feature, share).allclose(torch.ones(256))
    assert place[feature == 255].tolist() == pytest.approx([(k + 0.5) / 11 for k in range(11)])


def test_a_weight_that_is_given_stays_as_it_was() -> None:
    x, weight, bias = case(3)
    before = weight.clone()
    for make in (int8.dequantizing_linear, int8.Int8):
        make(weight, bias)(x)
    assert torch.equal(weight, before)


# The engine with such weights


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_decoders_logits_are_nearly_those_of_its_floats(
    family: str, dtype: str, checkpoint: Callable[..., Path]
) -> None:
    found = Checkpoint(checkpoint(family))
    precision = torch.float32 if dtype == "float32" else torch.bfloat16
    exact = family != "gemma"
    floats = load_network(found, dtype="float32", device=CPU, exact=exact)
    ours = load_network(found, dtype=dtype, device=CPU, quantization="int8", exact=exact)
    with torch.inference_mode():
        wanted = floats.forward(*first_step(found, floats.shape, torch.float32, CPU))
        got = ours.forward(*first_step(found, ours.shape, precision, CPU))
    assert got.dtype == precision
    assert 0 < off_by(got, wanted) < 0.05


@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
def test_other_architectures_have_it_where_they_use_linear_layers(
    family: str, tmp_path: Path
) -> None:
    found = Checkpoint(saved(OTHERS[family], tmp_path / family))
    tiny.tokenizer().save_pretrained(found.folder)
    floats = load_network(found, dtype="float32", device=CPU, exact=False)
    ours = load_network(found, dtype="float32", device=CPU, quantization="int8", exact=False)
    with torch.inference_mode():
        step = first_step(found, floats.shape, torch.float32, CPU)
        assert 0 < off_by(ours.forward(*step), floats.forward(*step)) < 0.05


@needs_quick
def test_a_generation_is_the_same_alone_and_in_company(checkpoint: Callable[..., Path]) -> None:
    engine = engine_of(checkpoint(), quantization="int8")
    asked = prompts(5, 40, 33, 1, 17)
    together = [engine.add(prompt, GREEDY)[0] for prompt in asked]
    while engine.busy:
        engine.step()
    other = engine_of(checkpoint(), quantization="int8")
    alone = [finish(other, [(prompt, GREEDY)])[0] for prompt in asked]
    assert [answer(s) for s in together] == [answer(s) for s in alone]


def test_another_name_for_it_is_refused(checkpoint: Callable[..., Path]) -> None:
    model = LLM(checkpoint(), name="tiny", quantization="int4")
    with (
        pytest.raises(wherry.LoadFailed, match="quantization must be 'int8' or None, not 'int4'"),
        wherry.Runtime(model),
    ):
        pass
