"""Which token follows: against the distribution that was asked for, and the same for a seed."""

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.unit.llm.engine.choices import sample
from wherry.core.values.errors import InvalidRequest
from wherry.llm.engine.constraint import TokenBits
from wherry.llm.engine.sampler import CANDIDATES, ROWS, adjusted, prompt_report, random_number
from wherry.llm.engine.sampling import Sampling
from wherry.llm.engine.sequence import Sequence, TokenLists

DRAWS = 4000


def sequence(prompt: list[int] | None = None, seed: int = 0, **wishes: Any) -> Sequence:
    prompt, sampling = prompt or [0], Sampling(**wishes)
    return Sequence(0, list(prompt), len(prompt), sampling, seed=seed, lists=TokenLists(sampling))


def drawn(logits: torch.Tensor, **wishes: Any) -> Counter[int]:
    """How often each token comes, for as many seeds as draws."""
    rows = [sequence(seed=seed, **wishes) for seed in range(DRAWS)]
    return Counter(one.token for one in sample(logits.expand(DRAWS, -1), rows))


def assert_follows(counts: Counter[int], probabilities: torch.Tensor) -> None:
    """A chi-square test; nothing may come that has no probability."""
    assert all(probabilities[token] > 0 for token in counts)
    likely = [t for t in range(len(probabilities)) if probabilities[t] * DRAWS >= 5]
    expected = [float(probabilities[t]) * DRAWS for t in likely]
    statistic = sum((counts[t] - e) ** 2 / e for t, e in zip(likely, expected, strict=True))
    freedom = max(1, len(likely) - 1)
    assert statistic < freedom + 4.5 * math.sqrt(2 * freedom) + 10, (statistic, freedom)


LOGITS = torch.randn(40, generator=torch.Generator().manual_seed(2)) * 2


def test_temperature_zero_takes_the_most_probable() -> None:
    assert sample(LOGITS[None], [sequence(temperature=0.0)])[0].token == int(LOGITS.argmax())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_the_softmax_says(temperature: float) -> None:
    assert_follows(drawn(LOGITS, temperature=temperature), (LOGITS / temperature).softmax(-1))


def kept(probabilities: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return torch.where(keep, probabilities, 0.0) / probabilities[keep].sum()


def test_top_k_leaves_the_k_most_probable() -> None:
    expected = kept(LOGITS.softmax(-1), LOGITS.topk(5).values[-1] <= LOGITS)
    assert_follows(drawn(LOGITS, top_k=5), expected)


def test_top_p_leaves_the_fewest_that_reach_it() -> None:
    probabilities = LOGITS.softmax(-1)
    ordered = probabilities.sort(descending=True)
    count = int((ordered.values.cumsum(-1) < 0.8).sum()) + 1
    keep = torch.zeros(40, dtype=torch.bool)
    keep[ordered.indices[:count]] = True
    assert_follows(drawn(LOGITS, top_p=0.8), kept(probabilities, keep))


def test_min_p_leaves_what_is_near_the_most_probable() -> None:
    probabilities = LOGITS.softmax(-1)
    keep = probabilities >= 0.2 * probabilities.max()
    assert_follows(drawn(LOGITS, min_p=0.2), kept(probabilities, keep))


def test_top_p_is_of_what_top_k_leaves() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    # Of the first three 4/9 and 3/9 are below 0.7, and together above it.
    assert set(drawn(logits, top_k=3, top_p=0.7)) == {0, 1}


def test_a_flat_distribution_needs_more_candidates_than_are_sorted_first() -> None:
    logits = torch.zeros(4 * CANDIDATES)
    assert len(drawn(logits, top_p=0.999)) > 3 * CANDIDATES


def test_each_row_has_its_own_wishes() -> None:
    logits = LOGITS.expand(4, -1)
    rows = [
        sequence(temperature=0.0),
        sequence(temperature=1.0, seed=3),
        sequence(temperature=1.0, seed=3, top_k=1),
        sequence(temperature=1.0, seed=3, logit_bias={7: 100.0}),
    ]
    tokens = [one.token for one in sample(logits, rows)]
    best = int(LOGITS.argmax())
    assert (tokens[0], tokens[2], tokens[3]) == (best, best, 7)
    assert tokens[1] == sample(LOGITS[None], [rows[1]])[0].token


def test_a_seed_gives_the_same_choice_in_any_company() -> None:
    alone = [sample(LOGITS[None], [sequence(seed=seed, top_p=0.9)])[0].token for seed in range(50)]
    together = sample(LOGITS.expand(50, -1), [sequence(seed=s, top_p=0.9) for s in range(50)])
    assert [one.token for one in together] == alone
    assert len(set(alone)) > 3


def test_random_numbers_are_even_and_those_of_a_sequence_have_nothing_in_common() -> None:
    numbers = [random_number(42, place) for place in range(DRAWS)]
    buckets = Counter(int(number * 20) for number in numbers)
    assert_follows(buckets, torch.full((20,), 1 / 20))
    pairs = Counter(int(a * 5) * 5 + int(b * 5) for a, b in pairwise(numbers))
    assert_follows(pairs, torch.full((25,), 1 / 25))
    assert random_number(-1, 0) == random_number(2**64 - 1, 0)


def test_the_repetition_penalty_weighs_on_prompt_and_answer_as_in_transformers() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    one = sequence([3, 5], repetition_penalty=1.7, temperature=0.0, logprobs=20)
    one.tokens += [int(LOGITS.argmax())]
    theirs = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([one.tokens]), LOGITS[None])
    assert sample(LOGITS[None], [one])[0].token == int(theirs.argmax())


def test_presence_and_frequency_penalties_weigh_on_the_answer_only() -> None:
    logits = torch.tensor([2.0, 1.5, 1.0])
    one = sequence([0], temperature=0.0, presence_penalty=0.3, frequency_penalty=0.3)
    assert sample(logits[None], [one])[0].token == 0
    one.tokens += [0]  # 2.0 - 0.6 is less than 1.5
    assert sample(logits[None], [one])[0].token == 1
    one.tokens += [1, 1, 1]  # 1.5 - 1.2 is less than both
    assert sample(logits[None], [one])[0].token == 0


def test_occurrences_that_are_counted_on_are_those_of_the_whole_text() -> None:
    wishes = {"repetition_penalty": 1.3, "presence_penalty": 0.2, "frequency_penalty": -0.1}
    going = [sequence([3, 5, 3], seed=place, **wishes) for place in range(3)]
    for step in range(12):
        some = [one for place, one in enumerate(going) if (step + place) % 3]
        logits = LOGITS.expand(len(some), -1)
        anew = [replace(one, occurrences=None) for one in some]
        assert torch.equal(adjusted(logits, some), adjusted(logits, anew))
        for one, chosen in zip(some, sample(logits, some), strict=True):
            one.tokens.append(chosen.token)


def test_a_flat_row_does_not_have_its_neighbours_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_rows = []
    topk = torch.Tensor.topk

    def watched(this: torch.Tensor, count: int, *rest: Any) -> Any:
        sorted_rows.append((len(this), count))
        return topk(this, count, *rest)

    monkeypatch.setattr(torch.Tensor, "topk", watched)
    logits = torch.zeros(8, 3000)
    logits[1:, :5] = 20.0
    some = [sequence(seed=seed, top_p=0.95) for seed in range(8)]
    tokens = [one.token for one in sample(logits, some)]
    assert sorted_rows == [(8, CANDIDATES), (1, 3000)]
    assert tokens[0] >= 5 > max(tokens[1:])


def test_no_end_before_min_tokens() -> None:
    best = int(LOGITS.argmax())
    one = sequence(temperature=0.0, min_tokens=2)
    one.ends = frozenset({best})
    one.lists = TokenLists(one.sampling, one.ends)
    assert sample(LOGITS[None], [one])[0].token != best
    one.tokens += [1, 1]
    assert sample(LOGITS[None], [one])[0].token == best


class Nine:
    """A constraint that allows one token."""

    def mask(self, allowed: TokenBits) -> None:
        allowed[:] = 0
        allowed[1] = 0b10

    def accept(self, token: int) -> None: ...


def test_a_constraint_decides_what_may_follow() -> None:
    for temperature in (0.0, 1.0):
        one = sequence(temperature=temperature)
        one.constraint = Nine()
        assert sample(LOGITS[None], [one])[0].token == 9


def test_log_probabilities_are_the_models_own() -> None:
    one = sequence(temperature=0.0, logprobs=3, logit_bias={7: 100.0})
    sampled = sample(LOGITS[None], [one])[0]
    model = LOGITS.log_softmax(-1)
    assert sampled.token == 7
    assert sampled.logprob == pytest.approx(float(model[7]))
    values, tokens = model.topk(3)
    assert [token for token, _ in sampled.alternatives] == tokens.tolist()
    assert [value for _, value in sampled.alternatives] == pytest.approx(values.tolist())
    untouched = LOGITS.clone()
    sample(untouched[None], [one])
    assert torch.equal(untouched, LOGITS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("min_p", 2.0),
        ("repetition_penalty", 0.0),
        ("presence_penalty", float("inf")),
        ("n", 0),
        ("seed", 2**64),
        ("stop", ("",)),
        ("stop_token_ids", (99,)),
        ("logit_bias", {99: 1.0}),
        ("logit_bias", {1: float("nan")}),
    ],
)
def test_a_wish_out_of_range_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"model 'm': {field} must be"):
        Sampling(**{field: value}).checked("m", vocabulary=40)


@pytest.mark.parametrize("rows", [0, 1, ROWS, 2 * ROWS + 1])
def test_a_prompts_log_probabilities_are_the_softmaxs_however_long_it_is(rows: int) -> None:
    logits = torch.randn(rows, 40, generator=torch.Generator().manual_seed(rows))
    tokens = [place % 40 for place in range(rows)]
    report = prompt_report(logits, tokens, 3)
    assert [said.token for said in report] == tokens
    for place, said in enumerate(report):
        logprobs = logits[place].log_softmax(-1)
        assert said.logprob == pytest.approx(float(logprobs[tokens[place]]), abs=1e-5)
        assert [token for token, _ in said.alternatives] == logprobs.topk(3).indices.tolist()


def test_only_what_is_allowed_is_chosen() -> None:
    best = int(LOGITS.argmax())
    others = [token for token in range(40) if token != best]
    assert sample(LOGITS[None], [sequence(allowed_token_ids=(7,))])[0].token == 7
    assert set(drawn(LOGITS, allowed_token_ids=tuple(others[:2]))) == set(others[:2])


def test_a_list_that_leaves_nothing_does_not_hold() -> None:
    one = sequence(allowed_token_ids=(7,), temperature=0.0)
    one.constraint = Nine()
    assert sample(LOGITS[None], [one])[0].token == 9


def test_biases_come_before_penalties_as_in_vllm() -> None:
    logits = torch.tensor([2.0, 0.5, 0.2])
    # (0.5 + 3.0) / 2 is below 2.0, and 0.5 / 2 + 3.0 above it.
    one = sequence([1], logit_bias={1: 3.0}, repetition_penalty=2.0, temperature=0.0)
    assert sample(logits[None], [one])[0].token == 0


def test_min_p_then_top_k_then_top_p_as_in_vllm() -> None:
    from transformers import (
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    wishes = {"temperature": 1.3, "min_p": 0.05, "top_k": 12, "top_p": 0.7}
    left = LOGITS[None]
    for warp in (
        TemperatureLogitsWarper(1.3), MinPLogitsWarper(0.05), TopKLogitsWarper(12),
        TopPLogitsWarper(0.7),
    ):  # fmt: skip
        left = warp(torch.zeros(1, 1, dtype=torch.long), left)  # type: ignore[arg-type]
    assert_follows(drawn(LOGITS, **wishes), left[0].softmax(-1))


def test_top_p_is_of_what_a_large_top_k_leaves() -> None:
    count = 9 * CANDIDATES  # more than are sorted first, of twice as many that are all alike
    logits = torch.zeros(2 * count)
    assert len(drawn(logits, top_k=count, top_p=0.5)) <= count // 2 + 1


def test_a_prompts_token_has_its_rank() -> None:
    ranks = [one.rank for one in prompt_report(LOGITS.expand(40, -1), range(40), 0)]
    assert sorted(ranks) == list(range(1, 41))
    assert ranks[int(LOGITS.argmax())] == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("allowed_token_ids", (40,)),
        ("allowed_token_ids", (-1,)),
        ("stop", ("",)),
        ("stop", ("x" * 1025,)),
        ("truncate_prompt", -1),
    ],
)
def test_a_list_out_of_range_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"model 'm': {field} must be"):
        Sampling(**{field: value}).checked("m", vocabulary=40)
